"""pydantic-ai: runs of an agent that work in kakoi sandboxes. `pip install 'kakoi[pydantic-ai]'`.

async with SandboxWorkspaces(Sandbox) as sandboxes:
    agent = Agent("openai:gpt-5", capabilities=[sandboxes])
    await agent.run("What is in this workspace?")
"""

import asyncio
import math
import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal, Self

from kakoi._support.extras import missing_framework

try:
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        WorkspaceBackend,
        WorkspaceCommand,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ModuleNotFoundError as error:
    raise missing_framework(error, extra="pydantic-ai") from error

from kakoi.channel.api import FileInfo
from kakoi.errors import FileError, KakoiError, SandboxError
from kakoi.integrations.commands import (
    REFUSALS,
    NewSandbox,
    approve_as_framework,
    approved,
    check_kept,
    question_about,
    refusal_text,
    reply_to_command,
)
from kakoi.integrations.files import builtin_error, real_path, write_plainly
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.sandbox import Sandbox

PROVIDER: Final = "kakoi"
OUTPUT_LIMIT: Final = 10 * 1024 * 1024
REFUSED: Final = 126  # As `kakoi run` exits.


@dataclass(frozen=True, kw_only=True)
class SandboxCommandResult(CommandResult):
    """A result of pydantic-ai, with what kakoi knows. `refusal`: why the command did not run."""

    result: ExecutionResult | None = None
    refusal: KakoiError | None = None


@dataclass
class SandboxWorkspaces(AbstractCapability[Any]):
    """Gives each run a sandbox as its workspace, and the model the tool `run_command`.

    `sandbox`: called to make one: `Sandbox`, `partial(Sandbox, "docker", image=…)`, …
    `approval`: what becomes of commands that need one. "refused": the sandbox's own `approve`
        answers; without it, they are refused. "deferred": `run_command` is deferred for approval,
        and `sandbox` is called with an `approve` of ours.
    `attach`: finds a sandbox of another process by the id in a ref, as `Sandbox.attach` does.

    It holds the sandboxes, and closes them at the end of its `async with`.
    """

    sandbox: NewSandbox = Sandbox
    _: KW_ONLY
    approval: Literal["refused", "deferred"] = "refused"
    attach: Callable[[str], Awaitable[Sandbox]] | None = None
    held: dict[str, Sandbox] = field(default_factory=dict, repr=False)

    def backend(self, ref: WorkspaceRef | None = None) -> "SandboxWorkspace":
        """Return a workspace: that of `ref`, or a new one that opens when it is first used."""
        return SandboxWorkspace(self, ref)

    def get_workspace(
        self, ctx: RunContext[Any], *, ref: WorkspaceRef | None
    ) -> WorkspaceBackend | None:
        """Return the workspace of a run; None if `ref` is another provider's."""
        return self.backend(ref) if ref is None or ref.provider == PROVIDER else None

    def get_toolset(self) -> FunctionToolset[Any]:
        """Return the tool `run_command`."""
        return FunctionToolset([self.run_command])

    async def run_command(
        self, ctx: RunContext[Any], command: str, timeout: float | None = None
    ) -> str:
        """Run a shell command in the workspace and return its output.

        Args:
            ctx: The run.
            command: The text for the shell.
            timeout: Seconds that it can run.
        """
        backend = ctx.workspace.backend
        if not isinstance(backend, SandboxWorkspace):
            return "The workspace of this run is not a kakoi sandbox."
        with _as_workspace_errors():
            box = await backend.open()
            asks = self.approval == "deferred" and not ctx.tool_call_approved
            if asks and (question := await question_about(box, command)):
                raise ApprovalRequired(metadata={"question": question})
            with approved(ctx.tool_call_approved):
                return await reply_to_command(box, command, timeout=timeout)

    async def open(self, ref: WorkspaceRef | None) -> Sandbox:
        """Open a sandbox, or find the one of `ref`."""
        if ref is None:
            asked = {"approve": approve_as_framework} if self.approval == "deferred" else {}
            box = await self.sandbox(**asked).open()
        elif ref.id in self.held:
            box = self.held[ref.id]
        elif self.attach is not None:
            box = await self.attach(ref.id)
        else:
            raise WorkspaceUnavailableError(f"there is no sandbox {ref.id!r} here")
        self.held[box.id] = box
        return box

    async def delete(self, ref: WorkspaceRef) -> None:
        """End the sandbox of a ref."""
        if (box := self.held.pop(ref.id, None)) is not None:
            await box.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for id in list(self.held):
            await self.delete(WorkspaceRef(provider=PROVIDER, id=id))


class SandboxWorkspace(WorkspaceBackend):
    """One workspace: commands, files and real paths of a sandbox."""

    def __init__(self, home: SandboxWorkspaces, ref: WorkspaceRef | None = None) -> None:
        self._home = home
        self._ref = ref
        self._box: Sandbox | None = None
        self._turn = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The id of the sandbox, once it is open."""
        return self._ref

    async def open(self) -> Sandbox:
        """Return the sandbox; the first call opens it."""
        async with self._turn:
            if self._box is None:
                with _as_workspace_errors():
                    self._box = await self._home.open(self._ref)
                self._ref = WorkspaceRef(provider=PROVIDER, id=self._box.id)
        return self._box

    async def working_dir(self) -> str:
        """Return where commands start."""
        with _as_workspace_errors():
            return (await self.open()).info.workspace

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SandboxCommandResult:
        """Run a command. One that the policy refuses has the exit code 126, and says why."""
        if isinstance(command, str) is not shell:
            raise TypeError("text needs shell=True, and a sequence shell=False")
        with _as_workspace_errors():
            box = await self.open()
            try:
                result = await box.run(
                    command, env=env, timeout=timeout or math.inf, max_output=OUTPUT_LIMIT
                )
            except REFUSALS as error:
                why = f"{refusal_text(error)}\n"
                return SandboxCommandResult(exit_code=REFUSED, stdout="", stderr=why, refusal=error)
            check_kept(result)
        return _command_result(result)

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file."""
        with _as_workspace_errors():
            return await (await self.open()).files.read(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, through a link if there is one."""
        with _as_workspace_errors():
            await write_plainly(await self.open(), path, data)

    async def stat(self, path: str) -> FileEntry:
        """Describe a file or directory; of a link, what it points to."""
        with _as_workspace_errors():
            found = await (await self.open()).files.stat(path)
            return await self._entry(found, path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """Return what is in a directory, by name."""
        with _as_workspace_errors():
            found = await (await self.open()).files.list(path)
            return [await self._entry(each, each.path) for each in found]

    async def _entry(self, found: FileInfo, path: str) -> FileEntry:
        name = posixpath.basename(path)
        if found.kind == "link":
            try:
                found = await (await self.open()).files.stat(await self.realpath(path))
            except OSError:
                return FileEntry(name=name, path=path, is_dir=False, size=None)
        is_dir = found.kind == "directory"
        return FileEntry(name=name, path=path, is_dir=is_dir, size=None if is_dir else found.size)

    async def make_dir(self, path: str) -> None:
        """Make a directory, and those above it."""
        with _as_workspace_errors():
            await (await self.open()).files.make_dir(path)

    async def remove(self, path: str) -> None:
        """Remove a file or directory, but not the workspace or what it is in."""
        if posixpath.commonpath([path, await self.working_dir()]) == path:
            raise ValueError("this is the workspace, or above it")
        with _as_workspace_errors():
            await (await self.open()).files.remove(path)

    async def exists(self, path: str) -> bool:
        """Whether there is something at the path."""
        with _as_workspace_errors():
            return await (await self.open()).files.exists(path)

    async def realpath(self, path: str) -> str:
        """Follow every link in the path, in the sandbox."""
        with _as_workspace_errors():
            return await real_path(await self.open(), path)


def _command_result(result: ExecutionResult) -> SandboxCommandResult:
    if result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT):
        raise WorkspaceTimeoutError(
            f"the command was ended after {result.duration:.1f} seconds",
            stdout=result.stdout,
            stderr=result.stderr,
        )
    if result.truncated:
        raise WorkspaceOutputLimitError(
            f"the command wrote more than {OUTPUT_LIMIT} bytes",
            limit=OUTPUT_LIMIT,
            stdout=result.stdout,
            stderr=result.stderr,
        )
    stderr = result.stderr or result.error
    return SandboxCommandResult(
        exit_code=result.exit_code, stdout=result.stdout, stderr=stderr, result=result
    )


@contextmanager
def _as_workspace_errors() -> Iterator[None]:
    """Raise kakoi's errors as those that pydantic-ai knows."""
    try:
        yield
    except SandboxError as error:
        raise WorkspaceUnavailableError(f"{error} {error.hint}".strip()) from error
    except FileError as error:
        raise builtin_error(error) from error
    except REFUSALS as error:
        raise PermissionError(refusal_text(error)) from error
