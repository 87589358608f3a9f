"""The proxy of one sandbox: the only way out, and it goes where the list says.

HTTP with whole addresses, and tunnels (CONNECT). Names are resolved here, so the sandbox needs no
DNS, and a name that is not listed is not even looked up. One request per connection: nothing that
follows a request is read as another. Each decision is recorded before a byte goes out.
"""

import asyncio
import contextlib
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kakoi.egress.addresses import Address
from kakoi.egress.domains import BadHostError, Domains, Target
from kakoi.egress.door import Door
from kakoi.egress.hello import BadHelloError
from kakoi.egress.limits import ProxyLimits, Rations
from kakoi.egress.relay import (
    CHUNK,
    Link,
    close,
    relay_request,
    relay_tunnel,
    relay_with_credential,
)
from kakoi.egress.requests import MAX_HEAD_BYTES, BadRequestError, Request, parse_request
from kakoi.egress.resolving import Resolver, SystemResolver, connect
from kakoi.errors import KakoiError
from kakoi.results import BlockedConnection

# "Access denied", in the words of TLS: its client is told so, and not only cut off.
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x31"
_MOST_BLOCKED: Final = 100
_LINGER_S: Final = 1.0
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """May this connection be made? `objection` says why not; `addresses` are where it may lead.

    `by_list`: the list objects. `failure`: it may, but leads nowhere.
    """

    target: Target | None
    method: str
    objection: str = ""
    by_list: bool = False
    addresses: Sequence[Address] = ()
    failure: str = ""

    @property
    def allowed(self) -> bool:
        """May it?"""
        return not self.objection


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A header for one host that is added here, so that the sandbox never sees it.

    The sandbox asks for `http://HOST/…`; the request goes on to HOST by TLS, with the header.
    """

    header: str
    value: str = field(repr=False)
    port: int = 443


Recorder = Callable[[Decision], Awaitable[None]]
AddressCheck = Callable[[Domains, Address], str]


async def _record_nothing(_decision: Decision) -> None:
    return None


class Proxy:
    """Serves the connections of one sandbox.

    `resolve`: names to addresses. `check_address`: why an address may not be reached, or nothing.
    `record`: is told each decision before anything goes out; if it fails, nothing does.
    `credentials`: headers to add, by host. `tls`: how servers are verified there.
    """

    def __init__(
        self,
        domains: Domains,
        *,
        record: Recorder = _record_nothing,
        resolve: Resolver | None = None,
        check_address: AddressCheck = Domains.address_objection,
        credentials: Mapping[str, Credential] | None = None,
        tls: ssl.SSLContext | None = None,
        limits: ProxyLimits | None = None,
    ) -> None:
        self._domains = domains
        self._record = record
        self._own_resolver = SystemResolver() if resolve is None else None
        self._resolve: Resolver = resolve or self._own_resolver  # type: ignore[assignment]  # One of them is there.
        self._check_address = check_address
        self._credentials = dict(credentials or {})
        self._tls = tls
        self._limits = limits or ProxyLimits()
        self._rations = Rations(self._limits)
        self._doors: list[Door] = []
        self._open: dict[asyncio.Task[None], Target | None] = {}
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()

    @property
    def domains(self) -> Domains:
        """What may be reached."""
        return self._domains

    @property
    def open_connections(self) -> int:
        """How many connections there are at this moment."""
        return len(self._open)

    def serve(self, listener: socket.socket) -> Door:
        """Serve what comes in at this socket, until the door is closed or the proxy is."""
        door = Door(listener, lambda each: self._welcome(door, each), most=self._limits.connections)
        self._doors.append(door)
        return door

    def change(self, domains: Domains) -> None:
        """From now on this list holds; connections that it does not allow are ended."""
        self._domains = domains
        for task, target in self._open.items():
            if target is not None and domains.objection(target):
                task.cancel()

    def watch(self) -> "Watch":
        """What is refused from here on, for as long as somebody holds it."""
        watch = Watch()
        self._watches.add(watch)
        return watch

    async def close(self) -> None:
        """End every connection, and take no more."""
        doors, self._doors = self._doors, []
        for door in doors:
            await door.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._own_resolver is not None:
            self._own_resolver.close()

    # --- One connection ----------------------------------------------------------------------

    def _welcome(self, door: Door, connection: socket.socket) -> None:
        unserved = [connection]
        task = asyncio.get_running_loop().create_task(self._serve(unserved))
        self._open[task] = None

        def gone(_task: object) -> None:
            for each in unserved:  # The task was ended before it began.
                each.close()
            del self._open[task]
            door.leave()

        task.add_done_callback(gone)

    async def _serve(self, unserved: list[socket.socket]) -> None:
        connection = unserved.pop()
        connection.setblocking(False)
        try:
            client = await asyncio.open_connection(sock=connection, limit=MAX_HEAD_BYTES)
        except OSError:
            connection.close()
            return
        try:
            request = await self._request(client)
            if request is not None:
                await self._do(request, client)
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
            pass  # One of the two is gone, or silent for too long.
        except (BadRequestError, KakoiError):
            pass  # Of a body that is under way, or a record that cannot be kept: cut off.
        finally:
            await close(client[1])

    async def _request(self, client: _Streams) -> Request | None:
        """What the client wants; None if it cannot be had, and the client was told."""
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await client[0].readuntil(b"\r\n\r\n")
            await self._rations.take()
            return parse_request(head)
        except asyncio.LimitOverrunError:
            await self._rations.take()
            await self._refuse(client, _bad("the head of a request is too long"), status=431)
        except BadRequestError as error:
            await self._refuse(client, _bad(str(error)), status=400)
        except BadHostError as error:
            await self._refuse(client, _bad(f"{error}: {_first_line(head)}"), status=403)
        return None

    async def _do(self, request: Request, client: _Streams) -> None:
        credential = self._credential(request)
        if credential is not None:
            if not request.takes_credential:
                await self._refuse(client, _no_credential(request), status=403)
                return
            request = replace(request, target=replace(request.target, port=credential.port))
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we run in one
        self._open[task] = request.target
        decision = await self._decide(request)
        if not decision.allowed:
            await self._refuse(client, decision, status=403)
            return
        await self._record(decision)
        try:
            if decision.failure:
                raise OSError(decision.failure)
            limit_s = self._limits.connect_s
            server = await connect(decision.addresses, request.target.port, timeout_s=limit_s)
        except (OSError, TimeoutError) as error:
            why = str(error) or "no answer"
            await _reply(client, 502, f"{request.target} cannot be reached: {why}")
            return
        await self._link(request, client, server, decision, credential)

    async def _decide(self, request: Request) -> Decision:
        """The one place where it is decided whether a connection may be made, and to where."""
        domains, target = self._domains, request.target
        decision = Decision(target=target, method=request.method.decode("ascii"))
        objection = domains.objection(target)
        if objection:
            return replace(decision, objection=objection, by_list=isinstance(target.host, str))
        if not isinstance(target.host, str):
            found: Sequence[Address] = [target.host]
        else:
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    found = await self._resolve(target.host)
            except (OSError, TimeoutError, UnicodeError):
                return replace(decision, failure="its name cannot be resolved")
        objections = {each: self._check_address(domains, each) for each in found}
        reachable = [each for each, why in objections.items() if not why]
        if not reachable and objections:
            return replace(decision, objection=next(iter(objections.values())))
        return replace(decision, addresses=reachable)

    def _credential(self, request: Request) -> Credential | None:
        if request.is_tunnel or request.target.port != 80:
            return None
        return self._credentials.get(str(request.target.host))

    async def _link(
        self,
        request: Request,
        client: _Streams,
        connection: socket.socket,
        decision: Decision,
        credential: Credential | None,
    ) -> None:
        server = await self._streams(connection, request, credential)
        loop = asyncio.get_running_loop()
        try:
            # Until there is a hello or a request, patience is short; then each byte renews it.
            async with asyncio.timeout(self._limits.head_s) as patience:
                link = Link(
                    client,
                    server,
                    lambda: patience.reschedule(loop.time() + self._limits.idle_s),
                )
                if request.is_tunnel:
                    await self._tunnel(link, request.target, decision)
                elif credential is None:
                    await relay_request(link, request)
                else:
                    given = credential.header, credential.value
                    await relay_with_credential(link, request, *given)
        finally:
            await close(server[1])

    async def _streams(
        self, connection: socket.socket, request: Request, credential: Credential | None
    ) -> _Streams:
        if credential is None:
            return await asyncio.open_connection(sock=connection, limit=CHUNK)
        tls = self._tls or ssl.create_default_context()
        name = str(request.target.host)
        return await asyncio.open_connection(
            sock=connection, limit=CHUNK, ssl=tls, server_hostname=name
        )

    async def _tunnel(self, link: Link, target: Target, decision: Decision) -> None:
        domains = self._domains

        def check(name: str) -> None:
            if not _agrees(name, target):
                asked = f"names `{name[:80]}`" if name else "names no host"
                raise BadHelloError(f"its TLS {asked}")

        link.to_client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await link.to_client.drain()
        try:
            checking = None if domains.everything else check
            await relay_tunnel(link, checking, needs_tls=domains.needs_tls(target))
        except BadHelloError as error:
            self._note(replace(decision, objection=str(error)))
            await self._record(replace(decision, objection=str(error)))
            link.to_client.write(_ALERT)

    # --- Refusals ----------------------------------------------------------------------------

    async def _refuse(self, client: _Streams, decision: Decision, *, status: int) -> None:
        self._note(decision)
        await self._record(decision)
        what = "the request" if decision.target is None else str(decision.target)
        await _reply(client, status, f"{what} was refused by kakoi: {decision.objection}")

    def _note(self, decision: Decision) -> None:
        target = decision.target
        host, port = ("", 0) if target is None else (str(target.host), target.port)
        blocked = BlockedConnection(host, port, decision.objection, by_list=decision.by_list)
        for watch in self._watches:
            watch.note(blocked)


class Watch:
    """What was refused, each host, port and reason once, and the first hundred of them."""

    def __init__(self) -> None:
        self._seen: dict[BlockedConnection, None] = {}

    @property
    def blocked(self) -> tuple[BlockedConnection, ...]:
        """What was refused so far."""
        return tuple(self._seen)

    def note(self, blocked: BlockedConnection) -> None:
        """One more."""
        if len(self._seen) < _MOST_BLOCKED:
            self._seen[blocked] = None


def _agrees(name: str, target: Target) -> bool:
    if isinstance(target.host, str):
        return name == target.host
    return name in ("", str(target.host))


def _no_credential(request: Request) -> Decision:
    method = request.method.decode("ascii")
    why = f"{method} is not a method that a credential is added to"
    return Decision(target=request.target, method=method, objection=why)


def _bad(why: str) -> Decision:
    return Decision(target=None, method="", objection=why)


def _first_line(head: bytes) -> str:
    return head.partition(b"\r\n")[0][:200].decode("ascii", "backslashreplace")


async def _reply(client: _Streams, status: int, text: str) -> None:
    reader, writer = client
    words = {400: "Bad Request", 403: "Forbidden", 431: "Header Too Large", 502: "Bad Gateway"}
    body = f"{text}\n".encode("ascii", "backslashreplace")
    head = f"HTTP/1.1 {status} {words[status]}\r\nContent-Type: text/plain\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("ascii") + body)
    await writer.drain()
    writer.write_eof()
    # Closed while more of a body comes in, the kernel would take the answer back.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(CHUNK):
                pass
