"""A tool set without MCP: a workspace, a gate from settings, and the tools over it."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from kakoi.channel.api import Command
from kakoi.gate import Call, Gate
from kakoi.policy.decide import Decision
from kakoi.sandbox.doors import sandbox_for
from kakoi.sandbox.from_settings import sandbox_from
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.loader import load_settings
from kakoi.settings.model import Settings
from kakoi.settings.policy import policy_from
from kakoi.tools.replies import ToolResult
from kakoi.tools.toolset import Toolset, open_toolset
from tests.cli.terminals import PATIENCE_S


@dataclass(frozen=True)
class ToolPlace:
    """Where tools work: one workspace, with its own audit log and settings."""

    folder: Path
    sandbox: str = "host"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def log(self) -> Path:
        return self.folder / "audit.jsonl"

    @property
    def environ(self) -> dict[str, str]:
        names = ("PATH", "HOME")
        ours = {name: os.environ[name] for name in names if name in os.environ}
        return {
            **ours,
            "KAKOI_AUDIT_FILE": str(self.log),
            "KAKOI_CONFIG": str(self.folder / "config.yaml"),
            "KAKOI_SANDBOX": self.sandbox,
            "LANG": "C.UTF-8",
        }

    def loaded(self) -> Settings:
        """Return the settings, as a door loads them."""
        return load_settings(
            self.workspace,
            environ=self.environ,
            call=self.settings,
            config_file=self.folder / "config.yaml",
        ).settings

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Toolset]:
        """Open the tools as the doors do."""
        settings = self.loaded()
        directory = str(self.workspace)
        options = SandboxOptions(
            config=sandbox_from(settings),
            policy=policy_from(settings.policy, roots=[directory], origin="settings"),
            workspace=directory,
            audit_file=self.log,
            concurrency=settings.execution.concurrency,
        )
        async with (
            sandbox_for(options) as box,
            open_toolset(
                box.gate,
                settings=settings,
                workspace=directory,
                audit_file=self.log,
                door="agent",
            ) as tools,
        ):
            yield tools


class CountingGate(Gate):
    """A gate that counts its judgements."""

    judged = 0

    async def judge(self, command: Command, call: Call | None = None) -> Decision:
        self.judged += 1
        return await super().judge(command, call or Call())


@contextlib.asynccontextmanager
async def tools_over(gate: Gate, workspace: Path) -> AsyncIterator[Toolset]:
    """Open tools over a gate to an open sandbox; both are closed at the end."""
    assert gate.sandbox is not None
    log = workspace.parent / "audit.jsonl"
    try:
        async with open_toolset(
            gate, settings=Settings(), workspace=str(workspace), audit_file=log, door="agent"
        ) as tools:
            yield tools
    finally:
        await gate.close()
        await gate.sandbox.cleanup()


async def run(tools: Toolset, command: str, **arguments: Any) -> ToolResult:
    return await tools.call("execute_command", {"command": command, **arguments})


def stdout_of(result: ToolResult) -> str:
    start, end = result.meta["spans"]["stdout"]
    return result.text[start:end]


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until `condition()` is true."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            assert what
            await anyio.sleep(0.01)
