"""Task: an issue or a pull request somebody wants done."""

import re
import uuid as uuids
from dataclasses import dataclass
from typing import Literal

from kakoi.errors import ConfigurationError
from kakoi.runner.commands import check_type

PREFIX = "coding-agent-exec-"
DEFAULT_IMAGE = "coding-agent-executor:latest"
# What servers obey on every branch as soon as it is pushed, with the secrets of the project.
PROTECTED = (
    *(".github/workflows", ".gitea/workflows", ".forgejo/workflows"),
    *(".gitlab-ci.yml", ".gitlab/ci", ".circleci", ".travis.yml"),
    *("azure-pipelines.yml", "bitbucket-pipelines.yml", "Jenkinsfile"),
)
Kind = Literal["issue", "pull_request"]
State = Literal["open", "closed"]
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# As git has it, and never an option: `git check-ref-format` in short.
_BRANCH = re.compile(
    r"(?!-)(?!.*(?:\.\.|@\{|//|\.lock$|[\x00-\x20\x7f~^:?*\[\\]))[^\s]{1,200}(?<![/.])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """What somebody said about a task. `id` is the tracker's; `created_at` is as it writes it."""

    id: str
    author: str
    body: str
    created_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to work on. Wrong values raise ConfigurationError here, not later.

    `uuid`: names the task, and its container. `repository`: what to clone, without credentials.
    `source_branch`, `target_branch`: of a pull request; an issue starts from the default branch.
    `key`: the address under which people see it, and by which its source finds it again.
    Title, body and comments are the words of strangers. `comments` are the oldest ones first;
    `comments_complete` is false if there are more than were read.
    """

    uuid: str
    repository: str
    kind: Kind = "issue"
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
    state: State = "open"

    def __post_init__(self) -> None:
        container_name(self.uuid)
        check_type("repository", self.repository, str)
        if self.kind not in ("issue", "pull_request"):
            raise ConfigurationError(f"kind is {self.kind!r:.80}; it is an issue or a pull_request")
        for name in ("source_branch", "target_branch"):
            branch = getattr(self, name)
            if branch is not None and not (isinstance(branch, str) and _BRANCH.fullmatch(branch)):
                raise ConfigurationError(f"{name} is {branch!r:.80}; that is no name of a branch")
        if self.kind == "pull_request" and self.source_branch is None:
            raise ConfigurationError("a pull request needs its source_branch")


def uuid_of(key: str) -> str:
    """The uuid of the task with this key: always the same, so that what is left of it is found."""
    return str(uuids.uuid5(uuids.NAMESPACE_URL, key))


def container_name(task_uuid: str) -> str:
    """The name of a task's container, by which it is found again; a wrong uuid is an error."""
    check_type("uuid", task_uuid, str)
    if not _UUID.fullmatch(task_uuid):
        raise ConfigurationError(
            f"uuid is {task_uuid!r:.80}; it must be 1 to 64 letters, digits, `-`, `_` or `.`"
        )
    return f"{PREFIX}{task_uuid}"
