"""`kakoi mcp` as clients see it: the official client of the SDK, over each transport."""

import contextlib
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from kakoi.mcp.from_settings import ServerOptions, open_server_state
from kakoi.mcp.server import ServerState
from kakoi.sandbox.from_settings import sandbox_from
from kakoi.settings.policy import policy_from
from tests.cli.forked import Forked
from tests.cli.terminals import KAKOI, PATIENCE_S
from tests.tools.places import ToolPlace

TOKEN = "a token for tests, and long enough"
# The handshake until 2025, and the protocol without a handshake since 2026.
MODES = ("legacy", "2026-07-28")
any_mode = pytest.mark.parametrize("mode", MODES)


@dataclass(frozen=True)
class McpDoor(ToolPlace):
    """`kakoi mcp` for one workspace, with its own audit log and settings."""

    @property
    def errors(self) -> Path:
        return self.folder / "stderr.txt"

    @contextlib.asynccontextmanager
    async def server_state(self, **more: Any) -> AsyncIterator[ServerState]:
        """Open the server's state in this process; `more`: of its options."""
        settings = self.loaded()
        directory = str(self.workspace)
        options = ServerOptions(
            settings=settings,
            policy=policy_from(settings.policy, roots=[directory], origin="settings"),
            sandbox=sandbox_from(settings),
            workspace=directory,
            cwd=directory,
            audit_file=self.log,
            **more,
        )
        async with open_server_state(options) as state:
            yield state

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
        """Start the server on pipes. Its stderr goes to a file."""
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
        """Start an HTTP server that accepts `tokens`, and yield its URL."""
        with self.listener(*arguments, tokens=tokens) as (url, _process):
            yield url

    @contextlib.contextmanager
    def listener(
        self, *arguments: str, tokens: Sequence[str] = (TOKEN,)
    ) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
        """Start an HTTP server, and yield its URL and its process."""
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
        """Return what the server has written to stderr."""
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
    """Return the arguments with which the next call continues the session."""
    name = meta_of(result).get("session")
    assert name is None or f'session="{name}" continues from here]' in text_of(result)
    return {} if name is None else {"session": name}


async def run(client: Client, command: str, **arguments: Any) -> CallToolResult:
    return await client.call_tool("execute_command", {"command": command, **arguments})


def stdout_of(result: CallToolResult) -> str:
    start, end = meta_of(result)["spans"]["stdout"]
    return text_of(result)[start:end]
