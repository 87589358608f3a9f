"""`kakoi mcp` as clients meet it: the official client of the SDK, over each transport."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from kakoi.config.loading import load_settings
from kakoi.config.opening import sandbox_from
from kakoi.config.policies import policy_from
from kakoi.mcp_server.house import House
from kakoi.mcp_server.serving import Wanted, open_house
from tests.doors.forked import Forked
from tests.doors.terminals import KAKOI, PATIENCE_S

TOKEN = "a token for tests, and long enough"
# The handshake of 2025 and before; and one request after the other, since 2026.
MODES = ("legacy", "2026-07-28")
any_mode = pytest.mark.parametrize("mode", MODES)


@dataclass(frozen=True)
class McpDoor:
    """kakoi mcp for one workspace, with a log and settings of its own."""

    folder: Path
    sandbox: str = "host"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def log(self) -> Path:
        return self.folder / "audit.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "stderr.txt"

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

    @contextlib.asynccontextmanager
    async def house(self) -> AsyncIterator[House]:
        """Without a process of its own."""
        loaded = load_settings(
            self.workspace,
            environ=self.environ,
            call=self.settings,
            config_file=self.folder / "config.yaml",
        )
        settings = loaded.settings
        directory = str(self.workspace)
        wanted = Wanted(
            settings=settings,
            policy=policy_from(settings.policy, roots=[directory], origin="settings"),
            sandbox=sandbox_from(settings),
            workspace=directory,
            cwd=directory,
            audit_file=self.log,
        )
        async with open_house(wanted) as house:
            yield house

    def words(self, *arguments: str) -> list[str]:
        return ["mcp", "--workspace", str(self.workspace), *arguments]

    def argv(self, *arguments: str) -> list[str]:
        return [*KAKOI, *self.words(*arguments)]

    @contextlib.asynccontextmanager
    async def stdio(
        self, mode: str, ask: ElicitationFnT | None = None, arguments: Sequence[str] = ()
    ) -> AsyncIterator[Client]:
        program, *rest = self.argv(*arguments)
        server = StdioServerParameters(command=program, args=rest, env=self.environ)
        with self.errors.open("a") as errors:
            transport = stdio_client(server, errlog=errors)
            async with Client(transport, mode=mode, elicitation_callback=ask) as client:
                yield client

    @contextlib.contextmanager
    def process(self, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Running, on pipes; its errors go to a file."""
        with self.errors.open("ab") as errors:
            process = Forked(
                *self.words(*arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environ,
                bufsize=0,
            )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def listening(self, *arguments: str, tokens: Sequence[str] = (TOKEN,)) -> Iterator[str]:
        """The address of a server on HTTP that has the token of the tests, or those."""
        with self.listener(*arguments, tokens=tokens) as (url, _process):
            yield url

    @contextlib.contextmanager
    def listener(
        self, *arguments: str, tokens: Sequence[str] = (TOKEN,)
    ) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
        """That address, and the server."""
        options = ["--http", "127.0.0.1:0", *arguments]
        for number, token in enumerate(tokens):
            file = self.folder / f"token{number}"
            file.write_text(token + "\n")
            file.chmod(0o600)
            options += ["--token-file", str(file)]
        before = self.said()
        with self.process(*options) as process:
            give_up = time.monotonic() + PATIENCE_S
            while not (found := re.search(r"listening on (\S+)", self.said()[len(before) :])):
                assert time.monotonic() < give_up, self.said()
                assert process.poll() is None, self.said()
                time.sleep(0.01)
            yield found[1], process

    def said(self) -> str:
        """What it has written to its standard error."""
        return self.errors.read_text() if self.errors.exists() else ""


@contextlib.asynccontextmanager
async def over_http(
    url: str, mode: str, ask: ElicitationFnT | None = None, token: str = TOKEN
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, elicitation_callback=ask) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def meta_of(result: CallToolResult) -> dict[str, Any]:
    assert result.meta is not None
    found: dict[str, Any] = result.meta["kakoi"]
    return found


def told_session(result: CallToolResult) -> dict[str, str]:
    """The arguments by which the next call goes on from there."""
    name = meta_of(result).get("session")
    assert name is None or f'session="{name}" goes on from here]' in text_of(result)
    return {} if name is None else {"session": name}


async def run(client: Client, command: str, **arguments: Any) -> CallToolResult:
    return await client.call_tool("execute_command", {"command": command, **arguments})


def stdout_of(result: CallToolResult) -> str:
    start, end = meta_of(result)["spans"]["stdout"]
    return text_of(result)[start:end]


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until `condition()` holds."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            assert what
            await anyio.sleep(0.01)
