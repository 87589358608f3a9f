"""What people are told about a task: in comments, in commits and in requests.

A model wrote much of it, and strangers may have told the model what to write. It is said under our
name, and with our rights: so nothing in it may be a command to whoever reads it by machine.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kakoi.agent.events import Ended
from kakoi.errors import SourceError
from kakoi.tasks.sources.labels import Stage
from kakoi.tasks.sources.source import TaskSource, mark
from kakoi.tasks.task import Comment, Task

_log = logging.getLogger(__name__)
# Not shown by trackers; by this our own comments are known.
_OURS: Final = "<!-- kakoi -->"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
# Control characters but for line breaks and tabs, and what turns the direction of a text around.
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# GitLab does what a line such as "/merge" says, and so do robots on GitHub.
_ORDER: Final = re.compile(r"^([ \t>*+-]*)/(?=[A-Za-z])", re.MULTILINE)
_MENTION: Final = re.compile(r"(?<![A-Za-z0-9_.])@(?=[A-Za-z0-9_])")
_NO_CI: Final = re.compile(
    r"\[((?:skip|no)[ _-]?(?:ci|actions)|(?:ci|actions)[ _-]?skip)\]|^(skip-checks)[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)
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
    """

    stage: Stage
    summary: str = ""
    error: str = ""
    branch: str = ""
    url: str = ""
    ended: Ended | None = None
    transcript: Path | None = None
    is_kept: bool = False


def harmless(text: str) -> str:
    """`text` as it reads, that orders nobody about: no quick action, no mention, no word to CI."""
    text = _UNSEEN.sub("", text.replace("\r\n", "\n"))
    text = _ORDER.sub(r"\1\\/", text)
    text = _MENTION.sub("@\u200b", text)
    return _NO_CI.sub(lambda found: f"({found[1] or found[2]})", text)


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
        harmless(handled.error),
        harmless(handled.summary),
    ]
    if handled.url:
        parts.append(f"The change is proposed in {handled.url}")
    elif handled.branch:
        parts.append(f"The change is pushed to the branch `{handled.branch}`.")
    elif handled.stage == "done":
        parts.append("Nothing was changed, so nothing is proposed.")
    if handled.is_kept:
        parts.append("What was changed is kept where it was worked on, as a patch for `git apply`.")
    if handled.ended is not None:
        parts.append(_effort(handled.ended))
    return "\n\n".join(part for part in parts if part)


def _effort(ended: Ended) -> str:
    usage = ended.usage
    cost = "" if usage.cost is None else f", {usage.cost:.2f} USD"
    return f"{ended.steps} steps, {usage.input_tokens + usage.output_tokens} tokens{cost}"


def request_body(task: Task, handled: Handled) -> str:
    """The text of a pull or merge request."""
    return f"{harmless(handled.summary)}\n\nFor {task.key}"


def request_title(task: Task) -> str:
    """The title of a pull or merge request."""
    return harmless(" ".join(task.title.split())) or "Do a task"


def commit_message(task: Task, summary: str) -> str:
    """The message of the commit that has everything in it."""
    parts = (request_title(task)[:72].strip(), harmless(summary).strip(), f"For {task.key}")
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
