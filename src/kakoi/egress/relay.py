"""Bytes both ways between a client and a server, bounded in memory and in silence."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from kakoi.egress.hello import AnswerReader, BadHelloError, HelloReader
from kakoi.egress.mask import Mask
from kakoi.egress.requests import MAX_CHUNK_LINE, BadRequestError, Request, parse_chunk_line

CHUNK = 64 * 1024
_MOST_BEFORE_HELLO = 128 * 1024
_HANDSHAKE = b"\x16"  # The first byte of TLS.


def _look_away(_data: bytes) -> None:
    """For bytes that nobody needs to see."""


class Link:
    """A client and its server. `touch` says that it is alive."""

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
        """Send to the server."""
        self.to_server.write(data)
        await self.to_server.drain()
        self.touch()

    async def pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        see: Callable[[bytes], None] = _look_away,
    ) -> None:
        """Everything until its end, which is passed on, too; `see` is shown it first."""
        while data := await reader.read(CHUNK):
            see(data)
            writer.write(data)
            await writer.drain()
            self.touch()
        if writer.can_write_eof():
            writer.write_eof()

    async def answer(self, see: Callable[[bytes], None] = _look_away) -> None:
        """What the server says, to the client."""
        await self.pump(self.from_server, self.to_client, see)

    async def masked_answer(self, mask: Mask) -> None:
        """The same, without a credential."""
        while data := await self.from_server.read(CHUNK):
            self.to_client.write(mask.feed(data))
            await self.to_client.drain()
            self.touch()
        self.to_client.write(mask.rest())
        if self.to_client.can_write_eof():
            self.to_client.write_eof()


async def together(*works: "asyncio.Task[None]") -> None:
    """Wait for all, or for the first that fails; then the others are given up."""
    try:
        await asyncio.gather(*works)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


async def relay_tunnel(link: Link, check: Callable[[str], None] | None, *, needs_tls: bool) -> None:
    """Both ways until both have ended. `check` is given the name in each hello, and may raise.

    A tunnel that `needs_tls` must begin with a hello. In another one what is no TLS goes through;
    what is, is checked the same. Without a `check` anything goes.
    """
    answer = AnswerReader()
    if check is None:
        upward = link.pump(link.from_client, link.to_server)
    else:
        upward = _upward(link, check, answer, needs_tls=needs_tls)
    await together(asyncio.ensure_future(upward), asyncio.ensure_future(link.answer(answer.feed)))


async def _upward(
    link: Link, check: Callable[[str], None], answer: AnswerReader, *, needs_tls: bool
) -> None:
    hello = HelloReader()
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
            has_greeted = True  # Not TLS, as its first byte shows, and it need not be.
            break
        for name in hello.feed(data):
            check(name)
            has_greeted = True
        if has_greeted:
            await link.forward(held)
            held = b""
        elif len(held) > _MOST_BEFORE_HELLO:
            raise BadHelloError("its hello is too long")
    if held and not has_greeted:
        raise BadHelloError("it does not begin with a whole hello")
    if held:
        await link.forward(held)
    await link.pump(link.from_client, link.to_server)


async def relay_request(link: Link, request: Request) -> None:
    """One request with its body, and the answer to it. Nothing that follows is read."""
    await link.forward(request.head())
    await _exchange(link, request, link.answer())


async def relay_with_credential(link: Link, request: Request, header: str, value: str) -> None:
    """The same, with a header that the client must not learn: the answer does not show it."""
    added = (header.encode("ascii"), value.encode("latin-1"))
    await link.forward(request.head_with(added))
    await _exchange(link, request, link.masked_answer(Mask(value)))


async def _exchange(link: Link, request: Request, answering: Coroutine[None, None, None]) -> None:
    answer = asyncio.ensure_future(answering)
    body = asyncio.ensure_future(_body(link, request.length))
    try:
        await asyncio.wait((answer, body), return_when=asyncio.FIRST_EXCEPTION)
        if body.done() and body.exception() is not None:
            raise body.exception() or ConnectionError()
        await answer  # The server may have answered before it had all of the body.
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
        raise BadRequestError("the body ends in headers")
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
    """Close it, whatever state it is in."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
