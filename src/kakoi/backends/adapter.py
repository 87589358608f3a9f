"""SandboxAdapter: the interface of a backend, whatever it is made of.

An adapter builds a sandbox and opens one channel into it. The channel does everything else:
`execute` runs one command to its end, `channel` gives live output, jobs and files.

Some backends can do more: ask with `isinstance(adapter, CanPause)`. An adapter that has the
methods, but cannot do it as it is configured, raises UnsupportedError that says what would help.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Literal, Protocol, get_args, runtime_checkable

from kakoi._support.fields import COUNT, NUMBER, SECONDS, SIZE, choice, described, or_none
from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest
from kakoi._support.redact import redact
from kakoi.channel.api import MIB, Channel, Command, check_type
from kakoi.errors import (
    ConfigurationError,
    ExecutionError,
    ExecutionTimeoutError,
    LimitError,
    SandboxError,
)
from kakoi.results import ExecutionResult, Reason

_LOG = logging.getLogger(__name__)
# `open` and `allowlist` go through a proxy of ours (outlet.py): to every public host, or to listed
# hosts. `bridge` is an engine's own network, which also reaches private addresses.
Network = Literal["none", "open", "allowlist", "bridge", "host"]
PROXIED: Final = ("open", "allowlist")
NETWORK: Final = choice(*get_args(Network))
GIB = 1024 * MIB
DEFAULT_TIMEOUT_S = 300.0
# How many commands run at once in a sandbox.
DEFAULT_CONCURRENCY = 16


def timeout_field() -> Any:
    """Return the field of the timeout, which every backend has."""
    return described(
        DEFAULT_TIMEOUT_S,
        SECONDS,
        "Timeout in seconds for commands that do not set one. In a file, it holds like a lower "
        "`execution.timeout_seconds` if `sandbox.type` names this sandbox.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox can use. None means no limit. Timeouts are not here: each command has its own.

    `asked`: the limits that must hold, by field name: a sandbox that cannot enforce one is refused.
        The others are enforced where possible. None: all limits that differ from the default.
    """

    memory_bytes: int | None = described(4 * GIB, or_none(SIZE), "Memory.")
    cpus: float | None = described(2.0, or_none(NUMBER), "CPUs.")
    processes: int | None = described(512, or_none(COUNT), "Number of processes.")
    open_files: int | None = described(8192, or_none(COUNT), "Open files per process.")
    file_bytes: int | None = described(10 * GIB, or_none(SIZE), "Size of a single file.")
    disk_bytes: int | None = described(
        10 * GIB,
        or_none(SIZE),
        "Disk space; a workspace that is a directory of this machine is not counted.",
    )
    asked: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            check_type(name, value, int, float, type(None))
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} is {value}; it must be above zero")
            if value is not None and value < least:
                raise ConfigurationError(f"{name} is {value}; it must be at least {least}")
        check_type("asked", self.asked, frozenset, type(None))
        if self.asked is not None and (unknown := sorted(self.asked - set(LEAST))):
            raise ConfigurationError(f"asked names {unknown[0]!r}, which is not a limit")

    @property
    def rlimits(self) -> dict[str, int]:
        """The limits of each process in every sandbox, as the runner takes them."""
        found = {"open_files": self.open_files, "file_bytes": self.file_bytes}
        return {name: value for name, value in found.items() if value is not None}

    def is_asked(self, name: str) -> bool:
        """Whether this limit must hold."""
        if getattr(self, name) is None:
            return False
        if self.asked is not None:
            return name in self.asked
        return bool(getattr(self, name) != getattr(_DEFAULTS, name))


# Every limit, and its minimum: below that, our own programs inside could not work.
LEAST: Final[Mapping[str, int]] = {
    "memory_bytes": 0,
    "cpus": 0,
    "processes": 0,
    "open_files": 256,
    "file_bytes": MIB,
    "disk_bytes": 4 * MIB,
}
_DEFAULTS: Final = Limits()


@dataclass(frozen=True, slots=True)
class LimitReport:
    """Which limits a sandbox enforces, by the names of the fields of `Limits`.

    `enforced`: what enforces each. `unenforced`: why the others are not enforced. A limit that is
    None is in neither.
    """

    enforced: Mapping[str, str] = field(default_factory=dict)
    unenforced: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, dict[str, str]]:
        """The report as `--json` prints it."""
        return {"enforced": dict(self.enforced), "unenforced": dict(self.unenforced)}

    def check_enforced(self, limits: Limits, *, sandbox: str) -> None:
        """Raise LimitError if a limit that must hold is not enforced."""
        broken = {name: why for name, why in self.unenforced.items() if limits.is_asked(name)}
        if broken:
            name, why = next(iter(broken.items()))
            raise LimitError(
                f"{sandbox} cannot enforce {name} at {getattr(limits, name):.12g}: {why}",
                details={"limits": sorted(broken)},
                hint=_HINTS[name],
            )


_ENGINE_OR_GROUP = "use docker; or run as root, or where systemd delegates control groups to you"
_HINTS: Final[Mapping[str, str]] = {
    "memory_bytes": f"{_ENGINE_OR_GROUP}; or `resources.memory_limit: none`",
    "cpus": f"{_ENGINE_OR_GROUP}; or `resources.cpu_limit: none`",
    "processes": f"{_ENGINE_OR_GROUP}; or `resources.processes: none`",
    "open_files": "raise the hard limit (`ulimit -Hn`), or ask for less",
    "file_bytes": "ask for less",
    "disk_bytes": "run as root on the machine of the engine, ask for less than half of the memory"
    " limit, or set `resources.disk_limit: none`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """How to run one command. `timeout` is in milliseconds; None: the adapter's default."""

    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_type("cwd", self.cwd, str, type(None))
        check_type("env", self.env, Mapping)
        check_type("timeout", self.timeout, int, float, type(None))


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a sandbox works here; if not, the reason and one command that would fix it."""

    available: bool
    reason: str = ""
    fix: str = ""

    def __bool__(self) -> bool:
        return self.available


class SandboxAdapter(Protocol):
    """A sandbox. It is created for the first command, and removed by `cleanup`."""

    @property
    def name(self) -> str: ...

    async def availability(self) -> Availability:
        """Whether it works here, found by trying it."""
        ...

    async def is_available(self) -> bool: ...

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command` to its end; every outcome is a result."""
        ...

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """Like `run`, but a command that did not end by itself raises (`check_ended`)."""
        ...

    async def channel(self) -> Channel:
        """The channel into the sandbox, opened at first use and again after it was lost."""
        ...

    async def shell(self) -> str:
        """The shell that reads command text: `bash`, or `sh` where bash is not certain."""
        ...

    @property
    def limit_report(self) -> LimitReport:
        """Which limits are enforced; empty before the sandbox was created."""
        ...

    async def cleanup(self) -> None:
        """End everything and remove the sandbox. Failures are logged, never raised."""
        ...


async def with_availability_hint(
    error: SandboxError, sandbox: SandboxAdapter | None
) -> SandboxError:
    """The error of a sandbox that was never tried before, with a hint on what would help."""
    if error.hint or sandbox is None or (found := await sandbox.availability()):
        return error
    message = f"the sandbox `{sandbox.name}` cannot be used: {found.reason}"
    return SandboxError(message, hint=found.fix or "`kakoi doctor` shows why")


def as_command(
    command: str | Sequence[str],
    options: ExecuteOptions | Mapping[str, Any] | None,
    *,
    timeout_s: float | None,
) -> Command:
    """The arguments of `execute` as a Command; `timeout_s`: the timeout if `options` has none."""
    check_type("options", options, ExecuteOptions, Mapping, type(None))
    given = _options(options) if isinstance(options, Mapping) else options or ExecuteOptions()
    return Command(
        command=command,
        cwd=given.cwd,
        env=given.env,
        timeout_s=timeout_s if given.timeout is None else given.timeout / 1000,
    )


def _options(given: Mapping[str, Any]) -> ExecuteOptions:
    names = ("cwd", "env", "timeout")
    for name in given:
        if name not in names:
            raise ConfigurationError(
                f"options has {str(name)[:80]!r}{nearest(name, names)}",
                hint=f"known options: {', '.join(names)}",
            )
    return ExecuteOptions(**{name: each for name, each in given.items() if each is not None})


def check_ended(result: ExecutionResult, command: Command) -> None:
    """Raise the matching error unless the command ended by itself."""
    partial = {"stdout": result.stdout, "stderr": result.stderr, "reason": result.reason}
    match result.reason:
        case Reason.EXITED | Reason.SIGNALLED | Reason.OUT_OF_MEMORY:
            return
        case Reason.TIMED_OUT | Reason.IDLE_TIMEOUT:
            limit_s = command.timeout_s or command.idle_timeout_s or 0
            raise ExecutionTimeoutError(
                f"the command ran longer than {limit_s * 1000:.0f} ms",
                details={**partial, "timeout": limit_s * 1000},
                hint="raise the timeout, or give the command less to do",
            )
        case Reason.NEVER_STARTED:
            words = command.command
            what = "the command" if isinstance(words, str) else f"`{words[0]}`"
            error = ExecutionError(f"{what} was not started: {result.error}", details=partial)
            _LOG.error("%s", redact(str(error)))
            raise error
        case _:
            raise SandboxError(result.error or "the sandbox was lost", details=partial)


@runtime_checkable
class CanPause(Protocol):
    """A sandbox whose processes can be stopped without being ended."""

    @property
    def can_pause(self) -> bool:
        """Whether `pause` works here; known once the sandbox is open."""

    async def pause(self) -> None:
        """Freeze every process in the sandbox. Calls that need it wait until `resume`.

        A paused sandbox can still be cleaned up, and ends with this process as any other does.
        Pausing twice is the same as pausing once. Timeouts of commands take effect when it is
        resumed; the lifetime of the sandbox ends it also while it is paused.
        """

    async def resume(self) -> None:
        """Let the processes continue. Does nothing if the sandbox is not paused."""


@runtime_checkable
class CanFork(Protocol):
    """A sandbox of which copies can be made."""

    async def fork(self, count: int) -> list[SandboxAdapter]:
        """Return `count` new sandboxes with the files and settings of this one.

        Processes are not copied. Each is cleaned up on its own, before or after this one.
        """


@runtime_checkable
class CanCheckpoint(Protocol):
    """A sandbox whose files can return to an earlier state."""

    async def checkpoint(self, name: str) -> None:
        """Remember the files of the sandbox as they are now, under a new name."""

    async def rollback(self, name: str) -> None:
        """Return the files to what they were at that checkpoint."""

    def checkpoints(self) -> list[str]:
        """Return the names of all checkpoints, the oldest first."""
