"""The environments of tasks, for an MCP server: one of them, or all that the owner has."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi.audit import AuditRecord
from kakoi.backends.docker.inventory import ListedContainer
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.policy.rules import Policy
from kakoi.settings.model import Settings
from kakoi.settings.tasks import EXECUTOR_IS_OFF, HOW_TO_ENABLE
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.environments import ExecutionEnvironmentManager, find_container, find_environment
from kakoi.tasks.from_settings import environment_manager
from kakoi.tools.approval import UserContact
from kakoi.tools.arguments import Argument
from kakoi.tools.catalogue import ToolSpec
from kakoi.tools.replies import ToolResult, error_reply
from kakoi.tools.sessions import Caller, ToolSession
from kakoi.tools.state import ReportProgress
from kakoi.tools.toolset import Toolset, open_toolset

_CONTAINER: Final = Argument(
    kind="string", doc="The environment: the name or the id of its container."
)
OpenToolset = Callable[[str], AbstractAsyncContextManager[Toolset]]


@dataclass(frozen=True, slots=True)
class _Attached:
    id: str
    task: str
    tools: Toolset
    stack: AsyncExitStack


class TaskToolsets:
    """The tools of every environment of one owner. Each call names its environment.

    `open_toolset`: attaches to the environment of a task, and opens its tools.
    """

    def __init__(self, manager: ExecutionEnvironmentManager, open_toolset: OpenToolset) -> None:
        self._manager = manager
        self._open_toolset = open_toolset
        self._attached: dict[str, _Attached] = {}
        self._tasks: set[str] = set()
        self._attaching = asyncio.Lock()

    @property
    def workspace(self) -> str:
        """The directory of the project, in every environment."""
        return PROJECT

    @property
    def policy(self) -> Policy:
        """The policy of environments whose project does not tighten it."""
        return self._manager.options.policy

    @property
    def is_local(self) -> bool:
        """The workspace is not a directory on this machine."""
        return False

    def arguments_of(self, spec: ToolSpec) -> Mapping[str, Argument]:
        """The arguments of a tool. A job belongs to one environment; other calls name theirs."""
        if "job_id" in spec.arguments:
            return spec.arguments
        return {**spec.arguments, "container_id": _CONTAINER}

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        caller: Caller,
        contact: UserContact | None = None,
        report: ReportProgress | None = None,
    ) -> ToolResult:
        """Call a tool in the environment that the arguments name; see `Toolset.call`."""
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            if "job_id" in given:
                tools = self._of_job(given["job_id"])
            else:
                tools = await self._of_container(given.pop("container_id", ""))
        except KakoiError as error:
            return error_reply(error)
        return await tools.call(name, given, caller=caller, contact=contact, report=report)

    def session(self, caller: Caller, name: str) -> ToolSession:
        """The session of that name, in any environment."""
        for each in self._attached.values():
            with contextlib.suppress(ConfigurationError):
                return each.tools.session(caller, name)
        raise ConfigurationError(f"there is no session {name!r:.80}", hint="run a command first")

    def is_about(self, record: AuditRecord) -> bool:
        """Is it a record of an environment that this server has used?"""
        return record.task in self._tasks

    async def close(self) -> None:
        """Stop the jobs that were started here, and leave the environments as they are."""
        for name in list(self._attached):
            await finish(self._detach(name))

    def _of_job(self, job: object) -> Toolset:
        for each in self._attached.values():
            if isinstance(job, str) and each.tools.sessions.of_job(job) is not None:
                return each.tools
        raise ConfigurationError(
            f"there is no job {job!r:.80}", hint="list_jobs lists the jobs of an environment"
        )

    async def _of_container(self, container: object) -> Toolset:
        if not isinstance(container, str) or not container:
            raise ConfigurationError(
                "`container_id` is missing: this server serves all environments of its owner",
                hint="pass the name or the id of the container; `kakoi env ls` lists them",
            )
        async with self._attaching:
            found = await find_container(self._manager, container)
            known = self._attached.get(found.name)
            if known is not None and known.id == found.id:
                return known.tools
            # The task was prepared again: its old container is gone.
            await self._detach(found.name)
            return await self._attach(found)

    async def _attach(self, found: ListedContainer) -> Toolset:
        stack = AsyncExitStack()
        tools = await stack.enter_async_context(self._open_toolset(found.task))
        self._attached[found.name] = _Attached(found.id, found.task, tools, stack)
        self._tasks.add(found.task)
        return tools

    async def _detach(self, name: str) -> None:
        known = self._attached.pop(name, None)
        if known is not None:
            await known.stack.aclose()


@contextlib.asynccontextmanager
async def open_task_tools(
    settings: Settings, *, audit_file: Path, env: Mapping[str, str], task: str, container: str
) -> AsyncIterator[Toolset | TaskToolsets]:
    """Open the tools of the environment of `task` or with `container`; without both, of all."""
    if not settings.tasks.enabled:
        raise ConfigurationError(EXECUTOR_IS_OFF, hint=HOW_TO_ENABLE)
    manager = environment_manager(settings)

    @contextlib.asynccontextmanager
    async def attached(task_uuid: str) -> AsyncIterator[Toolset]:
        async with manager.attached(task_uuid) as environment:
            # Opened now, so that the id of its container is known to the first call.
            await environment.gate.open_sandbox()
            async with open_toolset(
                environment.gate,
                settings=settings,
                workspace=PROJECT,
                audit_file=audit_file,
                door="mcp",
                env=env,
                is_local=False,
            ) as tools:
                yield tools

    if task or container:
        found = await (
            find_environment(manager, task) if task else find_container(manager, container)
        )
        async with attached(found.task) as tools:
            yield tools
        return
    toolsets = TaskToolsets(manager, attached)
    try:
        yield toolsets
    finally:
        await toolsets.close()
