"""A handler with a script for a model; the tracker, git and the containers are real."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kakoi.agent.loop import Limits
from kakoi.agent.tools import MCPToolClient, open_tools
from kakoi.config.credentials import credential_for
from kakoi.config.handlers import rules_in
from kakoi.config.settings import Settings
from kakoi.config.sources import task_getter
from kakoi.gate import Gate
from kakoi.mcp_server.server import make_server
from kakoi.mcp_server.serving import open_house_behind
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.checkout import CloneOptions, our_git
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.handler import Agent, Handled, HandlerOptions, TaskHandler
from tests.agent.models_for_tests import Script, call
from tests.tasks.hosting import now
from tests.tasks.hub import Hub, Lab
from tests.tasks.trackers import TOKEN

MEND = call("edit_file", path="adder.py", old_text="a - b", new_text="a + b  # both")
# With what is disarmed in words of a model: it is to be found all the same.
KEY = "a-key-#1-of-a-model-@that-nobody-may-see"


@dataclass
class House:
    """A handler with a script for a model, and what it has done."""

    hub: Hub | Lab
    manager: ExecutionEnvironmentManager
    folder: Path
    steps: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=lambda: Limits(steps=20))
    check_s: float = 0.0
    keep_s: float = 30.0

    def handler(self, script: Script) -> TaskHandler:
        @contextlib.asynccontextmanager
        async def model() -> AsyncIterator[Any]:
            self.steps.append("model")
            yield script.model

        @contextlib.asynccontextmanager
        async def tools(gate: Gate, workspace: str) -> AsyncIterator[MCPToolClient]:
            async with (
                open_house_behind(
                    gate,
                    settings=Settings(),
                    workspace=workspace,
                    audit_file=self.folder / "audit.jsonl",
                    is_here=False,
                ) as house,
                open_tools(make_server(house)) as client,
            ):
                yield client

        return TaskHandler(
            Recording(self.manager, self.steps),
            Agent(
                open_model=model,
                open_tools=tools,
                read_rules=rules_in,
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
            git=our_git(ProcessExecutor(), CloneOptions(), None),
            credential_for=lambda address: credential_for(address, self.hub.environ),
        )

    async def handle(
        self, *said: Any, key: str = "", attempt: int = 1, script: Script | None = None
    ) -> Handled:
        async with task_getter(Settings(), self.hub.environ) as getter:
            task = await getter.fetch(key or self.hub.issue)
            handler = self.handler(script or Script(*said))
            return await handler.handle(task, getter.source_of(task.key), attempt=attempt)

    def transcripts(self) -> list[Path]:
        return sorted((self.folder / "transcripts").glob("*.jsonl"))


class Recording:
    """The manager, and in which order it was asked for what."""

    def __init__(self, manager: ExecutionEnvironmentManager, steps: list[str]) -> None:
        self._manager = manager
        self._steps = steps

    async def prepare(self, task: Any) -> Any:
        self._steps.append("prepare")
        return await self._manager.prepare(task)

    def find(self, container_id: str) -> Any:
        return self._manager.find(container_id)

    async def cleanup(self, task_uuid: str) -> None:
        self._steps.append("cleanup")
        await self._manager.cleanup(task_uuid)
