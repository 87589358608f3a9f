"""Relays bytes between a client and a server, with bounded memory and idle time."""

import asyncio
import contextlib
import html
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

from kakoi._support.redact import written_forms
from kakoi.errors import ExecutionError
from kakoi.network.requests import MAX_CHUNK_LINE, BadRequestError, ProxyRequest, parse_chunk_line
from kakoi.network.tls_hello import BadHelloError, ClientHelloReader, ServerHelloReader
from kakoi.process.stream import Launch, ProcessStream

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# Shorter values would match by chance.
_SHORTEST = 8


class CredentialMask:
    """Masks the credential `value` in an answer that arrives in pieces."""

    def __init__(self, value: str) -> None:
        forms = sorted({form for form in _forms(value) if len(form) >= _SHORTEST}, key=len)
        self._forms = tuple(reversed(forms))
        pattern = b"|".join(re.escape(form) for form in self._forms)
        self._pattern = re.compile(pattern) if forms else None
        self._longest = max(map(len, forms), default=0)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be sent on. A possible start of the credential is held back."""
        if self._pattern is None:
            return data
        seen = self._pattern.sub(lambda found: b"*" * len(found[0]), self._held + data)
        at = len(seen) - self._unfinished(seen)
        self._held = seen[at:]
        return seen[:at]

    def rest(self) -> bytes:
        """Return what is still held back at the end."""
        rest, self._held = self._held, b""
        return rest

    def _unfinished(self, seen: bytes) -> int:
        """Return the length of the longest suffix that starts one of the forms."""
        tail = seen[1 - self._longest :]
        for at in range(len(tail)):
            if any(form.startswith(tail[at:]) for form in self._forms):
                return len(tail) - at
        return 0


def _forms(value: str) -> Iterator[bytes]:
    """Yield the value, and the part after a scheme (`Bearer …`), as pages and errors write them."""
    for text in {value, value.rpartition(" ")[2]}:
        yield from (form.encode("latin-1") for form in (html.escape(text), *written_forms(text)))


CHUNK = 64 * 1024
_MOST_BEFORE_HELLO = 128 * 1024
_LINGER_S = 1.0
_LAST_WORDS_S = 2.0
_HANDSHAKE = b"\x16"  # The first byte of TLS.


def _ignore(_data: bytes) -> None:
    """The default observer: does nothing."""


class Link:
    """A client and its server. `touch` renews the idle timeout."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        touch: Callable[[], None],
    ) -> None:
        self.from_client, self.to_client = client
        self.from_server, self.to_server = server
        self.touch = touch

    async def forward(self, data: bytes) -> None:
        """Send data to the server."""
        self.to_server.write(data)
        await self.to_server.drain()
        self.touch()

    async def pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        see: Callable[[bytes], None] = _ignore,
    ) -> None:
        """Copy everything up to and including EOF; `see` gets each chunk first."""
        while data := await reader.read(CHUNK):
            see(data)
            writer.write(data)
            await writer.drain()
            self.touch()
        if writer.can_write_eof():
            writer.write_eof()

    async def answer(self, see: Callable[[bytes], None] = _ignore) -> None:
        """Copy the server's answer to the client."""
        await self.pump(self.from_server, self.to_client, see)

    async def masked_answer(self, mask: CredentialMask) -> None:
        """Copy the server's answer to the client, with the credential masked."""
        while data := await self.from_server.read(CHUNK):
            self.to_client.write(mask.feed(data))
            await self.to_client.drain()
            self.touch()
        self.to_client.write(mask.rest())
        if self.to_client.can_write_eof():
            self.to_client.write_eof()


async def run_together(*works: "asyncio.Task[None]") -> None:
    """Wait for all tasks, or for the first failure; then cancel the others."""
    try:
        await asyncio.gather(*works)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


async def relay_tunnel(link: Link, check: Callable[[str], None] | None, *, needs_tls: bool) -> None:
    """Relay in both directions until both have ended.

    `check` gets the name in each ClientHello, and can raise. A tunnel that `needs_tls` must begin
    with a ClientHello. In other tunnels, data that is not TLS passes; TLS is checked the same way.
    Without `check`, anything passes.
    """
    answer = ServerHelloReader()
    if check is None:
        upward = link.pump(link.from_client, link.to_server)
    else:
        upward = _upward(link, check, answer, needs_tls=needs_tls)
    await run_together(
        asyncio.ensure_future(upward), asyncio.ensure_future(link.answer(answer.feed))
    )


async def _upward(
    link: Link, check: Callable[[str], None], answer: ServerHelloReader, *, needs_tls: bool
) -> None:
    hello = ClientHelloReader()
    held = b""
    has_greeted = False
    while not hello.done:
        data = await link.from_client.read(CHUNK)
        if not data:
            break
        held += data
        if has_greeted and answer.accepted:
            break
        if not needs_tls and held[:1] != _HANDSHAKE and not has_greeted:
            has_greeted = True  # The first byte shows that this is not TLS, and it need not be.
            break
        for name in hello.feed(data):
            check(name)
            has_greeted = True
        if has_greeted:
            await link.forward(held)
            held = b""
        elif len(held) > _MOST_BEFORE_HELLO:
            raise BadHelloError("its TLS ClientHello is too long")
    if held and not has_greeted:
        raise BadHelloError("it does not begin with a complete TLS ClientHello")
    if held:
        await link.forward(held)
    await link.pump(link.from_client, link.to_server)


async def relay_request(link: Link, request: ProxyRequest) -> None:
    """Relay one request with its body, and the answer. Nothing after that is read."""
    await link.forward(request.head())
    await _exchange(link, request, link.answer())


async def relay_with_credential(link: Link, request: ProxyRequest, header: str, value: str) -> None:
    """Relay one request with an added header; the header value is masked in the answer."""
    added = (header.encode("ascii"), value.encode("latin-1"))
    await link.forward(request.head_with(added))
    await _exchange(link, request, link.masked_answer(CredentialMask(value)))


async def _exchange(
    link: Link, request: ProxyRequest, answering: Coroutine[None, None, None]
) -> None:
    answer = asyncio.ensure_future(answering)
    body = asyncio.ensure_future(_body(link, request.length))
    try:
        await asyncio.wait((answer, body), return_when=asyncio.FIRST_EXCEPTION)
        if body.done() and body.exception() is not None:
            raise body.exception() or ConnectionError()
        await answer  # The server may answer before it has received the whole body.
    finally:
        for work in (answer, body):
            work.cancel()
        await asyncio.gather(answer, body, return_exceptions=True)


async def _body(link: Link, length: int | None) -> None:
    if length is not None:
        await _exactly(link, length)
        return
    while size := parse_chunk_line(await _line(link)):
        await link.forward(b"%x\r\n" % size)
        await _exactly(link, size)
        if await link.from_client.readexactly(2) != b"\r\n":
            raise BadRequestError("a chunk of the body is not well-formed")
        await link.forward(b"\r\n")
    if await link.from_client.readexactly(2) != b"\r\n":
        raise BadRequestError("trailers after the body are not supported")
    await link.forward(b"0\r\n\r\n")


async def _line(link: Link) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) <= MAX_CHUNK_LINE:
        line += await link.from_client.readexactly(1)
    return line


async def _exactly(link: Link, size: int) -> None:
    while size > 0:
        data = await link.from_client.read(min(size, CHUNK))
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(data)
        await link.forward(data)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close the writer, whatever its state."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()


async def reply(client: Streams, status: int, text: str) -> None:
    """Answer a request with a status and a text, and close."""
    reader, writer = client
    words = {400: "Bad Request", 403: "Forbidden", 431: "Header Too Large", 502: "Bad Gateway"}
    body = f"{text}\n".encode("ascii", "backslashreplace")
    head = f"HTTP/1.1 {status} {words[status]}\r\nContent-Type: text/plain\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("ascii") + body)
    await writer.drain()
    writer.write_eof()
    # If it were closed while a body still arrives, the kernel would discard the answer.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(CHUNK):
                pass


async def relay_program(
    client: Streams, argv: Sequence[str], env: Mapping[str, str], *, first_s: float
) -> None:
    """Start a program of ours and connect the client to it until both have ended.

    The server speaks first: if the program ends without output, the client is told its stderr.
    """
    try:
        stream = ProcessStream(Launch(argv=argv, env=env, kept=True))
    except ExecutionError as error:
        await reply(client, 502, str(error))
        return
    try:
        line = stream.socket.dup()
        line.setblocking(False)
        server = await asyncio.open_connection(sock=line, limit=CHUNK)
        try:
            async with asyncio.timeout(first_s):
                first = await server[0].read(CHUNK)
            if not first:
                await _say_why(client, stream)
                return
            client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n" + first)
            await client[1].drain()
            await relay_tunnel(Link(client, server, _do_nothing), None, needs_tls=False)
        finally:
            await close(server[1])
    finally:
        await stream.end()


async def _say_why(client: Streams, stream: ProcessStream) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await stream.wait()
    await reply(client, 502, stream.stderr.strip() or "ssh ended without a reason")


def _do_nothing() -> None: ...
