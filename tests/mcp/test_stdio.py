"""`kakoi mcp` on pipes: clients that leave, die, talk nonsense or never read."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from kakoi.mcp.server import make_server
from kakoi.mcp.stdio import LineSplitter
from tests.cli.forked import kakoi
from tests.cli.terminals import PATIENCE_S, alive, until
from tests.mcp.connections import McpDoor, any_mode, meta_of, run, stdout_of, text_of
from tests.tools.places import until as until_async

pytestmark = pytest.mark.anyio
Process = subprocess.Popen[bytes]


def send(process: Process, message: Any) -> None:
    assert process.stdin is not None
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    process.stdin.write(data + b"\n")


class Reader:
    """Whole lines of a process, as messages."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._fd = process.stdout.fileno()
        self._rest = b""

    def next(self) -> dict[str, Any]:
        give_up = time.monotonic() + PATIENCE_S
        while b"\n" not in self._rest:
            assert time.monotonic() < give_up
            if select.select([self._fd], [], [], 0.2)[0]:
                data = os.read(self._fd, 65536)
                assert data, "it has ended"
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def answer(self, number: int) -> dict[str, Any]:
        while (message := self.next()).get("id") != number:
            pass
        return message


def shake_hands(process: Process) -> Reader:
    reader = Reader(process)
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    send(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    reader.answer(0)
    send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    return reader


def call(number: int, command: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": "execute_command", "arguments": {"command": command, **arguments}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


# --- Whole conversations ---------------------------------------------------------------------


@any_mode
@pytest.mark.requirement("A-049", "D-047")
async def test_a_conversation_over_pipes(mcp_door: McpDoor, mode: str) -> None:
    checked = kakoi("check", "sudo id", cwd=mcp_door.workspace, env=mcp_door.environ)
    with anyio.fail_after(PATIENCE_S):
        async with mcp_door.stdio(mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert tools[0] == "execute_command"
            name = "command-executor/execute_command"
            assert stdout_of(await client.call_tool(name, {"command": "echo hi"})) == "hi\n"
            refused = await run(client, "sudo id")
    assert refused.is_error
    assert text_of(refused) + "\n" == checked.stdout.decode()
    assert [json.loads(line)["event"] for line in mcp_door.log.read_text().splitlines()] == [
        *("started", "ended"),
        "refused",
    ]


@any_mode
async def test_fifty_calls_at_once_in_sessions_of_their_own(mcp_door: McpDoor, mode: str) -> None:
    async def one(client: Client, number: int) -> None:
        name = f"s{number}"
        await run(client, f"mkdir {name} && cd {name}", session=name)
        result = await run(client, f"pwd; echo {number}", session=name)
        assert stdout_of(result) == f"{mcp_door.workspace}/{name}\n{number}\n"

    with anyio.fail_after(PATIENCE_S):
        async with mcp_door.stdio(mode) as client, anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, client, number)


@any_mode
async def test_a_cancelled_call_ends_the_whole_tree(
    mcp_door: McpDoor, mode: str, mark: str
) -> None:
    with anyio.fail_after(PATIENCE_S):
        async with mcp_door.stdio(mode) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(run, client, f"setsid sleep {mark} & sleep {mark}")
                await until_async(lambda: len(alive(mark)) >= 2, "it runs")
                group.cancel_scope.cancel()
            await until_async(lambda: alive(mark) == [], "all of it has ended")
            assert stdout_of(await run(client, "echo next")) == "next\n"
    reasons = [json.loads(line).get("reason") for line in mcp_door.log.read_text().splitlines()]
    assert "cancelled" in reasons


async def test_a_client_in_this_process_that_gives_up_ends_the_tree(
    client: Client, mcp_door: McpDoor, mark: str
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(run, client, f"setsid sleep {mark} & sleep {mark}")
        await until_async(lambda: len(alive(mark)) >= 2, "it runs")
        group.cancel_scope.cancel()
    await until_async(lambda: alive(mark) == [], "all of it has ended")


# --- Ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["end of input", "SIGTERM", "SIGINT"])
def test_with_the_server_ends_what_it_started(mcp_door: McpDoor, mark: str, way: str) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        send(process, call(1, f"setsid sleep {mark} & sleep {mark}", background=True))
        reader.answer(1)
        send(process, call(2, f"sleep {mark}"))
        until(lambda: len(alive(mark)) >= 4, "all of it runs")
        assert process.stdin is not None
        if way == "end of input":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, way))
        assert process.wait(PATIENCE_S) == 0
    assert alive(mark) == []
    events = [json.loads(line)["event"] for line in mcp_door.log.read_text().splitlines()]
    assert events.count("ended") == events.count("started") == 2


def test_signals_that_come_while_it_ends_change_nothing(mcp_door: McpDoor, mark: str) -> None:
    """As clients do it: they close its input, and wait for a moment only."""
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for number in range(1, 9):
            send(process, call(number, f"setsid sleep {mark} & sleep {mark}", background=True))
            reader.answer(number)
        assert process.stdin is not None
        process.stdin.close()
        give_up = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < give_up
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
    assert alive(mark) == []
    events = [json.loads(line)["event"] for line in mcp_door.log.read_text().splitlines()]
    assert events.count("ended") == events.count("started") == 8


def test_pipes_that_somebody_made_non_blocking_are_waited_for(mcp_door: McpDoor) -> None:
    (its_input, to_it), (from_it, its_output) = os.pipe(), os.pipe()
    for end in (its_input, its_output):
        os.set_blocking(end, False)
    with mcp_door.errors.open("ab") as errors:
        process = subprocess.Popen(
            mcp_door.argv(), stdin=its_input, stdout=its_output, stderr=errors, env=mcp_door.environ
        )
    os.close(its_input)
    os.close(its_output)
    process.stdin, process.stdout = os.fdopen(to_it, "wb", 0), os.fdopen(from_it, "rb", 0)
    with process:
        reader = shake_hands(process)
        send(process, call(1, "head -c 300000 /dev/zero | tr '\\0' x"))
        assert "x" * 300_000 in json.dumps(reader.answer(1))
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("sandbox", ["host", "bubblewrap"])
def test_a_killed_server_leaves_nothing_and_the_next_one_works(
    request: pytest.FixtureRequest, mark: str, sandbox: str
) -> None:
    name = "mcp_door" if sandbox == "host" else "confined_mcp_door"
    door: McpDoor = request.getfixturevalue(name)
    with door.process() as process:
        reader = shake_hands(process)
        send(process, call(1, f"setsid sleep {mark} & sleep {mark}", background=True))
        assert "still running" in json.dumps(reader.answer(1))
        until(lambda: len(alive(mark)) >= 2, "it runs")
        process.kill()
        until(lambda: alive(mark) == [], "all of it has ended")
    with door.process() as process:
        reader = shake_hands(process)
        send(process, call(1, "echo again"))
        assert "again" in json.dumps(reader.answer(1))


@pytest.mark.parametrize("started", [1, 2])
def test_a_server_killed_while_its_sandbox_starts_leaves_nothing(
    confined_mcp_door: McpDoor, started: int
) -> None:
    """Killed when so many processes are there; each names the workspace, or is in its group."""
    door = confined_mcp_door

    def below() -> list[str]:
        ours = f"/kakoi-{process.pid}-"
        found = [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/cgroup")
            if ours in _text(path) or str(door.workspace) in _text(path.with_name("cmdline"))
        ]
        return [name for name in found if name != str(process.pid) and is_running(name)]

    with door.process() as process:
        shake_hands(process)
        send(process, call(1, "sleep 600", background=True))
        until(lambda: len(below()) >= started, "it starts")
        process.kill()
        until(lambda: below() == [], "all of it has ended")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes().decode("utf-8", "replace")
    return ""


def is_running(process: str) -> bool:
    """Is it more than an entry that nobody has collected yet?"""
    state = _text(Path("/proc", process, "stat")).rpartition(")")[2].split()
    return bool(state) and state[0] not in ("Z", "X")


def test_nothing_but_the_protocol_is_on_standard_output(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for number in range(1, 6):
            send(process, call(number, "echo out; echo err >&2"))
        for number in range(1, 6):
            assert reader.next()["jsonrpc"] == "2.0", number
    assert "confined by nothing" in mcp_door.said()


# --- Nonsense --------------------------------------------------------------------------------

GARBAGE = [
    (b"garbage", -32700),
    (b"\xff\xfe\x00", -32700),
    (b'{"jsonrpc": "2.0", "id": 77', -32700),
    (b"[" * 100_000, -32700),
    (b"[]", -32600),
    (b"null", -32600),
    (b'[{"jsonrpc": "2.0", "id": 5, "method": "ping"}]', -32600),
    (b'{"jsonrpc": "1.0", "id": 78, "method": 5}', -32600),
    (b'{"jsonrpc": "2.0", "id": "\\ud800", "method": 5}', -32600),
    (b'{"jsonrpc": "2.0", "id": %d, "method": 5}' % 10**400, -32600),
    (b'{"jsonrpc": "2.0", "id": 79, "method": "x", "params": {"a": "\\udfff"}}', -32600),
]


def test_nonsense_gets_an_error_and_the_next_request_its_answer(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        send(process, b"garbage before anything else")
        reader = Reader(process)
        assert reader.next()["error"]["code"] == -32700
        shake_hands(process)
        send(process, b"")
        send(process, b"   ")
        for line, code in GARBAGE:
            send(process, line)
            assert reader.next()["error"]["code"] == code, line[:50]
        for method in ("tools/call", "tools/frob", "resources/read"):
            send(process, {"jsonrpc": "2.0", "id": 9, "method": method, "params": {"x": 1}})
            assert "error" in reader.answer(9)
        send(process, call(10, "echo fine"))
        assert "fine" in json.dumps(reader.answer(10))


def test_a_client_that_reads_no_more_is_gone(mcp_door: McpDoor, mark: str) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        send(process, call(1, f"sleep {mark}", background=True))
        reader.answer(1)
        until(lambda: alive(mark) != [], "it runs")
        assert process.stdout is not None
        process.stdout.close()
        send(process, b"garbage")
        assert process.wait(PATIENCE_S) == 0
    assert alive(mark) == []
    assert "Traceback" not in mcp_door.said()


def test_a_message_without_end_takes_no_memory_and_is_refused(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        before = peak_kib(process)
        assert process.stdin is not None
        for _ in range(64):
            process.stdin.write(b"x" * 1024 * 1024)
        send(process, b"")
        assert "at most" in reader.next()["error"]["message"]
        send(process, call(1, "echo fine"))
        assert "fine" in json.dumps(reader.answer(1))
        assert peak_kib(process) - before < 48 * 1024


def peak_kib(process: Process) -> int:
    """Of the server: the first that was started may have become it, or have started it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def test_a_client_that_never_reads_does_not_make_the_server_grow(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        shake_hands(process)
        before = peak_kib(process)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        request = json.dumps(call(1, "x" * 2000)).encode() + b"\n"
        written, full_since = 0, 0.0
        give_up = time.monotonic() + PATIENCE_S
        # Until it takes no more: a pipe that stays full for a while.
        while not full_since or time.monotonic() < full_since + 1.0:
            assert time.monotonic() < give_up, "it takes whatever comes"
            with contextlib.suppress(BlockingIOError):
                if process.stdin.write(request) is not None:
                    written, full_since = written + len(request), 0.0
                    continue
            full_since = full_since or time.monotonic()
            time.sleep(0.01)
        assert peak_kib(process) - before < 64 * 1024
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_lines_are_cut_wherever_they_are_read() -> None:
    data = b"one\n\ntwo\n" + b"x" * 20 + b"\nthree\nfour"
    for size in range(1, len(data) + 1):
        lines = LineSplitter(longest=10)
        found = [
            line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])
        ]
        assert found == [b"one", b"", b"two", None, b"three"]


# --- The command line ------------------------------------------------------------------------


def test_other_commands_do_not_load_the_sdk(mcp_door: McpDoor) -> None:
    code = (
        "import sys; sys.argv = ['kakoi', 'check', 'ls']\n"
        "import kakoi.cli\n"
        "try: kakoi.cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=mcp_door.environ,
        capture_output=True,
        check=True,
        timeout=60,
    )
    for heavy in ("mcp", "mcp_types", "pydantic", "starlette", "kakoi.mcp"):
        assert f"'{heavy}'".encode() not in done.stdout


def test_without_the_sdk_the_way_to_it_is_told(mcp_door: McpDoor) -> None:
    code = (
        "import sys; sys.argv = ['kakoi', 'mcp']; sys.modules['mcp'] = None\n"
        "import kakoi.cli; kakoi.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=mcp_door.workspace,
        env=mcp_door.environ,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"pip install 'kakoi[mcp]'" in done.stderr


async def test_jobs_of_one_house_end_with_it(mcp_door: McpDoor, mark: str) -> None:
    async with mcp_door.server_state() as state, Client(make_server(state)) as client:
        job = meta_of(await run(client, f"setsid sleep {mark} & sleep {mark}", background=True))
        assert job["running"]
        await until_async(lambda: len(alive(mark)) >= 2, "it runs")
    assert alive(mark) == []
