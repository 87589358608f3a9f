"""`kakoi mcp` and clients that want to break it: nothing gets out, in or stuck."""

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from kakoi.mcp.http import Guard
from tests.cli.terminals import PATIENCE_S, alive, until
from tests.mcp.connections import (
    TOKEN,
    McpDoor,
    any_mode,
    meta_of,
    over_http,
    run,
    stdout_of,
    text_of,
)
from tests.mcp.test_stdio import Process, Reader, call, send, shake_hands

pytestmark = pytest.mark.anyio


def tool(number: int, name: str, arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def is_fine(process: Process, reader: Reader, number: int) -> bool:
    """Is the next one served as ever?"""
    send(process, call(number, "echo fine"))
    return "fine" in json.dumps(reader.answer(number))


# --- Messages --------------------------------------------------------------------------------


def test_a_request_with_an_id_that_is_none_is_answered(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for given in ("1.5", "1e2", "true", "null", "[1]", '{"a": 1}', "NaN"):
            message = json.dumps(call(1, "touch ran")).replace('"id": 1', f'"id": {given}')
            send(process, message.encode())
            answer = reader.next()
            assert answer["id"] is None, given
            assert answer["error"]["code"] in (-32600, -32700), given
        assert is_fine(process, reader, 2)
    assert not (mcp_door.workspace / "ran").exists()


def test_ids_may_be_odd_and_come_twice(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for given in (-1, 2**53 + 1, 10**30, "", "\0", "i" * 100_000, "\u202e"):
            send(process, {**tool(1, "list_jobs", {}), "id": given})
            assert reader.next()["id"] == given
        for _ in range(3):
            send(process, call(7, "echo twice"))
        answers = [reader.next() for _ in range(3)]
        assert [answer["id"] for answer in answers] == [7, 7, 7]
        assert all("twice" in json.dumps(answer) for answer in answers)


def test_nothing_runs_by_a_notification_or_a_batch(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        order = call(1, "touch ran")
        send(process, {key: value for key, value in order.items() if key != "id"})
        send(process, json.dumps([order, order]).encode())
        assert reader.next()["error"]["code"] == -32600
        for number in (999, "x", None, {"a": 1}, -1, 10**30):
            params = {"requestId": number}
            send(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        send(process, {"jsonrpc": "2.0", "id": 4242, "result": {}})
        send(process, {"jsonrpc": "2.0", "id": "z", "error": {"code": 1, "message": "x"}})
        assert is_fine(process, reader, 2)
    assert not (mcp_door.workspace / "ran").exists()


NO_TOOLS = [
    "",
    "execute_command\0",
    "EXECUTE_COMMAND",
    "execute_command\u200b",
    "\u202eexecute_command",
    "\uff45xecute_command",
    "command-executor/command-executor/execute_command",
    "../execute_command",
    "__class__",
    "a" * 100_000,
]


def test_a_name_that_only_looks_like_a_tool_is_none(mcp_door: McpDoor) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for number, name in enumerate(NO_TOOLS, 1):
            send(process, tool(number, name, {"command": "touch ran"}))
            told = reader.answer(number)["error"]["message"]
            assert told.startswith("there is no tool ")
            assert len(told) < 300
            assert told.isprintable()
    assert not (mcp_door.workspace / "ran").exists()


def test_a_storm_of_calls_and_cancellations_leaves_nothing(mcp_door: McpDoor, mark: str) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for number in range(1, 301):
            send(process, call(number, f"setsid sleep {mark} & sleep {mark}"))
            params = {"requestId": number}
            send(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert is_fine(process, reader, 1000)
        until(lambda: alive(mark) == [], "all of them have ended")
        send(process, tool(1001, "list_jobs", {}))
        assert "running: 0" in json.dumps(reader.answer(1001))


def send_all(process: Process, count: int) -> None:
    for number in range(1, count + 1):
        send(process, call(number, f"echo {number}"))


def test_a_thousand_commands_one_after_the_other_are_all_answered(mcp_door: McpDoor) -> None:
    """The oldest jobs are forgotten, and say so; nothing of them is left in the way."""
    with mcp_door.process() as process:
        reader = shake_hands(process)
        writer = threading.Thread(target=send_all, args=(process, 1200))
        writer.start()
        first = ""
        seen: set[int] = set()
        while len(seen) < 1200:
            answer = reader.next()
            number, result = answer["id"], answer["result"]
            assert result["content"][0]["text"].startswith(f"{number}\n"), answer
            first = first or result["_meta"]["kakoi"]["job_id"]
            seen.add(number)
        writer.join(PATIENCE_S)
        send(process, tool(2000, "read_output", {"job_id": first}))
        assert "old ones are forgotten" in json.dumps(reader.answer(2000))
        assert is_fine(process, reader, 2001)


def test_the_sixty_fifth_job_has_no_room_and_the_others_stay(mcp_door: McpDoor, mark: str) -> None:
    with mcp_door.process() as process:
        reader = shake_hands(process)
        refused = 0
        for number in range(1, 81):
            send(process, call(number, f"sleep {mark}", background=True))
            refused += bool(reader.answer(number)["result"].get("isError"))
        assert refused == 80 - 64
        until(lambda: len(alive(mark)) == 64, "the others run")
        send(process, tool(100, "list_jobs", {}))
        assert "running: 64" in json.dumps(reader.answer(100))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert alive(mark) == []


# --- Files -----------------------------------------------------------------------------------

FILE_TOOLS: dict[str, dict[str, str]] = {
    "read_file": {},
    "write_file": {"content": "mine"},
    "edit_file": {"old_text": "secret", "new_text": "mine"},
    "list_files": {},
}
# What answers say where the link led outside, and where it led to the file within.
MET = ("outside the workspace", "mine")


@pytest.mark.parametrize("sandbox", ["host", "bubblewrap"])
def test_a_link_that_changes_all_the_time_leads_nowhere(
    request: pytest.FixtureRequest, sandbox: str
) -> None:
    """Looked at and used are two moments. What is outside must not come in, in a sandbox; on the
    host it is the user's own, and the answer is one of the two files or a refusal."""
    name = "mcp_door" if sandbox == "host" else "confined_mcp_door"
    door: McpDoor = request.getfixturevalue(name)
    outside = door.folder / "outside"
    outside.write_text("secret of the machine")
    (door.workspace / "inside").write_text("mine")
    stop = threading.Event()

    def swap() -> None:
        link, spare = door.workspace / "link", door.workspace / "spare"
        while not stop.is_set():
            for target in (outside, door.workspace / "inside"):
                os.symlink(target, spare)
                os.replace(spare, link)

    swapper = threading.Thread(target=swap)
    with door.process() as process:
        reader = shake_hands(process)
        swapper.start()
        try:
            texts: list[str] = []
            for number in range(1, 2001):
                # Which of the two a request meets is up to the machine: until both were met.
                if number > 120 and all(any(each in text for text in texts) for each in MET):
                    break
                file_tool = ("read_file", "write_file")[number % 2]
                arguments = {"path": "link", **FILE_TOOLS[file_tool]}
                send(process, tool(number, file_tool, arguments))
                texts.append(json.dumps(reader.answer(number)))
        finally:
            stop.set()
            swapper.join(PATIENCE_S)
    assert all(any(each in text for text in texts) for each in MET)
    if sandbox != "host":
        assert not any("secret" in text for text in texts)
        assert outside.read_text() == "secret of the machine"


NO_PATHS = [
    "../outside",
    "sub/../../outside",
    "link",
    "folder/outside",
    "./././link",
    "folder/../link",
    "loop",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/proc/self/cwd/../outside",
    "/dev/zero",
    "x" * 300,
    "a/" * 2000 + "b",
    "file:///etc/passwd",
    "\0",
    "",
]


def test_no_path_gets_out_or_stuck(mcp_door: McpDoor) -> None:
    outside = mcp_door.folder / "outside"
    outside.write_text("secret")
    for name, target in (("link", outside), ("folder", mcp_door.folder), ("loop", "loop")):
        os.symlink(target, mcp_door.workspace / name)
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for number, path in enumerate(NO_PATHS, 1):
            for name, more in FILE_TOOLS.items():
                send(process, tool(number, name, {"path": path, **more}))
                result = reader.answer(number)["result"]
                assert result["isError"], (name, path[:50], result)
                assert "secret" not in result["content"][0]["text"]
        assert is_fine(process, reader, 99)
    assert outside.read_text() == "secret"


def test_names_are_names_and_no_shell_text(mcp_door: McpDoor) -> None:
    odd = ("-rf", "; touch ran", "$(touch ran)", "`touch ran`", "a\nb", "'", "~", "*", "\u202etxt")
    with mcp_door.process() as process:
        reader = shake_hands(process)
        for number, path in enumerate(odd):
            send(process, tool(number + 1, "write_file", {"path": path, "content": path}))
            reader.answer(number + 1)
        assert is_fine(process, reader, 99)
    made = {each.name: each.read_text() for each in mcp_door.workspace.iterdir()}
    assert set(made) <= set(odd)
    assert all(name == content for name, content in made.items())
    assert {"$(touch ran)", "'", "*"} <= set(made)
    assert "-rf" not in made  # A later `*` would hand it to a program as an option.


# --- Others' jobs ----------------------------------------------------------------------------


async def test_a_job_of_another_connection_is_none(mcp_door: McpDoor, mark: str) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, "legacy") as one, over_http(url, "legacy") as other:
            command = f"echo secret; cat; sleep {mark}"
            started = await run(one, command, background=True, stdin_open=True)
            job = meta_of(started)["job_id"]
            await anyio.to_thread.run_sync(until, lambda: alive(mark), "the job runs")
            for name in ("read_output", "write_stdin", "stop_command"):
                refused = await other.call_tool(name, {"job_id": job})
                assert refused.is_error
                assert "there is no job" in text_of(refused)
                assert "secret" not in text_of(refused)
                assert alive(mark) != []
                assert not (await one.call_tool(name, {"job_id": job})).is_error


async def test_the_record_does_not_tell_the_session_id_of_another_connection(
    mcp_door: McpDoor,
) -> None:
    """Whoever knows it takes over that connection: its directory, its variables and its jobs."""
    seen: list[str] = []

    async def note(request: httpx2.Request) -> None:
        seen.extend(filter(None, [request.headers.get("mcp-session-id")]))

    headers = {"Authorization": f"Bearer {TOKEN}"}
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with (
            httpx2.AsyncClient(headers=headers, event_hooks={"request": [note]}) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as one,
            over_http(url, "legacy") as other,
        ):
            await run(one, "echo hi")
            (record,) = (await other.read_resource("kakoi://audit")).contents
    (session_id,) = set(seen)
    told = record.model_dump_json() + mcp_door.log.read_text()
    assert "echo hi" in told
    assert not [part for part in (session_id, session_id[:16], session_id[-16:]) if part in told]


# --- Answers to questions --------------------------------------------------------------------


ANSWERS: list[tuple[Any, Any]] = [
    ("decline", {"remember": True}),
    ("cancel", {"remember": True}),
    ("accept", {"remember": "true"}),
    ("accept", {"remember": 1}),
    ("accept", {"command": "ls", "verdict": "allow"}),
    ("accept", None),
]


@any_mode
async def test_only_yes_is_yes_and_only_true_is_remembered(mcp_door: McpDoor, mode: str) -> None:
    asked: list[str] = []
    answers = [answer for answer in ANSWERS for _ in range(2)]

    async def ask(context: Any, params: ElicitRequestParams) -> ElicitResult:
        action, content = answers[len(asked)]
        asked.append(params.message)
        return ElicitResult(action=action, content=content)

    with anyio.fail_after(PATIENCE_S):
        async with mcp_door.stdio(mode, ask) as client:
            results = [await run(client, "git push") for _ in answers]
    assert [result.is_error for result in results] == [action != "accept" for action, _ in answers]
    assert len(asked) == len(answers)
    assert all("git push" in question for question in asked)


# --- HTTP ------------------------------------------------------------------------------------

INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
)
OURS = f"Authorization: Bearer {TOKEN}"


def request(
    *headers: str, line: str = "POST /mcp HTTP/1.1", host: str = "127.0.0.1", body: str = INITIALIZE
) -> bytes:
    lines = [
        line,
        f"Host: {host}",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def status_of(url: str, data: bytes) -> int:
    """The status of the first answer; 0 if there is none."""
    with connected(url) as raw:
        raw.sendall(data)
        head = b""
        with contextlib.suppress(ConnectionError):
            while b"\r\n" not in head and (more := raw.recv(65536)):
                head += more
        return int(head.split()[1]) if head else 0


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


HOSTILE = {
    "another length": (400, request(OURS, "Content-Length: 5")),
    "an unknown encoding": (400, request(OURS, "Transfer-Encoding: xchunked")),
    "a length below zero": (400, request(OURS).replace(b"Length: ", b"Length: -")),
    "a length without end": (400, request(OURS).replace(b"Length: ", b"Length: 9" + b"9" * 30)),
    "a space before the colon": (400, request(f"Authorization : Bearer {TOKEN}")),
    "a header without end": (400, request(OURS, "X: " + "a" * 200_000)),
    "two hosts": (400, request(OURS, "Host: evil.example")),
    "no HTTP": (400, b"GET /mcp\r\n\r\n"),
    "two tokens": (401, request(OURS, OURS)),
    "a list of tokens": (401, request(f"Authorization: Bearer x, Bearer {TOKEN}")),
    "another header": (401, request(f"Authorization_: Bearer {TOKEN}")),
    "another path": (401, request(line="POST //mcp HTTP/1.1")),
    "an upgrade": (401, request("Upgrade: websocket", "Connection: upgrade")),
    "somebody else's address": (404, request(OURS, line="POST http://evil.example/mcp HTTP/1.1")),
    "a tunnel": (404, request(OURS, line="CONNECT evil.example:1 HTTP/1.1")),
    "a name before the host": (421, request(OURS, host="evil.example@127.0.0.1")),
    "a path in the host": (421, request(OURS, host="evil.example/@127.0.0.1")),
    "a number for a host": (421, request(OURS, host="2130706433")),
    "a dot behind the host": (421, request(OURS, host="localhost.")),
    "half a host": (421, request(OURS, host="[::1")),
    "letters that look alike": (421, request(OURS, host="\u24dbocalhost")),
    "a forwarded host": (421, request(OURS, "X-Forwarded-Host: localhost", host="evil.example")),
    "no host": (421, request(OURS, line="POST /mcp HTTP/1.0").replace(b"Host: 127.0.0.1\r\n", b"")),
    "a page by its address": (403, request(OURS, "Origin: http://203.0.113.7")),
    "a page with a name before": (403, request(OURS, "Origin: http://127.0.0.1@evil.example")),
    "two pages": (403, request(OURS, "Origin: http://localhost", "Origin: http://evil.example")),
    "a session of nobody": (404, request(OURS, "Mcp-Session-Id: ../../x", body='{"id": 1}')),
    "a batch": (400, request(OURS, body=f"[{INITIALIZE},{INITIALIZE}]")),
    "nothing wrong": (200, request(OURS)),
    "a page of this machine": (200, request(OURS, "Origin: http://127.0.0.1:5173")),
}


def test_requests_that_mean_two_things_are_refused(mcp_door: McpDoor) -> None:
    with mcp_door.listening() as url:
        found = {what: status_of(url, data) for what, (_, data) in HOSTILE.items()}
    assert found == {what: status for what, (status, _) in HOSTILE.items()}
    # Whoever has no token can say what they want: it does not fill the log.
    assert len(mcp_door.said().splitlines()) <= 3, mcp_door.said()


@pytest.mark.slow("waits until silent connections are closed")
async def test_connections_that_say_nothing_keep_nobody_out(mcp_door: McpDoor) -> None:
    with mcp_door.listening() as url, contextlib.ExitStack() as held, anyio.fail_after(PATIENCE_S):
        slow = [held.enter_context(connected(url)) for _ in range(700)]
        for each in slow:
            with contextlib.suppress(ConnectionError):
                each.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.")
        async with over_http(url, "legacy") as client:
            assert stdout_of(await run(client, "echo fine")) == "fine\n"
        # And each of them is let go in the end, though it says a word now and then.
        slow[-1].setblocking(False)
        until(lambda: has_gone(slow[-1]), "the last one was let go")


def has_gone(raw: socket.socket) -> bool:
    try:
        raw.sendall(b"0")
        return raw.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.slow("waits longer than a silent client would be waited for")
async def test_a_call_that_takes_long_is_not_taken_for_a_silent_client(mcp_door: McpDoor) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, "2026-07-28") as client:
            assert stdout_of(await run(client, "sleep 12; echo done")) == "done\n"


def test_a_token_is_compared_as_a_whole(tmp_path: Path) -> None:
    """No answer depends on how much of a token is right."""

    async def app(*_: Any) -> None:
        raise AssertionError(tmp_path)

    guard = Guard(app, {"other": TOKEN[::-1], "token": TOKEN}, ())
    wrong = [TOKEN[:length] + "?" for length in range(len(TOKEN))] + ["", TOKEN + "\0", TOKEN * 9]
    answers = set()
    for token in wrong:
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + token.encode())]
        answers.add(guard._identify({"type": "http", "headers": headers}))
    assert answers == {(401, "the bearer token is missing or wrong")}
