"""Sandboxes of bubblewrap as root and as a normal user, and programs run bare in them."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import pytest

from kakoi.process.stream import Launch, ProcessStream
from kakoi.sandbox.adapter import Availability
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.bubblewrap_launch import Settings, System, build_launch, look_at_system
from kakoi.sandbox.workspace import look_at, look_at_workspace

WAIT_S = 60.0
IS_ROOT = os.geteuid() == 0
# Nobody on this machine, and not whom a sandbox of root's runs as.
USER = 65431 if IS_ROOT else os.getuid()
GROUP = 65432 if IS_ROOT else os.getgid()
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"] if IS_ROOT else []

Kind = Literal["root's workspace", "root, a user's workspace", "a user"]
ROOTS: list[Kind] = ["root's workspace", "root, a user's workspace"] if IS_ROOT else []
KINDS: list[Kind] = [*ROOTS, "a user"]
# For what the kernel does with the files of whoever they belong to: the first and the last differ most.
_BETWEEN = pytest.mark.extended("repetition: between root's own workspace and that of a user")
SOME_KINDS = [
    pytest.param(kind, marks=_BETWEEN if kind == "root, a user's workspace" else (), id=kind)
    for kind in KINDS
]
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can set this up")


class Wanted(TypedDict, total=False):
    """What a sandbox is to have beyond the usual."""

    read_only: Sequence[Path]
    guarded: Sequence[Path]
    network: Literal["none", "host"]
    env: Mapping[str, str]
    system: System


@dataclass(frozen=True)
class Said:
    """What came of a program."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


@dataclass(frozen=True)
class Box:
    """A workspace, who runs sandboxes in it, and who their commands should be to the kernel."""

    workspace: Path
    kind: Kind
    uid: int
    gid: int

    def launch(self, *program: str, **wanted: Unpack[Wanted]) -> Launch:
        system = wanted.get("system") or look_at_system()
        assert system is not None
        if self.kind == "a user":
            system = replace(system, uid=USER, gid=GROUP)
        settings = Settings(
            workspace=look_at_workspace(self.workspace),
            read_only=tuple(look_at(path, what="it") for path in wanted.get("read_only", ())),
            guarded=tuple(look_at(path, what="it") for path in wanted.get("guarded", ())),
            network=wanted.get("network", "none"),
            env=wanted.get("env", {}),
        )
        launch = build_launch(settings, system, program)
        who = AS_USER if self.kind == "a user" else []
        return replace(launch, argv=[*who, *launch.argv])

    def bash(self, script: str, *words: str, **wanted: Unpack[Wanted]) -> Said:
        return run(self.launch("bash", "-c", script, "bash", *words, **wanted))

    def python(self, script: str, *words: str, **wanted: Unpack[Wanted]) -> Said:
        return run(self.launch("/usr/bin/python3", "-I", "-c", script, *words, **wanted))


@contextlib.contextmanager
def a_box(kind: Kind) -> Iterator[Box]:
    """An empty workspace of that kind, below /tmp where everybody can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    workspace = folder / "workspace"
    workspace.mkdir()
    uid, gid = (65533, 65533) if kind == "root's workspace" else (USER, GROUP)
    try:
        if IS_ROOT and kind != "root's workspace":
            os.chown(workspace, USER, GROUP)
        yield Box(workspace, kind, uid, gid)
    finally:
        shutil.rmtree(folder)


@cache
def _bubblewrap_here() -> Availability:
    with a_box(KINDS[0]) as box:
        return asyncio.run(BubblewrapAdapter(box.workspace).availability())


def require_bubblewrap() -> None:
    """Skip where it does not work, or fail where it is required."""
    found = _bubblewrap_here()
    if not found:
        required = "bubblewrap" in os.environ.get("KAKOI_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"{found.reason}. {found.fix}")


@contextlib.asynccontextmanager
async def started(launch: Launch) -> AsyncIterator[ProcessStream]:
    stream = ProcessStream(launch)
    try:
        async with asyncio.timeout(WAIT_S):
            yield stream
    finally:
        await stream.end(grace_s=0.2)


async def outcome(launch: Launch) -> Said:
    """Run it to its end."""
    loop = asyncio.get_running_loop()
    async with started(launch) as stream:
        output = b""
        while part := await loop.sock_recv(stream.socket, 65536):
            output += part
        status = await stream.wait()
    return Said(status, output.decode(errors="replace"), stream.stderr)


def run(launch: Launch) -> Said:
    """Run it to its end, outside of any event loop."""
    return asyncio.run(outcome(launch))


async def line_from(stream: ProcessStream) -> str:
    """The next line it writes."""
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        part = await loop.sock_recv(stream.socket, 1)
        assert part, f"it ended: {line!r} {stream.stderr}"
        line += part
    return line.decode().rstrip("\n")


def loops() -> dict[str, str]:
    """Every loop device in use, and its file."""
    found = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found[path.parts[3]] = path.read_text().strip()
        except OSError:
            continue
    return found
