"""One server is asked, patiently and with bounds, and nobody else ever sees the token."""

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Protocol

import pytest

from kakoi.errors import ConfigurationError, KakoiError, SourceError
from kakoi.tasks.sources.github import github_site
from kakoi.tasks.sources.gitlab import gitlab_site
from kakoi.tasks.sources.http import HttpReply, RestClient, RetryLimits, next_query, retry_pause
from tests.tasks.trackers import (
    TOKEN,
    FakeGitHub,
    FakeGitLab,
    Reply,
    Trouble,
    dribbling,
    endless,
    half_an_answer,
    hang_up,
    silent,
)

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ISSUE = "/repos/team/project/issues/1"
QUICK = RetryLimits(attempt_s=0.5, tries=2)


@dataclass
class Pauses:
    """Sleeps without sleeping, and remembers how long it was to be."""

    taken: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@pytest.fixture
def hub() -> Iterator[FakeGitHub]:
    tracker = FakeGitHub()
    tracker.add_issue(1, "one")
    with tracker.serving():
        yield tracker


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


class Opener(Protocol):
    def __call__(
        self, hub: FakeGitHub, pauses: Pauses, limits: RetryLimits | None = None
    ) -> RestClient: ...


@pytest.fixture
async def client() -> AsyncIterator[Opener]:
    async with contextlib.AsyncExitStack() as stack:

        def open_client(
            hub: FakeGitHub, pauses: Pauses, limits: RetryLimits | None = None
        ) -> RestClient:
            site = github_site(hub.web, TOKEN)
            made = RestClient(site, clock=lambda: NOW, sleep=pauses, limits=limits)
            stack.push_async_callback(made.aclose)
            return made

        yield open_client


def limited(status: int, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"message": "API rate limit exceeded"}, named)


AFTER_90_S = str(int(NOW.timestamp()) + 90)
PATIENT: list[tuple[Trouble, float]] = [
    (limited(403, retry_after="7"), 7),
    (limited(429, retry_after="7"), 7),
    (limited(403, x_ratelimit_remaining="0", x_ratelimit_reset=AFTER_90_S), 90),
    (limited(429, ratelimit_remaining="0", ratelimit_reset=AFTER_90_S), 90),
    (limited(429, retry_after="Fri, 02 Jan 2026 03:04:35 GMT"), 30),
    (limited(429, retry_after="soon"), 60),
    (Reply(403, {"message": "You have exceeded a secondary rate limit"}), 60),
    (Reply(500), 1),
    (Reply(502, raw=b"<html>Bad gateway</html>"), 1),
    (Reply(503, None, {"Retry-After": "9"}), 9),
    (hang_up, 1),
    (half_an_answer, 1),
]


@pytest.mark.parametrize(("trouble", "pause"), PATIENT)
async def test_what_passes_is_waited_for_as_long_as_the_server_says(
    client: Opener, hub: FakeGitHub, pauses: Pauses, trouble: Trouble, pause: float
) -> None:
    hub.trouble.append(trouble)
    asked = client(hub, pauses)
    found = await asked.get(ISSUE)
    assert isinstance(found, dict)
    assert found["number"] == 1
    assert pauses.taken == [pause]


async def test_pauses_grow_and_end(client: Opener, hub: FakeGitHub, pauses: Pauses) -> None:
    hub.trouble += [Reply(500)] * 9
    with pytest.raises(SourceError, match="answered 500 to GET") as caught:
        await client(hub, pauses).get(ISSUE)
    assert pauses.taken == [1, 2, 4, 8]
    assert len(hub.seen) == 5
    assert caught.value.details == {"status": 500}


async def test_a_limit_that_lasts_too_long_is_told_and_not_waited_for(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    later = str(int(NOW.timestamp()) + 3000)
    hub.trouble.append(limited(403, x_ratelimit_remaining="0", x_ratelimit_reset=later))
    with pytest.raises(SourceError, match="it asks to wait 3000 s") as caught:
        await client(hub, pauses).get(ISSUE)
    assert caught.value.details == {"status": 403, "retry_after_s": 3000}
    assert pauses.taken == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
async def test_a_refusal_is_an_answer_and_not_asked_for_again(
    client: Opener, hub: FakeGitHub, pauses: Pauses, status: int
) -> None:
    hub.trouble.append(Reply(status, {"message": f"no {TOKEN}\nno"}))
    with pytest.raises(SourceError) as caught:
        await client(hub, pauses).get(ISSUE)
    assert str(caught.value) == f"GitHub answered {status} to GET {ISSUE}: no [redacted] no"
    assert (caught.value.details["status"], pauses.taken) == (status, [])


@pytest.mark.parametrize("trouble", [Reply(500), Reply(503), hang_up, half_an_answer])
async def test_a_post_that_may_have_been_carried_out_is_not_made_twice(
    client: Opener, hub: FakeGitHub, pauses: Pauses, trouble: Trouble
) -> None:
    hub.trouble.append(trouble)
    with pytest.raises(SourceError):
        await client(hub, pauses).send("POST", f"{ISSUE}/comments", {"body": "x"})
    assert (len(hub.seen), pauses.taken) == (1, [])


async def test_a_post_that_was_refused_for_a_limit_is_made_again(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    hub.trouble.append(limited(429, retry_after="3"))
    await client(hub, pauses).send("POST", f"{ISSUE}/comments", {"body": "x"})
    assert [each["body"] for each in hub.comments[1]] == ["x"]
    assert pauses.taken == [3]


async def test_a_server_that_is_not_there_is_told_without_the_token(
    client: Opener, pauses: Pauses
) -> None:
    gone = FakeGitHub()
    gone.server.server_close()
    with pytest.raises(SourceError, match="did not answer POST") as caught:
        await client(gone, pauses, QUICK).send("POST", f"{ISSUE}/comments", {"body": "x"})
    assert pauses.taken == [1]  # A POST, too: it never got there.
    assert caught.value.details == {"status": 0}
    assert TOKEN not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("slow", [silent, dribbling])
async def test_a_slow_server_is_left(
    client: Opener, hub: FakeGitHub, pauses: Pauses, slow: object
) -> None:
    assert slow in (silent, dribbling)
    trouble = silent(hub) if slow is silent else dribbling(hub)
    hub.trouble += [trouble, trouble]
    with pytest.raises(SourceError, match="no answer in time"):
        await client(hub, pauses, QUICK).get(ISSUE)
    assert len(hub.seen) == 2


async def test_an_endless_answer_is_cut(client: Opener, hub: FakeGitHub, pauses: Pauses) -> None:
    hub.trouble.append(endless)
    with pytest.raises(SourceError, match="is too long"):
        await client(hub, pauses, RetryLimits(max_bytes=100_000)).get(ISSUE)


GARBAGE = [b"<html>hello</html>", b'{"a":', b"\xff\xfe", b"[" * 100_000, b"9" * 10_000, b"\0"]


# What is no HTTP, or hardly.
BROKEN = [
    b"",
    b"\r\n" * 1000,
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 999999 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\nA: " + b"x" * 300_000 + b"\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000 + b"\r\n[]",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://\x80\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 429 No\r\nRetry-After: \xff, 99 Xyz 99999 99:99:99 +9999\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
]


def raw(data: bytes) -> Trouble:
    def answer(request: BaseHTTPRequestHandler) -> None:
        with contextlib.suppress(OSError):
            request.wfile.write(data)
        request.close_connection = True

    return answer


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: repr(data[:40]))
async def test_what_is_hardly_http_is_told(
    client: Opener, hub: FakeGitHub, pauses: Pauses, data: bytes
) -> None:
    hub.trouble += [raw(data)] * 9
    with pytest.raises(SourceError) as caught:
        await client(hub, pauses, RetryLimits(attempt_s=5, tries=2)).get(ISSUE)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "after",
    [
        "",
        "x",
        "-1",
        "1e3",
        "9" * 400,
        "Mon, 99 Foo 2026",
        "0, 0 0 0 0:0:0 +99999999",
        ", , , ",
        "1 Jan 99999 0:0:0 GMT",
    ],
)
async def test_a_date_that_is_none_is_none(after: str) -> None:
    pause = retry_pause(HttpReply(429, {"retry-after": after}, b""), method="GET", now=NOW)
    assert pause is not None
    assert pause >= 0


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "nonsense", "ftp://x", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_told(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match="the proxy for GitHub"):
        RestClient(github_site(), clock=lambda: NOW, proxy=proxy)


@pytest.mark.parametrize("data", GARBAGE)
async def test_garbage_is_told(
    client: Opener, hub: FakeGitHub, pauses: Pauses, data: bytes
) -> None:
    hub.trouble.append(Reply(200, raw=data))
    with pytest.raises(SourceError, match="it should be JSON") as caught:
        await client(hub, pauses).get(ISSUE)
    assert len(str(caught.value)) < 300


async def test_a_compressed_answer_is_not_opened(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    """We asked for none, and a small one may hold a very big text."""
    hub.trouble.append(Reply(200, None, {"Content-Encoding": "gzip"}, raw=b"\x1f\x8b\x08\x00"))
    with pytest.raises(SourceError, match="it should be JSON"):
        await client(hub, pauses).get(ISSUE)
    assert hub.seen[0].headers["accept-encoding"] == "identity"


# --- The token stays here --------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_to_another_server_is_refused(
    client: Opener, hub: FakeGitHub, pauses: Pauses, status: int
) -> None:
    other = FakeGitHub()
    with other.serving():
        for method in ("GET", "POST"):
            hub.trouble.append(Reply(status, None, {"Location": f"{other.web}/api/v3{ISSUE}"}))
            asked = client(hub, pauses)
            with pytest.raises(SourceError, match="redirects to another server"):
                await (asked.get(ISSUE) if method == "GET" else asked.send("POST", ISSUE, {}))
        assert other.seen == []


async def test_a_renamed_project_is_found_on_the_same_server(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    hub.trouble.append(Reply(301, None, {"Location": f"{hub.web}/api/v3{ISSUE}"}))
    found = await client(hub, pauses).get("/repos/team/old/issues/1")
    assert isinstance(found, dict)
    assert found["number"] == 1


@pytest.mark.parametrize("location", ["", "http://[::1", "/api/v3" + ISSUE, "file:///etc/passwd"])
async def test_a_redirect_that_leads_nowhere_ends(
    client: Opener, hub: FakeGitHub, pauses: Pauses, location: str
) -> None:
    hub.trouble += [Reply(302, None, {"Location": location})] * 9
    with pytest.raises(SourceError, match=r"redirects |Invalid URL"):
        await client(hub, pauses).get(ISSUE)
    assert len(hub.seen) <= 5


async def test_a_hostile_next_page_leads_nowhere_else(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    other = FakeGitHub()
    with other.serving():
        link = f'<{other.web}/steal?page=2>; rel="next"'
        hub.trouble.append(Reply(200, [{"a": 1}], {"Link": link}))
        pages = await client(hub, pauses).pages("/repos/team/project/issues")
        assert other.seen == []
    assert [seen.path for seen in hub.seen] == ["/api/v3/repos/team/project/issues"] * 2
    assert hub.seen[1].query == {"page": "2"}
    assert pages.complete


async def test_pages_without_end_are_left_with_what_was_read(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    link = {"Link": '<https://x.example/?page=1>; rel="next"'}
    hub.trouble += [Reply(200, [{"a": 1}], link)] * 9
    pages = await client(hub, pauses, RetryLimits(max_pages=4)).pages("/repos/team/project/issues")
    assert (len(pages.items), pages.complete, len(hub.seen)) == (4, False, 4)


async def test_pages_are_bounded_together(client: Opener, hub: FakeGitHub, pauses: Pauses) -> None:
    link = {"Link": '<https://x.example/?page=1>; rel="next"'}
    hub.trouble += [Reply(200, ["x" * 600], link)] * 9
    pages = await client(hub, pauses, RetryLimits(max_bytes=1000)).pages("/x")
    assert (len(pages.items), pages.complete) == (2, False)


async def test_a_page_that_is_no_list_is_told(
    client: Opener, hub: FakeGitHub, pauses: Pauses
) -> None:
    with pytest.raises(SourceError, match="is not a list"):
        await client(hub, pauses).pages(ISSUE)


@pytest.mark.requirement("A-041")
async def test_the_token_is_in_no_log_and_in_no_error(
    client: Opener, hub: FakeGitHub, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = client(hub, pauses)
    await asked.get(ISSUE)
    hub.trouble.append(Reply(404, {"message": f"Bearer {TOKEN}"}))
    with pytest.raises(SourceError) as caught:
        await asked.get(ISSUE)
    assert hub.seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    told = caplog.text + repr(caught.value) + json.dumps(caught.value.details) + repr(asked.site)
    assert TOKEN not in told


@pytest.mark.parametrize("token", ["a b", "a\nHost: x", "ä", "a\0"])
def test_a_token_that_is_none_is_refused_unseen(token: str) -> None:
    with pytest.raises(ConfigurationError, match="GITLAB_PERSONAL_ACCESS_TOKEN") as caught:
        RestClient(gitlab_site("https://x.example", token), clock=lambda: NOW)
    assert token not in str(caught.value)


async def test_gitlab_is_given_its_token_in_its_own_header(pauses: Pauses) -> None:
    lab = FakeGitLab()
    lab.add("issues", 1, "one")
    with lab.serving():
        asked = RestClient(gitlab_site(lab.web, TOKEN), clock=lambda: NOW, sleep=pauses)
        await asked.get("/projects/group%2Fsub%2Fproject/issues/1")
        await asked.aclose()
    assert lab.seen[0].headers["private-token"] == TOKEN
    assert "authorization" not in lab.seen[0].headers


async def test_nothing_of_the_environment_is_used(
    client: Opener, hub: FakeGitHub, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert await client(hub, pauses).get(ISSUE)


# --- The parts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "query"),
    [
        ('<https://a/x?page=2&per_page=100>; rel="next"', {"page": "2", "per_page": "100"}),
        ('<https://a/?page=1>; rel="prev", <https://a/?page=3>; rel="next"', {"page": "3"}),
        ('<https://a/?cursor=a%2Bb>; rel="next"; title="x"', {"cursor": "a+b"}),
        ('<https://a/?page=9>; rel="last"', None),
        ('<https://a/?page=2>; rel="nextish"', None),
        ("<" * 50_000, None),
        ("<>" * 50_000, None),
        ("<?" + "a=1&" * 100 + '>; rel="next"', None),
        ("", None),
    ],
)
async def test_of_a_link_only_the_query_of_the_next_page_counts(
    link: str, query: dict[str, str] | None
) -> None:
    assert next_query(link) == query


@pytest.mark.parametrize("reset", ["", "x", "9" * 50, "-5"])
async def test_a_time_that_is_none_is_a_minute(reset: str) -> None:
    reply = HttpReply(429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}, b"")
    assert retry_pause(reply, method="GET", now=NOW) == 60


async def test_a_window_that_is_over_is_not_waited_for() -> None:
    reply = HttpReply(429, {"ratelimit-remaining": "0", "ratelimit-reset": "5"}, b"")
    assert retry_pause(reply, method="GET", now=NOW) == 0


def test_every_error_of_ours_is_a_kakoi_error() -> None:
    assert issubclass(SourceError, KakoiError)
    assert SourceError.code == "SOURCE_FAILED"
