"""What people are told about a task: in comments, in commits and in requests."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kakoi.agent.events import Ended
from kakoi.tasks.sources.labels import Stage
from kakoi.tasks.task import Comment, Task

# Not shown by trackers; by this our own comments are known.
_OURS: Final = "<!-- kakoi -->"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
_STAGES: Final = {
    "done": "The work is done.",
    "error": "This could not be done.",
    "paused": "Paused. Give it the waiting label again to go on.",
    "stopped": "Stopped: it is closed, or assigned to somebody else.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """What came of a task. `branch`: what was pushed to; `url`: of the request that was opened."""

    stage: Stage
    summary: str = ""
    error: str = ""
    branch: str = ""
    url: str = ""
    ended: Ended | None = None
    transcript: Path | None = None


def comment_of(handled: Handled) -> str:
    """What is said on the tracker."""
    parts = [_OURS + "\n" + _STAGES[handled.stage], handled.error, handled.summary]
    if handled.url:
        parts.append(f"The change is proposed in {handled.url}")
    elif handled.branch:
        parts.append(f"The change is pushed to the branch `{handled.branch}`.")
    elif handled.stage == "done":
        parts.append("Nothing was changed, so nothing is proposed.")
    if handled.ended is not None:
        parts.append(_effort(handled.ended))
    return "\n\n".join(part for part in parts if part)


def _effort(ended: Ended) -> str:
    usage = ended.usage
    cost = "" if usage.cost is None else f", {usage.cost:.2f} USD"
    return f"{ended.steps} steps, {usage.input_tokens + usage.output_tokens} tokens{cost}"


def request_body(task: Task, handled: Handled) -> str:
    """The text of a pull or merge request."""
    return f"{handled.summary}\n\nFor {task.key}"


def commit_message(task: Task, summary: str) -> str:
    """The message of the commit that has everything in it."""
    title = " ".join(task.title.split())[:72] or "Do a task"
    return "\n\n".join(part for part in (title, summary.strip(), f"For {task.key}") if part)


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
