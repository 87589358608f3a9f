"""RestClient: JSON over HTTP with one server, patiently, and with nobody else.

The token goes to the address that it was given for. A redirect to another host is refused, and of
`Link: <…>; rel="next"` only the query is used, on the path that we asked for ourselves. Answers are
bounded in size and time; pauses are those that the server asks for, as far as they are sensible.
"""

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final, Literal, NoReturn
from urllib.parse import parse_qsl, quote, urlsplit

import httpx2

from kakoi.errors import ConfigurationError, SourceError
from kakoi.redact import redact
from kakoi.tasks.sources.answers import decode, one_line

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Query = Mapping[str, str | int]
# A page of long issues has to fit into `max_bytes`.
PER_PAGE: Final = 50
_USER_AGENT: Final = "kakoi"
_MOVED: Final = (301, 302, 307, 308)
_HOPS: Final = 3
_BUSY: Final = (500, 502, 503, 504)
# What GitHub wants of those who ran into its secondary limit and were told no time.
_SECONDARY_S: Final = 60.0
_LONGEST_SAID: Final = 200
_HEADER_TEXT: Final = re.compile(r"[\x21-\x7e]+")
_LINK: Final = re.compile(r"<([^<>]*)>([^<>]*)")
_NEXT: Final = re.compile(r';\s*rel="?next"?\s*(?:[;,]|$)')


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: reading the certificates that are trusted takes 20 ms."""
    return httpx2.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A server. `web` is what people see, `root` where its API begins; both without a slash.

    `token_header`: the name of the header of the token, and what stands before the token in it.
    """

    name: str
    web: str
    root: str
    token: str = field(repr=False, default="")
    token_header: tuple[str, str] = ("Authorization", "Bearer ")
    token_variable: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def path_of(self, address: str) -> str | None:
        """Where on this server an address leads, without query and fragment; None if elsewhere."""
        start = len(self.web)
        if address[: start + 1].lower() != f"{self.web}/".lower():
            return None
        return re.split(r"[?#]", address[start:], maxsplit=1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`attempt_s`: for one request and its answer; `wait_s`: the longest pause between two.

    `max_bytes`: of an answer, and of all pages of a list together.
    """

    tries: int = 5
    attempt_s: float = 60.0
    first_pause_s: float = 1.0
    wait_s: float = 120.0
    max_bytes: int = 8 * 1024 * 1024
    max_pages: int = 50


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. The names of `headers` are in small letters."""

    status: int
    headers: Mapping[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class Pages:
    """The items of a list. `complete` is false if there are more than we read."""

    items: tuple[object, ...]
    complete: bool


class RestClient:
    """Requests to one server; SourceError if it refuses, is not there, or answers nonsense.

    Asked again, with growing pauses: what failed on the way or on the server, and what has to wait
    for a rate limit. But a POST only where it was certainly not carried out. `clock` is the time of
    day; `proxy` the address of one, if there is one on the way.
    """

    def __init__(
        self,
        site: Site,
        *,
        clock: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        patience: Patience | None = None,
        proxy: str | None = None,
    ) -> None:
        self.site = site
        self._clock = clock
        self._sleep = sleep
        self._patience = patience or Patience()
        headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **site.headers}
        if site.token:
            if not _HEADER_TEXT.fullmatch(site.token):
                raise ConfigurationError(
                    f"the token in {site.token_variable} holds spaces or other strange characters"
                )
            name, before = site.token_header
            headers[name] = f"{before}{site.token}"
        # Not trust_env: netrc and proxies are for those to read who read the environment.
        try:
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=self._patience.attempt_s,
                follow_redirects=False,
                trust_env=False,
                verify=_tls(),
                proxy=proxy,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            said = redact(str(error)[:_LONGEST_SAID])
            raise ConfigurationError(f"the proxy to {site.name} cannot be used: {said}") from None

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def get(self, path: str, query: Query | None = None) -> object:
        """The value of a path, which begins with a slash."""
        reply = await self._ask("GET", path, query)
        return decode(reply.data, self.place("GET", path))

    async def pages(self, path: str, query: Query | None = None) -> Pages:
        """All items of a list, page by page."""
        items: list[object] = []
        size = 0
        asked: Query = {"per_page": PER_PAGE, **(query or {})}
        for _ in range(self._patience.max_pages):
            reply = await self._ask("GET", path, asked)
            page = decode(reply.data, self.place("GET", path))
            if not isinstance(page, list):
                raise self._failure("GET", path, "is no list", reply.status)
            items += page
            size += len(reply.data)
            following = next_query(reply.headers.get("link", ""))
            if following is None:
                return Pages(tuple(items), complete=True)
            if size > self._patience.max_bytes:
                break
            asked = following
        return Pages(tuple(items), complete=False)

    async def send(
        self, method: Method, path: str, body: Mapping[str, object] | None = None
    ) -> object:
        """The value that the server gives for `body`, or None."""
        reply = await self._ask(method, path, body=body)
        return decode(reply.data, self.place(method, path))

    def place(self, method: str, path: str) -> str:
        """How errors call the answer to a request."""
        return f"{self.site.name}'s answer to {method} {path}"

    async def _ask(
        self,
        method: Method,
        path: str,
        query: Query | None = None,
        *,
        body: Mapping[str, object] | None = None,
    ) -> Reply:
        url = httpx2.URL(f"{self.site.root}{path}", params=query or None)
        failed = ""
        for attempt in range(self._patience.tries):
            try:
                reply = await self._follow(method, url, path, body)
            except (httpx2.TransportError, TimeoutError) as error:
                failed = _said_by(error)
                pause = None if not may_repeat(method, error) else 0.0
                status = 0
            else:
                if 200 <= reply.status < 300:
                    return reply
                status, failed = reply.status, self._said(reply.data)
                pause = pause_for(reply, method=method, now=self._clock())
            if pause is None:
                self._refuse(method, path, failed, status)
            pause = max(pause, self._patience.first_pause_s * 2**attempt)
            if pause > self._patience.wait_s:
                self._refuse(method, path, failed, status, retry_after_s=pause)
            if attempt + 1 < self._patience.tries:
                await self._sleep(pause)
        self._refuse(method, path, f"{failed} ({self._patience.tries} times)", status)

    async def _follow(
        self, method: Method, url: httpx2.URL, path: str, body: Mapping[str, object] | None
    ) -> Reply:
        """The answer, also where a project was renamed: but on this server, and for a GET."""
        for _ in range(_HOPS):
            reply = await self._attempt(method, url, path, body)
            if reply.status not in _MOVED:
                return reply
            try:
                target = url.join(reply.headers.get("location", ""))
            except (httpx2.InvalidURL, ValueError):
                break
            if _origin(target) != _origin(url):
                raise self._failure(method, path, "leads to another server", reply.status)
            if method != "GET":
                break
            url = target
        raise self._failure(method, path, "leads somewhere else", reply.status)

    async def _attempt(
        self, method: Method, url: httpx2.URL, path: str, body: Mapping[str, object] | None
    ) -> Reply:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = bytearray()
        # The limits of the client are for each step of it; a server could dribble for days.
        async with (
            asyncio.timeout(self._patience.attempt_s),
            self._client.stream(method, url, content=content, headers=headers) as response,
        ):
            # Raw: we asked for no compression, and a small archive can hold a very big text.
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > self._patience.max_bytes:
                    raise self._failure(method, path, "is too long", response.status_code)
            return Reply(
                response.status_code,
                {name.lower(): value for name, value in response.headers.items()},
                bytes(data),
            )

    def _said(self, data: bytes) -> str:
        try:
            value = decode(data[: 64 * 1024], "")
        except SourceError:
            return ""
        message = isinstance(value, Mapping) and (value.get("message") or value.get("error"))
        text = message if isinstance(message, str) else json.dumps(message) if message else ""
        return one_line(redact(text, [self.site.token] if self.site.token else ()))[:_LONGEST_SAID]

    def _failure(self, method: str, path: str, what: str, status: int) -> SourceError:
        return SourceError(
            f"{self.place(method, path)} {what}",
            details={"status": status},
            hint=f"is {self.site.root} the address of {self.site.name}'s API?",
        )

    def _refuse(
        self, method: str, path: str, said: str, status: int, *, retry_after_s: float | None = None
    ) -> NoReturn:
        token = [self.site.token] if self.site.token else ()
        because = redact(f": {said}" if said else "", token)
        details: dict[str, object] = {"status": status}
        if retry_after_s is not None:
            details["retry_after_s"] = retry_after_s
            because += f"; it wants us to wait {retry_after_s:.0f} s"
        what = f"answered {status} to" if status else "could not be asked for"
        raise SourceError(
            f"{self.site.name} {what} {method} {path}{because}",
            details=details,
            hint=self._hint(status, limited=retry_after_s is not None),
        )

    def _hint(self, status: int, *, limited: bool) -> str:
        if limited:
            return "try again then, or ask less often"
        variable = self.site.token_variable
        return {
            0: f"can {self.site.root} be reached from here?",
            401: f"is the token in {variable} still good?",
            403: f"may the token in {variable} do this?",
            404: f"is it there, and may the token in {variable} see it?",
        }.get(status, "")


def path_of(*parts: str | int) -> str:
    """A path of an API; each part is one segment, whatever it holds."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def may_repeat(method: Method, error: Exception) -> bool:
    """May a request that failed on the way be made again? A POST, if it never got there."""
    return method != "POST" or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def pause_for(reply: Reply, *, method: Method, now: datetime) -> float | None:
    """How many seconds to wait before asking again; None if it makes no sense to.

    GitHub limits by 403 and 429, GitLab by 429. Either says when to come again in `Retry-After`, or
    when its window ends in `X-RateLimit-Reset` (GitHub) or `RateLimit-Reset` (GitLab).
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
    except (ValueError, TypeError, IndexError, OverflowError):  # No date, or one without a zone.
        return None


def next_query(link: str) -> Query | None:
    """The query of the next page, out of a Link header. Whose address it is does not matter."""
    for target, parameters in _LINK.findall(link):
        if _NEXT.search(parameters):
            try:
                return dict(parse_qsl(urlsplit(target).query, max_num_fields=50))
            except ValueError:
                return None
    return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _said_by(error: Exception) -> str:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "there was no answer in time"
    return one_line(str(error))[:_LONGEST_SAID] or type(error).__name__
