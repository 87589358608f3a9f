"""The name server of a proxy, and queries that nobody should have to answer."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.errors import AuditError
from kakoi.network.dns_messages import BadQueryError, lowest_ttl, parse_query
from kakoi.network.domains import Domains, parse_domains
from kakoi.network.name_server import NameServer
from kakoi.network.proxy import ConnectionDecision, Proxy, ProxyLimits
from tests.network.world import Names, World, opened

WAIT_S = 20.0
A, AAAA, TXT = 1, 28, 16
OK, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = range(6)
PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:2800:21f:cb07::1"


def packed(name: str) -> bytes:
    labels = [each.encode("latin-1") for each in name.split(".")] if name else []
    return b"".join(bytes([len(each)]) + each for each in labels) + b"\0"


def query(name: str, kind: int = A, *, flags: int = 0x0100, family: int = 1, id: int = 7) -> bytes:
    head = struct.pack("!HHHHHH", id, flags, 1, 0, 0, 0)
    return head + packed(name) + struct.pack("!HH", kind, family)


def code(answer: bytes) -> int:
    return int(struct.unpack_from("!H", answer, 2)[0]) & 15


def records(answer: bytes) -> list[tuple[int, str]]:
    """Return the TTL and the address of each record."""
    (count,) = struct.unpack_from("!H", answer, 6)
    at, found = answer.index(b"\0", 12) + 5, []
    for _ in range(count):
        _, _, _, ttl_s, size = struct.unpack_from("!HHHIH", answer, at)
        family = socket.AF_INET if size == 4 else socket.AF_INET6
        found.append((ttl_s, socket.inet_ntop(family, answer[at + 12 : at + 12 + size])))
        at += 12 + size
    assert at == len(answer)
    return found


@dataclass
class Asked:
    """A world whose proxy answers queries, and clients of it."""

    world: World
    server: NameServer
    udp: tuple[str, int]
    tcp: tuple[str, int]

    async def ask(self, message: bytes) -> bytes:
        """Send a message by UDP and return the answer."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.connect(self.udp)
            await loop.sock_sendall(line, message)
            return await asyncio.wait_for(loop.sock_recv(line, 65536), WAIT_S)

    async def send(self, *messages: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            for message in messages:
                with contextlib.suppress(BlockingIOError):
                    line.sendto(message, socket.MSG_DONTWAIT, self.udp)

    async def ask_by_tcp(self, data: bytes) -> bytes:
        """Send data by TCP and return everything until the server closes the connection."""
        reader, writer = await asyncio.open_connection(*self.tcp)
        try:
            writer.write(data)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), WAIT_S)
        except ConnectionError:
            return b""
        finally:
            await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def asking(
    *lines: str,
    domains: Domains | None = None,
    limits: ProxyLimits | None = None,
    **names: str,
) -> AsyncIterator[Asked]:
    table = Names(**{"example_org": f"{PUBLIC} {PUBLIC_6}", **names})
    async with opened(*lines, names=table, domains=domains, limits=limits, loopback=False) as world:
        queries = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        queries.bind(("127.0.0.1", 0))
        listener = socket.create_server(("127.0.0.1", 0))
        udp, tcp = queries.getsockname(), listener.getsockname()
        server = world.proxy.serve_names(queries, listener)
        yield Asked(world, server, udp, tcp)


pytestmark = pytest.mark.anyio


async def test_a_listed_name_is_answered_with_its_addresses() -> None:
    async with asking("example.org") as dns:
        assert records(await dns.ask(query("example.org"))) == [(10, PUBLIC)]
        assert records(await dns.ask(query("eXample.ORG", AAAA))) == [(10, PUBLIC_6)]
        assert records(await dns.ask(query("example.org", TXT))) == []
    # One lookup, and one record of it, for all of that.
    assert dns.world.names.asked == ["example.org"]
    assert [f"{each.method} {each.target}" for each in dns.world.decisions] == ["DNS example.org"]


async def test_the_answer_repeats_the_question_as_it_was_asked() -> None:
    async with asking("example.org") as dns:
        asked = query("eXaMple.org", id=4660)
        answer = await dns.ask(asked)
    assert answer[:2] == b"\x12\x34"
    assert answer[12 : len(asked)] == asked[12:]


async def test_an_unlisted_name_does_not_exist_and_is_never_looked_up() -> None:
    async with asking("example.org", other_org=PUBLIC) as dns:
        watch = dns.world.proxy.watch_refusals()
        for name in ("other.org", "a.example.org", "org", "example.org.other.org"):
            assert code(await dns.ask(query(name))) == NO_SUCH_NAME
    assert dns.world.names.asked == []
    assert watch.blocked[0].line == "other.org"
    assert str(watch.blocked[0]) == (
        "resolving other.org was refused by `allowed_domains`: it is not listed"
    )
    assert dns.world.objections == ["it is not listed"] * 4


async def test_a_name_that_only_a_wildcard_allows_is_not_looked_up() -> None:
    async with asking("*.example.org", a_example_org=PUBLIC) as dns:
        assert records(await dns.ask(query("a.example.org"))) == [(10, "127.0.0.2")]
        assert records(await dns.ask(query("a.example.org", AAAA))) == []
        assert code(await dns.ask(query("example.org"))) == NO_SUCH_NAME
    assert dns.world.names.asked == []


async def test_with_an_open_network_every_name_is_looked_up() -> None:
    async with asking(domains=Domains(everything=True), other_org=PUBLIC) as dns:
        assert records(await dns.ask(query("other.org"))) == [(10, PUBLIC)]
        assert code(await dns.ask(query("absent.org"))) == NO_SUCH_NAME


async def test_private_addresses_are_left_out() -> None:
    mixed, inner = f"10.0.0.1 {PUBLIC} 127.0.0.1", "169.254.169.254"
    async with asking("mixed.org", "inner.org", mixed_org=mixed, inner_org=inner) as dns:
        assert records(await dns.ask(query("mixed.org"))) == [(10, PUBLIC)]
        assert code(await dns.ask(query("inner.org"))) == NO_SUCH_NAME
    assert "link-local" in dns.world.objections[0]


async def test_a_name_that_cannot_be_resolved_right_now_is_a_failure_of_the_server() -> None:
    async def failing(_name: str) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    proxy = Proxy(parse_domains(["example.org"]), resolve=failing)  # type: ignore[arg-type]  # It raises.
    try:
        assert (await proxy._answer("example.org")).code == SERVER_FAILURE
    finally:
        await proxy.close()


async def test_the_ttl_is_the_name_servers() -> None:
    async def ttl(_name: str) -> int:
        return 4321

    names = Names(example_org=PUBLIC)
    async with opened("example.org", names=names, loopback=False, ttl=ttl) as world:
        found = await world.proxy._answer("example.org")
    assert found.ttl_s == 4321


async def test_a_changed_list_holds_for_the_next_query() -> None:
    async with asking("example.org") as dns:
        assert code(await dns.ask(query("example.org"))) == OK
        dns.world.proxy.change(parse_domains([]))
        assert code(await dns.ask(query("example.org"))) == NO_SUCH_NAME


async def test_what_cannot_be_recorded_is_not_answered() -> None:
    async def full(_decision: ConnectionDecision) -> None:
        raise AuditError("no space left")

    proxy = Proxy(parse_domains(["example.org"]), resolve=Names(example_org=PUBLIC), record=full)
    queries = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    queries.bind(("127.0.0.1", 0))
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        udp, tcp = queries.getsockname(), listener.getsockname()
        dns = Asked(None, proxy.serve_names(queries, listener), udp, tcp)  # type: ignore[arg-type]  # Of no use here.
        assert code(await dns.ask(query("example.org"))) == SERVER_FAILURE
    finally:
        await proxy.close()


# --- Hostile ---------------------------------------------------------------------------------

HEAD = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0)
TAIL = struct.pack("!HH", A, 1)
BAD = {
    "a pointer to itself": (HEAD + b"\xc0\x0c" + TAIL, FORMAT_ERROR),
    "a pointer after a label": (HEAD + b"\x01a\xc0\x0c" + TAIL, FORMAT_ERROR),
    "two pointers in a circle": (HEAD + b"\xc0\x0e\xc0\x0c" + TAIL, FORMAT_ERROR),
    "no end of the name": (HEAD + b"\x3f" + b"a" * 63, FORMAT_ERROR),
    "a label that is cut off": (HEAD + b"\x3fabc", FORMAT_ERROR),
    "no question": (HEAD[:4] + bytes(8), FORMAT_ERROR),
    "two questions": (HEAD[:4] + b"\0\2" + bytes(6) + packed("a.org") + TAIL, FORMAT_ERROR),
    "no type": (HEAD + packed("example.org"), FORMAT_ERROR),
    "a name of 300 bytes": (HEAD + (b"\x3b" + b"a" * 59) * 5 + b"\0" + TAIL, FORMAT_ERROR),
    "an update": (query("example.org", flags=0x2800), NOT_IMPLEMENTED),
    "another class": (query("example.org", family=3), REFUSED),
    "bytes that no name has": (query("\xff\x00\n.example.org"), NO_SUCH_NAME),
    "a dot in a label": (HEAD + b"\x0bexample.org\0" + TAIL, FORMAT_ERROR),
    "an address": (query("10.0.0.1"), NO_SUCH_NAME),
    "the root": (query(""), NO_SUCH_NAME),
}


@pytest.mark.parametrize("which", BAD)
async def test_a_bad_query_gets_its_code_and_is_never_looked_up(which: str) -> None:
    message, expected = BAD[which]
    async with asking("example.org") as dns:
        assert code(await dns.ask(message)) == expected
        assert code(await dns.ask(query("example.org"))) == OK
    assert set(dns.world.names.asked) == {"example.org"}


async def test_what_is_no_query_gets_no_answer() -> None:
    async with asking("example.org") as dns:
        silent = [b"", b"x", HEAD[:11], query("example.org", flags=0x8180)]
        await dns.send(*silent, query("example.org") + bytes(600))
        # The next answer is that of the next query.
        assert code(await dns.ask(query("example.org"))) == OK
    assert len(dns.world.decisions) == 1


async def test_data_in_labels_goes_nowhere() -> None:
    """Ten thousand names under a listed one: no lookup, and not more records than the rate."""
    limits = ProxyLimits(burst=20, per_s=1.0)
    async with asking("example.org", "*.wild.org", limits=limits) as dns:
        before = len(os.listdir("/proc/self/fd"))
        for batch in range(100):
            names = [f"{os.urandom(20).hex()}.{batch}" for _ in range(50)]
            await dns.send(*(query(f"{each}.example.org") for each in names))
            await dns.send(*(query(f"{each}.wild.org") for each in names))
            await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) <= before
    assert dns.world.names.asked == []
    assert len(dns.world.decisions) < 100


async def test_a_flood_leaves_the_event_loop_time_for_others() -> None:
    async with asking("example.org") as dns:
        stop = asyncio.Event()

        async def flood() -> None:
            while not stop.is_set():
                await dns.send(*[query("example.org")] * 200)
                await asyncio.sleep(0)

        flooding = asyncio.ensure_future(flood())
        try:
            for _ in range(5):
                await asyncio.wait_for(asyncio.sleep(0.001), WAIT_S)
        finally:
            stop.set()
            await flooding
        answer = b""
        while not answer:  # Some are dropped, as UDP may.
            with contextlib.suppress(TimeoutError):
                answer = await asyncio.wait_for(dns.ask(query("example.org")), 1)
    assert code(answer) == OK


async def test_a_connection_carries_several_queries() -> None:
    framed = [query("example.org"), query("other.org"), query("example.org", AAAA)]
    async with asking("example.org") as dns:
        data = b"".join(struct.pack("!H", len(each)) + each for each in framed)
        said = await dns.ask_by_tcp(data)
    codes = []
    while said:
        size = int.from_bytes(said[:2], "big")
        codes.append(code(said[2 : 2 + size]))
        said = said[2 + size :]
    assert codes == [OK, NO_SUCH_NAME, OK]


@pytest.mark.parametrize("data", [b"\xff\xff" + bytes(1000), b"\0\0", b"\0\x05abc", b"\0", b""])
async def test_a_bad_connection_is_closed(data: bytes) -> None:
    async with asking("example.org") as dns:
        assert await dns.ask_by_tcp(data) == b""
        assert code(await dns.ask(query("example.org"))) == OK


async def test_connections_that_say_nothing_are_limited_and_closed() -> None:
    async with asking("example.org", limits=ProxyLimits(head_s=0.2)) as dns:
        silent = [await asyncio.open_connection(*dns.tcp) for _ in range(40)]
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            await closed(writer)
        framed = struct.pack("!H", len(query("example.org"))) + query("example.org")
        assert code((await dns.ask_by_tcp(framed))[2:]) == OK


async def test_a_closed_server_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with asking("example.org") as dns:
        await dns.ask(query("example.org"))
        await dns.server.close()
        await dns.server.close()
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.binary(max_size=600))
def test_any_bytes_are_a_query_or_a_bad_one(data: bytes) -> None:
    with contextlib.suppress(BadQueryError):
        assert len(parse_query(data).name) <= 4 * 255
    lowest_ttl(data)


@given(st.binary(max_size=300))
def test_any_question_is_a_query_or_a_bad_one(data: bytes) -> None:
    with contextlib.suppress(BadQueryError):
        parse_query(HEAD + data)
