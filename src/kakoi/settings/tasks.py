"""The settings of tasks: their environments, projects, sources and queue."""

from typing import Final

from kakoi._support.fields import (
    COUNT,
    FLAG,
    FROM_ZERO,
    NUMBER,
    PATH,
    SECONDS,
    SERVER_NAME,
    TEXT,
    TEXTS,
    choice,
    described,
    subsection,
)
from kakoi._support.late import dataclass
from kakoi.network.domains import DOMAINS

# CI servers act on these files on any branch as soon as it is pushed, with the project's secrets.
PROTECTED: Final = (
    *(".github/workflows", ".gitea/workflows", ".forgejo/workflows"),
    *(".gitlab-ci.yml", ".gitlab/ci", ".circleci", ".travis.yml"),
    *("azure-pipelines.yml", "bitbucket-pipelines.yml", "Jenkinsfile"),
    *(".woodpecker.yml", ".woodpecker.yaml", ".woodpecker", ".drone.yml", ".drone.jsonnet"),
    *(".buildkite", ".cirrus.yml", ".cirrus.star", ".appveyor.yml", "appveyor.yml"),
    *(".semaphore", ".teamcity", ".build.yml", ".builds", ".tekton", "cloudbuild.yaml"),
)
# The package in the original design's own settings; its command is `npx PACKAGE`.
_DESIGNED_PACKAGE: Final = "@sunwood-ai-labs/command-executor-mcp-server"
DESIGNED_SERVER_IS_OURS: Final = (
    "`tasks.mcp_server.command` is the original design's and means kakoi's own server: npx is not "
    "started"
)
EXECUTOR_IS_OFF: Final = "tasks cannot run commands, because `tasks.enabled` is false"
HOW_TO_ENABLE: Final = (
    "set `tasks: {enabled: true}` in your settings (`kakoi config path`), or "
    "COMMAND_EXECUTOR_ENABLED=true; `kakoi config show --origin` shows what sets it now"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSection:
    """What the environment of a task can reach."""

    external_access: bool = described(
        True,
        FLAG,
        "Whether it can reach other machines at all. Private networks stay unreachable either way.",
        also="command_executor.docker.network.external_access",
        project="narrow",
    )
    whitelist_mode: bool = described(
        False,
        FLAG,
        "Allow only the `allowed_domains`, also for cloning and installing dependencies.",
        also="command_executor.docker.network.whitelist_mode",
        project="narrow",
    )
    allowed_domains: tuple[str, ...] = described(
        (),
        DOMAINS,
        "What `whitelist_mode` permits, as in sandbox.allowed_domains.",
        also="command_executor.docker.network.allowed_domains",
        project="narrow",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneSection:
    """How a task's project is cloned."""

    shallow: bool = described(
        True, FLAG, "Clone only the newest commits.", also="command_executor.clone.shallow"
    )
    depth: int = described(
        1, COUNT, "The number of commits of a shallow clone.", also="command_executor.clone.depth"
    )
    known_hosts: str = described(
        "",
        PATH,
        "The file with the keys of hosts that are cloned from over SSH; empty means "
        "~/.ssh/known_hosts.",
    )
    auto_install_deps: bool = described(
        True,
        FLAG,
        "Install the project's dependencies.",
        also="command_executor.clone.auto_install_deps",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSection:
    """When leftover environments are removed."""

    interval_hours: float = described(
        24.0,
        NUMBER,
        "How often a task runner looks for them, in hours.",
        also="command_executor.cleanup.interval_hours",
    )
    stale_threshold_hours: float = described(
        24.0,
        NUMBER,
        "The minimum age of a leftover in hours.",
        also="command_executor.cleanup.stale_threshold_hours",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerSection:
    """The MCP server that runs the commands of tasks."""

    name: str = described(
        "command-executor",
        SERVER_NAME,
        "The name of the server, and the prefix of its tools: `NAME/execute_command`.",
        also="command_executor.mcp_server.name",
    )
    command: tuple[str, ...] = described(
        (),
        TEXTS,
        "The command of another MCP server that runs the commands of tasks, on this machine with "
        "your privileges; each call is judged first. Empty, and the original design's command, "
        "mean kakoi's own server.",
        also="command_executor.mcp_server.command",
    )

    @property
    def is_foreign(self) -> bool:
        """Does another server run the commands? The original design's, in any version, is ours."""
        words = [word for word in self.command if word not in ("-y", "--yes")]
        if not words:
            return False
        program, *packages = words
        own = [
            each
            for each in packages
            if each == _DESIGNED_PACKAGE or each.startswith(f"{_DESIGNED_PACKAGE}@")
        ]
        return program != "npx" or not len(own) == len(packages) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsSection:
    """Labels that show the state of a task; a task has at most one of them."""

    waiting: str = described(
        "coding agent", TEXT, "The task is waiting: people set this label to request it."
    )
    processing: str = described("coding agent processing", TEXT, "The task is in progress.")
    done: str = described("coding agent done", TEXT, "The task is done.")
    error: str = described("coding agent error", TEXT, "The task failed.")
    paused: str = described("coding agent paused", TEXT, "The task is paused and can be resumed.")
    stopped: str = described("coding agent stopped", TEXT, "The task is no longer assigned.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesSection:
    """Where tasks come from; tokens are read from the environment."""

    github: tuple[str, ...] = described((), TEXTS, "Repositories on GitHub, as `owner/name`.")
    gitlab: tuple[str, ...] = described((), TEXTS, "Projects on GitLab, as `group/project`.")
    folder: str = described("", PATH, "A folder of Markdown files that are tasks.")
    interval_seconds: float = described(
        60.0, SECONDS, "Seconds between two searches of `kakoi agent producer --continuous`."
    )
    check_seconds: float = described(
        10.0,
        SECONDS,
        "The minimum number of seconds between two checks of a task that is in progress.",
    )
    assignee: str = described(
        "",
        TEXT,
        "Take only tasks that are assigned to this user; empty takes all, assigned or not.",
    )
    labels: LabelsSection = subsection(LabelsSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSection:
    """The queue in which tasks wait for a consumer."""

    url: str = described(
        "",
        TEXT,
        "The URL of a Redis that several machines share; empty means a file beside the audit log.",
        env="KAKOI_QUEUE_URL",
    )
    lease_seconds: float = described(
        60.0,
        SECONDS,
        "Seconds without a heartbeat after which a task is given to another consumer.",
    )
    poll_seconds: float = described(
        5.0, SECONDS, "Seconds between two polls of `kakoi agent consumer --continuous`."
    )
    max_attempts: int = described(
        5, COUNT, "A task that was started this often without finishing is not started again."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSection:
    """One clean environment for each task."""

    enabled: bool = described(
        False,
        FLAG,
        "Whether tasks have an environment to run commands in. Without one they have only the "
        "tools of `agent.mcp_servers`, and their result is a comment.",
        env="COMMAND_EXECUTOR_ENABLED",
        also="command_executor.enabled",
    )
    base_image: str = described(
        "coding-agent-executor:latest",
        TEXT,
        "The image for the environment.",
        env="EXECUTOR_BASE_IMAGE",
        also="command_executor.docker.base_image",
        project="choose",
    )
    dockerfile: str = described(
        "",
        TEXT,
        "A Dockerfile in the project to build the image from instead.",
        project="choose",
    )
    pool_size: int = described(
        0, FROM_ZERO, "The number of started environments to keep ready for the next tasks."
    )
    place: str = described(
        "container",
        choice("container", "folder"),
        "Where a task runs: in its own `container`, or in a `folder` of this machine inside the "
        "sandbox of `sandbox.type`.",
        env="KAKOI_TASK_PLACE",
    )
    keep_seconds: float = described(
        30.0,
        SECONDS,
        "The minimum number of seconds between two saves of a task's changes, from which the task "
        "is resumed after a `kill -9`.",
    )
    protected_paths: tuple[str, ...] = described(
        PROTECTED,
        TEXTS,
        "Files and folders of a project that no task may change: they control what CI runs on its "
        "own machines.",
    )
    author_name: str = described("kakoi", TEXT, "The author's name in a task's commits.")
    author_email: str = described(
        "kakoi@localhost", TEXT, "The author's email address in a task's commits."
    )
    owner: str = described(
        "",
        TEXT,
        "The owner of the environments; empty means this user on this machine.",
        env="KAKOI_OWNER",
    )
    mcp_server: McpServerSection = subsection(McpServerSection)
    network: NetworkSection = subsection(NetworkSection)
    clone: CloneSection = subsection(CloneSection)
    cleanup: CleanupSection = subsection(CleanupSection)
    sources: SourcesSection = subsection(SourcesSection)
    queue: QueueSection = subsection(QueueSection)
