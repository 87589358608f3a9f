"""A small internet on loopback: servers, names, and a proxy that can reach them."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kakoi.network.addresses import Address
from kakoi.network.domains import Domains, parse_domains
from kakoi.network.proxy import ConnectionDecision, Proxy, ProxyLimits

LOOPBACK = ipaddress.ip_address("127.0.0.1")
WAIT_S = 20.0
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def loopback_is_public(domains: Domains, address: Address) -> str:
    """Check addresses like the proxy does, but treat loopback as public."""
    return "" if address == LOOPBACK else domains.address_objection(address)


class Names:
    """A resolver for the names of a table. It records the queries."""

    def __init__(self, **table: str) -> None:
        self.table = {name.replace("_", "."): answer for name, answer in table.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        if name not in self.table:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [ipaddress.ip_address(each) for each in self.table[name].split()]


@dataclass
class World:
    """A proxy and its decisions."""

    proxy: Proxy
    names: Names
    port: int
    decisions: list[ConnectionDecision] = field(default_factory=list)

    async def ask(self, data: bytes, *, then: bytes = b"") -> bytes:
        """Send the data to the proxy and return everything it sends until the connection closes."""
        async with self.connection() as (reader, writer):
            writer.write(data)
            if then:
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
                writer.write(then)
            await writer.drain()
            return await asyncio.wait_for(reader.read(), WAIT_S)

    @contextlib.asynccontextmanager
    async def connection(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def connect(self, authority: str) -> bytes:
        """Return the response to CONNECT, without tunnel data."""
        async with self.connection() as (reader, writer):
            writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
            return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)

    async def tunnel(self, authority: str, data: bytes) -> bytes:
        """Send the data through a tunnel and return the response until the tunnel closes."""
        async with self.connection() as (reader, writer):
            writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            writer.write(data)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), WAIT_S)

    @property
    def objections(self) -> list[str]:
        return [each.objection for each in self.decisions if each.objection]


@contextlib.asynccontextmanager
async def opened(
    *lines: str,
    names: Names | None = None,
    limits: ProxyLimits | None = None,
    loopback: bool = True,
    domains: Domains | None = None,
    **more: object,
) -> AsyncIterator[World]:
    """Open a proxy for these lines. Without `loopback`, it checks addresses as in production."""
    names = names or Names(example_org="127.0.0.1", other_org="127.0.0.1")
    decisions: list[ConnectionDecision] = []

    async def record(decision: ConnectionDecision) -> None:
        decisions.append(decision)

    proxy = Proxy(
        domains or parse_domains(lines),
        record=record,
        resolve=names,
        limits=limits,
        **({"check_address": loopback_is_public} if loopback else {}),  # type: ignore[arg-type]  # Of tests.
        **more,  # type: ignore[arg-type]  # Of tests.
    )
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy.serve(listener)
    try:
        yield World(proxy, names, port, decisions)
    finally:
        await proxy.close()


@contextlib.asynccontextmanager
async def server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Start a server on loopback and yield its port."""
    serving = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
    try:
        yield serving.sockets[0].getsockname()[1]
    finally:
        serving.close()


class Web:
    """Answers every request with the request's own head, and records everything it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            body = b""
            if b"chunked" in head.lower():
                body = await reader.readuntil(b"0\r\n\r\n")
            elif (at := head.lower().find(b"content-length:")) >= 0:
                body = await reader.readexactly(int(head[at:].split(b"\r\n")[0].split(b":")[1]))
            self.received.append(head + body)
            answer = head + body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(answer))
            writer.write(b"Connection: close\r\n\r\n" + answer)
            await writer.drain()
        writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo the input."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def client_hello(name: str | None) -> bytes:
    """Return the first message of a TLS client that connects to this host."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def record(body: bytes, kind: int = 22) -> bytes:
    return struct.pack("!BHH", kind, 0x0301, len(body)) + body


def hello(*extensions: tuple[int, bytes], tail: bytes = b"") -> bytes:
    """Return a TLS record with a ClientHello that has these extensions."""
    packed = b"".join(struct.pack("!HH", kind, len(body)) + body for kind, body in extensions)
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += struct.pack("!H", len(packed)) + packed + tail
    return record(b"\x01" + len(body).to_bytes(3, "big") + body)


def sni(name: bytes, kind: int = 0) -> tuple[int, bytes]:
    entry = struct.pack("!BH", kind, len(name)) + name
    return 0, struct.pack("!H", len(entry)) + entry


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server context for these names, and a client context that trusts it."""
    key, crt = folder / "key.pem", folder / "crt.pem"
    also = ",".join(f"DNS:{name}" for name in names)
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={names[0]}",
        "-addext",
        f"subjectAltName={also}",
    ]
    subprocess.run(
        [*words, "-keyout", key, "-out", crt], check=True, capture_output=True, timeout=WAIT_S
    )
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(crt, key)
    return theirs, ssl.create_default_context(cafile=str(crt))
