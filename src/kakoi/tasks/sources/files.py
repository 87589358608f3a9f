"""FileSource: a task in a Markdown file, for those without a tracker.

---
title: Say hello in two languages
repository: https://example.org/team/project.git
---
What to do, in words.

`repository` may begin with `.`: it is then a folder beside the file. `kind`, `source_branch`,
`target_branch`, `labels` and `assignees` may be given, too. The file itself is never written to.
What comes of the task is kept beside it, in FILE.kakoi.json; remove that to begin anew.
"""

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kakoi.documents import front_matter, read_text
from kakoi.errors import ConfigurationError, SourceError
from kakoi.sections import Section, wrong
from kakoi.tasks.sources.answers import MAX_TITLE, Answer, decode, one_line
from kakoi.tasks.sources.labels import Labels
from kakoi.tasks.sources.source import Change, Look, is_due, sayable
from kakoi.tasks.task import Comment, Kind, State, Task, uuid_of

_log = logging.getLogger(__name__)
_KNOWN: Final = "title repository kind source_branch target_branch labels assignees state"
_BESIDE: Final = ".kakoi.json"
_MAX_BESIDE: Final = 8 * 1024 * 1024
_MAX_BODY: Final = 65_000
_MAX_COMMENTS: Final = 100
_US: Final = "kakoi"


@dataclass(frozen=True, slots=True)
class _Record:
    labels: tuple[str, ...]
    comments: tuple[Comment, ...] = ()


def file_key(path: str | os.PathLike[str]) -> str:
    """The key of the task in a file."""
    try:
        return Path(path).resolve().as_uri()
    except (ValueError, OSError, RuntimeError):  # A NUL, or links in a circle.
        raise ConfigurationError(f"{os.fspath(path)!r:.200} is no path of a file") from None


class FileSource:
    """Tasks of the Markdown files in `folder`; without one nothing waits, but each can be fetched.

    `clock`: the time of day, for what is said about them.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clock: Callable[[], datetime],
        labels: Labels | None = None,
        assignee: str = "",
    ) -> None:
        self._folder = folder
        self._clock = clock
        self.labels = labels or Labels()
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
                    continue  # Another text, or a half-written one.
                except SourceError as error:
                    _log.warning("a task cannot be read: %s", error)
                    continue
                if is_due(task, self.labels):
                    found.append(key)
        return tuple(found)

    async def fetch(self, key: str) -> Task:
        return await asyncio.to_thread(self._fetch, key)

    async def look(self, key: str) -> Look:
        task = await self.fetch(key)
        return Look(state=task.state, assignees=task.assignees, labels=task.labels)

    async def comment(self, task: Task, body: str) -> str:
        return await asyncio.to_thread(self._comment, task, body)

    def _comment(self, task: Task, body: str) -> str:
        record = self._record(task)
        number = max((int(each.id) for each in record.comments), default=0) + 1
        said = Comment(
            id=str(number),
            author=_US,
            body=sayable(body, "", _MAX_BODY),
            created_at=self._clock().isoformat(timespec="seconds"),
        )
        self._write(task, replace(record, comments=(*record.comments, said)[-_MAX_COMMENTS:]))
        return said.id

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        await asyncio.to_thread(self._update, task, comment_id, body)

    def _update(self, task: Task, comment_id: str, body: str) -> None:
        record = self._record(task)
        if comment_id not in (each.id for each in record.comments):
            raise _failed(f"{task.key} has no comment {comment_id!r:.40}")
        changed = tuple(
            replace(each, body=sayable(body, "", _MAX_BODY)) if each.id == comment_id else each
            for each in record.comments
        )
        self._write(task, replace(record, comments=changed))

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        await asyncio.to_thread(self._change, task, add, remove)

    def _change(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        record = self._record(task)
        kept = [label for label in record.labels if label not in remove]
        self._write(task, replace(record, labels=tuple(dict.fromkeys([*kept, *add]))))

    async def propose(self, task: Task, change: Change) -> str:
        return ""  # The pushed branch is all there is.

    async def aclose(self) -> None: ...

    def _fetch(self, key: str) -> Task:
        path = _existing(key)
        values, body = front_matter(read_text(path) or "", origin=str(path))
        section = Section(values, str(path), _KNOWN)
        written = section.texts("labels")
        record = _read(path, (self.labels.waiting,) if written is None else written)
        return Task(
            uuid=uuid_of(key),
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
            # Whole or not at all: a person, or the next start, may read it at any time.
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump(value, file, ensure_ascii=False, indent=1)
                os.replace(name, _beside(path))
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
            f"{key!r:.200} is no Markdown file", hint="give a file whose name ends in .md"
        )
    return path


def _beside(path: Path) -> Path:
    return path.with_name(path.name + _BESIDE)


def _read(path: Path, labels: tuple[str, ...]) -> _Record:
    beside = _beside(path)
    if not beside.is_file():
        return _Record(labels)
    try:
        with beside.open("rb") as file:
            data = file.read(_MAX_BESIDE)
    except OSError as error:
        raise _failed(f"cannot read {beside}: {error.strerror}") from None
    found = Answer(decode(data, str(beside)), str(beside))
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
    given = section.text("repository")
    if not given:
        raise wrong(section.at("repository"), given, "what to clone, or `.` for this folder")
    return str((path.parent / given).resolve()) if given.startswith(".") else given


def _kind(section: Section) -> Kind:
    kind = section.text("kind", "issue")
    if kind not in ("issue", "pull_request"):
        raise wrong(section.at("kind"), kind, "`issue` or `pull_request`")
    return "issue" if kind == "issue" else "pull_request"


def _state(section: Section) -> State:
    state = section.text("state", "open")
    if state not in ("open", "closed"):
        raise wrong(section.at("state"), state, "`open` or `closed`")
    return "open" if state == "open" else "closed"


def _failed(fact: str) -> SourceError:
    return SourceError(fact, details={"status": 0})
