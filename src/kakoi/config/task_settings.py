"""What can be set about tasks: the environment of each, its project, and when it is removed."""

import dataclasses
from dataclasses import dataclass
from typing import Final

from kakoi.config.kinds import COUNT, DOMAINS, FLAG, FROM_ZERO, NUMBER, PATH, TEXT, TEXTS, choice
from kakoi.config.setting import described
from kakoi.tasks.sources.labels import Labels
from kakoi.tasks.task import DEFAULT_IMAGE, PROTECTED

_LABELS: Final = Labels()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSection:
    """What the environment of a task may reach."""

    external_access: bool = described(
        True,
        FLAG,
        "May it reach other machines at all? Private networks are out of reach all the same.",
        also="command_executor.docker.network.external_access",
        project="narrow",
    )
    whitelist_mode: bool = described(
        False,
        FLAG,
        "Only the `allowed_domains`, for the clone and its dependencies, too.",
        also="command_executor.docker.network.whitelist_mode",
        project="narrow",
    )
    allowed_domains: tuple[str, ...] = described(
        (),
        DOMAINS,
        "What `whitelist_mode` leads to, as in sandbox.allowed_domains.",
        also="command_executor.docker.network.allowed_domains",
        project="narrow",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneSection:
    """How a task's project is fetched."""

    shallow: bool = described(
        True, FLAG, "Only the newest commits.", also="command_executor.clone.shallow"
    )
    depth: int = described(1, COUNT, "How many of them.", also="command_executor.clone.depth")
    known_hosts: str = described(
        "", PATH, "Keys of the hosts that are fetched from by ssh; empty is ~/.ssh/known_hosts."
    )
    auto_install_deps: bool = described(
        True,
        FLAG,
        "Install what the project depends on.",
        also="command_executor.clone.auto_install_deps",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSection:
    """When leftovers are removed."""

    interval_hours: float = described(
        24.0,
        NUMBER,
        "How often a task runner looks for them.",
        also="command_executor.cleanup.interval_hours",
    )
    stale_threshold_hours: float = described(
        24.0,
        NUMBER,
        "How old something must be.",
        also="command_executor.cleanup.stale_threshold_hours",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerSection:
    """The MCP server that tasks use."""

    name: str = described(
        "command-executor", TEXT, "Its name.", also="command_executor.mcp_server.name"
    )
    command: tuple[str, ...] = described(
        (),
        TEXTS,
        "How to start another one; empty is kakoi's own.",
        also="command_executor.mcp_server.command",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsSection:
    """Labels that show how far a task is; a task has at most one of them."""

    waiting: str = described(_LABELS.waiting, TEXT, "It waits: people give it this one.")
    processing: str = described(_LABELS.processing, TEXT, "It is being done.")
    done: str = described(_LABELS.done, TEXT, "It is done.")
    error: str = described(_LABELS.error, TEXT, "It could not be done.")
    paused: str = described(_LABELS.paused, TEXT, "It is to be gone on with later.")
    stopped: str = described(_LABELS.stopped, TEXT, "Nobody is assigned to it any more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesSection:
    """Where tasks come from; the tokens are in the environment."""

    github: tuple[str, ...] = described((), TEXTS, "Repositories on GitHub, as `owner/name`.")
    gitlab: tuple[str, ...] = described((), TEXTS, "Projects on GitLab, as `group/project`.")
    folder: str = described("", PATH, "A folder of Markdown files that are tasks.")
    interval_seconds: float = described(
        60.0, NUMBER, "How often `kakoi agent producer --continuous` looks for tasks."
    )
    check_seconds: float = described(
        10.0, NUMBER, "A task is looked at again at most so often while it is worked on."
    )
    assignee: str = described(
        "", TEXT, "Only what is assigned to this user is a task; empty is anybody or nobody."
    )
    labels: LabelsSection = dataclasses.field(default_factory=LabelsSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSection:
    """Where tasks wait for somebody to do them."""

    url: str = described(
        "",
        TEXT,
        "A Redis that several machines share; empty is a file beside the audit log.",
        env="KAKOI_QUEUE_URL",
    )
    lease_seconds: float = described(
        60.0, NUMBER, "After how long without a sign of life a task is given to somebody else."
    )
    poll_seconds: float = described(
        5.0, NUMBER, "How often `kakoi agent consumer --continuous` looks for a task."
    )
    max_attempts: int = described(
        5, COUNT, "A task that was begun so often without an end is not begun again."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSection:
    """One clean environment for each task."""

    enabled: bool = described(
        False,
        FLAG,
        "Do tasks have an environment to run commands in?",
        env="COMMAND_EXECUTOR_ENABLED",
        also="command_executor.enabled",
    )
    base_image: str = described(
        DEFAULT_IMAGE,
        TEXT,
        "The image of the environment.",
        env="EXECUTOR_BASE_IMAGE",
        also="command_executor.docker.base_image",
        project="choose",
    )
    dockerfile: str = described(
        "",
        TEXT,
        "A Dockerfile in the project, to build the image from instead.",
        project="choose",
    )
    pool_size: int = described(
        0, FROM_ZERO, "How many started environments wait for the next tasks."
    )
    place: str = described(
        "container",
        choice("container", "folder"),
        "Where a task is worked on: in a `container` of its own, or in a `folder` of this machine "
        "with the sandbox of `sandbox.type` around it.",
        env="KAKOI_TASK_PLACE",
    )
    keep_seconds: float = described(
        30.0,
        NUMBER,
        "What a task has changed is kept at most so often, for whoever goes on after a `kill -9`.",
    )
    protected_paths: tuple[str, ...] = described(
        PROTECTED,
        TEXTS,
        "Files and folders of a project that no task may change: what CI does on its own machines.",
    )
    author_name: str = described("kakoi", TEXT, "Who commits what was done.")
    author_email: str = described("kakoi@localhost", TEXT, "The address of who commits.")
    owner: str = described(
        "",
        TEXT,
        "Whose environments these are; empty is this user on this machine.",
        env="KAKOI_OWNER",
    )
    mcp_server: McpServerSection = dataclasses.field(default_factory=McpServerSection)
    network: NetworkSection = dataclasses.field(default_factory=NetworkSection)
    clone: CloneSection = dataclasses.field(default_factory=CloneSection)
    cleanup: CleanupSection = dataclasses.field(default_factory=CleanupSection)
    sources: SourcesSection = dataclasses.field(default_factory=SourcesSection)
    queue: QueueSection = dataclasses.field(default_factory=QueueSection)
