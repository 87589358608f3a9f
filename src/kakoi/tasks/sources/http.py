"""RestClient: JSON over HTTP with one server, with retries, and with no other server.

The token is sent only to the server that it belongs to. A redirect to another host is refused, and
of `Link: <…>; rel="next"` only the query is used, on the path that was requested. Answers are
limited in size and time. Pauses between retries follow the server, within limits.
"""

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final, Literal, NoReturn
from urllib.parse import parse_qsl, quote, urlsplit

import httpx2

from kakoi._support.late import dataclass, pattern
from kakoi._support.redact import redact
from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.answers import decode, one_line

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Query = Mapping[str, str | int]
# A page of long issues must fit into `max_bytes`.
PER_PAGE: Final = 50
_USER_AGENT: Final = "kakoi"
_MOVED: Final = (301, 302, 307, 308)
_HOPS: Final = 3
_BUSY: Final = (500, 502, 503, 504)
# The pause that GitHub requires after its secondary rate limit if it names no time.
_SECONDARY_S: Final = 60.0
_MAX_MESSAGE: Final = 200
_HEADER_TEXT: Final = pattern(r"[\x21-\x7e]+")
_LINK: Final = pattern(r"<([^<>]*)>([^<>]*)")
_NEXT: Final = pattern(r';\s*rel="?next"?\s*(?:[;,]|$)')


@cache
def _tls() -> ssl.SSLContext:
    """Shared by all clients: loading the trusted certificates takes 20 ms."""
    return httpx2.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerServer:
    """A server. `web`: its web address; `root`: the address of its API; no trailing slash.

    `token_header`: the name of the header for the token, and the prefix of its value.
    """

    name: str
    web: str
    root: str
    token: str = field(repr=False, default="")
    token_header: tuple[str, str] = ("Authorization", "Bearer ")
    token_variable: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def path_of(self, address: str) -> str | None:
        """The path of an address on this server, without query and fragment; None if elsewhere."""
        start = len(self.web)
        if address[: start + 1].lower() != f"{self.web}/".lower():
            return None
        return re.split(r"[?#]", address[start:], maxsplit=1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """`attempt_s`: for one request and its answer; `wait_s`: the longest pause before a retry.

    `max_bytes`: for one answer, and for all pages of a list together.
    """

    tries: int = 5
    attempt_s: float = 60.0
    first_pause_s: float = 1.0
    wait_s: float = 120.0
    max_bytes: int = 8 * 1024 * 1024
    max_pages: int = 50


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class Pages:
    """The items of a list. `complete` is false if there are more than were read."""

    items: tuple[object, ...]
    complete: bool


class RestClient:
    """Requests to one server; SourceError if it refuses, is unreachable, or sends invalid data.

    Retries, with growing pauses, after a network or server error and after a rate limit. A POST is
    repeated only if it was certainly not executed. `clock`: the time of day. `proxy`: the address
    of a proxy, if one is needed.
    """

    def __init__(
        self,
        site: TrackerServer,
        *,
        clock: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        limits: RetryLimits | None = None,
        proxy: str | None = None,
    ) -> None:
        self.site = site
        self._clock = clock
        self._sleep = sleep
        self._limits = limits or RetryLimits()
        headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **site.headers}
        if site.token:
            if not _HEADER_TEXT.fullmatch(site.token):
                raise ConfigurationError(
                    f"the token in {site.token_variable} has spaces or other invalid characters"
                )
            name, before = site.token_header
            headers[name] = f"{before}{site.token}"
        # No trust_env: only from_settings reads the environment, netrc and proxies included.
        try:
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=self._limits.attempt_s,
                follow_redirects=False,
                trust_env=False,
                verify=_tls(),
                proxy=proxy,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            message = redact(str(error)[:_MAX_MESSAGE])
            raise ConfigurationError(f"cannot use the proxy for {site.name}: {message}") from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, path: str, query: Query | None = None) -> object:
        """The value at a path, which begins with a slash."""
        reply = await self._ask("GET", path, query)
        return decode(reply.data, self.describe("GET", path))

    async def pages(self, path: str, query: Query | None = None) -> Pages:
        """All items of a list, page by page."""
        items: list[object] = []
        size = 0
        asked: Query = {"per_page": PER_PAGE, **(query or {})}
        for _ in range(self._limits.max_pages):
            reply = await self._ask("GET", path, asked)
            page = decode(reply.data, self.describe("GET", path))
            if not isinstance(page, list):
                raise self._failure("GET", path, "is not a list", reply.status)
            items += page
            size += len(reply.data)
            following = next_query(reply.headers.get("link", ""))
            if following is None:
                return Pages(tuple(items), complete=True)
            if size > self._limits.max_bytes:
                break
            asked = following
        return Pages(tuple(items), complete=False)

    async def send(
        self, method: Method, path: str, body: Mapping[str, object] | None = None
    ) -> object:
        """Send `body`; returns the server's answer, or None if it is empty."""
        reply = await self._ask(method, path, body=body)
        return decode(reply.data, self.describe(method, path))

    def describe(self, method: str, path: str) -> str:
        """The answer to a request, as errors name it."""
        return f"{self.site.name}'s answer to {method} {path}"

    async def _ask(
        self,
        method: Method,
        path: str,
        query: Query | None = None,
        *,
        body: Mapping[str, object] | None = None,
    ) -> HttpReply:
        url = httpx2.URL(f"{self.site.root}{path}", params=query or None)
        failed = ""
        for attempt in range(self._limits.tries):
            try:
                reply = await self._follow(method, url, path, body)
            except (httpx2.TransportError, TimeoutError) as error:
                failed = _describe_error(error)
                pause = None if not may_repeat(method, error) else 0.0
                status = 0
            else:
                if 200 <= reply.status < 300:
                    return reply
                status, failed = reply.status, self._error_message(reply.data)
                pause = retry_pause(reply, method=method, now=self._clock())
            if pause is None:
                self._refuse(method, path, failed, status)
            pause = max(pause, self._limits.first_pause_s * 2**attempt)
            if pause > self._limits.wait_s:
                self._refuse(method, path, failed, status, retry_after_s=pause)
            if attempt + 1 < self._limits.tries:
                await self._sleep(pause)
        self._refuse(method, path, f"{failed} ({self._limits.tries} times)", status)

    async def _follow(
        self, method: Method, url: httpx2.URL, path: str, body: Mapping[str, object] | None
    ) -> HttpReply:
        """The answer, following redirects of renamed projects: on this server and for GET only."""
        for _ in range(_HOPS):
            reply = await self._attempt(method, url, path, body)
            if reply.status not in _MOVED:
                return reply
            try:
                target = url.join(reply.headers.get("location", ""))
            except (httpx2.InvalidURL, ValueError):
                break
            if _origin(target) != _origin(url):
                raise self._failure(method, path, "redirects to another server", reply.status)
            if method != "GET":
                break
            url = target
        raise self._failure(method, path, "redirects elsewhere", reply.status)

    async def _attempt(
        self, method: Method, url: httpx2.URL, path: str, body: Mapping[str, object] | None
    ) -> HttpReply:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = bytearray()
        # The client's timeouts hold for each step; a server could send single bytes for days.
        async with (
            asyncio.timeout(self._limits.attempt_s),
            self._client.stream(method, url, content=content, headers=headers) as response,
        ):
            # Raw: no compression was requested, and a small archive can hold a very large text.
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > self._limits.max_bytes:
                    raise self._failure(method, path, "is too long", response.status_code)
            return HttpReply(
                response.status_code,
                {name.lower(): value for name, value in response.headers.items()},
                bytes(data),
            )

    def _error_message(self, data: bytes) -> str:
        try:
            value = decode(data[: 64 * 1024], "")
        except SourceError:
            return ""
        message = isinstance(value, Mapping) and (value.get("message") or value.get("error"))
        text = message if isinstance(message, str) else json.dumps(message) if message else ""
        return one_line(redact(text, [self.site.token] if self.site.token else ()))[:_MAX_MESSAGE]

    def _failure(self, method: str, path: str, what: str, status: int) -> SourceError:
        return SourceError(
            f"{self.describe(method, path)} {what}",
            details={"status": status},
            hint=f"check that {self.site.root} is the address of {self.site.name}'s API",
        )

    def _refuse(
        self,
        method: str,
        path: str,
        message: str,
        status: int,
        *,
        retry_after_s: float | None = None,
    ) -> NoReturn:
        token = [self.site.token] if self.site.token else ()
        because = redact(f": {message}" if message else "", token)
        details: dict[str, object] = {"status": status}
        if retry_after_s is not None:
            details["retry_after_s"] = retry_after_s
            because += f"; it asks to wait {retry_after_s:.0f} s"
        what = f"answered {status} to" if status else "did not answer"
        raise SourceError(
            f"{self.site.name} {what} {method} {path}{because}",
            details=details,
            hint=self._hint(status, limited=retry_after_s is not None),
        )

    def _hint(self, status: int, *, limited: bool) -> str:
        if limited:
            return "try again later, or send fewer requests"
        variable = self.site.token_variable
        return {
            0: f"check that {self.site.root} can be reached from here",
            401: f"check that the token in {variable} is still valid",
            403: f"check that the token in {variable} has permission for this",
            404: f"check that it exists and that the token in {variable} can read it",
        }.get(status, "")


def api_path(*parts: str | int) -> str:
    """A path of the API; each part is one segment, whatever characters it has."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def may_repeat(method: Method, error: Exception) -> bool:
    """Can a failed request be repeated? A POST only if it never reached the server."""
    return method != "POST" or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def retry_pause(reply: HttpReply, *, method: Method, now: datetime) -> float | None:
    """How many seconds to wait before a retry; None if a retry makes no sense.

    GitHub limits with 403 and 429, GitLab with 429. Both say when to retry in `Retry-After`, or
    when the window ends in `X-RateLimit-Reset` (GitHub) or `RateLimit-Reset` (GitLab).
    """
    headers = reply.headers
    exhausted = "0" in (headers.get("x-ratelimit-remaining"), headers.get("ratelimit-remaining"))
    after = _after(headers.get("retry-after", ""), now)
    if reply.status == 429 or (reply.status == 403 and (exhausted or after is not None)):
        if after is not None:
            return after
        reset = headers.get("x-ratelimit-reset") or headers.get("ratelimit-reset") or ""
        if exhausted and re.fullmatch(r"\d{1,12}", reset):
            return max(0.0, int(reset) - now.timestamp())
        return _SECONDARY_S
    if reply.status == 403 and b"secondary rate limit" in reply.data[: 64 * 1024].lower():
        return _SECONDARY_S
    if reply.status in _BUSY and (method != "POST" or (reply.status == 503 and after is not None)):
        return after or 0.0
    return None


def _after(value: str, now: datetime) -> float | None:
    if re.fullmatch(r"\d{1,9}", value):
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (
        ValueError,
        TypeError,
        IndexError,
        OverflowError,
    ):  # No date, or no time zone.
        return None


def next_query(link: str) -> Query | None:
    """The query of the next page, from a Link header. Its host and path are ignored."""
    for target, parameters in _LINK.findall(link):
        if _NEXT.search(parameters):
            try:
                return dict(parse_qsl(urlsplit(target).query, max_num_fields=50))
            except ValueError:
                return None
    return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "no answer in time"
    return one_line(str(error))[:_MAX_MESSAGE] or type(error).__name__
