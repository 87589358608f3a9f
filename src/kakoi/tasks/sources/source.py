"""TaskSource: what every source of tasks can do. TaskGetter: all sources together."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import Final, Literal, Protocol

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.errors import ConfigurationError, SourceError
from kakoi.settings.tasks import LabelsSection
from kakoi.tasks.task import Task, TaskState

_DEFAULTS: Final = LabelsSection()
Stage = Literal["waiting", "processing", "done", "error", "paused", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLabels:
    """The label of each stage of a task on its tracker, where everyone can see it.

    A task has at most one of them; a person adds the first.
    """

    waiting: str = _DEFAULTS.waiting
    processing: str = _DEFAULTS.processing
    done: str = _DEFAULTS.done
    error: str = _DEFAULTS.error
    paused: str = _DEFAULTS.paused
    stopped: str = _DEFAULTS.stopped

    def __post_init__(self) -> None:
        names = [str(getattr(self, each.name)) for each in fields(self)]
        if len({name.casefold() for name in names}) < len(names):
            raise ConfigurationError("two stages of a task have the same label")
        for name in names:
            # GitLab separates labels with commas.
            if not name.strip() or name != name.strip() or "," in name or len(name) > 50:
                raise ConfigurationError(
                    f"invalid label {name!r:.80}: it must have 1 to 50 characters and no comma"
                )

    def of(self, stage: Stage) -> str:
        """The label of a stage."""
        return str(getattr(self, stage))

    def stage_of(self, labels: tuple[str, ...]) -> Stage | None:
        """The stage of a task with these labels. The waiting label wins: a person added it."""
        present = {label.casefold() for label in labels}
        stages: tuple[Stage, ...]
        stages = ("waiting", "processing", "paused", "stopped", "error", "done")
        return next((each for each in stages if self.of(each).casefold() in present), None)

    def change(self, labels: tuple[str, ...], stage: Stage) -> tuple[list[str], list[str]]:
        """Which labels to add to a task with these labels, and which ones to remove."""
        own = {str(getattr(self, each.name)).casefold() for each in fields(self)}
        wanted = self.of(stage)
        present = any(label.casefold() == wanted.casefold() for label in labels)
        old = [x for x in labels if x.casefold() in own and x.casefold() != wanted.casefold()]
        return ([] if present else [wanted]), old


# The task should be handled: it waits, or was started.
STAGES_DUE = ("waiting", "processing")
_CUT = "\n\n… (shortened)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """The change for a task: a pushed branch, with the title and body of the request to open."""

    branch: str
    title: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The current state of a task on its tracker."""

    state: TaskState
    assignees: tuple[str, ...]
    labels: tuple[str, ...]


class TaskSource(Protocol):
    """A source of tasks. A method that fails raises a SourceError with the reason.

    A key is the web address of a task. `assignee`: only tasks of this user; empty means anyone.
    """

    labels: StageLabels
    assignee: str

    def owns(self, key: str) -> bool:
        """Is it the address of a task of this source? Sends no request."""

    async def waiting(self) -> tuple[str, ...]:
        """The keys of waiting tasks, and of those started but not ended; oldest first."""

    async def fetch(self, key: str) -> Task:
        """A task, with its comments."""

    async def fetch_status(self, key: str) -> TaskStatus:
        """Only the current state of a task."""

    async def comment(self, task: Task, body: str) -> str:
        """Post a comment on a task, without secrets; returns its id."""

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        """Replace the text of a comment."""

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add and remove labels; ones already present or absent are not an error."""

    async def propose(self, task: Task, change: TaskChange) -> str:
        """Open a pull or merge request; returns its address, empty if the source has none.

        If one is already open for the branch, its address is returned: calling twice is harmless.
        """

    async def aclose(self) -> None:
        """Close its connections."""


async def set_stage(source: TaskSource, task: Task, stage: Stage) -> None:
    """Label a task with its stage, and remove the labels of other stages.

    This uses the labels that the task has now, not those that it was fetched with.
    """
    found = await source.fetch_status(task.key)
    add, remove = source.labels.change(found.labels, stage)
    if add or remove:
        await source.change_labels(task, add, remove)


def is_due(task: Task, labels: StageLabels) -> bool:
    """Should the task still be handled? A task from a queue may be out of date."""
    return task.state == "open" and labels.stage_of(task.labels) in STAGES_DUE


def is_still_assigned(task: Task, found: TaskStatus, assignee: str) -> bool:
    """Is it open, and assigned to `assignee`, or else to someone who was assigned before?

    A task without assignees at the start counts as assigned.
    """
    if found.state != "open" or not task.assignees:
        return found.state == "open"
    wanted = {name.casefold() for name in ([assignee] if assignee else task.assignees)}
    return bool(wanted & {name.casefold() for name in found.assignees})


def publishable(text: str, secret: str, longest: int) -> str:
    """`text` without secrets, cut to the length that a tracker accepts."""
    text = redact(text, [secret] if secret else ())
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """The keys of waiting tasks, and the errors of sources that failed."""

    keys: tuple[str, ...]
    failures: tuple[SourceError, ...] = ()


class TaskGetter:
    """All sources: what waits anywhere, and which source a key belongs to. Closes them on exit."""

    def __init__(self, sources: Sequence[TaskSource]) -> None:
        self._sources = tuple(sources)

    async def __aenter__(self) -> "TaskGetter":
        return self

    async def __aexit__(self, *_: object) -> None:
        for source in self._sources:
            await source.aclose()

    async def waiting(self) -> WaitingTasks:
        """What waits. A source that fails does not hide the tasks of the others."""
        answers = await asyncio.gather(*(_try(source) for source in self._sources))
        keys = dict.fromkeys(key for answer in answers for key in answer.keys)
        return WaitingTasks(
            tuple(keys), tuple(each for answer in answers for each in answer.failures)
        )

    async def fetch(self, key: str) -> Task:
        """The task with this key."""
        return await self.source_of(key).fetch(key)

    def source_of(self, key: str) -> TaskSource:
        """The source of a key; ConfigurationError if there is none."""
        for source in self._sources:
            if source.owns(key):
                return source
        raise ConfigurationError(
            f"{key!r:.200} is not the address of a task",
            hint="give the address of an issue, or of a pull or merge request, on GitHub or GitLab"
            " (GITHUB_HOST and GITLAB_HOST name self-hosted servers), or a Markdown file",
        )


async def _try(source: TaskSource) -> WaitingTasks:
    try:
        return WaitingTasks(await source.waiting())
    except SourceError as error:
        return WaitingTasks((), (error,))
