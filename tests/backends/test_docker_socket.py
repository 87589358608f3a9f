"""The engine, asked at its socket, says what its program says; and where it cannot be asked, the
program is."""

import asyncio
import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kakoi.backends.docker.engine import Engine
from kakoi.backends.docker.engine_socket import (
    SOCKET,
    EngineRequest,
    container_path,
    find_engine_socket,
    send_request,
)
from kakoi.errors import ImagePullError, KakoiError, SandboxError
from kakoi.process.executor import ProcessExecutor
from tests.cli.conftest import has_image, need
from tests.fakes import RecordingExecutor

pytestmark = pytest.mark.anyio
IMAGE = "kakoi-test:busybox"
HOSTILE = ["../info", "a b", "x?force=1", "x\r\nHost: y", "\u00fc", "%2e%2e", "x/y", "-", "a" * 300]


@pytest.fixture
def program() -> RecordingExecutor:
    need("docker", is_there=has_image(IMAGE))
    return RecordingExecutor()


@pytest.fixture
def by_program(program: RecordingExecutor) -> Engine:
    return Engine(ProcessExecutor(), program="docker")


@pytest.fixture
def by_socket(program: RecordingExecutor) -> Engine:
    return Engine(program, program="docker", by_socket=True)


@pytest.fixture
def container(program: RecordingExecutor) -> Iterator[str]:
    name = f"kakoi-test-{uuid.uuid4()}"
    argv = ["docker", "create", "--name", name, "--label", "kakoi.owner=test-socket"]
    argv += ["--network", "none", "--memory", "64m", IMAGE, "sleep", "600"]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    yield name
    subprocess.run(["docker", "rm", "-f", name], capture_output=True, timeout=60)


async def test_both_ways_say_the_same_in_every_state_of_a_container(
    by_program: Engine, by_socket: Engine, program: RecordingExecutor, container: str
) -> None:
    async def assert_same() -> None:
        assert await by_socket.state(container) == await by_program.state(container)
        assert await by_socket.pid(container) == await by_program.pid(container)
        told = json.loads(await by_socket.host_config(container))
        theirs = json.loads(await by_program.host_config(container))
        # The program leaves out some of what is not set.
        assert told == {**{name: value for name, value in told.items() if not value}, **theirs}

    assert await by_socket.facts() == await by_program.facts()
    assert await by_socket.find_image(IMAGE) == await by_program.find_image(IMAGE)
    await assert_same()
    await by_socket.start(container)
    await by_socket.start(container)
    await assert_same()
    assert await by_socket.pid(container) > 0
    await by_socket.restart(container)
    await by_socket.stop(container, 0)
    await by_socket.stop(container, 0)
    await assert_same()
    assert (await by_socket.state(container)).status == "exited"
    await by_socket.remove(container)
    assert (await by_program.state(container)).status == "gone"
    await by_socket.remove(container)
    assert program.spawned == []


async def failure(engine: Engine, what: str, name: str) -> tuple[type[KakoiError], str]:
    try:
        await getattr(engine, what)(name)
    except KakoiError as error:
        return type(error), str(error)
    return SandboxError, ""


@pytest.mark.parametrize("what", ["state", "pid", "host_config", "start", "remove", "find_image"])
async def test_what_is_not_there_is_reported_in_the_same_words(
    by_program: Engine, by_socket: Engine, program: RecordingExecutor, what: str
) -> None:
    name = f"kakoi-no-such-{uuid.uuid4()}"
    assert await failure(by_socket, what, name) == await failure(by_program, what, name)
    assert program.spawned == []


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_name_reaches_anything_but_what_is_called_so(
    by_socket: Engine, container: str, name: str
) -> None:
    assert (await by_socket.state(container)).status == "created"
    for what in ("state", "start", "remove", "find_image"):
        with contextlib.suppress(SandboxError, ImagePullError):
            await getattr(by_socket, what)(name)
    assert (await by_socket.state(container)).status == "created"
    path = container_path(name, "/json")
    assert path.count("/") == 3
    assert not set(path) & set(" ?\r\n")


@contextlib.asynccontextmanager
async def a_server(folder: Path, said: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    path = str(folder / "s")
    async with await asyncio.start_unix_server(answer, path):
        yield path


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.0",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nnot json",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b"HTTP/1.0 301 Moved\r\nLocation: /x\r\n\r\n",
        b"HTTP/1.0 500 X\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (9 * 1024 * 1024),
        b"H" * (9 * 1024 * 1024),
    ],
)
async def test_what_does_not_answer_as_an_engine_is_not_believed(
    own_temporary: Path, said: bytes
) -> None:
    async with a_server(own_temporary, said) as path:
        question = EngineRequest("GET", "/info", lambda it: str(it["NCPU"]))
        assert await asyncio.wait_for(send_request(path, question), 60) is None


async def test_where_nobody_answers_the_program_is_asked(
    program: RecordingExecutor, own_temporary: Path
) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{own_temporary}/nowhere.sock"}
    engine = Engine(program, program="docker", env=nowhere, by_socket=True)
    with pytest.raises(SandboxError, match="no docker engine answers"):
        await engine.facts()
    assert [each[:2] for each in program.spawned] == [["docker", "info"]]


async def test_an_engine_that_never_answers_is_given_up_in_time(own_temporary: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    path = own_temporary / "s"
    async with await asyncio.start_unix_server(silent, path):
        env = {"DOCKER_HOST": f"unix://{path}"}
        engine = Engine(ProcessExecutor(), program="docker", env=env, by_socket=True)
        question = EngineRequest("GET", "/info", str)
        with pytest.raises(SandboxError, match=r"did not finish waiting after 0\.2 s"):
            await engine.call(["info"], doing="waiting", timeout_s=0.2, or_request=question)


@pytest.mark.parametrize(
    ("env", "settings", "expected"),
    [
        ({}, None, SOCKET),
        ({}, "{}", SOCKET),
        ({}, '{"currentContext": "default"}', SOCKET),
        ({}, '{"currentContext": "elsewhere"}', None),
        ({}, "not json", None),
        ({}, "[]", None),
        ({"DOCKER_CONTEXT": "elsewhere"}, None, None),
        ({"DOCKER_HOST": "tcp://192.0.2.1:2375"}, None, None),
        ({"DOCKER_HOST": "ssh://somewhere"}, None, None),
        ({"DOCKER_HOST": "unix:///x/y.sock"}, '{"currentContext": "elsewhere"}', "/x/y.sock"),
    ],
)
def test_the_socket_is_the_one_that_the_program_would_use(
    tmp_path: Path, env: dict[str, str], settings: str | None, expected: str | None
) -> None:
    if settings is not None:
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker" / "config.json").write_text(settings)
    assert find_engine_socket({"HOME": str(tmp_path), **env}) == expected
    os.rename(tmp_path, moved := tmp_path.with_name("moved-" + tmp_path.name))
    folder = {"HOME": "/nowhere", "DOCKER_CONFIG": str(moved / ".docker")}
    assert find_engine_socket({**folder, **env}) == expected
