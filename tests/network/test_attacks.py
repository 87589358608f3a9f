"""Attacks on the proxy itself, one by one; what a sandbox can send is in its own hands."""

import asyncio
import base64
import contextlib
import html
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from kakoi.network.addresses import Address
from kakoi.network.domains import DomainEntry, Domains
from kakoi.network.header_credentials import HeaderCredential
from kakoi.network.proxy import ProxyLimits
from tests.network.world import (
    WAIT_S,
    Handler,
    Names,
    Web,
    World,
    certificate,
    client_hello,
    echo,
    hello,
    opened,
    server,
    sni,
)

pytestmark = pytest.mark.anyio
# The random number of a server that wants another hello (RFC 8446, 4.1.3).
ASKS_AGAIN = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"


# --- Names -----------------------------------------------------------------------------------


class Rebinding:
    """A name that leads to loopback the first time, and to the cloud's metadata from then on."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        there = "127.0.0.1" if len(self.asked) == 1 else "169.254.169.254"
        return [ipaddress.ip_address(there)]


async def test_a_name_that_changes_is_asked_for_once_and_checked_each_time() -> None:
    web, names = Web(), Rebinding()
    async with server(web) as port, opened(f"example.org:{port}", names=names) as world:  # type: ignore[arg-type]  # A resolver.
        head = f"GET http://example.org:{port}/ HTTP/1.1\r\nHost: example.org:{port}\r\n\r\n"
        first = await world.ask(head.encode())
        assert len(names.asked) == 1
        second = await world.ask(head.encode())
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 403")
    assert b"169.254.169.254, which is not public" in second
    assert len(web.received) == 1


@pytest.mark.parametrize(
    "authority",
    [
        "[::ffff:169.254.169.254]:80",
        "[::ffff:a9fe:a9fe]:80",
        "[::169.254.169.254]:80",
        "[64:ff9b::a9fe:a9fe]:80",
        "[::]:80",
        "[::1%lo]:80",
        "[::1%25lo]:80",
        "0.0.0.0:80",
        "0:80",
        "127.1:80",
        "localhost:80",
        "localhost.:80",
        "LOCALHOST:80",
        "example.org..:80",
        "example.org\x00.evil.test:80",
        "example.org%00:80",
        "example.org\t:80",
        "example.org :80",
        " example.org:80",
        "example.org:80 ",
        "example.org:080",
        "example.org:+80",
        "example.org:65616",
        "example.org:-1",
        "example.org:80:80",
        "example.org@evil.test:80",
        "evil.test#@example.org:80",
        "evil.test\\@example.org:80",
        "ｅxample.org:80",
        "example。org:80",
        "exаmple.org:80",
        "127。0。0。1:80",
        "①②⑦.0.0.1:80",
    ],
)
@pytest.mark.parametrize("form", ["CONNECT {}", "GET http://{}/"])
async def test_no_spelling_of_a_host_gets_around_the_list(form: str, authority: str) -> None:
    names = Names(example_org="127.0.0.1", localhost="127.0.0.1", evil_test="127.0.0.1")
    async with opened("example.org", names=names) as world:
        host = authority.encode()
        line = form.format(authority).encode()
        answer = await world.ask(b"%b HTTP/1.1\r\nHost: %b\r\n\r\n" % (line, host))
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    assert names.asked == []


# --- Requests --------------------------------------------------------------------------------


async def test_http2_with_prior_knowledge_is_not_a_request() -> None:
    async with opened("example.org") as world:
        answer = await world.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
    assert answer.startswith(b"HTTP/1.1 400")
    assert world.names.asked == []


async def test_an_upgrade_is_not_passed_on_so_only_one_request_is_sent() -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        at = f"example.org:{port}"
        for protocol in ("websocket", "h2c"):
            await world.ask(
                f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                f"Upgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\nSec-WebSocket-Version: 13\r\n\r\n"
                "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode()
            )
    assert len(web.received) == 2
    for head in web.received:
        assert b"upgrade" not in head.lower()
        assert b"http2-settings" not in head.lower()
        assert b"evil.test" not in head


@pytest.mark.parametrize(
    "more",
    [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer_Encoding: chunked\r\nContent-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
    ],
)
async def test_a_body_whose_length_has_two_readings_is_refused(more: str) -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        at = f"example.org:{port}"
        head = f"POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n{more}\r\n\r\n0\r\n\r\n"
        answer = await world.ask(head.encode())
    assert answer.startswith(b"HTTP/1.1 400")
    assert web.received == []


# --- TLS -------------------------------------------------------------------------------------


async def test_a_second_hello_in_the_same_tunnel_gives_no_second_name() -> None:
    """After the first one the rest is encrypted for its host; who speaks plainly is not heard."""
    async with server(echo) as port, opened(f"example.org:{port}", f"other.org:{port}") as world:
        at = f"example.org:{port}"
        for first, second in (("other.org", "example.org"), ("evil.test", "example.org")):
            answer = await world.ask(
                f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode(),
                then=client_hello(first) + client_hello(second),
            )
            assert answer == b"\x15\x03\x03\x00\x02\x02\x31"


CHANGE_CIPHER = b"\x14\x03\x03\x00\x01\x01"
# An encrypted record that by chance looks like the beginning of a very long hello.
ENCRYPTED = b"\x16\x03\x03\x00\x28\x01" + b"\xff" * 39


@pytest.mark.parametrize(
    ("random", "goes_on"),
    [(bytes(32), True), (bytes.fromhex(ASKS_AGAIN), False)],
    ids=["taken", "asked again"],
)
async def test_after_its_hello_was_taken_a_client_may_encrypt_at_once(
    random: bytes, goes_on: bool
) -> None:
    """So it is where a session of TLS 1.2 is taken up again."""
    received = bytearray()

    async def resuming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(client_hello("example.org")))
        body = b"\x02\x00\x00\x26\x03\x03" + random + bytes(4)
        writer.write(b"\x16\x03\x03" + len(body).to_bytes(2, "big") + body)
        received.extend(await reader.read())
        writer.close()

    async with server(resuming) as port, opened(f"example.org:{port}") as world:
        at = f"example.org:{port}"
        async with world.connection() as (reader, writer):
            writer.write(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            writer.write(client_hello("example.org"))
            await asyncio.wait_for(reader.readexactly(47), WAIT_S)
            writer.write(CHANGE_CIPHER + ENCRYPTED)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), WAIT_S)
    assert (bytes(received) == CHANGE_CIPHER + ENCRYPTED) is goes_on
    assert (world.objections == []) is goes_on


async def test_a_second_hello_that_was_asked_for_names_the_same_host() -> None:
    async with server(echo) as port, opened(f"example.org:{port}", f"other.org:{port}") as world:
        at = f"example.org:{port}"
        answer = await world.ask(
            f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode(),
            then=client_hello("example.org") + client_hello("other.org"),
        )
    assert answer.endswith(b"\x15\x03\x03\x00\x02\x02\x31")
    assert world.objections == ["its TLS names `other.org`"]


async def test_a_hello_in_many_pieces_is_read_before_any_of_it_goes_out() -> None:
    received = bytearray()

    async def listening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    async with server(listening) as port, opened(f"example.org:{port}") as world:
        at = f"example.org:{port}"
        async with world.connection() as (reader, writer):
            writer.write(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            for byte in client_hello("evil.test"):
                writer.write(bytes([byte]))
                await writer.drain()
            await asyncio.wait_for(reader.read(), WAIT_S)
    assert received == b""


@pytest.mark.parametrize(
    ("name", "goes_on"),
    [
        (b"example.org", True),
        (b"EXAMPLE.org", True),
        (b"example.org.", False),
        (b"EXAMPLE.ORG.", False),
        (b"other.org", False),
        (b"example.org\0.evil.test", False),
        (b"example.org:443", False),
        (b"user@example.org", False),
        (b" example.org", False),
        (b"*.example.org", False),
        (b"127.0.0.1", False),
        ("ex\u00e4mple.org".encode(), False),
        ("\uff45xample.org".encode(), False),
    ],
)
async def test_a_name_in_tls_has_one_spelling_and_is_that_of_the_tunnel(
    name: bytes, goes_on: bool
) -> None:
    """Both hosts are listed, and lead to one server: it must not be asked for the other one."""
    async with server(echo) as port, opened(f"example.org:{port}", f"other.org:{port}") as world:
        answer = await world.tunnel(f"example.org:{port}", hello(sni(name)))
    assert (answer == hello(sni(name))) is goes_on
    assert (world.objections == []) is goes_on


async def test_a_hello_that_hides_another_one_is_cut() -> None:
    hidden = hello(sni(b"example.org"), (0xFE0D, bytes(64)))
    async with server(echo) as port, opened(f"example.org:{port}") as world:
        assert (await world.tunnel(f"example.org:{port}", hidden))[:1] == b"\x15"
    assert "ECH" in world.objections[0]


async def test_a_name_in_another_script_is_the_same_in_the_list_the_request_and_the_hello() -> None:
    names = Names(**{"xn--bcher-kva_example": "127.0.0.1"})
    async with server(echo) as port, opened(f"b\u00fccher.example:{port}", names=names) as world:
        for name, goes_on in ((b"XN--BCHER-KVA.example", True), (b"bucher.example", False)):
            said = hello(sni(name))
            answer = await world.tunnel(f"xn--bcher-kva.example:{port}", said)
            assert (answer == said) is goes_on


async def test_http2_inside_of_tls_goes_to_the_host_of_the_tunnel_only(tmp_path: Path) -> None:
    """What is said inside is encrypted; to whom is not."""
    theirs, ours = certificate(tmp_path, "example.org", "other.org")
    for context in (theirs, ours):
        context.set_alpn_protocols(["h2"])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    async with (
        server(echo, theirs) as port,
        opened(f"example.org:{port}", f"other.org:{port}") as world,
    ):
        for name, goes_on in (("example.org", True), ("other.org", False)):
            connection = socket.create_connection(("127.0.0.1", world.port))
            at = f"example.org:{port}"
            connection.sendall(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            assert b" 200 " in await asyncio.wait_for(loop.sock_recv(connection, 1000), WAIT_S)
            opening = asyncio.open_connection(sock=connection, ssl=ours, server_hostname=name)
            if not goes_on:
                with pytest.raises(ssl.SSLError, match="access denied"):
                    await asyncio.wait_for(opening, WAIT_S)
                continue
            reader, writer = await asyncio.wait_for(opening, WAIT_S)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            writer.write(preface)
            assert await asyncio.wait_for(reader.readexactly(len(preface)), WAIT_S) == preface
            writer.close()


# --- Credentials -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        "Connection: Authorization",
        "Connection: close, authorization\r\nAuthorization: theirs",
        "Proxy-Connection: Authorization",
        "authorization: theirs\r\nAUTHORIZATION: theirs",
        "TE: trailers\r\nTrailer: Authorization",
    ],
)
async def test_no_header_takes_a_credential_away_or_adds_another(
    tmp_path: Path, field: str
) -> None:
    theirs, ours = certificate(tmp_path, "api.example")
    web = Web()
    async with server(web, theirs) as port:
        secret = HeaderCredential(header="Authorization", value="Bearer s3cret", port=port)
        async with opened(
            f"api.example:{port}",
            names=Names(api_example="127.0.0.1"),
            credentials={"api.example": secret},
            tls=ours,
        ) as world:
            await world.ask(
                f"GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n{field}\r\n\r\n".encode()
            )
    (head,) = web.received
    assert head.lower().count(b"authorization:") == 1
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in head
    assert b"\r\nConnection: close\r\n" in head


async def test_a_redirect_carries_no_credential_to_another_host(tmp_path: Path) -> None:
    """The proxy follows nothing; who asks the other host anew asks it without the header."""
    theirs, ours = certificate(tmp_path, "api.example")
    other = Web()

    async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 Moved\r\nLocation: http://other.org:%d/\r\n" % there)
        writer.write(b"Content-Length: 0\r\n\r\n")
        writer.close()

    async with server(other) as there, server(redirecting, theirs) as port:
        secret = HeaderCredential(header="Authorization", value="Bearer s3cret", port=port)
        async with opened(
            f"api.example:{port}",
            f"other.org:{there}",
            names=Names(api_example="127.0.0.1", other_org="127.0.0.1"),
            credentials={"api.example": secret},
            tls=ours,
        ) as world:
            answer = await world.ask(
                b"GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 307")
            assert other.received == []
            at = f"other.org:{there}"
            await world.ask(f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
    assert b"s3cret" not in answer + b"".join(other.received)


async def test_an_answer_cannot_be_made_to_look_like_two() -> None:
    """What a server says after its answer reaches only the client that asked, and ends with it."""

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\nforged")
        writer.close()

    web = Web()
    async with (
        server(chatty) as port,
        server(web) as other,
        opened(f"example.org:{port}", f"other.org:{other}") as world,
    ):
        at = f"example.org:{port}"
        await world.ask(f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
        at = f"other.org:{other}"
        answer = await world.ask(f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
    assert b"forged" not in answer


# --- Echoes of a credential ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def credentialed(
    folder: Path, handler: Handler, value: str, limits: ProxyLimits | None = None
) -> AsyncIterator[tuple[World, int]]:
    """A proxy that adds a header to what http://api.example/ is asked; and a plain server's port."""
    theirs, ours = certificate(folder, "api.example")
    async with server(handler, theirs) as port, server(Web()) as plain:
        secret = HeaderCredential(header="Authorization", value=value, port=port)
        ports = frozenset((80, port, plain))
        by_address = DomainEntry(ipaddress.ip_network("127.0.0.1/32"), ports)
        async with opened(
            domains=Domains(
                (by_address, DomainEntry("api.example", ports), DomainEntry("other.org", ports))
            ),
            names=Names(api_example="127.0.0.1", other_org="127.0.0.1"),
            credentials={"api.example": secret},
            tls=ours,
            limits=limits,
        ) as world:
            yield world, plain


TOKEN = "s3cret-Token+of/ours=="


@pytest.mark.parametrize("method", ["TRACE", "TRACK", "trace", "Trace", "DEBUG", "CONNECTX", "get"])
async def test_a_method_that_echoes_or_is_unknown_gets_no_credential(
    tmp_path: Path, method: str
) -> None:
    web = Web()
    async with credentialed(tmp_path, web, f"Bearer {TOKEN}") as (world, _):
        answer = await world.ask(
            f"{method} http://api.example/ HTTP/1.1\r\nHost: api.example\r\n"
            "Max-Forwards: 0\r\n\r\n".encode()
        )
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"credential" in answer
    assert web.received == []
    assert world.objections == [f"credentials are not added to {method} requests"]
    assert TOKEN.encode() not in answer


async def test_the_same_method_without_a_credential_is_passed_on(tmp_path: Path) -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        at = f"example.org:{port}"
        await world.ask(f"TRACE http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
    assert web.received[0].startswith(b"TRACE / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "shown",
    [
        lambda value: value,
        lambda value: value.partition(b" ")[2],
        lambda value: b'{"a": "' + value.replace(b"/", rb"\/") + b'"}',
        lambda value: quote(value, safe="").encode(),
        lambda value: quote_plus(value).encode(),
        lambda value: html.escape(value.decode()).encode(),
        lambda value: base64.b64encode(b"x: " + value),
        lambda value: value.hex().encode(),
    ],
    ids=["plain", "token", "JSON", "URL", "form", "HTML", "base64", "hex"],
)
@pytest.mark.parametrize("pieces", [1, 4096])
async def test_a_server_that_shows_what_it_was_sent_shows_no_credential(
    tmp_path: Path, shown: Callable[[bytes], bytes], pieces: int
) -> None:
    """Its length stays, so that the answer is whole: stars take the place of the value."""
    seen: list[bytes] = []
    value = f"Bearer {TOKEN}".encode()

    async def showing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        body = b"before %b after Bearer s3cret-" % shown(value)
        answer = b"HTTP/1.1 200 OK\r\nX-Echo: %b\r\nContent-Length: %d\r\n\r\n" % (value, len(body))
        for at in range(0, len(answer + body), pieces):
            writer.write((answer + body)[at : at + pieces])
            await writer.drain()
        writer.close()

    async with credentialed(tmp_path, showing, value.decode()) as (world, _):
        answer = await world.ask(
            b"GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n"
            b"Accept-Encoding: gzip\r\nMax-Forwards: 0\r\nRange: bytes=0-3\r\nIf-Range: x\r\n"
            b"X-HTTP-Method-Override: TRACE\r\n\r\n"
        )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"X-Echo: Bearer ****" in head or b"X-Echo: ****" in head
    assert body.startswith(b"before ")
    assert body.endswith(b" after Bearer s3cret-")
    assert b"Content-Length: %d" % len(body) in head
    assert b"***" in body
    for part in (TOKEN[:12], TOKEN[-9:-2], base64.b64encode(TOKEN.encode()).decode()[4:20]):
        assert part.encode() not in answer.replace(b"Bearer s3cret-", b"")
    # Compressed it could not be recognised, a count of hops lets others answer for the server, an
    # override makes another method of it, and a range cuts it.
    assert b"Accept-Encoding: identity\r\n" in seen[0]
    assert b"gzip" not in seen[0]
    for name in (b"Max-Forwards", b"Range", b"Override"):
        assert name not in seen[0]


@pytest.mark.parametrize(
    "request_",
    [
        "CONNECT 127.0.0.1:{0} HTTP/1.1\r\nHost: api.example:{0}\r\n\r\n",
        "CONNECT 127.0.0.1:{0} HTTP/1.1\r\nHost: 127.0.0.1:{0}\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "CONNECT api.example:{0} HTTP/1.1\r\nHost: api.example:{0}\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:{0}/ HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET http://127.0.0.1:{0}/ HTTP/1.1\r\nHost: 127.0.0.1:{0}\r\n\r\n",
        "GET http://api.example:{0}/ HTTP/1.1\r\nHost: api.example:{0}\r\n\r\n",
        "GET http://user@api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET http://other.org/ HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET http://api.example/ HTTP/1.1\r\nHost: other.org\r\n\r\n",
    ],
)
async def test_a_host_by_its_address_or_through_a_tunnel_gets_no_credential(
    tmp_path: Path, request_: str
) -> None:
    web = Web()
    async with credentialed(tmp_path, web, f"Bearer {TOKEN}") as (world, plain):
        answer = await world.ask(request_.format(plain).encode())
    assert TOKEN.encode() not in answer
    assert b"***" not in answer
    assert web.received == []


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: api.example\r\n\r\n"


@pytest.mark.parametrize(
    ("more", "body", "taken"),
    [
        (b"Content-Length: 5", b"hello", b"hello"),
        (b"X: 1", b"", b""),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        # Refused before anything goes out.
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n", None),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n", None),
        (b"Content-Length: 0\r\nContent-Length: 46", b"", None),
        (b"Content-Length: 0, 46", b"", None),
        (b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n", None),
        (b"Transfer-Encoding: identity", b"", None),
        (b"Transfer-Encoding:\r\n chunked", b"0\r\n\r\n", None),
        (b"X: 1\r\n Transfer-Encoding: chunked", b"0\r\n\r\n", None),
        (b"X: 1\nTransfer-Encoding: chunked", b"0\r\n\r\n", None),
        (b"X: 1\n\n" + SMUGGLED[:-4], b"", None),
        (b"X: 1\rContent-Length: 46", b"", None),
        # Cut off at the first piece that can be read in two ways.
        (b"Transfer-Encoding: chunked", b"5;a=b\r\nhello\r\n0\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked", b"5\nhello\n0\n\n", b""),
        (b"Transfer-Encoding: chunked", b"5 \r\nhello\r\n0\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked", b"0x5\r\nhello\r\n0\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked", b"10000000000000005\r\nhello\r\n0\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked", b"5\r\nhello0\r\n\r\n", b"5\r\nhello"),
        (b"Transfer-Encoding: chunked", b"0\r\nX: y\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked", b"0\r\n\n\r\n", b""),
    ],
)
async def test_one_request_with_a_credential_carries_no_second_one(
    tmp_path: Path, more: bytes, body: bytes, taken: bytes | None
) -> None:
    """The server takes all that comes on the connection, as one that reads requests in a row."""
    received, ended = bytearray(), asyncio.Event()

    async def greedy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            received.extend(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            while data := await reader.read(65536):
                received.extend(data)
        writer.close()
        ended.set()

    limits = ProxyLimits(idle_s=1.0)  # The server would wait for ever for the next one.
    async with credentialed(tmp_path, greedy, f"Bearer {TOKEN}", limits) as (world, _):
        head = b"POST http://api.example/ HTTP/1.1\r\nHost: api.example\r\n%b\r\n\r\n" % more
        await world.ask(head + body + SMUGGLED)
        if taken is not None:
            await asyncio.wait_for(ended.wait(), WAIT_S)
    if taken is None:
        assert received == b""
        return
    sent, _, rest = bytes(received).partition(b"\r\n\r\n")
    assert sent.count(TOKEN.encode()) == 1
    assert rest == taken


async def test_a_second_request_on_the_connection_gets_no_credential(tmp_path: Path) -> None:
    """Neither behind one to another host, nor behind one to the same."""
    api = "GET http://api.example/2 HTTP/1.1\r\nHost: api.example\r\n\r\n"
    web = Web()
    async with credentialed(tmp_path, web, f"Bearer {TOKEN}") as (world, plain):
        other = f"other.org:{plain}"
        await world.ask(f"GET http://{other}/ HTTP/1.1\r\nHost: {other}\r\n\r\n{api}".encode())
        assert web.received == []
        await world.ask((api + api.replace("/2", "/3")).encode())
    (head,) = web.received
    assert head.startswith(b"GET /2 ")


# --- Several who accept ----------------------------------------------------------------------


async def test_two_who_serve_one_socket_do_not_hold_each_other_up() -> None:
    web = Web()
    async with (
        server(web) as port,
        opened(f"example.org:{port}") as one,
        opened(f"example.org:{port}") as two,
    ):
        shared = socket.create_server(("127.0.0.1", 0))
        at = f"example.org:{port}"
        head = f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
        doors = [one.proxy.serve(shared.dup()), two.proxy.serve(shared.dup())]
        one.port = shared.getsockname()[1]
        answers = await asyncio.gather(*(one.ask(head) for _ in range(40)))
        # If one had been left waiting in `accept`, it would shut the socket down to get out.
        await asyncio.wait_for(doors[0].close(), WAIT_S)
        answers += await asyncio.gather(*(one.ask(head) for _ in range(10)))
        shared.close()
    assert all(each.startswith(b"HTTP/1.1 200") for each in answers)
    assert len(answers) == 50
