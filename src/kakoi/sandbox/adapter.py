"""SandboxAdapter: a place to run commands in, whatever it is made of.

An adapter builds the place and opens one channel into it; everything about running is the
channel's. `execute` is all that spec B asks for; `channel` gives live output, jobs and files.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from kakoi.errors import (
    ConfigurationError,
    ExecutionError,
    ExecutionTimeoutError,
    LimitError,
    SandboxError,
)
from kakoi.redact import redact
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Channel, Command, check_type

_LOG = logging.getLogger(__name__)
# `open` and `allowlist` lead through a proxy of ours (outlet.py): to every public host, or to those
# of a list. `bridge` is an engine's own network, which reaches private addresses, too.
Network = Literal["none", "open", "allowlist", "bridge", "host"]
PROXIED: Final = ("open", "allowlist")
GIB = 1024 * MIB
# How long `execute` lets a command run that names no time (spec B).
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may use. None is no limit. Time is not here: each command has its own.

    `open_files`: how many one process may have. `file_bytes`: how large one file may get.
    `disk_bytes`: how much all that is written may take, outside of a directory of this machine.
    `asked`: those that must hold, by the names of their fields: a sandbox that cannot keep one is
        refused. The others are kept where that is possible. None: all that are not the default.
    """

    memory_bytes: int | None = 4 * GIB
    cpus: float | None = 2.0
    processes: int | None = 512
    open_files: int | None = 8192
    file_bytes: int | None = 10 * GIB
    disk_bytes: int | None = 10 * GIB
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
            raise ConfigurationError(f"asked names {unknown[0]!r}; that is no limit")

    @property
    def rlimits(self) -> dict[str, int]:
        """What each process is limited to in every sandbox, by the names of runner/room.py."""
        found = {"open_files": self.open_files, "file_bytes": self.file_bytes}
        return {name: value for name, value in found.items() if value is not None}

    def is_asked(self, name: str) -> bool:
        """Must this limit hold?"""
        if getattr(self, name) is None:
            return False
        if self.asked is not None:
            return name in self.asked
        return bool(getattr(self, name) != getattr(_DEFAULTS, name))


# Every limit, and the least it can be: below that our own programs inside could not work.
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
class Holding:
    """Which limits hold in a sandbox, by the names of their fields.

    `kept`: what keeps each. `not_kept`: why the others are not. One that is None is in neither.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    not_kept: Mapping[str, str] = field(default_factory=dict)

    def refuse_unkept(self, limits: Limits, *, sandbox: str) -> None:
        """SandboxError if a limit does not hold that was asked for by name."""
        broken = {name: why for name, why in self.not_kept.items() if limits.is_asked(name)}
        if broken:
            name, why = next(iter(broken.items()))
            raise LimitError(
                f"{sandbox} cannot keep {name} at {getattr(limits, name):.12g}: {why}",
                details={"limits": sorted(broken)},
                hint=_WAYS_OUT[name],
            )


_ENGINE_OR_GROUP = "use docker; or run as root, or where systemd delegates control groups to you"
_WAYS_OUT: Final[Mapping[str, str]] = {
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
    """How to run one command. `timeout` is in milliseconds, as in spec B; None: the adapter's."""

    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_type("cwd", self.cwd, str, type(None))
        check_type("env", self.env, Mapping)
        check_type("timeout", self.timeout, int, float, type(None))


@dataclass(frozen=True, slots=True)
class Availability:
    """Can a sandbox be used here? If not, why, and one command that would change it."""

    available: bool
    reason: str = ""
    fix: str = ""

    def __bool__(self) -> bool:
        return self.available


class SandboxAdapter(Protocol):
    """A place to run. It is made at the first command, and `cleanup` takes it away."""

    @property
    def name(self) -> str: ...

    async def availability(self) -> Availability:
        """Whether it works here, found by really trying it."""
        ...

    async def is_available(self) -> bool: ...

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command` to its end; whatever came of it is a result."""
        ...

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """`run` with the manners of spec B: no exit code is an exception (`exit_code_or_raise`)."""
        ...

    async def channel(self) -> Channel:
        """The way in, opened at first use and again after it was lost."""
        ...

    async def shell(self) -> str:
        """What reads a command that is one text: `bash`, or `sh` where that is not sure."""
        ...

    @property
    def holding(self) -> Holding:
        """Which limits hold; empty before the place was made."""
        ...

    async def cleanup(self) -> None:
        """End everything and take the place away. Failures are logged, never raised."""
        ...


async def with_way_out(error: SandboxError, sandbox: SandboxAdapter | None) -> SandboxError:
    """The failure of a sandbox that nobody has tried before, with what would help."""
    if error.hint or sandbox is None or (found := await sandbox.availability()):
        return error
    words = f"the sandbox `{sandbox.name}` cannot be used: {found.reason}"
    return SandboxError(words, hint=found.fix or "`kakoi doctor` tells more")


def as_command(
    command: str | Sequence[str], options: ExecuteOptions | None, *, timeout_s: float | None
) -> Command:
    """Spec B's arguments as a Command; `timeout_s` holds where the call names no time."""
    check_type("options", options, ExecuteOptions, type(None))
    given = options or ExecuteOptions()
    return Command(
        command=command,
        cwd=given.cwd,
        env=given.env,
        timeout_s=timeout_s if given.timeout is None else given.timeout / 1000,
    )


def exit_code_or_raise(result: ExecutionResult, command: Command) -> ExecutionResult:
    """The result, if the command ended by itself; otherwise what spec B raises."""
    partial = {"stdout": result.stdout, "stderr": result.stderr, "reason": result.reason}
    match result.reason:
        case Reason.EXITED | Reason.SIGNALLED | Reason.OUT_OF_MEMORY:
            return result
        case Reason.TIMED_OUT | Reason.IDLE_TIMEOUT:
            limit_s = command.timeout_s or command.idle_timeout_s or 0
            raise ExecutionTimeoutError(
                f"the command ran longer than {limit_s * 1000:.0f} ms",
                details={**partial, "timeout": limit_s * 1000},
                hint="give it more time, or less to do",
            )
        case Reason.NEVER_STARTED:
            words = command.command
            what = "the command" if isinstance(words, str) else f"`{words[0]}`"
            error = ExecutionError(f"{what} was not started: {result.error}", details=partial)
            _LOG.error("%s", redact(str(error)))
            raise error
        case _:
            raise SandboxError(result.error or "the sandbox was lost", details=partial)
