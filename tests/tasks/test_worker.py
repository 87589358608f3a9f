"""Out of a queue: what can be done is done, and what can never be done is told, once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kakoi.settings.model import Settings
from kakoi.settings.tasks import SourcesSection, TaskSection
from kakoi.tasks.comments import TaskResult
from kakoi.tasks.from_settings import task_getter
from kakoi.tasks.queue.api import Lease, QueueSize
from kakoi.tasks.queue.sqlite import SqliteQueue
from kakoi.tasks.sources.source import TaskGetter, TaskSource
from kakoi.tasks.task import Task
from kakoi.tasks.worker import ConsumedTask, Consumer, produce
from tests.tasks.trackers import TOKEN, FakeGitHub, FakeGitLab, Reply

pytestmark = pytest.mark.anyio
LABEL = "coding agent"
PROJECT = "group/sub/project"


class Remembering:
    """A handler that has done everything at once."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    async def handle(self, task: Task, source: TaskSource, *, attempt: int = 1) -> TaskResult:
        self.tasks.append(task.key)
        return TaskResult(stage="done")


class Works:
    """A producer and a consumer on two trackers."""

    def __init__(self, hub: FakeGitHub, lab: FakeGitLab, getter: TaskGetter, path: Path) -> None:
        self.hub, self.lab, self.getter = hub, lab, getter
        self.queue = SqliteQueue(path, clock=lambda: datetime.now(UTC))
        self.handler = Remembering()
        self.consumer = Consumer(self.queue, getter, self.handler, max_attempts=2)

    async def one(self) -> ConsumedTask:
        """What comes of the only task that waits."""
        assert len((await produce(self.getter, self.queue)).queued) == 1
        consumed = await self.consumer.consume()
        assert consumed is not None
        return consumed

    async def nothing_waits(self) -> bool:
        return not (await produce(self.getter, self.queue)).queued and (
            await self.queue.size() == QueueSize(0, 0)
        )


@pytest.fixture
async def works(tmp_path: Path) -> AsyncIterator[Works]:
    hub, lab = FakeGitHub(), FakeGitLab()
    settings = Settings(
        tasks=TaskSection(sources=SourcesSection(github=("team/project",), gitlab=(PROJECT,)))
    )
    environ = {
        "GITHUB_HOST": hub.web,
        "GITHUB_PERSONAL_ACCESS_TOKEN": TOKEN,
        "GITLAB_HOST": lab.web,
        "GITLAB_PERSONAL_ACCESS_TOKEN": TOKEN,
    }
    with hub.serving(), lab.serving():
        async with task_getter(settings, environ) as getter:
            yield Works(hub, lab, getter, tmp_path / "queue.db")


async def test_a_pull_request_from_a_fork_is_refused_on_the_tracker_with_the_fix(
    works: Works,
) -> None:
    works.hub.add_pull(6, "a change", LABEL, head="feature", base="main")
    works.hub.pulls[6]["head"]["repo"] = {"full_name": "eve/project"}
    consumed = await works.one()
    assert "is in another repository: eve/project" in consumed.error
    assert not consumed.is_back
    (said,) = [each["body"] for each in works.hub.comments[6]]
    assert "This task failed." in said
    assert "is in another repository: eve/project" in said
    assert "push the branch to the repository itself" in said
    assert works.hub.labels_of(6) == ["coding agent error"]
    assert await works.nothing_waits()
    assert works.handler.tasks == []


async def test_a_merge_request_from_a_fork_is_refused_on_the_tracker_with_the_fix(
    works: Works,
) -> None:
    works.lab.add("merge_requests", 6, "a change", LABEL, source_project_id=8)
    assert "is in another project" in (await works.one()).error
    (said,) = [each["body"] for each in works.lab.notes["merge_requests", 6]]
    assert "push the branch to the project itself" in said
    assert works.lab.labels_of("merge_requests", 6) == ["coding agent error"]
    assert await works.nothing_waits()


@pytest.mark.parametrize(
    "branch", ["-upload-pack=x", "../main", "a..b", "x.lock", "a b", "refs/heads/@{0}", "x\x00"]
)
async def test_a_branch_with_a_dangerous_name_is_refused_on_the_tracker(
    works: Works, branch: str
) -> None:
    works.hub.add_pull(6, "a change", LABEL, head=branch, base="main")
    assert "not a branch name" in (await works.one()).error
    assert "not a branch name" in works.hub.comments[6][0]["body"]
    assert works.hub.labels_of(6) == ["coding agent error"]
    assert works.handler.tasks == []
    assert await works.nothing_waits()


async def test_what_nobody_wants_any_more_is_not_commented(works: Works) -> None:
    works.hub.add_pull(6, "a change", LABEL, head="feature", base="main")
    works.hub.pulls[6]["head"]["repo"] = {"full_name": "eve/project"}
    await produce(works.getter, works.queue)
    works.hub.issues[6]["labels"] = []
    assert (await works.consumer.consume()) is not None
    assert works.hub.comments == {}
    assert await works.nothing_waits()


async def test_a_tracker_that_is_away_is_asked_again_and_told_only_at_the_end(
    works: Works,
) -> None:
    works.hub.add_issue(7, "Mend it", LABEL)
    await produce(works.getter, works.queue)
    gone: Any = Reply(404, {"message": "Not Found"})
    works.hub.trouble.append(gone)
    first = await works.consumer.consume()
    assert first is not None
    assert first.is_back
    assert works.hub.comments == {}
    works.hub.trouble.append(gone)
    second = await works.consumer.consume()
    assert second is not None
    assert not second.is_back
    (said,) = works.hub.comments[7]
    assert "answered 404" in said["body"]
    assert TOKEN not in said["body"]
    assert works.hub.labels_of(7) == ["coding agent error"]


async def test_a_task_of_a_tracker_that_is_named_no_longer_is_dropped(works: Works) -> None:
    await works.queue.put("https://elsewhere.example/team/project/issues/7")
    consumed = await works.consumer.consume()
    assert consumed is not None
    assert "is not the address of a task" in consumed.error
    assert await works.queue.size() == QueueSize(0, 0)


async def test_a_good_task_is_done_and_leaves_the_queue(works: Works) -> None:
    works.hub.add_issue(7, "Mend it", LABEL)
    consumed = await works.one()
    assert consumed.result is not None
    assert works.handler.tasks == [f"{works.hub.web}/team/project/issues/7"]
    assert await works.queue.size() == QueueSize(0, 0)


class RenewedQueue(SqliteQueue):
    """Says when a lease was renewed. Its leases are as short as they may be."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, clock=lambda: datetime.now(UTC), lease_s=1.0)
        self.is_renewed = asyncio.Event()

    async def renew(self, lease: Lease) -> None:
        await super().renew(lease)
        self.is_renewed.set()


class Patient(Remembering):
    """A handler that is not done before its lease was renewed."""

    def __init__(self, queue: RenewedQueue) -> None:
        super().__init__()
        self.queue = queue

    async def handle(self, task: Task, source: TaskSource, *, attempt: int = 1) -> TaskResult:
        async with asyncio.timeout(60):
            await self.queue.is_renewed.wait()
        return await super().handle(task, source, attempt=attempt)


async def test_a_task_stays_its_consumers_own_for_as_long_as_it_takes(
    works: Works, tmp_path: Path
) -> None:
    works.hub.add_issue(7, "Mend it", LABEL)
    works.queue = queue = RenewedQueue(tmp_path / "renewed.db")
    works.consumer = Consumer(queue, works.getter, Patient(queue))
    consumed = await works.one()
    assert (consumed.result, consumed.error) == (TaskResult(stage="done"), "")
    assert await queue.size() == QueueSize(0, 0)
