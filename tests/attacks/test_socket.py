"""The socket at which a lingering runner waits for clients belongs to the user of its commands.

A command finds it, and may come as a client, or take its place: neither gets it a stream of ours.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.channel.api import Command
from kakoi.results import Reason
from tests.cli.conftest import has_image, need

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0
SETTINGS = DockerSettings(image="kakoi-test:python")

PRELUDE = """
import array, glob, json, os, socket, struct, sys
(path,) = glob.glob("/tmp/.kakoi-*/runner")
def frame(kind, number, **fields):
    body = json.dumps(fields).encode()
    return struct.pack(">BII", kind, number, len(body)) + body
def rights(*fds):
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
"""
# Speaks as a client would, without the key, and hands a stream over as often as it may.
COME_AS_A_CLIENT = """
line = socket.socket(socket.AF_UNIX)
line.settimeout(5)
line.connect(path)
line.recv(64)
ours, theirs = socket.socketpair()
ours.settimeout(3)
try:
    for said in (b"k", bytes(48), b"k"):
        line.sendmsg([said], rights(theirs.fileno(), theirs.fileno()))
    line.recv(64)
except OSError:
    pass
theirs.close()
try:
    print("welcomed" if ours.recv(100) else "sent away")
except OSError:
    print("ignored")
"""
# Pretends to be the runner, or passes the words of a visitor and of the runner on; on the stream
# that follows it would say that whatever was asked for went well.
STAND_BETWEEN = """
FORGED = dict(kind="exited", number=0, bytes=[0, 0], duration_ms=1, error="", cwd="", exports="")
FORGED |= dict(cpu_ms=0, max_rss_kib=0, ended=0, survivors=0, disk_full="", kept_out="")
os.rename(path, path + "-real")
false = socket.socket(socket.AF_UNIX)
false.bind(path)
false.listen()
print("ready", flush=True)
while True:
    visitor, _ = false.accept()
    real = socket.socket(socket.AF_UNIX)
    real.connect(path + "-real")
    try:
        if sys.argv[1] == "pretends":
            visitor.sendall(b"k" + bytes(16))
        else:
            visitor.sendall(real.recv(64))
            real.sendall(visitor.recv(64))
            proof = real.recv(64)
            if not proof:
                raise OSError("seen through")
            visitor.sendall(proof)
        _, handed, _, _ = visitor.recvmsg(64, socket.CMSG_LEN(8))
        reading, writing = array.array("i", handed[0][2])
        os.write(writing, frame(5, 0, version=1, shell="/bin/sh", uid=os.getuid(), cwd="/"))
        while head := os.read(reading, 9):
            kind, number, size = struct.unpack(">BII", head)
            order = json.loads(os.read(reading, size) or b"{}")
            os.write(writing, frame(6, number, id=order.get("id"), **FORGED))
    except (OSError, IndexError):
        pass
    visitor.close()
    real.close()
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[DockerAdapter]:
    need("docker", is_there=await asyncio.to_thread(has_image, SETTINGS.image))
    adapter = DockerAdapter(SETTINGS, lifetime="sandbox")
    try:
        yield adapter
    finally:
        await adapter.cleanup()


async def test_a_command_that_finds_the_socket_is_not_served(sandbox: DockerAdapter) -> None:
    """Else it could read the output of others, and start what outlives it."""
    argv = ["python3", "-I", "-c", PRELUDE + COME_AS_A_CLIENT]
    result = await sandbox.run(Command(command=argv, timeout_s=PATIENCE_S))
    assert result.stdout in ("sent away\n", "ignored\n")


@pytest.mark.parametrize("how", ["pretends", "passes on"])
async def test_who_takes_the_place_of_the_runner_gets_no_stream(
    sandbox: DockerAdapter, how: str
) -> None:
    channel = await sandbox.channel()
    argv = ["python3", "-I", "-c", PRELUDE + STAND_BETWEEN, how]
    job = await channel.start(Command(command=argv))
    part = await channel.read_output(job, "stdout", wait_s=PATIENCE_S)
    assert part.data == b"ready\n"
    # By the engine, as everybody does who is not root; root goes to the socket itself, too.
    assert sandbox.container is not None
    other = await DockerAdapter.attach(sandbox.container, SETTINGS)
    try:
        result = await other.run(Command(command="exit 7", timeout_s=PATIENCE_S))
        assert (result.reason, result.exit_code) == (Reason.EXITED, 7)
    finally:
        await other.close()
