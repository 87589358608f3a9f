"""The proxy of a sandbox, asked by real sockets; its internet is on loopback."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from kakoi.errors import AuditError, SandboxError
from kakoi.network.domains import EVERYTHING_PUBLIC, parse_domains, parse_target
from kakoi.network.header_credentials import HeaderCredential
from kakoi.network.proxy import ConnectionDecision, Proxy, ProxyLimits
from kakoi.network.shared_listener import SharedListener
from tests.network.world import (
    WAIT_S,
    Names,
    Web,
    certificate,
    client_hello,
    echo,
    opened,
    server,
)

pytestmark = pytest.mark.anyio
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def get(host: str, *fields: str, path: str = "/") -> bytes:
    lines = [f"GET http://{host}{path} HTTP/1.1", f"Host: {host}", *fields, "", ""]
    return "\r\n".join(lines).encode()


# --- What is allowed -------------------------------------------------------------------------


async def test_a_listed_name_is_asked_for_by_its_own_name() -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        answer = await world.ask(get(f"example.org:{port}", "X-A: 1", path="/a"))

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert web.received[0].startswith(b"GET /a HTTP/1.1\r\nHost: example.org:%d\r\n" % port)
    assert [(str(each.target), each.objection) for each in world.decisions] == [
        (f"example.org:{port}", "")
    ]


async def test_bodies_go_through_with_a_length_and_in_chunks() -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        url = f"http://example.org:{port}/"
        for fields, body in (
            (b"Content-Length: 5\r\n", b"hello"),
            (b"Transfer-Encoding: chunked\r\n", b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"),
        ):
            head = f"POST {url} HTTP/1.1\r\nHost: example.org:{port}\r\n".encode()
            answer = await world.ask(head + fields + b"\r\n" + body)
            assert answer.endswith(body)


async def test_a_tunnel_carries_both_ways_until_both_ends_are_done() -> None:
    async with server(echo) as port, opened(f"example.org:{port}") as world:
        async with world.connection() as (reader, writer):
            writer.write(f"CONNECT example.org:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400")
        async with world.connection() as (reader, writer):
            writer.write(
                f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
            )
            assert await reader.readuntil(b"\r\n\r\n") == ESTABLISHED
            data = b"SSH-2.0 \x00" * 100_000
            writer.write(data)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(-1), WAIT_S) == data


async def test_a_single_byte_of_another_protocol_is_not_held_back() -> None:
    async with (
        server(echo) as port,
        opened(f"example.org:{port}") as world,
        world.connection() as (reader, writer),
    ):
        writer.write(f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == ESTABLISHED
        for byte in (b"0", b"\x16", b"x"):
            writer.write(byte)
            assert await asyncio.wait_for(reader.readexactly(1), WAIT_S) == byte


async def test_tls_goes_through_untouched(tmp_path: Path) -> None:
    theirs, ours = certificate(tmp_path, "example.org")
    web = Web()
    async with server(web, theirs) as port, opened(f"example.org:{port}") as world:
        connection = socket.create_connection(("127.0.0.1", world.port))
        connection.sendall(
            f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
        )
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        assert await loop.sock_recv(connection, 1000) == ESTABLISHED
        reader, writer = await asyncio.open_connection(
            sock=connection, ssl=ours, server_hostname="example.org"
        )
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """A second lookup would be answered by 127.0.0.2, where nobody listens."""

    class Changing(Names):
        async def __call__(self, name: str) -> object:  # type: ignore[override]  # Of a test.
            found = await super().__call__(name)
            self.table[name] = "127.0.0.2"
            return found

    names = Changing(example_org="127.0.0.1")
    async with server(echo) as port, opened(f"example.org:{port}", names=names) as world:
        assert await world.connect(f"example.org:{port}") == ESTABLISHED
        assert names.asked == ["example.org"]


async def test_of_many_addresses_only_the_public_ones_are_tried() -> None:
    names = Names(example_org="10.0.0.1 169.254.169.254 127.0.0.1")
    async with server(echo) as port, opened(f"example.org:{port}", names=names) as world:
        assert await world.connect(f"example.org:{port}") == ESTABLISHED
        assert [str(each) for each in world.decisions[0].addresses] == ["127.0.0.1"]


# --- What is not -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authority",
    [
        *("evil.test:443", "sub.example.org:443", "example.org:22", "127.0.0.1:443", "[::1]:443"),
        *("2130706433:443", "0x7f.1:443", "[::ffff:127.0.0.1]:443", "169.254.169.254:80"),
        *("localhost:443", "[fe80::1%lo]:443"),
    ],
)
async def test_what_is_not_listed_is_refused_and_not_even_looked_up(authority: str) -> None:
    async with opened("example.org") as world:
        watch = world.proxy.watch_refusals()
        assert (await world.connect(authority)).startswith(b"HTTP/1.1 403")
        answer = await world.ask(get(authority))

        assert answer.startswith(b"HTTP/1.1 403")
        assert b"refused by kakoi" in answer
        assert world.names.asked == []
        assert len(world.objections) == 2
        assert watch.blocked


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "100.100.100.200", "192.168.1.1", "0.1.2.3"),
        *("::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fd00:ec2::254"),
    ],
)
@pytest.mark.parametrize("everything", [False, True], ids=["listed", "open"])
async def test_a_name_that_leads_to_this_machine_or_its_neighbours_is_refused(
    address: str, *, everything: bool
) -> None:
    domains = EVERYTHING_PUBLIC if everything else parse_domains(["example.org"])
    names = Names(example_org=address)
    async with opened(domains=domains, names=names, loopback=False) as world:
        assert (await world.connect("example.org:443")).startswith(b"HTTP/1.1 403")
        assert (await world.ask(get("example.org"))).startswith(b"HTTP/1.1 403")

    assert ["which is not public" in each for each in world.objections] == [True, True]


async def test_open_means_every_public_name_and_no_other_address() -> None:
    async with server(echo) as port, opened(domains=EVERYTHING_PUBLIC) as world:
        assert await world.connect(f"other.org:{port}") == ESTABLISHED
        assert (await world.connect("10.0.0.1:80")).startswith(b"HTTP/1.1 403")


async def test_a_name_that_does_not_exist_is_a_failure_and_no_refusal() -> None:
    async with opened("gone.example") as world:
        assert (await world.connect("gone.example:443")).startswith(b"HTTP/1.1 502")
        assert world.objections == []


# --- Forged names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evil.test", "sub.example.org", "example.org.evil.test", None])
async def test_a_tunnel_whose_tls_names_another_host_is_cut(name: str | None) -> None:
    sent: list[bytes] = []

    async def listening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(await reader.read())
        writer.close()

    async with server(listening) as port, opened(f"example.org:{port}") as world:
        watch = world.proxy.watch_refusals()
        connect = f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n"
        answer = await world.ask(connect.encode(), then=client_hello(name))
        assert answer[:1] == b"\x15"
        assert "TLS" in watch.blocked[0].reason

    assert sent in ([], [b""])


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x15\x03\x01\x00\x02\x01\x64" + client_hello("example.org"),
    ],
    ids=["HTTP/1.1", "HTTP/2", "an alert before a hello"],
)
async def test_a_web_port_carries_nothing_but_tls(said: bytes) -> None:
    """Inside of a tunnel a forged Host would choose another site of the same server."""
    async with server(echo) as port:
        listed = parse_domains([f"example.org:{port}"])
        assert not listed.needs_tls(parse_target("example.org", port))
        async with opened("example.org:*") as world:
            connect = f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n"
            answer = await world.ask(connect.encode(), then=said)
            assert answer[:1] == b"\x15"
            assert world.objections == ["it is not TLS"]


async def test_a_forged_host_is_refused() -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        forged = f"GET http://example.org:{port}/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
        assert (await world.ask(forged.encode())).startswith(b"HTTP/1.1 400")
        assert world.objections

    assert web.received == []


# --- Smuggling -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 0\r\n\r\n",
        b"Content-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\r\n",
    ],
)
async def test_nothing_that_follows_a_request_is_read_as_another(body: bytes) -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}", "other.org") as world:
        head = f"POST http://example.org:{port}/ HTTP/1.1\r\nHost: example.org:{port}\r\n".encode()
        answer = await world.ask(head + body + get("evil.test") + get(f"example.org:{port}"))

    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert len(web.received) == 1
    assert b"evil" not in web.received[0]
    assert len(world.decisions) == 1


@pytest.mark.parametrize(
    "chunks",
    [b"5;ext\r\nhello\r\n", b"2\r\nhello\r\n", b"0\r\nHost: evil\r\n\r\n", b"-1\r\n", b"z\r\n"],
)
async def test_a_body_in_broken_chunks_ends_the_connection(chunks: bytes) -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        head = f"POST http://example.org:{port}/ HTTP/1.1\r\nHost: example.org:{port}\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        assert await world.ask(head.encode() + chunks + b"0\r\n\r\n") == b""

    assert web.received == []


# --- Bounds ----------------------------------------------------------------------------------


async def test_a_head_without_end_is_refused() -> None:
    async with opened("example.org") as world:
        answer = await world.ask(b"GET http://example.org/ HTTP/1.1\r\nX: " + b"a" * 200_000)

    assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"", b"GET http://example.org/ HT", get("example.org")[:-1]])
async def test_a_request_that_does_not_come_to_its_end_is_given_up(sent: bytes) -> None:
    async with opened("example.org", limits=ProxyLimits(head_s=0.2)) as world:
        assert await world.ask(sent) == b""
        assert world.decisions == []


async def test_a_hello_that_does_not_come_is_given_up() -> None:
    async with (
        server(echo) as port,
        opened("example.org:*", limits=ProxyLimits(head_s=0.2)) as world,
    ):
        connect = f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
        assert await world.ask(connect, then=client_hello("example.org")[:50]) == b""


async def test_a_silent_connection_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    limits = ProxyLimits(idle_s=0.2)
    async with server(silent) as port, opened(f"example.org:{port}", limits=limits) as world:
        assert await world.ask(get(f"example.org:{port}")) == b""


async def test_more_connections_than_allowed_wait_their_turn() -> None:
    limits = ProxyLimits(connections=4)
    async with server(echo) as port, opened(f"example.org:{port}", limits=limits) as world:
        connect = f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
        async with contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(world.connection()) for _ in range(10)]
            for _, writer in held:
                writer.write(connect)
            first = [asyncio.ensure_future(reader.readuntil(b"\r\n\r\n")) for reader, _ in held]
            done: set[asyncio.Future[bytes]] = set()
            while len(done) < 10:
                ready, _ = await asyncio.wait(
                    [each for each in first if each not in done],
                    timeout=WAIT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                assert ready
                assert world.proxy.open_connections <= 4
                for each in ready:
                    done.add(each)
                    held[first.index(each)][1].close()


async def test_a_sandbox_cannot_flood_the_record() -> None:
    limits = ProxyLimits(burst=3, per_s=0.01)
    async with opened("example.org", limits=limits) as world:
        asked = [asyncio.ensure_future(world.connect("evil.test:443")) for _ in range(20)]
        await asyncio.wait(asked, timeout=1.0)
        assert len(world.decisions) == 3
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_what_cannot_be_recorded_does_not_go_out() -> None:
    web = Web()

    async def failing(_decision: ConnectionDecision) -> None:
        raise AuditError("the disk is full")

    async with server(web) as port:
        proxy = Proxy(
            parse_domains([f"example.org:{port}"]),
            record=failing,
            resolve=Names(example_org="127.0.0.1"),
            check_address=lambda _domains, _address: "",
        )
        listener = socket.create_server(("127.0.0.1", 0))
        proxy_port = listener.getsockname()[1]
        proxy.serve(listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy_port)
        writer.write(get(f"example.org:{port}"))
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        await proxy.close()

    assert web.received == []


# --- While it runs ---------------------------------------------------------------------------


async def test_a_change_of_the_list_holds_at_once_also_for_open_tunnels() -> None:
    async with server(echo) as port, opened(f"example.org:{port}") as world:
        async with world.connection() as (reader, writer):
            writer.write(
                f"CONNECT example.org:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
            )
            assert await reader.readuntil(b"\r\n\r\n") == ESTABLISHED
            world.proxy.change(parse_domains([f"other.org:{port}"]))
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert (await world.connect(f"example.org:{port}")).startswith(b"HTTP/1.1 403")
        assert await world.connect(f"other.org:{port}") == ESTABLISHED


async def test_refusals_are_reported_once_to_each_watcher() -> None:
    async with opened("example.org") as world:
        first = world.proxy.watch_refusals()
        await world.connect("a.test:443")
        second = world.proxy.watch_refusals()
        for _ in range(3):
            await world.connect("b.test:443")

    assert [each.host for each in first.blocked] == ["a.test", "b.test"]
    assert [(each.host, each.port, each.reason) for each in second.blocked] == [
        ("b.test", 443, "it is not listed")
    ]


async def test_refusals_are_bounded() -> None:
    async with opened("example.org") as world:
        watch = world.proxy.watch_refusals()
        for number in range(150):
            await world.connect(f"n{number}.test:443")

    assert len(watch.blocked) == 100


async def test_a_credential_is_added_here_and_goes_by_tls_only(tmp_path: Path) -> None:
    theirs, ours = certificate(tmp_path, "api.example")
    web = Web()
    names = Names(api_example="127.0.0.1", example_org="127.0.0.1")
    async with server(web, theirs) as port:
        secret = HeaderCredential(header="Authorization", value="Bearer s3cret", port=port)
        async with opened(
            f"api.example:{port}",
            names=names,
            credentials={"api.example": secret},
            tls=ours,
        ) as world:
            answer = await world.ask(get("api.example", "Authorization: Bearer theirs"))

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert web.received[0].count(b"Authorization") == 1
    assert b"Authorization: Bearer s3cret\r\n" in web.received[0]
    assert "s3cret" not in repr(secret)


async def test_a_credential_is_not_given_to_a_server_that_cannot_prove_its_name(
    tmp_path: Path,
) -> None:
    theirs, _ = certificate(tmp_path, "evil.test")
    web = Web()
    names = Names(api_example="127.0.0.1")
    async with server(web, theirs) as port:
        secret = HeaderCredential(header="Authorization", value="Bearer s3cret", port=port)
        async with opened(
            f"api.example:{port}",
            names=names,
            credentials={"api.example": secret},
            tls=ssl.create_default_context(),
        ) as world:
            assert await world.ask(get("api.example")) == b""

    assert web.received == []


# --- The door --------------------------------------------------------------------------------


async def test_what_is_not_a_listening_socket_is_not_served() -> None:
    proxy = Proxy(parse_domains([]), resolve=Names())
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SandboxError):
        proxy.serve(ours)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, pytest.raises(SandboxError):
        proxy.serve(udp)
    await proxy.close()


async def test_a_socket_that_somebody_makes_block_holds_nobody_up() -> None:
    """Whoever shares it takes the connection first, and our thread waits; we do not."""
    proxy = Proxy(parse_domains([]), resolve=Names())
    listener = socket.create_server(("127.0.0.1", 0))
    shared = listener.dup()
    proxy.serve(listener)
    shared.setblocking(True)
    with shared, socket.create_connection(shared.getsockname()):
        await asyncio.wait_for(proxy.close(), WAIT_S)


class Counted(socket.socket):
    """A socket that tells when it was asked twice for a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.asked_again = threading.Event()

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        if self.asked > 1:
            self.asked_again.set()
        return super().accept()


async def test_a_door_that_was_shut_is_watched_however_many_files_are_open() -> None:
    """Nothing can be accepted then, and the wait for another try is one with high descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    try:
        with contextlib.ExitStack() as many, Counted() as listener:
            while many.enter_context(socket.socket()).fileno() < 1100:
                pass
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            proxy = Proxy(parse_domains([]), resolve=Names())
            proxy.serve(listener)
            listener.shutdown(socket.SHUT_RDWR)
            assert await asyncio.to_thread(listener.asked_again.wait, WAIT_S)
            await asyncio.wait_for(proxy.close(), WAIT_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_connection_that_nobody_came_to_serve_is_closed() -> None:
    proxy = Proxy(parse_domains([]), resolve=Names())
    door = SharedListener(socket.create_server(("127.0.0.1", 0)), lambda _each: None, most=1)
    ours, theirs = socket.socketpair()
    with ours:
        proxy._accept(door, theirs)
        await proxy.close()
        assert theirs.fileno() == -1
        assert ours.recv(1) == b""
    await door.close()


async def test_a_proxy_is_closed_even_if_the_closing_task_is_cancelled() -> None:
    before = os.listdir("/proc/self/fd")
    listener = socket.create_server(("127.0.0.1", 0))
    door = SharedListener(listener, lambda each: each.close(), most=1)
    closing = asyncio.create_task(door.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert listener.fileno() == -1
    assert os.listdir("/proc/self/fd") == before
