"""Settings → who does tasks: environments, an agent, and a handler that joins them.

Imports what talks to models: only who runs an agent imports this.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Final

from kakoi.agent.events import Listener
from kakoi.agent.loop import ignore
from kakoi.agent.models import open_model
from kakoi.agent.project import GUIDE_NAME, checked_text, project_text
from kakoi.config.agents import limits_from, model_options, transcripts_folder
from kakoi.config.credentials import credential_for, server_and_token
from kakoi.config.environments import environment_manager, ssh_variables
from kakoi.config.loading import PROJECT_FILES, with_project
from kakoi.config.opening import open_gate, sandbox_from
from kakoi.config.policies import policy_from
from kakoi.config.project_rules import RULES_NAME, ProjectRules, project_rules
from kakoi.config.recording import audit_file, now
from kakoi.config.settings import Settings
from kakoi.gate import Gate
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.checkout import CloneOptions, our_git
from kakoi.tasks.delivery import Author
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.folders import FolderEnvironments
from kakoi.tasks.handler import Agent, HandlerOptions, TaskHandler, ToolBox
from kakoi.tasks.our_git import OurGit

_HINT: Final = "mend it, or remove it"
OpenTools = Callable[[Gate, str], AbstractAsyncContextManager[ToolBox]]


@contextlib.asynccontextmanager
async def open_environments(
    settings: Settings, *, for_many: bool = False
) -> AsyncIterator[ExecutionEnvironmentManager | FolderEnvironments]:
    """Who makes environments; leftovers of earlier runs are looked for by whoever produces.

    `for_many`: tasks are to come, so those that wait for the next ones are made now.
    """
    if settings.tasks.place == "folder":
        yield FolderEnvironments(
            audit_file(settings).parent / "workspaces",
            open_gate=lambda workspace, task: _gate(settings, workspace, task),
            git=host_git(settings),
            credential_for=credential_for,
            clock=now,
        )
        return
    manager = environment_manager(settings)
    if for_many:
        manager.begin_to_warm()
    try:
        yield manager
    finally:
        await manager.close()


def task_handler(
    settings: Settings,
    environments: ExecutionEnvironmentManager | FolderEnvironments,
    open_tools: OpenTools,
    *,
    listener: Listener = ignore,
) -> TaskHandler:
    """Who does tasks as the settings say. ConfigurationError: no model is named, for one."""
    options = model_options(settings.agent)
    tasks = settings.tasks
    tokens = [server_and_token(name, os.environ)[1] for name in ("github", "gitlab")]
    return TaskHandler(
        environments,
        Agent(
            open_model=lambda: open_model(options),
            open_tools=open_tools,
            read_rules=rules_in,
            rule_files=(GUIDE_NAME, RULES_NAME),
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


async def sweep(
    settings: Settings, environments: ExecutionEnvironmentManager | FolderEnvironments
) -> list[str]:
    """Remove what earlier runs have left behind."""
    older_than = timedelta(hours=settings.tasks.cleanup.stale_threshold_hours)
    return await environments.cleanup_stale_containers(older_than)


def host_git(settings: Settings) -> OurGit:
    """Git on this machine."""
    options = CloneOptions(known_hosts=settings.tasks.clone.known_hosts)
    return our_git(ProcessExecutor(), options, ssh_variables())


def rules_in(files: Mapping[str, bytes]) -> ProjectRules:
    """The rules in a project's files."""
    texts = {name: checked_text(data, Path(name), hint=_HINT) for name, data in files.items()}
    return project_rules(texts.get(GUIDE_NAME), texts.get(RULES_NAME), Path(RULES_NAME))


def _gate(settings: Settings, workspace: str, task: str) -> AbstractAsyncContextManager[Gate]:
    found = {name: project_text(Path(workspace, name), hint=_HINT) for name in PROJECT_FILES}
    files = {name: text.encode() for name, text in found.items() if text is not None}
    own = with_project(settings, files) if files else settings
    return open_gate(
        policy_from(own.policy, roots=[workspace], origin="settings"),
        sandbox_from(own),
        workspace=workspace,
        audit_file=audit_file(settings),
        task=task,
    )
