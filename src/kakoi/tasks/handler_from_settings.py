"""A task handler, created from the settings: environments, an agent, and what joins them.

It imports the model libraries, so only code that runs an agent should import it.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from kakoi.agents.events import EventListener
from kakoi.agents.from_settings import (
    limits_from,
    model_options,
    servers_from,
    transcripts_folder,
)
from kakoi.agents.loop import ignore_events
from kakoi.agents.models import open_model
from kakoi.agents.project_rules import (
    GUIDE_NAME,
    RULES_NAME,
    ProjectRules,
    decode_project_text,
    parse_project_rules,
    read_project_text,
)
from kakoi.agents.servers import PASSED_ON, ServerSpec
from kakoi.agents.tools import AskUser, MCPToolClient, open_tools
from kakoi.backends.select import engine_environment
from kakoi.errors import ConfigurationError
from kakoi.gate import Gate
from kakoi.network.git_credentials import PLATFORMS, credential_for, server_and_token
from kakoi.process.executor import ProcessExecutor
from kakoi.sandbox.from_settings import sandbox_from
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.audit_log import audit_file, now
from kakoi.settings.files import MISNAMED, PROJECT_FILES
from kakoi.settings.loader import with_project
from kakoi.settings.model import Settings
from kakoi.settings.policy import policy_from
from kakoi.settings.tasks import EXECUTOR_IS_OFF, HOW_TO_ENABLE
from kakoi.tasks.changes import Author
from kakoi.tasks.checkout import CloneOptions, git_from_options
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.folders import FolderEnvironments
from kakoi.tasks.from_settings import clone_depth, environment_manager, ssh_variables
from kakoi.tasks.handler import Agent, HandlerOptions, TaskHandler
from kakoi.tasks.host_git import HostGit
from kakoi.tools.toolset import open_toolset

_HINT: Final = "fix it, or remove it"


@contextlib.asynccontextmanager
async def open_environments(
    settings: Settings, *, for_many: bool = False
) -> AsyncIterator[ExecutionEnvironmentManager | FolderEnvironments]:
    """The manager of environments. It does not sweep leftovers of earlier runs: producers do.

    `for_many`: more tasks will follow, so the pool is filled now.
    """
    if settings.tasks.place == "folder":
        yield FolderEnvironments(
            audit_file(settings).parent / "workspaces",
            options_for=lambda workspace, task: _options(settings, workspace, task),
            git=host_git(settings),
            credential_for=credential_for,
            clock=now,
            depth=clone_depth(settings),
        )
        return
    manager = environment_manager(settings)
    if for_many and settings.tasks.enabled:
        manager.warm_in_background()
    try:
        yield manager
    finally:
        await manager.close()


def task_handler(
    settings: Settings,
    environments: ExecutionEnvironmentManager | FolderEnvironments,
    *,
    ask: AskUser | None = None,
    listener: EventListener = ignore_events,
) -> TaskHandler:
    """A task handler for these settings. ConfigurationError: for example, no model is set.

    `ask`: asks a person where the policy wants one to decide.
    """
    servers = servers_from(settings.agent)
    if not settings.tasks.enabled and not servers:
        raise ConfigurationError(EXECUTOR_IS_OFF, hint=HOW_TO_ENABLE)
    tasks = settings.tasks
    executor = _executor(settings, servers)
    options = model_options(settings.agent)
    tokens = [server_and_token(name, os.environ)[1] for name in PLATFORMS]
    return TaskHandler(
        environments if tasks.enabled else None,
        Agent(
            open_model=lambda: open_model(options),
            open_tools=lambda gate, workspace: _open_tools(
                settings, servers, executor, ask, gate, workspace
            ),
            read_rules=read_rules_files,
            rule_files=(GUIDE_NAME, RULES_NAME),
            server=tasks.mcp_server.name,
            limits=limits_from(settings.agent),
        ),
        HandlerOptions(
            transcripts=transcripts_folder(settings.agent),
            author=Author(name=tasks.author_name, email=tasks.author_email),
            secrets=tuple(secret for secret in (*tokens, options.key) if secret),
            check_s=tasks.sources.check_seconds,
            max_attempts=tasks.queue.max_attempts,
            keep_s=tasks.keep_seconds,
            protected=tasks.protected_paths,
        ),
        clock=now,
        git=host_git(settings),
        credential_for=credential_for,
        listener=listener,
    )


def _executor(settings: Settings, servers: Sequence[ServerSpec]) -> ServerSpec | None:
    """Another server that runs the commands of tasks; None: kakoi runs them."""
    tasks, server = settings.tasks, settings.tasks.mcp_server
    if not (tasks.enabled and server.is_foreign):
        return None
    if tasks.place != "container":
        raise ConfigurationError(
            "tasks.mcp_server.command names another server, which would run commands on this "
            f"machine: with `tasks.place: {tasks.place}` there is no container for them",
            hint="remove it, or set `tasks.place: container`",
        )
    if server.name in (each.name for each in servers):
        raise ConfigurationError(
            f"tasks.mcp_server.name and agent.mcp_servers both name a server `{server.name}`",
            hint="rename one",
        )
    # It finds the container by the same engine as kakoi.
    env = {each: os.environ[each] for each in PASSED_ON if each in os.environ}
    env |= engine_environment(os.environ)
    timeout_s = settings.execution.timeout_seconds
    return ServerSpec(name=server.name, command=server.command, env=env, timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def _open_tools(
    settings: Settings,
    servers: Sequence[ServerSpec],
    executor: ServerSpec | None,
    ask: AskUser | None,
    gate: Gate | None,
    workspace: str,
) -> AsyncIterator[MCPToolClient]:
    if gate is None:
        async with open_tools(None, servers, ask=ask) as tools:
            yield tools
        return
    async with (
        open_toolset(
            gate,
            settings=settings,
            workspace=workspace,
            audit_file=audit_file(settings),
            door="agent",
            is_local=settings.tasks.place == "folder",
        ) as own,
        open_tools(
            own, servers, name=settings.tasks.mcp_server.name, executor=executor, ask=ask
        ) as tools,
    ):
        yield tools


async def sweep(
    settings: Settings, environments: ExecutionEnvironmentManager | FolderEnvironments
) -> list[str]:
    """Remove what earlier runs left behind."""
    older_than = timedelta(hours=settings.tasks.cleanup.stale_threshold_hours)
    return await environments.cleanup_stale_containers(older_than)


def host_git(settings: Settings) -> HostGit:
    """Git on this machine."""
    options = CloneOptions(known_hosts=settings.tasks.clone.known_hosts)
    return git_from_options(ProcessExecutor(), options, ssh_variables())


def read_rules_files(files: Mapping[str, bytes]) -> ProjectRules:
    """The rules in a project's files."""
    texts = {
        name: decode_project_text(data, Path(name), hint=_HINT) for name, data in files.items()
    }
    return parse_project_rules(texts.get(GUIDE_NAME), texts.get(RULES_NAME), Path(RULES_NAME))


def _options(settings: Settings, workspace: str, task: str) -> SandboxOptions:
    names = (*PROJECT_FILES, *MISNAMED)
    found = {name: read_project_text(Path(workspace, name), hint=_HINT) for name in names}
    files = {name: text.encode() for name, text in found.items() if text is not None}
    own = with_project(settings, files) if files else settings
    return SandboxOptions(
        config=sandbox_from(own),
        policy=policy_from(own.policy, roots=[workspace], origin="settings"),
        workspace=workspace,
        audit_file=audit_file(settings),
        labels={"task": task},
        concurrency=own.execution.concurrency,
    )
