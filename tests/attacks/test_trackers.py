"""Trackers that lie: whatever one answers, in any place, is an error in words or a task that is
safe to work on, and costs neither memory nor time without end."""

import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.github import GitHubSource, github_site
from kakoi.tasks.sources.gitlab import GitLabSource, gitlab_site
from kakoi.tasks.sources.http import RestClient, RetryLimits
from kakoi.tasks.sources.source import TaskChange, TaskSource, set_stage
from kakoi.tasks.task import Task
from tests.tasks.trackers import TOKEN, FakeGitHub, FakeGitLab, Reply, Seen

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, tzinfo=UTC)
LIES: list[Any] = [
    None, True, -1, 2**70, "", [], {}, [None], {"a": [[]]},
    "\x00\x1b[2J\u202e\n--upload-pack=id", "../../x", "-oProxyCommand=id", "ext::sh -c id",
]  # fmt: skip


@dataclass
class Liar:
    """Answers as the other would, but for one place in the answer to one request."""

    answer: Callable[[Seen], Reply]
    at: int = -1
    where: tuple[Any, ...] = ()
    lie: Any = None
    count: int = 0

    def __call__(self, seen: Seen) -> Reply:
        reply = self.answer(seen)
        self.count += 1
        if self.count - 1 != self.at:
            return reply
        return replace(reply, value=with_lie(reply.value, self.where, self.lie))


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the whole of it first."""
    yield before
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for name, each in inner:
        yield from places(each, (*before, name))


def with_lie(value: Any, where: tuple[Any, ...], lie: Any) -> Any:
    if not where:
        return lie
    changed = copy.deepcopy(value)
    inner = changed
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = lie
    return changed


@dataclass
class Desk:
    """A tracker, our source for it, and the addresses of an issue and a request."""

    tracker: Any
    source: TaskSource
    issue: str
    request: str

    def deeds(self) -> dict[str, Callable[[], Awaitable[object]]]:
        task = Task(uuid="t", repository="r", key=self.issue)
        return {
            "waiting": self.source.waiting,
            "issue": lambda: self.source.fetch(self.issue),
            "request": lambda: self.source.fetch(self.request),
            "comment": lambda: self.source.comment(task, "x"),
            "mark": lambda: set_stage(self.source, task, "done"),
            "propose": lambda: self.source.propose(
                task, TaskChange(branch="b", title="t", body="x")
            ),
        }


@pytest.fixture(params=["github", "gitlab"])
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    limits = RetryLimits(attempt_s=10, tries=1)
    if request.param == "github":
        hub = FakeGitHub()
        hub.add_issue(1, "one", "coding agent", assignees=[{"login": "bot"}])
        hub.add_pull(2, "two", "coding agent", head="feature", base="main")
        hub.say(1, "words")
        client = RestClient(github_site(hub.web, TOKEN), clock=lambda: NOW, limits=limits)
        source: TaskSource = GitHubSource(client, repositories=["team/project"])
        at = f"{hub.web}/team/project"
        made = Desk(hub, source, f"{at}/issues/1", f"{at}/pull/2")
    else:
        lab = FakeGitLab()
        lab.add("issues", 1, "one", "coding agent", assignees=[{"username": "bot"}])
        lab.add("merge_requests", 2, "two", "coding agent")
        lab.say("issues", 1, "words")
        client = RestClient(gitlab_site(lab.web, TOKEN), clock=lambda: NOW, limits=limits)
        source = GitLabSource(client, projects=["group/sub/project"])
        at = f"{lab.web}/group/sub/project/-"
        made = Desk(lab, source, f"{at}/issues/1", f"{at}/merge_requests/2")
    with made.tracker.serving():
        yield made
        await source.aclose()


def assert_safe(desk: Desk, found: object) -> None:
    if isinstance(found, tuple):
        assert all(desk.source.owns(key) for key in found)
    elif isinstance(found, Task):
        assert found.repository.startswith(f"{desk.tracker.web}/")
        assert desk.source.owns(found.key)
        assert found.title.isprintable() or "\u202e" in found.title
        for branch in (found.source_branch, found.target_branch):
            assert branch is None or not branch.startswith(("-", "/"))
            assert branch is None or ".." not in branch
    elif isinstance(found, str) and "/" in found:
        assert desk.source.owns(found)


@pytest.mark.parametrize("deed", ["waiting", "issue", "request", "comment", "mark", "propose"])
async def test_a_lie_anywhere_in_an_answer_is_reported_or_harmless(desk: Desk, deed: str) -> None:
    tracker, work = desk.tracker, desk.deeds()[deed]
    honest = tracker.answer
    before = copy.deepcopy(vars(tracker).get("issues") or vars(tracker).get("items"))
    heard: list[Reply] = []

    def listen(seen: Seen) -> Reply:
        heard.append(honest(seen))
        return heard[-1]

    tracker.answer = listen
    await work()
    for at, reply in enumerate(heard):
        # Each place with one lie, and the whole with every lie.
        for number, where in enumerate(places(reply.value)):
            for lie in LIES if not where else [LIES[number % len(LIES)]]:
                kept = vars(tracker).get("issues", vars(tracker).get("items"))
                kept.clear()
                kept.update(copy.deepcopy(before))
                tracker.answer = Liar(honest, at, where, lie)
                with contextlib.suppress(SourceError, ConfigurationError):
                    assert_safe(desk, await work())
