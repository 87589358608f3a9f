"""Bubblewrap sandboxes as root and as a normal user, with programs run directly in them."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NoReturn, TypedDict, Unpack

import pytest

from kakoi.backends.adapter import Availability
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.bubblewrap.arguments import (
    BubblewrapSettings,
    HostSystem,
    build_launch,
    inspect_system,
)
from kakoi.backends.workspace import identify, identify_workspace
from kakoi.process.stream import Launch, ProcessStream

WAIT_S = 60.0
IS_ROOT = os.geteuid() == 0
# A uid that nobody has on this machine, and not the one that root's sandboxes use.
USER = 65431 if IS_ROOT else os.getuid()
GROUP = 65432 if IS_ROOT else os.getgid()
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"] if IS_ROOT else []

Kind = Literal["root's workspace", "root, a user's workspace", "a user"]
ROOTS: list[Kind] = ["root's workspace", "root, a user's workspace"] if IS_ROOT else []
KINDS: list[Kind] = [*ROOTS, "a user"]
# For tests of file ownership, where the first kind and the last kind differ most.
_BETWEEN = pytest.mark.extended("repetition: between root's own workspace and that of a user")
SOME_KINDS = [
    pytest.param(kind, marks=_BETWEEN if kind == "root, a user's workspace" else (), id=kind)
    for kind in KINDS
]
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can set this up")


def skip_without_groups(*names: str) -> NoReturn:
    """Skip, because no control group was made; fail if root could make one here.

    The mounts tell, and not kakoi: a kakoi that makes none must not pass for such a machine.
    `names`: hierarchies of version 1 by the name of a controller; "" is version 2.
    """
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    writable = {
        name
        for _source, _target, kind, options, *_ in mounts
        if kind in ("cgroup", "cgroup2") and "rw" in options.split(",")
        for name in ([""] if kind == "cgroup2" else options.split(","))
    }
    if IS_ROOT and not writable.isdisjoint(names):
        pytest.fail("root can make control groups here, and kakoi made none")
    pytest.skip("no control group can be made here")


class Wanted(TypedDict, total=False):
    """Optional settings of a sandbox."""

    read_only: Sequence[Path]
    guarded: Sequence[Path]
    network: Literal["none", "host"]
    env: Mapping[str, str]
    system: HostSystem


@dataclass(frozen=True)
class Said:
    """The result of a program."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


@dataclass(frozen=True)
class Box:
    """A workspace, the user who runs sandboxes in it, and the uid that commands should have."""

    workspace: Path
    kind: Kind
    uid: int
    gid: int

    def launch(self, *program: str, **wanted: Unpack[Wanted]) -> Launch:
        system = wanted.get("system") or inspect_system()
        assert system is not None
        if self.kind == "a user":
            system = replace(system, uid=USER, gid=GROUP)
        settings = BubblewrapSettings(
            workspace=identify_workspace(self.workspace),
            read_only=tuple(identify(path, what="it") for path in wanted.get("read_only", ())),
            guarded=tuple(identify(path, what="it") for path in wanted.get("guarded", ())),
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
    """Create an empty workspace of that kind, below /tmp where every user can reach it."""
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
    """Skip if bubblewrap does not work here, or fail if it is required."""
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
    """Run the program to completion."""
    loop = asyncio.get_running_loop()
    async with started(launch) as stream:
        output = b""
        while part := await loop.sock_recv(stream.socket, 65536):
            output += part
        status = await stream.wait()
    return Said(status, output.decode(errors="replace"), stream.stderr)


def run(launch: Launch) -> Said:
    """Run the program to completion, outside of any event loop."""
    return asyncio.run(outcome(launch))


async def line_from(stream: ProcessStream) -> str:
    """Return the next line of output."""
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        part = await loop.sock_recv(stream.socket, 1)
        assert part, f"it ended: {line!r} {stream.stderr}"
        line += part
    return line.decode().rstrip("\n")


def loops() -> dict[str, str]:
    """Return every loop device in use, with its file."""
    found = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found[path.parts[3]] = path.read_text().strip()
        except OSError:
            continue
    return found
