"""What people are told about a task: in comments, in commits and in requests.

A model wrote much of it, and strangers may have told the model what to write. It is said under our
name, and with our rights: so it is quoted, and disarmed (quotation.py).
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kakoi.agent.events import Ended
from kakoi.errors import SourceError
from kakoi.tasks.quotation import one_disarmed_line, quoted
from kakoi.tasks.sources.labels import Stage
from kakoi.tasks.sources.source import TaskSource, mark
from kakoi.tasks.task import Comment, Task

_log = logging.getLogger(__name__)
# Not shown by trackers; by this our own comments are known.
_OURS: Final = "<!-- kakoi -->"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_SUBJECT: Final = 72
_MOST_QUOTED: Final = 200
_STAGES: Final = {
    "done": "The work is done.",
    "error": "This could not be done.",
    "paused": "Paused. Give it the waiting label again to go on.",
    "stopped": "Stopped: it is closed, or assigned to somebody else.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """What came of a task. `branch`: what was pushed to; `url`: of the request that was opened.

    `is_kept`: what was changed could not be delivered, and stays beside the transcript.
    `remarks`: what a reader of the change should look at closely.
    """

    stage: Stage
    summary: str = ""
    error: str = ""
    branch: str = ""
    url: str = ""
    ended: Ended | None = None
    transcript: Path | None = None
    is_kept: bool = False
    remarks: tuple[str, ...] = ()


async def tell(source: TaskSource, task: Task, handled: Handled, comment: str = "") -> None:
    """Say it, and show it by a label. A tracker that fails does not change what came of it."""
    try:
        await source.comment(task, comment or comment_of(handled))
    except SourceError as error:
        _log.error("what came of %s could not be said: %s", task.key, error)
    try:
        await mark(source, task, handled.stage)
    except SourceError as error:
        _log.error("what came of %s could not be shown by a label: %s", task.key, error)


def comment_of(handled: Handled) -> str:
    """What is said on the tracker."""
    parts = [
        _OURS + "\n" + _STAGES[handled.stage],
        quoted(handled.error),
        quoted(handled.summary),
    ]
    if handled.url:
        parts.append(f"The change is proposed in {handled.url}")
    elif handled.branch:
        branch = one_disarmed_line(handled.branch).replace("`", "'")
        parts.append(f"The change is pushed to the branch `{branch}`.")
    elif handled.stage == "done":
        parts.append("Nothing was changed, so nothing is proposed.")
    parts.append(_remarks(handled))
    if handled.is_kept:
        parts.append("What was changed is kept where it was worked on, as a patch for `git apply`.")
    if handled.ended is not None:
        parts.append(_effort(handled.ended))
    return "\n\n".join(part for part in parts if part)


def _remarks(handled: Handled) -> str:
    if not handled.remarks:
        return ""
    return "\n".join(["Look closely at:", "", *(f"- {each}" for each in handled.remarks)])


def _effort(ended: Ended) -> str:
    usage = ended.usage
    cost = "" if usage.cost is None else f", {usage.cost:.2f} USD"
    return f"{ended.steps} steps, {usage.input_tokens + usage.output_tokens} tokens{cost}"


def request_body(task: Task, handled: Handled) -> str:
    """The text of a pull or merge request."""
    parts = (quoted(handled.summary), _remarks(handled), f"For {task.key}")
    return "\n\n".join(part for part in parts if part)


def request_title(task: Task) -> str:
    """The title of a pull or merge request."""
    return one_disarmed_line(task.title) or "Do a task"


def commit_message(task: Task, summary: str, own_messages: Sequence[str] = ()) -> str:
    """The message of the one commit that is pushed.

    `own_messages`: what the model wrote to commits of its own, which this one replaces.
    """
    told = "\n\n".join(each.strip() for each in own_messages if each.strip())
    parts = (
        request_title(task)[:_LONGEST_SUBJECT].strip(),
        quoted(summary),
        "It replaces commits with these messages:" if told else "",
        quoted(told, most_lines=_MOST_QUOTED),
        f"For {task.key}",
    )
    return "\n\n".join(part for part in parts if part)


def branch_name(task: Task, commit: str) -> str:
    """A branch of its own for what was done about an issue: nobody else has that commit."""
    tail = unquote(task.key).rstrip("/").rsplit("/", 1)[-1].removesuffix(".md")
    name = _UNSAFE.sub("-", tail).strip("-")[:40] or "task"
    return f"coding-agent/{name}-{commit[:8]}"


def words_of(comments: tuple[Comment, ...]) -> list[str]:
    """What people said, with who it was; not what we said ourselves."""
    return [
        f"{' '.join(each.author.split()) or 'somebody'} says:\n\n{each.body}"
        for each in comments
        if not each.body.startswith(_OURS)
    ]


def with_protected(rules: str, protected: tuple[str, ...]) -> str:
    """A project's rules for a model, and what it may not change: else it learns that at the end."""
    if not protected:
        return rules
    named = ", ".join(f"`{path}`" for path in protected)
    ours = f"Whoever runs you adds: leave these as they are, or your work is refused: {named}"
    return f"{rules}\n\n{ours}".strip()
