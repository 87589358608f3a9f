"""How the way out comes into our hands: who squats on it, steals it, is killed or is far away."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Lifetime
from kakoi.backends.outlet import HandoverFolder, Outlet, discard_kept, proxy_variables
from kakoi.channel.api import Command
from kakoi.errors import SandboxError
from kakoi.runner.outlet import PORT
from tests.network.test_sandboxes import GET, IMAGE, python, reaching, sandbox
from tests.network.test_sandboxes import kind as kind  # A fixture.
from tests.network.world import Web, opened, server

pytestmark = pytest.mark.anyio
WAIT_S = 60.0
SQUAT = f"""
import socket
for family, host in ((2, "127.0.0.1"), (2, "0.0.0.0"), (2, "127.0.0.2"), (10, "::1"), (10, "::")):
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        line = socket.socket(family)
        if option: line.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            line.bind((host, {PORT})); line.listen(); held = held + [line] if "held" in dir() else [line]
        except OSError: pass
"""


async def test_who_squats_on_the_port_beside_us_gets_nothing(kind: str) -> None:
    web = Web()
    async with reaching(kind, web) as (port, _world, box):
        text = f"{SQUAT}\nimport os\nos.environ['URL'] = 'http://example.org:{port}/x'\n{GET}"
        said = await python(box, text)
    assert "GET /x HTTP/1.1" in said
    assert len(web.received) == 1


@pytest.mark.parametrize("kind", ["docker"], indirect=True)
async def test_who_squats_on_the_port_after_the_runner_was_killed_is_ended(kind: str) -> None:
    web = Web()
    async with reaching(kind, web) as (port, _world, box):
        assert isinstance(box, DockerAdapter)
        await python(box, "pass")
        name = str(box.container)
        user = docker("inspect", "-f", '{{index .Config.Labels "kakoi.user"}}', name)
        await box.close()
        docker("exec", "--user", user, name, "sh", "-c", "kill -9 -1; true")
        wait = "print('up', flush=True); import time; time.sleep(600)"
        with background(name, user, f"{SQUAT}\nassert held\n{wait}"):
            assert "GET /x" in await python(box, GET, URL=f"http://example.org:{port}/x")


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode in (0, 137), done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def background(name: str, user: str, text: str):  # type: ignore[no-untyped-def]  # Of one test.
    argv = ["docker", "exec", "-i", "--user", user, name, "python3", "-c", text]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            yield
        finally:
            child.kill()


THIEF = """
import array, glob, os, socket
own = socket.socket(); own.bind(("127.0.0.1", 0)); own.listen()
print("up", flush=True)
while True:
    for path in glob.glob("/run/kakoi/*"):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); line.settimeout(1)
        try:
            line.connect(path)
            for _ in range(100):
                line.sendmsg([b"k"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", WHAT))])
        except OSError: pass
        line.close()
"""


LOOT = ["[own.fileno()]", "[os.open('/etc/passwd', 0)]", "[*os.pipe(), own.fileno()]", "[]"]


@pytest.mark.parametrize("kind", ["docker"], indirect=True)
@pytest.mark.slow("waits until the runner has given up on an answer")
async def test_who_hands_over_something_in_our_place_is_not_heard(kind: str) -> None:
    """A job that is quicker than the runner, at each new entry."""
    web = Web()
    async with reaching(kind, web) as (port, world, box):
        for what in LOOT:
            thief = Command(command=["python3", "-c", THIEF.replace("WHAT", what)])
            job = await (await box.channel()).start(thief)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(2):
                assert "GET /x" in await python(box, GET, URL=f"http://example.org:{port}/x")
                assert "403" in await python(box, GET, URL=f"http://other.org:{port}/x")
                await box.close()  # type: ignore[attr-defined]  # It is a container's.
            assert len(os.listdir("/proc/self/fd")) <= before
            await (await box.channel()).stop_job(job)
    assert {str(each.target) for each in world.decisions if each.allowed} == {f"example.org:{port}"}


async def test_two_sandboxes_at_once_have_a_way_and_a_list_each(kind: str) -> None:
    web = Web()
    async with (
        server(web) as port,
        opened(f"example.org:{port}") as one,
        opened(f"other.org:{port}") as two,
        sandbox(kind, one) as first,
        sandbox(kind, two) as second,
    ):
        for box, listed, other in (
            (first, "example.org", "other.org"),
            (second, "other.org", "example.org"),
        ):
            said = await asyncio.gather(
                *(python(box, GET, URL=f"http://{name}:{port}/x") for name in (listed, other))
            )
            assert "GET /x" in said[0]
            assert "403" in said[1]
    assert {str(each.target) for each in one.decisions if each.allowed} == {f"example.org:{port}"}


# --- Killed ----------------------------------------------------------------------------------

CHILD = """
import sys, time
from kakoi.backends.outlet import HandoverFolder
made = HandoverFolder()
if sys.argv[1:]: made.keep(sys.argv[1])
print(made.folder, flush=True)
time.sleep(600)
"""


def killed(*words: str) -> Path:
    """The folder of a process that was killed with no chance to take it away."""
    with subprocess.Popen([sys.executable, "-c", CHILD, *words], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().decode().strip())
        assert folder.is_dir()
        os.kill(child.pid, signal.SIGKILL)
    return folder.parent


def test_what_one_that_was_killed_has_left_is_swept_by_the_next(own_temporary: Path) -> None:
    left, kept = killed(), killed("a note")
    (own_temporary / "kakoi-way-theirs").mkdir(mode=0o755)
    (own_temporary / "kakoi-way-link").symlink_to(own_temporary)
    first = HandoverFolder()
    second = HandoverFolder()
    there = {each.name for each in own_temporary.iterdir()}
    alive = {Path(each.folder).parent.name for each in (first, second)}
    assert there == {kept.name, "kakoi-way-theirs", "kakoi-way-link", *alive}
    assert left.name not in there
    assert HandoverFolder.adopt(f"{kept}/way").note == "a note"
    first.close()
    second.close()
    discard_kept(f"{kept}/way")
    assert not kept.exists()


def test_a_folder_that_is_not_ours_is_neither_adopted_nor_taken_away(own_temporary: Path) -> None:
    for name, mode in (("kakoi-way-open", 0o755), ("other", 0o700)):
        (own_temporary / name).mkdir(mode=mode)
        (own_temporary / name / "way").mkdir()
    (own_temporary / "kakoi-way-link").symlink_to(own_temporary / "other")
    for name in ("kakoi-way-open/way", "other/way", "kakoi-way-link/way", "kakoi-way-gone/way", ""):
        folder = str(own_temporary / name)
        with pytest.raises(SandboxError, match="this container has lost its network"):
            HandoverFolder.adopt(folder)
        discard_kept(folder)
    assert (own_temporary / "other" / "way").is_dir()
    assert (own_temporary / "kakoi-way-open" / "way").is_dir()


# --- Far away --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def forwarded(here: bytes = b"", there: bytes = b"") -> AsyncIterator[str]:
    """The engine behind a port; what we call `here`, it knows as `there`."""

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, old: bytes, new: bytes
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                writer.write(data.replace(old, new) if old else data)
                await writer.drain()
            writer.write_eof()

    forwarding: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with closing(writer):
            engine_reader, engine = await asyncio.open_unix_connection("/var/run/docker.sock")
            async with closing(engine):
                await asyncio.gather(
                    pump(reader, engine, here, there), pump(engine_reader, writer, there, here)
                )

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.add(asyncio.create_task(forward(reader, writer)))

    serving = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{serving.sockets[0].getsockname()[1]}"
    finally:
        serving.close()
        for each in forwarding:
            each.cancel()
        await asyncio.gather(*forwarding, return_exceptions=True)


@pytest.mark.parametrize("kind", ["docker"], indirect=True)
@pytest.mark.usefixtures("kind")
async def test_an_engine_behind_a_port_serves_if_it_is_on_this_machine() -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world, forwarded() as host:
        outlet = Outlet(world.proxy.serve, proxy_variables(), world.proxy.serve_names)
        settings = DockerSettings(image=IMAGE, network="allowlist")
        box = DockerAdapter(
            settings, outlet=outlet, lifetime="sandbox", engine_env={"DOCKER_HOST": host}
        )
        try:
            assert "GET /x" in await python(box, GET, URL=f"http://example.org:{port}/x")
        finally:
            await box.cleanup()


@pytest.mark.parametrize("lifetime", ["command", "sandbox"])
@pytest.mark.parametrize("kind", ["docker"], indirect=True)
@pytest.mark.usefixtures("kind")
async def test_an_engine_that_does_not_see_our_files_is_refused_with_the_reason(
    lifetime: Lifetime, own_temporary: Path
) -> None:
    async with opened("example.org") as world, forwarded(b"kakoi-way-", b"kakoi-yaw-") as host:
        outlet = Outlet(world.proxy.serve, proxy_variables(), world.proxy.serve_names)
        settings = DockerSettings(image=IMAGE, network="allowlist")
        box = DockerAdapter(
            settings, outlet=outlet, lifetime=lifetime, engine_env={"DOCKER_HOST": host}
        )
        with pytest.raises(SandboxError, match="the engine does not see its files") as caught:
            await box.run(Command(command="true"))
        assert "DOCKER_HOST" in caught.value.hint
        await box.cleanup()
    assert os.listdir(own_temporary) == []
