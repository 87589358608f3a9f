"""`kakoi mcp --http`: who is let in, and many at once."""

import contextlib
import json
import signal
import socket
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from kakoi.errors import ConfigurationError
from kakoi.mcp.http import ListenAddress, read_tokens
from tests.cli.forked import kakoi
from tests.cli.terminals import PATIENCE_S, alive
from tests.mcp.connections import TOKEN, McpDoor, any_mode, over_http, run, stdout_of, told_session
from tests.tools.places import until

pytestmark = pytest.mark.anyio
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}
OURS = {"Authorization": f"Bearer {TOKEN}", **ACCEPT}


def post(url: str, headers: dict[str, str], body: Any = PING) -> int:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    with httpx2.Client(timeout=PATIENCE_S) as client:
        answer = client.post(
            url, content=sent, headers={"Content-Type": "application/json", **headers}
        )
        return answer.status_code


@any_mode
async def test_a_conversation_over_http(mcp_door: McpDoor, mode: str) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, mode) as client:
            went = told_session(await run(client, "mkdir sub && cd sub"))
            assert stdout_of(await run(client, "pwd", **went)) == f"{mcp_door.workspace}/sub\n"
            assert (await run(client, "sudo id")).is_error


@any_mode
async def test_fifty_clients_at_once(mcp_door: McpDoor, mode: str) -> None:
    async def one(url: str, number: int) -> None:
        async with over_http(url, mode) as client:
            name = f"s{number}"
            went = {"session": name} if mode == "legacy" else {}
            went |= told_session(await run(client, f"mkdir {name} && cd {name}", **went))
            for _ in range(3):
                result = await run(client, f"pwd; echo {number}", **went)
                assert stdout_of(result) == f"{mcp_door.workspace}/{name}\n{number}\n"

    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, url, number)


@any_mode
async def test_a_cancelled_call_ends_the_whole_tree(
    mcp_door: McpDoor, mode: str, mark: str
) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, mode) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(run, client, f"setsid sleep {mark} & sleep {mark}")
                await until(lambda: len(alive(mark)) >= 2, "it runs")
                group.cancel_scope.cancel()
            await until(lambda: alive(mark) == [], "all of it has ended")
            assert stdout_of(await run(client, "echo next")) == "next\n"


def test_only_who_has_the_token_is_let_in(mcp_door: McpDoor) -> None:
    with mcp_door.listening() as url:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": TOKEN},
            {"X-Authorization": f"Bearer {TOKEN}"},
        ):
            assert post(url, {**ACCEPT, **headers}) == 401, headers
        assert post(url, OURS) != 401
        assert post(f"{url}?token={TOKEN}", ACCEPT) == 401
        with httpx2.Client() as client:
            for method in ("GET", "DELETE", "PUT", "OPTIONS"):
                assert client.request(method, url).status_code == 401
            assert client.get(url.replace("/mcp", "/")).status_code == 401


def test_pages_that_a_browser_was_lured_to_are_not_let_in(mcp_door: McpDoor) -> None:
    with mcp_door.listening("--host-name", "build.example") as url:
        port = url.rpartition(":")[2].partition("/")[0]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "x@1"):
            assert post(url, {**OURS, "Host": host}) == 421, host
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]", "build.example"):
            assert post(url, {**OURS, "Host": host}) not in (401, 403, 421), host
        for origin in ("http://evil.example", "null", "https://127.0.0.1.evil.example", "file://"):
            assert post(url, {**OURS, "Origin": origin}) == 403, origin
        assert post(url, {**OURS, "Origin": f"http://localhost:{port}"}) != 403


async def test_nonsense_is_refused_and_the_next_request_is_served(mcp_door: McpDoor) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        refused = [
            await anyio.to_thread.run_sync(post, url, OURS, body)
            for body in (b"garbage", b"[]", b"null", b"\xff", b"[" * 100_000, b"x" * 17 * 2**20)
        ]
        assert all(400 <= status < 500 for status in refused), refused
        assert refused[-1] == 413
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0]))) as raw:
            raw.sendall(b"\x16\x03\x01 not HTTP at all\r\n\r\n")
        async with over_http(url, "legacy") as client:
            assert stdout_of(await run(client, "echo fine")) == "fine\n"


async def test_a_client_that_never_reads_does_not_hold_up_the_others(mcp_door: McpDoor) -> None:
    body = json.dumps(
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
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        host, port = url.removeprefix("http://").partition("/")[0].split(":")
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Accept: {ACCEPT['Accept']}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        silent = [socket.create_connection((host, int(port))) for _ in range(20)]
        for each in silent:
            each.sendall((head + body).encode() * 50)
        async with over_http(url, "legacy") as client:
            assert stdout_of(await run(client, "echo fine")) == "fine\n"
        for each in silent:
            each.close()


# --- Starting --------------------------------------------------------------------------------


def kakoi_mcp(door: McpDoor, *arguments: str) -> tuple[int, str]:
    done = kakoi(*door.words(*arguments), cwd=Path.cwd(), env=door.environ)
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


def test_other_machines_are_not_served_without_a_token(mcp_door: McpDoor) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
        status, said = kakoi_mcp(mcp_door, "--http", address)
        assert status == 2
        assert "requires a token" in said
        assert "--token-file" in said


def test_a_token_must_be_a_secret(mcp_door: McpDoor, tmp_path: Path) -> None:
    file = tmp_path / "token"
    options = ("--http", "127.0.0.1:0", "--token-file", str(file))
    assert "No such file" in kakoi_mcp(mcp_door, *options)[1]
    file.write_text(TOKEN)
    file.chmod(0o644)
    assert "chmod 600" in kakoi_mcp(mcp_door, *options)[1]
    file.chmod(0o600)
    for token, words in (("", "is empty"), ("short", "at least 16"), ("ü" * 20, "ASCII")):
        file.write_text(token)
        assert words in kakoi_mcp(mcp_door, *options)[1]


def test_a_token_is_made_up_where_only_this_machine_listens() -> None:
    tokens, is_new = read_tokens([], "", ListenAddress.parse("127.0.0.1:0"))
    assert is_new
    (token,) = tokens.values()
    assert len(token) >= 40
    assert token not in read_tokens([], "", ListenAddress.parse("[::1]:0"))[0].values()
    assert read_tokens([], TOKEN, ListenAddress.parse("0.0.0.0:1")) == ({"token": TOKEN}, False)


def test_each_token_has_a_name_of_its_own(tmp_path: Path) -> None:
    address = ListenAddress.parse("127.0.0.1:0")
    (tmp_path / "other").mkdir()
    files = [tmp_path / "a b.txt", tmp_path / "c", tmp_path / "d", tmp_path / "other" / "c"]
    for file, token in zip(files, ("1" * 16, "2" * 16, "1" * 16, "3" * 16), strict=True):
        file.write_text(token)
        file.chmod(0o600)
    assert read_tokens(files[:2], TOKEN, address)[0] == {"a_b": "1" * 16, "c": "2" * 16}
    for same in (files[:3], [files[1], files[3]]):
        with pytest.raises(ConfigurationError, match="same name or token as another one"):
            read_tokens(same, "", address)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        (":80", "127.0.0.1", 80),
        ("80", "127.0.0.1", 80),
        ("10.0.0.1", "10.0.0.1", 8765),
        ("localhost:1", "localhost", 1),
    ],
)
def test_an_address_may_be_given_in_part(text: str, host: str, port: int) -> None:
    assert ListenAddress.parse(text) == ListenAddress(host, port)


@pytest.mark.parametrize("text", ["example.org:80", "127.0.0.1:x", "1.2.3:4", ":99999", "::"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address"):
        ListenAddress.parse(text)


def test_a_port_that_is_taken_is_told(mcp_door: McpDoor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = kakoi_mcp(mcp_door, "--http", f"127.0.0.1:{taken.getsockname()[1]}")
    assert status == 2
    assert "Address already in use" in said


def test_options_of_http_need_it(mcp_door: McpDoor) -> None:
    status, said = kakoi_mcp(mcp_door, "--token-file", "x")
    assert status == 2
    assert "need --http" in said


@pytest.mark.slow("many calls are under way when it comes")
async def test_a_signal_ends_calls_that_are_being_served(mcp_door: McpDoor, mark: str) -> None:
    with mcp_door.listener() as (url, process), anyio.fail_after(PATIENCE_S):
        with contextlib.suppress(Exception):  # Its client is told in one way or another.
            async with over_http(url, "legacy") as client, anyio.create_task_group() as group:
                group.start_soon(run, client, f"setsid sleep {mark} & sleep {mark}")
                await until(lambda: len(alive(mark)) >= 2, "it runs")
                process.send_signal(signal.SIGTERM)
                await until(lambda: process.poll() is not None, "it has ended")
                group.cancel_scope.cancel()
        await until(lambda: process.poll() is not None, "it has ended")
        assert process.returncode == 0, mcp_door.said()
    assert alive(mark) == []


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
async def test_a_signal_ends_it_with_all_that_it_started(
    mcp_door: McpDoor, mark: str, number: str
) -> None:
    with mcp_door.listener() as (url, process), anyio.fail_after(PATIENCE_S):
        async with over_http(url, "legacy") as client:
            await run(client, f"setsid sleep {mark} & sleep {mark}", background=True)
            await until(lambda: len(alive(mark)) >= 2, "it runs")
        process.send_signal(getattr(signal, number))
        await until(lambda: process.poll() is not None, "it has ended")
        assert process.returncode == 0
    assert alive(mark) == []
