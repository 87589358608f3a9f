"""FileSource: a task in a Markdown file, for use without a tracker.

---
title: Say hello in two languages
repository: https://example.org/team/project.git
---
What to do, in words.

A `repository` that begins with `.` is a path relative to the file. `kind`, `source_branch`,
`target_branch`, `labels` and `assignees` are optional. The file itself is never changed. The
results of the task are stored beside it, in FILE.kakoi.json; remove that to start again.
"""

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kakoi._support.late import dataclass
from kakoi._support.parsing import Section, front_matter, read_text, wrong
from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.answers import MAX_TITLE, JsonAnswer, decode, one_line
from kakoi.tasks.sources.source import StageLabels, TaskChange, TaskStatus, is_due, publishable
from kakoi.tasks.task import Comment, Task, TaskKind, TaskState, uuid_from_key

_log = logging.getLogger(__name__)
_KNOWN: Final = "title repository kind source_branch target_branch labels assignees state"
_RECORD_SUFFIX: Final = ".kakoi.json"
_MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
_MAX_BODY: Final = 65_000
_MAX_COMMENTS: Final = 100
_AUTHOR: Final = "kakoi"


@dataclass(frozen=True, slots=True)
class _Record:
    labels: tuple[str, ...]
    comments: tuple[Comment, ...] = ()


def file_key(path: str | os.PathLike[str]) -> str:
    """The key of the task in a file."""
    try:
        return Path(path).resolve().as_uri()
    except (ValueError, OSError, RuntimeError):  # A NUL, or a loop of links.
        raise ConfigurationError(f"{os.fspath(path)!r:.200} is not a valid path") from None


class FileSource:
    """Tasks in the Markdown files of `folder`. Without one nothing waits, but any can be fetched.

    `clock`: the time of day, for comments. `assignee`: only tasks of this user are waiting.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clock: Callable[[], datetime],
        labels: StageLabels | None = None,
        assignee: str = "",
    ) -> None:
        self._folder = folder
        self._clock = clock
        self.labels = labels or StageLabels()
        self.assignee = assignee

    def owns(self, key: str) -> bool:
        return _path(key) is not None

    async def waiting(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._waiting)

    def _waiting(self) -> tuple[str, ...]:
        if self._folder is None:
            return ()
        try:
            names = sorted(os.listdir(self._folder))
        except OSError as error:
            raise _failed(f"cannot list {self._folder}: {error.strerror}") from None
        found = []
        for name in names:
            path = self._folder / name
            if path.suffix == ".md" and path.is_file():
                key = file_key(path)
                try:
                    task = self._fetch(key)
                except ConfigurationError:
                    continue  # Not a task, or half-written.
                except SourceError as error:
                    _log.warning("cannot read a task: %s", error)
                    continue
                if is_due(task, self.labels) and self._is_assigned(task):
                    found.append(key)
        return tuple(found)

    def _is_assigned(self, task: Task) -> bool:
        assignees = {name.casefold() for name in task.assignees}
        return not self.assignee or self.assignee.casefold() in assignees

    async def fetch(self, key: str) -> Task:
        return await asyncio.to_thread(self._fetch, key)

    async def fetch_status(self, key: str) -> TaskStatus:
        task = await self.fetch(key)
        return TaskStatus(state=task.state, assignees=task.assignees, labels=task.labels)

    async def comment(self, task: Task, body: str) -> str:
        return await asyncio.to_thread(self._comment, task, body)

    def _comment(self, task: Task, body: str) -> str:
        record = self._record(task)
        number = max((int(each.id) for each in record.comments), default=0) + 1
        comment = Comment(
            id=str(number),
            author=_AUTHOR,
            body=publishable(body, "", _MAX_BODY),
            created_at=self._clock().isoformat(timespec="seconds"),
        )
        self._write(task, replace(record, comments=(*record.comments, comment)[-_MAX_COMMENTS:]))
        return comment.id

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        await asyncio.to_thread(self._update, task, comment_id, body)

    def _update(self, task: Task, comment_id: str, body: str) -> None:
        record = self._record(task)
        if comment_id not in (each.id for each in record.comments):
            raise _failed(f"{task.key} has no comment {comment_id!r:.40}")
        changed = tuple(
            replace(each, body=publishable(body, "", _MAX_BODY)) if each.id == comment_id else each
            for each in record.comments
        )
        self._write(task, replace(record, comments=changed))

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        await asyncio.to_thread(self._change, task, add, remove)

    def _change(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        record = self._record(task)
        kept = [label for label in record.labels if label not in remove]
        self._write(task, replace(record, labels=tuple(dict.fromkeys([*kept, *add]))))

    async def propose(self, task: Task, change: TaskChange) -> str:
        return ""  # There is no request to open: the branch is all.

    async def aclose(self) -> None: ...

    def _fetch(self, key: str) -> Task:
        path = _existing(key)
        values, body = front_matter(read_text(path) or "", origin=str(path))
        section = Section(values, str(path), _KNOWN)
        written = section.texts("labels")
        record = _read(path, (self.labels.waiting,) if written is None else written)
        return Task(
            uuid=uuid_from_key(key),
            key=key,
            repository=_repository(section, path),
            kind=_kind(section),
            source_branch=section.text("source_branch") or None,
            target_branch=section.text("target_branch") or None,
            title=one_line(section.text("title"))[:MAX_TITLE] or path.stem,
            body=body,
            comments=record.comments,
            comments_complete=len(record.comments) < _MAX_COMMENTS,
            assignees=section.texts("assignees") or (),
            labels=record.labels,
            state=_state(section),
        )

    def _record(self, task: Task) -> _Record:
        return _read(_existing(task.key), self._fetch(task.key).labels)

    def _write(self, task: Task, record: _Record) -> None:
        path = _existing(task.key)
        value = {
            "labels": record.labels,
            "comments": [
                {"id": c.id, "author": c.author, "body": c.body, "created_at": c.created_at}
                for c in record.comments
            ],
        }
        try:
            # Atomic: a person or another process can read it at any time.
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump(value, file, ensure_ascii=False, indent=1)
                os.replace(name, _record_path(path))
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise _failed(f"cannot write beside {path}: {error.strerror}") from None


def _path(key: str) -> Path | None:
    parts = urlsplit(key)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc or "\0" in path or not path.endswith(".md"):
        return None
    return Path(path) if path.startswith("/") else None


def _existing(key: str) -> Path:
    path = _path(key)
    if path is None or not path.is_file():
        raise ConfigurationError(
            f"{key!r:.200} is not a Markdown file", hint="use a file whose name ends in .md"
        )
    return path


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + _RECORD_SUFFIX)


def _read(path: Path, labels: tuple[str, ...]) -> _Record:
    record_file = _record_path(path)
    if not record_file.is_file():
        return _Record(labels)
    try:
        with record_file.open("rb") as file:
            data = file.read(_MAX_RECORD_BYTES)
    except OSError as error:
        raise _failed(f"cannot read {record_file}: {error.strerror}") from None
    found = JsonAnswer(decode(data, str(record_file)), str(record_file))
    comments = tuple(
        Comment(
            id=str(int(each.text("id")) if each.text("id").isdecimal() else 0),
            author=each.text("author"),
            body=each.text("body"),
            created_at=each.text("created_at"),
        )
        for each in found.children("comments")
    )
    return _Record(found.names("labels", of="name"), comments[-_MAX_COMMENTS:])


def _repository(section: Section, path: Path) -> str:
    repository = section.text("repository")
    if not repository:
        raise wrong(section.at("repository"), repository, "what to clone, or `.` for this folder")
    return str((path.parent / repository).resolve()) if repository.startswith(".") else repository


def _kind(section: Section) -> TaskKind:
    kind = section.text("kind", "issue")
    if kind not in ("issue", "pull_request"):
        raise wrong(section.at("kind"), kind, "`issue` or `pull_request`")
    return "issue" if kind == "issue" else "pull_request"


def _state(section: Section) -> TaskState:
    state = section.text("state", "open")
    if state not in ("open", "closed"):
        raise wrong(section.at("state"), state, "`open` or `closed`")
    return "open" if state == "open" else "closed"


def _failed(fact: str) -> SourceError:
    return SourceError(fact, details={"status": 0})
