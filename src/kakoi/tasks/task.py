"""Task: an issue or a pull request to work on."""

import uuid as uuids
from typing import Literal

from kakoi._support.late import dataclass, pattern
from kakoi.channel.api import check_type
from kakoi.errors import ConfigurationError

PREFIX = "coding-agent-exec-"
TaskKind = Literal["issue", "pull_request"]
TaskState = Literal["open", "closed"]
_UUID = pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# A short form of `git check-ref-format`; the name can never be taken for an option.
_BRANCH = pattern(
    r"(?!-)(?!.*(?:\.\.|@\{|//|\.lock$|[\x00-\x20\x7f~^:?*\[\\]))[^\s]{1,200}(?<![/.])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment on a task. `id` and `created_at` are as the tracker writes them."""

    id: str
    author: str
    body: str
    created_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to work on. Invalid values raise ConfigurationError here, not later.

    `uuid`: names the task and its container. `repository`: what to clone, without credentials.
    `source_branch`, `target_branch`: of a pull request; an issue starts from the default branch.
    `key`: its web address, by which its source finds it again.
    Strangers write title, body and comments. `comments`: oldest first; `comments_complete` is
    false if there are more than were read.
    """

    uuid: str
    repository: str
    kind: TaskKind = "issue"
    source_branch: str | None = None
    target_branch: str | None = None
    title: str = ""
    key: str = ""
    body: str = ""
    author: str = ""
    comments: tuple[Comment, ...] = ()
    comments_complete: bool = True
    assignees: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    state: TaskState = "open"

    def __post_init__(self) -> None:
        container_name(self.uuid)
        check_type("repository", self.repository, str)
        if self.kind not in ("issue", "pull_request"):
            raise ConfigurationError(f"kind is {self.kind!r:.80}; it must be issue or pull_request")
        for name in ("source_branch", "target_branch"):
            branch = getattr(self, name)
            if branch is not None and not (isinstance(branch, str) and _BRANCH.fullmatch(branch)):
                raise ConfigurationError(f"{name} is {branch!r:.80}; that is not a branch name")
        if self.kind == "pull_request" and self.source_branch is None:
            raise ConfigurationError("a pull request needs its source_branch")


def uuid_from_key(key: str) -> str:
    """The uuid of the task with this key. It is always the same, so leftovers can be found."""
    return str(uuids.uuid5(uuids.NAMESPACE_URL, key))


def container_name(task_uuid: str) -> str:
    """The name of a task's container; ConfigurationError if the uuid is invalid."""
    check_type("uuid", task_uuid, str)
    if not _UUID.fullmatch(task_uuid):
        raise ConfigurationError(
            f"uuid is {task_uuid!r:.80}; it must be 1 to 64 letters, digits, `-`, `_` or `.`"
        )
    return f"{PREFIX}{task_uuid}"
