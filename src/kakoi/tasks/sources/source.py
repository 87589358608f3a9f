"""TaskSource: what every place that tasks come from can do; TaskGetter: all of them at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kakoi.errors import ConfigurationError, SourceError
from kakoi.redact import redact
from kakoi.tasks.sources.labels import Labels, Stage
from kakoi.tasks.task import State, Task

# Somebody wants it done: it waits, or was begun.
STAGES_DUE = ("waiting", "processing")
_CUT = "\n\n… (shortened)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What was done for a task: a branch that is pushed, to be proposed with these words."""

    branch: str
    title: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a tracker says about a task right then."""

    state: State
    assignees: tuple[str, ...]
    labels: tuple[str, ...]


class TaskSource(Protocol):
    """A place that tasks come from. What it cannot do is a SourceError that says why.

    A key is the address of a task as people see it. `assignee`: the user whose tasks these are;
    empty is anybody.
    """

    labels: Labels
    assignee: str

    def owns(self, key: str) -> bool:
        """Is it an address of a task of this place? Nobody is asked."""

    async def waiting(self) -> tuple[str, ...]:
        """The keys of what waits to be done, and of what was begun and not ended; oldest first."""

    async def fetch(self, key: str) -> Task:
        """A task, with its comments."""

    async def look(self, key: str) -> Look:
        """Only how it stands."""

    async def comment(self, task: Task, body: str) -> str:
        """Say something about a task, without secrets; gives the id of the comment."""

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        """Say something else there."""

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        """Give a task labels and take some away; those it has, or has not, are no error."""

    async def propose(self, task: Task, change: Change) -> str:
        """Open a pull or merge request; its address, empty where there is no such thing.

        If one is open for that branch, it is that one: asking twice is harmless.
        """

    async def aclose(self) -> None:
        """Close what it holds."""


async def mark(source: TaskSource, task: Task, stage: Stage) -> None:
    """Show on the tracker how far a task is: it loses the labels of other stages.

    The labels are those that the task has by then, not those that it was fetched with.
    """
    found = await source.look(task.key)
    add, remove = source.labels.change(found.labels, stage)
    if add or remove:
        await source.change_labels(task, add, remove)


def is_due(task: Task, labels: Labels) -> bool:
    """Is there still something to do? To be asked of what comes out of a queue: it may be old."""
    return task.state == "open" and labels.stage_of(task.labels) in STAGES_DUE


def is_still_assigned(task: Task, found: Look, assignee: str) -> bool:
    """Is it open, and assigned to `assignee`, or else to somebody who was assigned before?

    A task that nobody was assigned to at the start is not stopped by that.
    """
    if found.state != "open" or not task.assignees:
        return found.state == "open"
    wanted = {name.casefold() for name in ([assignee] if assignee else task.assignees)}
    return bool(wanted & {name.casefold() for name in found.assignees})


def sayable(text: str, secret: str, longest: int) -> str:
    """`text` for everybody to read: without secrets, and not longer than a tracker takes."""
    text = redact(text, [secret] if secret else ())
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


@dataclass(frozen=True, slots=True)
class Waiting:
    """Keys of tasks that wait, and what kept us from seeing more of them."""

    keys: tuple[str, ...]
    failures: tuple[SourceError, ...] = ()


class TaskGetter:
    """All sources: what waits anywhere, and who answers for a key. Closes them when it is left."""

    def __init__(self, sources: Sequence[TaskSource]) -> None:
        self._sources = tuple(sources)

    async def __aenter__(self) -> "TaskGetter":
        return self

    async def __aexit__(self, *_: object) -> None:
        for source in self._sources:
            await source.aclose()

    async def waiting(self) -> Waiting:
        """What waits. A source that fails does not hide what the others have."""
        answers = await asyncio.gather(*(_try(source) for source in self._sources))
        keys = dict.fromkeys(key for answer in answers for key in answer.keys)
        return Waiting(tuple(keys), tuple(each for answer in answers for each in answer.failures))

    async def fetch(self, key: str) -> Task:
        """The task of a key."""
        return await self.source_of(key).fetch(key)

    def source_of(self, key: str) -> TaskSource:
        """Who answers for a key; ConfigurationError if nobody does."""
        for source in self._sources:
            if source.owns(key):
                return source
        raise ConfigurationError(
            f"{key!r:.200} is no address of a task",
            hint="give the address of an issue, or of a pull or merge request, on GitHub or GitLab"
            " (GITHUB_HOST and GITLAB_HOST name servers of your own), or a Markdown file",
        )


async def _try(source: TaskSource) -> Waiting:
    try:
        return Waiting(await source.waiting())
    except SourceError as error:
        return Waiting((), (error,))
