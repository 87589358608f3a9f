"""`kakoi mcp`: from settings to a server, and an end in which nothing stays behind."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp.server.lowlevel.server import Server

from kakoi.config.opening import open_gate
from kakoi.config.settings import Settings
from kakoi.errors import KakoiError
from kakoi.gate import Gate
from kakoi.mcp_server.house import House
from kakoi.mcp_server.server import make_server
from kakoi.mcp_server.sessions import Sessions
from kakoi.mcp_server.stdio import Wire, claimed_streams
from kakoi.policy.rules import Policy
from kakoi.sandbox.settings import SandboxConfig

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GOODBYE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to serve, and how. Without an `address`: on standard input and output."""

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


def serve(wanted: Wanted) -> None:
    """Serve until the client is gone or a signal comes."""
    # Standard output is the protocol's.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="kakoi mcp: %(message)s")
    asyncio.run(_serve(wanted))


async def _serve(wanted: Wanted) -> None:
    # To the very end: clients close our input first and send signals right after, and one that
    # comes while things are taken away must not leave the rest of them.
    with _signals() as signals:
        async with open_house(wanted) as house:
            if wanted.address is None:
                await _serve_stdio(house, signals)
            else:
                await _serve_http(house, wanted, wanted.address, signals)


@contextlib.asynccontextmanager
async def open_house(wanted: Wanted) -> AsyncIterator[House]:
    """All that is served; at the end nothing that was started runs any more."""
    async with open_gate(
        wanted.policy,
        wanted.sandbox,
        workspace=wanted.workspace,
        unfit=wanted.unfit,
        audit_file=wanted.audit_file,
    ) as gate:
        house = House(
            gate=gate,
            workspace=wanted.workspace,
            name=wanted.settings.tasks.mcp_server.name,
            audit_file=wanted.audit_file,
            settings=wanted.settings,
            sessions=Sessions(wanted.cwd),
            env=wanted.env,
        )
        async with _lived_in(house):
            yield house


@contextlib.asynccontextmanager
async def open_house_behind(
    gate: Gate, *, settings: Settings, workspace: str, audit_file: Path, is_here: bool
) -> AsyncIterator[House]:
    """The same behind a gate that is open already, and stays so; `is_here`: see House."""
    house = House(
        gate=gate,
        workspace=workspace,
        name=settings.tasks.mcp_server.name,
        audit_file=audit_file,
        settings=settings,
        sessions=Sessions(workspace),
        is_here=is_here,
    )
    async with _lived_in(house):
        yield house


@contextlib.asynccontextmanager
async def _lived_in(house: House) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await house.end_installs()
        await _end_jobs(house.gate)


async def _serve_stdio(house: House, signals: "_Signals") -> None:
    if sys.stdin.isatty():
        _say("this is the Model Context Protocol on standard input; clients start it themselves")
    server = make_server(house)
    with claimed_streams() as (reading, writing):
        serving = asyncio.ensure_future(_talk(server, Wire(reading, writing)))
        signals.tell(serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()


async def _talk(server: Server[Any], wire: Wire) -> None:
    async with wire.streams() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _serve_http(house: House, wanted: Wanted, text: str, signals: "_Signals") -> None:
    # Its server is a tenth of the time that it takes to start, and most clients use pipes.
    from kakoi.mcp_server.http import Address, Listener, read_tokens

    address = Address.parse(text)
    tokens, is_new = read_tokens(wanted.token_files, wanted.token, address)
    listener = Listener(make_server(house), address, tokens, wanted.host_names)
    _say(f"listening on {listener.url}")
    for token in tokens.values() if is_new else ():
        _say(f"clients send the header `Authorization: Bearer {token}`")
    signals.tell(listener.stop)
    await listener.serve()


class _Signals:
    """Ends what is served when a signal comes; later ones change nothing."""

    def __init__(self) -> None:
        self._has_come = False
        self._end: Callable[[], object] | None = None

    def tell(self, end: Callable[[], object]) -> None:
        """Call this when one comes, or now, if one has come."""
        self._end = end
        if self._has_come:
            end()

    def come(self) -> None:
        if not self._has_come and self._end is not None:
            self._end()
        self._has_come = True


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.come)
    try:
        yield signals
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _end_jobs(gate: Gate) -> None:
    """End what still runs, so that its end is recorded; the sandbox goes right after."""
    jobs = gate.running_jobs
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            await asyncio.gather(*(_end_job(gate, job) for job in jobs))


async def _end_job(gate: Gate, job: str) -> None:
    with contextlib.suppress(KakoiError, OSError):
        await gate.stop(job)


def _say(text: str) -> None:
    print(f"kakoi mcp: {text}", file=sys.stderr, flush=True)
