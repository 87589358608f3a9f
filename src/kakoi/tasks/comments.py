"""The texts kakoi publishes about a task: comments, commit messages and requests.

A model wrote much of it, and strangers may have influenced what it wrote. Kakoi posts it under
its own name and with its own permissions, so the text is quoted, and disarmed: nothing in it can
mention a user, run a quick action, close an issue or hide text.
"""

import logging
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kakoi._support.late import dataclass, pattern
from kakoi.agents.events import LoopEnded
from kakoi.errors import SourceError
from kakoi.tasks.sources.source import Stage, TaskSource, set_stage
from kakoi.tasks.task import Comment, Task

_BREAK: Final = "\u200b"
# Some readers treat these as line ends, so they are normalized before lines are examined.
_LINE_ENDS: Final = pattern("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control characters, invisible characters, and those that reverse the direction of a text.
_UNSEEN: Final = ("Cc", "Cf", "Cs")
# The last two join letters in some scripts, and the parts of an emoji.
_KEPT: Final = "\n\t\u200c\u200d"
# GitLab executes a line such as "/merge", and so do bots on GitHub.
_ORDER: Final = pattern(r"^([ \t>*+-]*)/(?=[A-Za-z])", re.MULTILINE)
# After a letter it is an email address, for both GitHub and GitLab.
_MENTION: Final = pattern(r"(?<![A-Za-z0-9_])@(?=[A-Za-z0-9_])")
# `&#64;eve` is `@eve` once it is rendered.
_ENTITY: Final = pattern(r"&(?=#?[A-Za-z0-9]{1,32};)")
# Issues, merge requests and epics, in any project, whatever word precedes them.
_REFERENCE: Final = pattern(r"([#!&]|\bGH-)(?=[0-9])", re.IGNORECASE)
_CLOSING: Final = pattern(
    r"\b(clos|fix|resolv|implement|reopen)(e[sd]?|ing|s|ed)?"
    r"(?=[\s:]{1,20}(?:issues?[\s:]{1,20})?[<(\[*_`\"']{0,4}"
    r"(?:https?://|[A-Z][A-Z0-9_]{1,30}-[0-9]|[\w./-]{0,200}[#!&][0-9]|GH-[0-9]))",
    re.IGNORECASE,
)
# `ABC-1 #done` changes the state of a Jira issue.
_SMART: Final = pattern(r"\b[A-Z][A-Z0-9_]{1,30}-[0-9]")
_COMMAND: Final = pattern(r"#(?=[A-Za-z])")
# Each CI has its own word for skipping a build; all are in brackets.
_SKIP: Final = pattern(
    r"\[([^\[\]\n]{0,60}?(?<![A-Za-z])(?:skip|no[ _-]?(?:ci|actions|build|deploy))(?![A-Za-z])"
    r"[^\[\]\n]{0,60})\]",
    re.IGNORECASE,
)
_NO_CI: Final = pattern(r"\*{3}(NO_CI)\*{3}", re.IGNORECASE)
_TRAILER: Final = pattern(
    r"^([ \t]*(?:skip-checks|[a-z]+(?:-[a-z]+)*-by))(?=[ \t]*:)", re.IGNORECASE | re.MULTILINE
)
# What Markdown does not show, or fetches: comments and elements of HTML, images, and definitions.
_HIDING: Final = pattern(r"<(?=[!/?A-Za-z])|!(?=\[)|\](?=:)")
_CUT: Final = "…"


def disarmed(text: str) -> str:
    """`text` that reads the same, but triggers nothing and hides nothing."""
    text = _visible(_LINE_ENDS.sub("\n", text))
    text = _CLOSING.sub(lambda found: f"{found[1]}{_BREAK}{found[2] or ''}", text)
    text = "\n".join(map(_without_commands, text.split("\n")))
    text = _ENTITY.sub(f"&{_BREAK}", text)
    text = _REFERENCE.sub(rf"\1{_BREAK}", text)
    text = _ORDER.sub(r"\1\\/", text)
    text = _MENTION.sub(f"@{_BREAK}", text)
    text = _SKIP.sub(r"(\1)", text)
    text = _NO_CI.sub(r"\1", text)
    text = _HIDING.sub(rf"\g<0>{_BREAK}", text)
    return _TRAILER.sub(rf"\1{_BREAK}", text)


def quoted(text: str, *, most_lines: int = 1000) -> str:
    """`text`, disarmed, as a quotation: none of its lines can pass for one of kakoi's."""
    lines = disarmed(text).strip().split("\n")
    shown = lines[:most_lines] + ([_CUT] if len(lines) > most_lines else [])
    return "\n".join(f"> {line}".rstrip() for line in shown) if any(lines) else ""


def disarmed_line(text: str) -> str:
    """`text`, disarmed, on one line."""
    return disarmed(" ".join(text.split()))


def _visible(text: str) -> str:
    return "".join(
        char for char in text if char in _KEPT or unicodedata.category(char) not in _UNSEEN
    )


def _without_commands(line: str) -> str:
    return _COMMAND.sub(f"#{_BREAK}", line) if _SMART.search(line) else line


_log = logging.getLogger(__name__)
# Trackers do not show it. It marks the comments that kakoi wrote.
_OURS: Final = "<!-- kakoi -->"
_UNSAFE: Final = pattern(r"[^A-Za-z0-9]+")
_LONGEST_SUBJECT: Final = 72
_MOST_QUOTED: Final = 200
_STAGE_SENTENCES: Final = {
    "done": "The work is done.",
    "error": "This task failed.",
    "paused": "Paused. Add the waiting label again to continue.",
    "stopped": "Stopped: the task was closed, or assigned to someone else.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of a task. `branch`: where it was pushed; `url`: the request that was opened.

    `is_kept`: the changes could not be delivered; they are kept beside the transcript.
    `remarks`: what a reviewer of the change should examine closely.
    """

    stage: Stage
    summary: str = ""
    error: str = ""
    branch: str = ""
    url: str = ""
    ended: LoopEnded | None = None
    transcript: Path | None = None
    is_kept: bool = False
    remarks: tuple[str, ...] = ()


async def report(source: TaskSource, task: Task, result: TaskResult, comment: str = "") -> None:
    """Post the result as a comment and a label. If the tracker fails, that is logged only."""
    try:
        await source.comment(task, comment or format_result(result))
    except SourceError as error:
        _log.error("cannot post the result of %s: %s", task.key, error)
    try:
        await set_stage(source, task, result.stage)
    except SourceError as error:
        _log.error("cannot label %s with its result: %s", task.key, error)


def format_result(result: TaskResult) -> str:
    """The comment for the tracker."""
    parts = [
        _OURS + "\n" + _STAGE_SENTENCES[result.stage],
        quoted(result.error),
        quoted(result.summary),
    ]
    if result.url:
        parts.append(f"The change is proposed in {result.url}")
    elif result.branch:
        branch = disarmed_line(result.branch).replace("`", "'")
        parts.append(f"The change was pushed to the branch `{branch}`.")
    elif result.stage == "done":
        parts.append("Nothing was changed, so there is nothing to propose.")
    parts.append(_remarks(result))
    if result.is_kept:
        parts.append("The changes are kept where the task ran, as a patch for `git apply`.")
    if result.ended is not None:
        parts.append(_effort(result.ended))
    return "\n\n".join(part for part in parts if part)


def _remarks(result: TaskResult) -> str:
    if not result.remarks:
        return ""
    return "\n".join(["Review these closely:", "", *(f"- {each}" for each in result.remarks)])


def _effort(ended: LoopEnded) -> str:
    usage = ended.usage
    cost = "" if usage.cost is None else f", {usage.cost:.2f} USD"
    return f"{ended.steps} steps, {usage.input_tokens + usage.output_tokens} tokens{cost}"


def request_body(task: Task, result: TaskResult) -> str:
    """The text of a pull or merge request."""
    parts = (quoted(result.summary), _remarks(result), f"For {task.key}")
    return "\n\n".join(part for part in parts if part)


def request_title(task: Task) -> str:
    """The title of a pull or merge request."""
    return disarmed_line(task.title) or "Do a task"


def commit_message(task: Task, summary: str, own_messages: Sequence[str] = ()) -> str:
    """The message of the one commit that is pushed.

    `own_messages`: the messages of the model's own commits, which this one replaces.
    """
    replaced = "\n\n".join(each.strip() for each in own_messages if each.strip())
    parts = (
        request_title(task)[:_LONGEST_SUBJECT].strip(),
        quoted(summary),
        "It replaces commits with these messages:" if replaced else "",
        quoted(replaced, most_lines=_MOST_QUOTED),
        f"For {task.key}",
    )
    return "\n\n".join(part for part in parts if part)


def branch_name(task: Task, commit: str) -> str:
    """A branch for the work on an issue; the commit makes its name unique."""
    tail = unquote(task.key).rstrip("/").rsplit("/", 1)[-1].removesuffix(".md")
    name = _UNSAFE.sub("-", tail).strip("-")[:40] or "task"
    return f"coding-agent/{name}-{commit[:8]}"


def is_own_comment(comment: Comment) -> bool:
    """Did kakoi write it?"""
    return comment.body.startswith(_OURS)


def format_comment(comment: Comment) -> str:
    """A comment for the model, with the name of its author."""
    return f"{' '.join(comment.author.split()) or 'somebody'} says:\n\n{comment.body}"


def rules_with_protected(rules: str, protected: tuple[str, ...]) -> str:
    """A project's rules for the model, plus the paths it must not change.

    Otherwise the model would learn about them only when its work is refused.
    """
    if not protected:
        return rules
    named = ", ".join(f"`{path}`" for path in protected)
    note = f"Added by the operator: do not change these paths, or your work is refused: {named}"
    return f"{rules}\n\n{note}".strip()
