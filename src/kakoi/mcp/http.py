"""Streamable HTTP: for clients with a token, and never for a web page in a browser."""

import asyncio
import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError

_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 4096
_ONLY: Final = "token"
_NOT_IN_A_NAME: Final = pattern(r"[^A-Za-z0-9_.-]")
_LONGEST_IDENTITY: Final = 64
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_MOST_SESSIONS: Final = 512
# Clients without a token can hold connections as well: but not all, and not for long.
_MOST_AT_ONCE: Final = 512
_HEAD_S: Final = 10.0
_GOODBYE_S: Final = 5


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    @classmethod
    def parse(cls, text: str) -> "ListenAddress":
        """Parse HOST:PORT, or part of it. The host is an address: what a name means can change."""
        host, colon, port = text.rpartition(":")
        if not colon and not text.isdigit():
            host, port = text, "8765"
        host = host.strip("[]") or "127.0.0.1"
        try:
            if host != "localhost":
                ipaddress.ip_address(host)
            number = int(port)
            if not 0 <= number < 2**16:
                raise ValueError
        except ValueError:
            raise ConfigurationError(
                f"`{text}` is not an address to listen on",
                hint="use HOST:PORT, as in 127.0.0.1:8765",
            ) from None
        return cls(host, number)


def read_tokens(
    files: Sequence[Path], given: str, address: ListenAddress
) -> tuple[Mapping[str, str], bool]:
    """Return the accepted tokens by the names of their files, and whether one was generated.

    A token is generated only for loopback. On other addresses, clients must know it beforehand.
    """
    tokens: dict[str, str] = {}
    for file in files:
        name = _NOT_IN_A_NAME.sub("_", file.stem)[:_LONGEST_IDENTITY]
        token = _checked(_file_token(file))
        if name in tokens or token in tokens.values():
            raise ConfigurationError(
                f"the token file {file} has the same name or token as another one",
                hint="use a different token and file name for each client",
            )
        tokens[name] = token
    if tokens:
        return tokens, False
    if given:
        return {_ONLY: _checked(given)}, False
    if not address.is_loopback:
        raise ConfigurationError(
            f"{address.host} can be reached from other machines, which requires a token",
            hint="use --token-file FILE, or listen on 127.0.0.1",
        )
    return {_ONLY: secrets.token_urlsafe(32)}, True


def _checked(token: str) -> str:
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN or not token.isascii():
        raise ConfigurationError(
            f"the token must have at least {_SHORTEST_TOKEN} characters, all ASCII",
            hint="generate one with: openssl rand -hex 32",
        )
    return token


def _file_token(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            data = opened.read(_LONGEST_TOKEN + 1)
    except OSError as error:
        raise ConfigurationError(f"the token file {file}: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigurationError(
            f"the token file {file} is readable by other users", hint=f"chmod 600 {file}"
        )
    token = data.decode("ascii", "replace").strip()
    if not token:
        raise ConfigurationError(f"the token file {file} is empty")
    return token


class Guard:
    """Accepts requests that name this server, come from no other site, and carry a token.

    Identifies the token, so that nobody can continue a session that another token started.
    """

    def __init__(self, app: ASGIApp, tokens: Mapping[str, str], names: Iterable[str]) -> None:
        self._app = app
        self._tokens = {name: token.encode() for name, token in tokens.items()}
        self._names = {"localhost", *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with the reason for refusing it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            found = self._identify(scope)
            if isinstance(found, str):
                access = AccessToken(token="", client_id=found, scopes=[])
                await self._app({**scope, "user": AuthenticatedUser(access)}, receive, send)
            else:
                await _refuse(send, *found)

    def _identify(self, scope: Scope) -> str | tuple[int, str]:
        """Return the name of the token, or why the request is refused."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or not self._is_this_server(b"//" + hosts[0]):
            return 421, "the Host is not this server"
        if any(not self._is_same_site(origin, hosts[0]) for origin in origins):
            return 403, "the Origin is another site"
        sent = headers.get(b"authorization", [])
        kind, _, token = (sent[0] if len(sent) == 1 else b"").partition(b" ")
        # All are compared, so that timing does not reveal which one is similar.
        known = [
            name
            for name, each in self._tokens.items()
            if hmac.compare_digest(token.strip(), each) and kind.lower() == b"bearer"
        ]
        return known[0] if known else (401, "the bearer token is missing or wrong")

    def _is_this_server(self, url: bytes) -> bool:
        """Whether the host is an address or a known name. A page that attacks by DNS rebinding has
        another: the name that its owner points here."""
        host = _host_of(url)
        return host in self._names or _address(host) is not None

    def _is_same_site(self, origin: bytes, host: bytes) -> bool:
        """Whether the page is from this machine or this server. An address alone is not enough."""
        name = _host_of(origin)
        found = _address(name)
        near = name in self._names or (found is not None and found.is_loopback)
        return near or (name != "" and name == _host_of(b"//" + host))


def _host_of(url: bytes) -> str:
    """Return the host of a URL; empty if it is invalid or has more than host and port."""
    try:
        found = urlsplit(url.decode("ascii"))
        return "" if "@" in found.netloc else found.hostname or ""
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="kakoi"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _TimedProtocol(H11Protocol):
    """Closes a connection that sends no request in time; if there are too many connections, the
    one that has waited longest."""

    _since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # As in the base class: a server has no other transports.
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > _MOST_AT_ONCE:
            protocols = [each for each in self.connections if isinstance(each, _TimedProtocol)]
            silent = [each for each in protocols if each.cycle is None]
            min(silent, key=lambda each: each._since_s).transport.abort()

    def on_response_complete(self) -> None:
        # First: the next request may already be there, and starts inside that call.
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self._since_s = self.loop.time()
        self.loop.call_later(_HEAD_S, self._give_up, self.cycle)

    def _give_up(self, last: object) -> None:
        if self.cycle is last:
            self.transport.abort()


class _ServerWithoutSignals(uvicorn.Server):
    """Leaves signals to the caller, which has more to close than this server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """A server that listens from the start, and serves until `stop`."""

    def __init__(
        self,
        server: Server[Any],
        address: ListenAddress,
        tokens: Mapping[str, str],
        names: Iterable[str] = (),
    ) -> None:
        app = server.streamable_http_app(
            host=address.host,
            max_request_body_size=_MAX_BODY_BYTES,
            max_sessions=_MOST_SESSIONS,
            # Guard has already checked that, more strictly.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        config = uvicorn.Config(
            Guard(app, tokens, names),
            log_config=None,
            access_log=False,
            server_header=False,
            http=_TimedProtocol,
            ws="none",
            log_level="error",  # Clients without a token must not be able to fill a log.
            timeout_graceful_shutdown=_GOODBYE_S,
            lifespan="on",
        )
        self._server = _ServerWithoutSignals(config)
        self._socket = _listen(address)

    @property
    def url(self) -> str:
        """The URL of the server."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"

    async def serve(self) -> None:
        """Serve until `stop`; requests in progress then get a few seconds to finish."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True


def _listen(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=256)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {address.host}:{address.port}: {os.strerror(error.errno or 0)}",
            hint="use another port, as in --http 127.0.0.1:0",
        ) from None
