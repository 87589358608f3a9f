"""A handler with a scripted model. The tracker, git and the containers are real."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kakoi.agents.loop import LoopLimits
from kakoi.agents.tools import MCPToolClient, open_tools
from kakoi.gate import Gate
from kakoi.network.git_credentials import credential_for
from kakoi.process.executor import ProcessExecutor
from kakoi.settings.model import AuditSection, SandboxSection, Settings
from kakoi.settings.tasks import TaskSection
from kakoi.tasks.checkout import CloneOptions, git_from_options
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.folders import FolderEnvironments
from kakoi.tasks.from_settings import task_getter
from kakoi.tasks.handler import Agent, HandlerOptions, TaskHandler, TaskResult
from kakoi.tasks.handler_from_settings import open_environments, read_rules_files
from kakoi.tools.toolset import open_toolset
from tests.agents.models_for_tests import Script, call
from tests.tasks.hosting import now
from tests.tasks.hub import Hub, Lab
from tests.tasks.trackers import TOKEN

MEND = call("edit_file", path="adder.py", old_text="a - b", new_text="a + b  # both")
# Contains characters that are escaped in a model's text. Redaction must find it all the same.
KEY = "a-key-#1-of-a-model-@that-nobody-may-see"


@dataclass
class ScriptedHandler:
    """A handler with a scripted model, and a record of its actions."""

    hub: Hub | Lab
    manager: ExecutionEnvironmentManager | FolderEnvironments
    folder: Path
    steps: list[str] = field(default_factory=list)
    limits: LoopLimits = field(default_factory=lambda: LoopLimits(steps=20))
    check_s: float = 0.0
    keep_s: float = 30.0

    def handler(self, script: Script) -> TaskHandler:
        @contextlib.asynccontextmanager
        async def model() -> AsyncIterator[Any]:
            self.steps.append("model")
            yield script.model

        @contextlib.asynccontextmanager
        async def tools(gate: Gate | None, workspace: str) -> AsyncIterator[MCPToolClient]:
            assert gate is not None
            async with (
                open_toolset(
                    gate,
                    settings=Settings(),
                    workspace=workspace,
                    audit_file=self.folder / "audit.jsonl",
                    door="agent",
                    is_local=False,
                ) as own,
                open_tools(own) as client,
            ):
                yield client

        return TaskHandler(
            RecordingManager(self.manager, self.steps),
            Agent(
                open_model=model,
                open_tools=tools,
                read_rules=read_rules_files,
                rule_files=("AGENTS.md", ".coding-agent-rules.yaml"),
                limits=self.limits,
            ),
            HandlerOptions(
                transcripts=self.folder / "transcripts",
                secrets=(TOKEN, KEY),
                check_s=self.check_s,
                keep_s=self.keep_s,
            ),
            clock=now,
            git=git_from_options(ProcessExecutor(), CloneOptions(), None),
            credential_for=lambda address: credential_for(address, self.hub.environ),
        )

    async def handle(
        self, *said: Any, key: str = "", attempt: int = 1, script: Script | None = None
    ) -> TaskResult:
        async with task_getter(Settings(), self.hub.environ) as getter:
            task = await getter.fetch(key or self.hub.issue)
            handler = self.handler(script or Script(*said))
            return await handler.handle(task, getter.source_of(task.key), attempt=attempt)

    def transcripts(self) -> list[Path]:
        return sorted((self.folder / "transcripts").glob("*.jsonl"))


@contextlib.asynccontextmanager
async def in_folders(
    hub: Hub | Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ScriptedHandler]:
    """Open a handler that runs its tasks in folders of this machine, in bubblewrap."""
    for name, value in hub.environ.items():
        monkeypatch.setenv(name, value)
    settings = Settings(
        tasks=TaskSection(place="folder"),
        sandbox=SandboxSection(type="bubblewrap"),
        audit=AuditSection(file=str(folder / "audit.jsonl")),
    )
    async with open_environments(settings) as environments:
        yield ScriptedHandler(hub, environments, folder)
    workspaces = folder / "workspaces"
    assert not workspaces.exists() or list(workspaces.iterdir()) == []


class RecordingManager:
    """The manager, with a record of the calls in order."""

    def __init__(
        self, manager: ExecutionEnvironmentManager | FolderEnvironments, steps: list[str]
    ) -> None:
        self._manager = manager
        self._steps = steps

    async def prepare_environment(self, task: Any) -> Any:
        self._steps.append("prepare")
        return await self._manager.prepare_environment(task)

    async def cleanup(self, task_uuid: str) -> None:
        self._steps.append("cleanup")
        await self._manager.cleanup(task_uuid)
