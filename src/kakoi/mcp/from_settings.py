"""`kakoi mcp`: builds a server from settings, and cleans up everything at the end."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcp.server.lowlevel.server import Server

from kakoi._support.late import dataclass
from kakoi.approvals import Approvals
from kakoi.backends.settings import SandboxConfig
from kakoi.mcp.server import ServerState, make_server
from kakoi.mcp.stdio import StdioTransport, claim_stdio
from kakoi.policy.rules import Policy
from kakoi.sandbox.doors import sandbox_for
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.model import Settings
from kakoi.settings.policy import approvals_from
from kakoi.tools.toolset import Toolset, open_toolset

if TYPE_CHECKING:
    from kakoi.mcp.task_environments import TaskToolsets

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What to serve, and how. Without an `address`, serve on stdin and stdout.

    `task`, `container`: serve this environment of a task instead of the workspace.
    `all_tasks`: serve all of them; each call names one.
    """

    settings: Settings
    policy: Policy
    sandbox: SandboxConfig
    workspace: str
    cwd: str
    audit_file: Path
    unfit: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    token_files: Sequence[Path] = ()
    token: str = ""
    host_names: Sequence[str] = ()
    task: str = ""
    container: str = ""
    all_tasks: bool = False


def serve(options: ServerOptions) -> None:
    """Serve until the client disconnects or a signal arrives."""
    # Stdout carries the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="kakoi mcp: %(message)s")
    asyncio.run(_serve(options))


async def _serve(options: ServerOptions) -> None:
    # Handled to the very end: clients close stdin first and send signals right after. A signal
    # during cleanup must not leave the rest behind.
    with _signals() as signals:
        async with open_server_state(options) as state:
            if options.address is None:
                await _serve_stdio(state, signals)
            else:
                await _serve_http(state, options, options.address, signals)


@contextlib.asynccontextmanager
async def open_server_state(options: ServerOptions) -> AsyncIterator[ServerState]:
    """Open the server state. At the end, nothing that was started is still running."""
    of_tasks = options.task or options.container or options.all_tasks
    opened = _open_tasks(options) if of_tasks else _open_workspace(options)
    async with opened as tools:
        name = options.settings.tasks.mcp_server.name
        yield ServerState(tools=tools, name=name, audit_file=options.audit_file)


def _open_tasks(
    options: ServerOptions,
) -> contextlib.AbstractAsyncContextManager["Toolset | TaskToolsets"]:
    # Imported late: most servers serve a workspace.
    from kakoi.mcp.task_environments import open_task_tools

    return open_task_tools(
        options.settings,
        audit_file=options.audit_file,
        env=options.env,
        task=options.task,
        container=options.container,
    )


@contextlib.asynccontextmanager
async def _open_workspace(options: ServerOptions) -> AsyncIterator[Toolset]:
    sandbox = SandboxOptions(
        config=options.sandbox,
        policy=options.policy,
        workspace=options.workspace,
        unfit=options.unfit,
        audit_file=options.audit_file,
        concurrency=options.settings.execution.concurrency,
        approvals=_approvals(options),
    )
    async with (
        sandbox_for(sandbox) as box,
        open_toolset(
            box.gate,
            settings=options.settings,
            workspace=options.workspace,
            cwd=options.cwd,
            audit_file=options.audit_file,
            door="mcp",
            env=options.env,
        ) as tools,
    ):
        yield tools


def _approvals(options: ServerOptions) -> Approvals | None:
    """What the user wants remembered; nothing if there are several clients, of several people."""
    clients = len(options.token_files) + bool(options.token)
    if options.address is not None and clients > 1:
        return None
    return approvals_from(options.settings, options.workspace)


async def _serve_stdio(state: ServerState, signals: "_Signals") -> None:
    if sys.stdin.isatty():
        _log_line("speaking the Model Context Protocol on stdin; MCP clients start this themselves")
    server = make_server(state)
    with claim_stdio() as (reading, writing):
        serving = asyncio.ensure_future(_talk(server, StdioTransport(reading, writing)))
        signals.on_signal(serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()


async def _talk(server: Server[Any], wire: StdioTransport) -> None:
    async with wire.streams() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _serve_http(
    state: ServerState, options: ServerOptions, text: str, signals: "_Signals"
) -> None:
    # Imported late: the HTTP server is a tenth of the start-up time, and most clients use stdio.
    from kakoi.mcp.http import HttpListener, ListenAddress, read_tokens

    address = ListenAddress.parse(text)
    tokens, is_new = read_tokens(options.token_files, options.token, address)
    listener = HttpListener(make_server(state), address, tokens, options.host_names)
    _log_line(f"listening on {listener.url}")
    for token in tokens.values() if is_new else ():
        _log_line(f"clients send the header `Authorization: Bearer {token}`")
    signals.on_signal(listener.stop)
    await listener.serve()


class _Signals:
    """Stops serving when a signal arrives; later signals change nothing."""

    def __init__(self) -> None:
        self._has_come = False
        self._end: Callable[[], object] | None = None

    def on_signal(self, end: Callable[[], object]) -> None:
        """Call `end` when a signal arrives, or now if one already has."""
        self._end = end
        if self._has_come:
            end()

    def arrive(self) -> None:
        if not self._has_come and self._end is not None:
            self._end()
        self._has_come = True


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.arrive)
    try:
        yield signals
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _log_line(text: str) -> None:
    print(f"kakoi mcp: {text}", file=sys.stderr, flush=True)
