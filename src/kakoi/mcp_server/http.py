"""Streamable HTTP: for whoever has the token, and for no page that a browser was lured to."""

import asyncio
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

from kakoi.errors import ConfigurationError

_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 4096
_ONLY: Final = "token"
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_IDENTITY: Final = 64
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_MOST_SESSIONS: Final = 512
# Who has shown no token yet can hold a connection, too: not all descriptors, and not for long.
_MOST_AT_ONCE: Final = 512
_HEAD_S: Final = 10.0
_GOODBYE_S: Final = 5


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Can only this machine reach it?"""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    @classmethod
    def parse(cls, text: str) -> "Address":
        """HOST:PORT, or a part of it. The host is an address: what a name means can change."""
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
                f"`{text}` is no address to listen on", hint="give HOST:PORT, as in 127.0.0.1:8765"
            ) from None
        return cls(host, number)


def read_tokens(
    files: Sequence[Path], given: str, address: Address
) -> tuple[Mapping[str, str], bool]:
    """The tokens that clients may send, by the names of their files, and whether one was made up.

    Only where nobody but this machine listens it is made up: elsewhere, who is to be let in has to
    have been told before.
    """
    tokens: dict[str, str] = {}
    for file in files:
        name = _NOT_IN_A_NAME.sub("_", file.stem)[:_LONGEST_IDENTITY]
        token = _checked(_file_token(file))
        if name in tokens or token in tokens.values():
            raise ConfigurationError(
                f"the token file {file} has the name or the token of another one",
                hint="give each client a token of its own, in a file with a name of its own",
            )
        tokens[name] = token
    if tokens:
        return tokens, False
    if given:
        return {_ONLY: _checked(given)}, False
    if not address.is_loopback:
        raise ConfigurationError(
            f"{address.host} can be reached from other machines; that takes a token",
            hint="give --token-file FILE, or listen on 127.0.0.1",
        )
    return {_ONLY: secrets.token_urlsafe(32)}, True


def _checked(token: str) -> str:
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN or not token.isascii():
        raise ConfigurationError(
            f"the token must have at least {_SHORTEST_TOKEN} characters, all of them ASCII",
            hint="openssl rand -hex 32 makes one",
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
            f"the token file {file} can be read by others", hint=f"chmod 600 {file}"
        )
    token = data.decode("ascii", "replace").strip()
    if not token:
        raise ConfigurationError(f"the token file {file} is empty")
    return token


class Guard:
    """Lets a request in that names us by address, comes from no foreign page, and has a token.

    Says whose token it is, so that nobody goes on with what was begun with another one.
    """

    def __init__(self, app: ASGIApp, tokens: Mapping[str, str], names: Iterable[str]) -> None:
        self._app = app
        self._tokens = {name: token.encode() for name, token in tokens.items()}
        self._names = {"localhost", *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, or answer why not."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            found = self._who(scope)
            if isinstance(found, str):
                access = AccessToken(token="", client_id=found, scopes=[])
                await self._app({**scope, "user": AuthenticatedUser(access)}, receive, send)
            else:
                await _refuse(send, *found)

    def _who(self, scope: Scope) -> str | tuple[int, str]:
        """The name of the token, or why the request is refused."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or not self._is_ours(b"//" + hosts[0]):
            return 421, "the Host is not this server"
        if any(not self._is_near(origin, hosts[0]) for origin in origins):
            return 403, "the Origin is another site"
        sent = headers.get(b"authorization", [])
        kind, _, token = (sent[0] if len(sent) == 1 else b"").partition(b" ")
        # Each is compared, so that the time says nothing about which one it is like.
        known = [
            name
            for name, each in self._tokens.items()
            if hmac.compare_digest(token.strip(), each) and kind.lower() == b"bearer"
        ]
        return known[0] if known else (401, "the bearer token is missing or wrong")

    def _is_ours(self, url: bytes) -> bool:
        """Is the host an address, or a name that we know? A page that was lured to us has another:
        the name that its owner has pointed here."""
        host = _host_of(url)
        return host in self._names or _address(host) is not None

    def _is_near(self, origin: bytes, host: bytes) -> bool:
        """Is it a page of this machine, or of ours? An address alone is none: anybody has one."""
        name = _host_of(origin)
        found = _address(name)
        near = name in self._names or (found is not None and found.is_loopback)
        return near or (name != "" and name == _host_of(b"//" + host))


def _host_of(url: bytes) -> str:
    """The host in a URL; empty if it is none, or has more before its path than host and port."""
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


class _Impatient(H11Protocol):
    """Closes a connection that takes too long to say what it wants; and before that, if there are
    too many, the one that has taken longest."""

    _since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # As in the class above: a server has no other transports.
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > _MOST_AT_ONCE:
            all_of_us = [each for each in self.connections if isinstance(each, _Impatient)]
            silent = [each for each in all_of_us if each.cycle is None]
            min(silent, key=lambda each: each._since_s).transport.abort()

    def on_response_complete(self) -> None:
        # Before: the next request may be there already, and begin in there.
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self._since_s = self.loop.time()
        self.loop.call_later(_HEAD_S, self._give_up, self.cycle)

    def _give_up(self, last: object) -> None:
        if self.cycle is last:
            self.transport.abort()


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever started it: there is more to close than this server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """A server that listens from the start, and serves until it is told to stop."""

    def __init__(
        self,
        server: Server[Any],
        address: Address,
        tokens: Mapping[str, str],
        names: Iterable[str] = (),
    ) -> None:
        app = server.streamable_http_app(
            host=address.host,
            max_request_body_size=_MAX_BODY_BYTES,
            max_sessions=_MOST_SESSIONS,
            # The guard has looked at that already, and more closely.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        config = uvicorn.Config(
            Guard(app, tokens, names),
            log_config=None,
            access_log=False,
            server_header=False,
            http=_Impatient,
            ws="none",
            log_level="error",  # Whoever has no token shall not fill a log either.
            timeout_graceful_shutdown=_GOODBYE_S,
            lifespan="on",
        )
        self._server = _Quiet(config)
        self._socket = _listen(address)

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"

    async def serve(self) -> None:
        """Until `stop`; what is being served then has a little time to end."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Serve nobody else."""
        self._server.should_exit = True


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=256)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {address.host}:{address.port}: {os.strerror(error.errno or 0)}",
            hint="use another port, as in --http 127.0.0.1:0",
        ) from None
