"""The proxy of one sandbox: its only network access, limited to the list of domains.

Serves HTTP with absolute URLs, tunnels (CONNECT) and name queries. Unlisted names are never looked
up. One request per connection: nothing after a request is read as another one. Each decision is
recorded before a byte is sent.
"""

import asyncio
import ipaddress
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kakoi._support.late import dataclass
from kakoi.errors import KakoiError
from kakoi.network.addresses import Address
from kakoi.network.dns_messages import ResponseCode
from kakoi.network.domains import BadHostError, Domains, Target, parse_host
from kakoi.network.git_access import GitAccess, SshTunnel
from kakoi.network.header_credentials import HeaderCredential
from kakoi.network.name_server import NameAnswer, NameServer
from kakoi.network.relay import (
    CHUNK,
    Link,
    close,
    relay_program,
    relay_request,
    relay_tunnel,
    relay_with_credential,
    reply,
)
from kakoi.network.requests import MAX_HEAD_BYTES, BadRequestError, ProxyRequest, parse_request
from kakoi.network.resolver import LookupCache, Resolver, SystemResolver, TtlLookup, connect
from kakoi.network.shared_listener import SharedListener
from kakoi.network.tls_hello import BadHelloError
from kakoi.results import BlockedConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Limits of one sandbox. Connections beyond `connections` wait in the kernel.

    `burst`, `per_s`: how many connections can be made at once, and then per second. Each one is
    recorded, so the rate is limited: no sandbox can flood the audit log.
    `head_s`: how long a request or a ClientHello can take. `idle_s`: how long a connection can be
    silent.
    """

    connections: int = 128
    burst: int = 500
    per_s: float = 20.0
    head_s: float = 20.0
    connect_s: float = 20.0
    idle_s: float = 600.0


class RateLimiter:
    """Allows a burst of connections, and then a fixed rate per second."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._left = float(limits.burst)
        self._counted_at = 0.0

    async def take(self) -> None:
        """Wait until one more is allowed."""
        now = asyncio.get_running_loop().time()
        grown = (now - self._counted_at) * self._limits.per_s
        self._left = min(self._left + grown, float(self._limits.burst)) - 1
        self._counted_at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._limits.per_s)


# The TLS alert "access denied", so the client sees more than a closed connection.
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x31"
_MOST_BLOCKED: Final = 100
# The answer for a name that only a wildcard allows. A query for the name itself could carry data to
# its name server, so there is none. Programs that resolve a name first go on to ask the proxy.
PLACEHOLDER: Final = ipaddress.IPv4Address("127.0.0.2")
_UNKNOWN_TTL_S: Final = 10
_NO_SUCH_NAME: Final = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_QUERY: Final = "DNS"
# Queries for the name of an address: programs make them on the side, and no list helps.
_REVERSE: Final = ".arpa"
_UNRESOLVED: Final = "the name cannot be resolved"
_NO_NAME: Final = f"{_UNRESOLVED}: there is no such name"
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDecision:
    """Whether a connection is allowed. `objection`: why not. `addresses`: the allowed addresses.

    `by_list`: the list of domains is the reason. `failure`: allowed, but it cannot be reached.
    """

    target: Target | None
    method: str
    objection: str = ""
    by_list: bool = False
    addresses: Sequence[Address] = ()
    failure: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the connection is allowed."""
        return not self.objection


Recorder = Callable[[ConnectionDecision], Awaitable[None]]
AddressCheck = Callable[[Domains, Address], str]


async def _record_nothing(_decision: ConnectionDecision) -> None:
    return None


class Proxy:
    """Serves the connections of one sandbox.

    `resolve`: resolves names to addresses. `ttl`: returns for how many seconds they hold.
    `check_address`: returns why an address must not be reached, or nothing. `record`: called with
    each decision before anything is sent; if it fails, nothing is sent. `credentials`: headers to
    add, by host. `tls`: how those servers are verified. `git`: forwards only git's own requests
    for some repositories.
    """

    def __init__(
        self,
        domains: Domains,
        *,
        record: Recorder = _record_nothing,
        resolve: Resolver | None = None,
        ttl: TtlLookup | None = None,
        check_address: AddressCheck = Domains.address_objection,
        credentials: Mapping[str, HeaderCredential] | None = None,
        git: GitAccess | None = None,
        tls: ssl.SSLContext | None = None,
        limits: ProxyLimits | None = None,
    ) -> None:
        self._domains = domains
        self._record = record
        self._own_resolver = SystemResolver() if resolve is None else None
        self._resolve: Resolver = resolve or self._own_resolver  # type: ignore[assignment]  # One of them is there.
        self._ttl = self._own_resolver.ttl_s if self._own_resolver is not None else ttl
        self._check_address = check_address
        self._credentials = dict(credentials or {})
        self._git = git
        self._tls = tls
        self._limits = limits or ProxyLimits()
        self._rate_limiter = RateLimiter(self._limits)
        self._listeners: list[SharedListener | NameServer] = []
        self._lookups = LookupCache(self._look_up)
        self._open: dict[asyncio.Task[None], Target | None] = {}
        self._watches: weakref.WeakSet[BlockedConnections] = weakref.WeakSet()

    @property
    def domains(self) -> Domains:
        """What can be reached."""
        return self._domains

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def serve(self, listener: socket.socket) -> SharedListener:
        """Serve connections on this socket, until the listener or the proxy is closed."""
        shared = SharedListener(
            listener, lambda each: self._accept(shared, each), most=self._limits.connections
        )
        self._listeners.append(shared)
        return shared

    def serve_names(self, queries: socket.socket, listener: socket.socket) -> NameServer:
        """Answer name queries on these sockets (UDP and TCP), until the server or we are closed."""
        server = NameServer(queries, listener, self._answer, idle_s=self._limits.head_s)
        self._listeners.append(server)
        return server

    def change(self, domains: Domains) -> None:
        """Use this list from now on; close connections that it does not allow."""
        self._domains = domains
        self._lookups.clear()
        for task, target in self._open.items():
            if target is not None and domains.objection(target):
                task.cancel()

    def watch_refusals(self) -> "BlockedConnections":
        """Collect the connections refused from now on, while the caller keeps the object."""
        watch = BlockedConnections()
        self._watches.add(watch)
        return watch

    async def close(self) -> None:
        """Close every connection and accept no more."""
        listeners, self._listeners = self._listeners, []
        for each in listeners:
            await each.close()
        await self._lookups.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._own_resolver is not None:
            self._own_resolver.close()

    # --- One connection ----------------------------------------------------------------------

    def _accept(self, shared: SharedListener, connection: socket.socket) -> None:
        unserved = [connection]
        task = asyncio.get_running_loop().create_task(self._serve(unserved))
        self._open[task] = None

        def gone(_task: object) -> None:
            for each in unserved:  # The task was cancelled before it started.
                each.close()
            del self._open[task]
            shared.release()

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
            pass  # One side is gone, or was silent for too long.
        except (BadRequestError, KakoiError):
            pass  # A bad body, or a decision that cannot be recorded: close.
        finally:
            await close(client[1])

    async def _request(self, client: _Streams) -> ProxyRequest | None:
        """Return the client's request; None if it was refused, and the client was answered."""
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await client[0].readuntil(b"\r\n\r\n")
            await self._rate_limiter.take()
            return parse_request(head)
        except asyncio.LimitOverrunError:
            await self._rate_limiter.take()
            await self._refuse(client, _bad("the request head is too long"), status=431)
        except BadRequestError as error:
            await self._refuse(client, _bad(str(error)), status=400)
        except BadHostError as error:
            await self._refuse(client, _bad(f"{error}: {_first_line(head)}"), status=403)
        return None

    async def _do(self, request: ProxyRequest, client: _Streams) -> None:
        credential = self._credential(request)
        if self._git is not None:
            access = self._git.access_for(request)
            if access is None:
                await self._refuse(client, _not_git(request), status=403)
                return
            if isinstance(access, SshTunnel):
                await self._record(_decision(request))
                first_s = self._limits.connect_s
                await relay_program(client, access.argv, access.env, first_s=first_s)
                return
            credential = access
        if credential is not None:
            if not request.takes_credential:
                await self._refuse(client, _no_credential(request), status=403)
                return
            request = replace(request, target=replace(request.target, port=credential.port))
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this runs in a task
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
            why = str(error) or "no response"
            await reply(client, 502, f"{request.target} cannot be reached: {why}")
            return
        await self._link(request, client, server, decision, credential)

    async def _decide(self, request: ProxyRequest) -> ConnectionDecision:
        """Decide whether a connection is allowed, and to which addresses. Nothing else decides."""
        domains, target = self._domains, request.target
        decision = _decision(request)
        objection = domains.objection(target)
        if objection:
            return replace(decision, objection=objection, by_list=isinstance(target.host, str))
        return await self._with_addresses(decision, target.host, domains)

    async def _with_addresses(
        self, decision: ConnectionDecision, host: str | Address, domains: Domains
    ) -> ConnectionDecision:
        """Add the addresses of the host that can be reached, or why there are none."""
        if not isinstance(host, str):
            found: Sequence[Address] = [host]
        else:
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    found = await self._resolve(host)
            except socket.gaierror as error:
                exists = error.errno not in _NO_SUCH_NAME
                return replace(decision, failure=_UNRESOLVED if exists else _NO_NAME)
            except (OSError, TimeoutError, UnicodeError):
                return replace(decision, failure=_UNRESOLVED)
        objections = {each: self._check_address(domains, each) for each in found}
        reachable = [each for each, why in objections.items() if not why]
        if not reachable and objections:
            return replace(decision, objection=next(iter(objections.values())))
        return replace(decision, addresses=reachable)

    # --- One name ----------------------------------------------------------------------------

    async def _answer(self, name: str) -> NameAnswer:
        """Answer a query. Queries for the same name at nearly the same time are one decision."""
        (decision, ttl_s), age_s = await self._lookups.get(name.lower())
        if decision.objection:
            if not name.lower().endswith(_REVERSE):
                self._note(decision)
            return NameAnswer(ResponseCode.NO_SUCH_NAME)
        if decision.failure:
            exists = decision.failure != _NO_NAME
            return NameAnswer(ResponseCode.SERVER_FAILURE if exists else ResponseCode.NO_SUCH_NAME)
        left_s = max(0, ttl_s - int(age_s))
        return NameAnswer(ResponseCode.OK, decision.addresses, left_s)

    async def _look_up(self, name: str) -> tuple[ConnectionDecision, int]:
        """Decide on a name, record that, and return how many seconds its addresses hold."""
        await self._rate_limiter.take()
        decision = await self._decide_name(name)
        ttl_s: int | None = None
        if decision.addresses and PLACEHOLDER not in decision.addresses and self._ttl is not None:
            ttl_s = await self._ttl(name)
        await self._record(decision)
        return decision, _UNKNOWN_TTL_S if ttl_s is None else ttl_s

    async def _decide_name(self, name: str) -> ConnectionDecision:
        try:
            host = parse_host(name)
            if not isinstance(host, str):
                raise BadHostError("it is an address")
        except BadHostError as error:
            return replace(_bad(f"{error}: {name}"), method=_QUERY)
        decision = ConnectionDecision(target=Target(host, 0), method=_QUERY)
        domains = self._domains
        objection = domains.name_objection(host)
        if objection:
            return replace(decision, objection=objection, by_list=True)
        if not domains.names_exactly(host):
            return replace(decision, addresses=[PLACEHOLDER])
        return await self._with_addresses(decision, host, domains)

    # --- Links -------------------------------------------------------------------------------

    def _credential(self, request: ProxyRequest) -> HeaderCredential | None:
        if request.is_tunnel or request.target.port != 80:
            return None
        return self._credentials.get(str(request.target.host))

    async def _link(
        self,
        request: ProxyRequest,
        client: _Streams,
        connection: socket.socket,
        decision: ConnectionDecision,
        credential: HeaderCredential | None,
    ) -> None:
        server = await self._streams(connection, request, credential)
        loop = asyncio.get_running_loop()
        try:
            # The timeout is short until a hello or a request arrives; then each byte renews it.
            async with asyncio.timeout(self._limits.head_s) as timeout:
                link = Link(
                    client,
                    server,
                    lambda: timeout.reschedule(loop.time() + self._limits.idle_s),
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
        self, connection: socket.socket, request: ProxyRequest, credential: HeaderCredential | None
    ) -> _Streams:
        if credential is None or not credential.tls:
            return await asyncio.open_connection(sock=connection, limit=CHUNK)
        tls = self._tls or ssl.create_default_context()
        name = str(request.target.host)
        return await asyncio.open_connection(
            sock=connection, limit=CHUNK, ssl=tls, server_hostname=name
        )

    async def _tunnel(self, link: Link, target: Target, decision: ConnectionDecision) -> None:
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

    async def _refuse(self, client: _Streams, decision: ConnectionDecision, *, status: int) -> None:
        self._note(decision)
        await self._record(decision)
        what = "the request" if decision.target is None else str(decision.target)
        await reply(client, status, f"{what} was refused by kakoi: {decision.objection}")

    def _note(self, decision: ConnectionDecision) -> None:
        target = decision.target
        host, port = ("", 0) if target is None else (str(target.host), target.port)
        blocked = BlockedConnection(host, port, decision.objection, by_list=decision.by_list)
        for watch in self._watches:
            watch.note(blocked)


class BlockedConnections:
    """Refused connections: each host, port and reason once, at most the first hundred."""

    def __init__(self) -> None:
        self._seen: dict[BlockedConnection, None] = {}

    @property
    def blocked(self) -> tuple[BlockedConnection, ...]:
        """The connections refused so far."""
        return tuple(self._seen)

    def note(self, blocked: BlockedConnection) -> None:
        """Add a refused connection."""
        if len(self._seen) < _MOST_BLOCKED:
            self._seen[blocked] = None


def _agrees(name: str, target: Target) -> bool:
    if isinstance(target.host, str):
        return name == target.host
    return name in ("", str(target.host))


def _decision(request: ProxyRequest, objection: str = "") -> ConnectionDecision:
    method = request.method.decode("ascii")
    return ConnectionDecision(target=request.target, method=method, objection=objection)


def _not_git(request: ProxyRequest) -> ConnectionDecision:
    why = "this sandbox reaches only the repositories that its git command talks to"
    return _decision(request, why)


def _no_credential(request: ProxyRequest) -> ConnectionDecision:
    method = request.method.decode("ascii")
    return _decision(request, f"credentials are not added to {method} requests")


def _bad(why: str) -> ConnectionDecision:
    return ConnectionDecision(target=None, method="", objection=why)


def _first_line(head: bytes) -> str:
    return head.partition(b"\r\n")[0][:200].decode("ascii", "backslashreplace")
