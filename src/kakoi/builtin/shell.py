"""@builtin.shell: run one shell command; and what runs the commands of all built-in tools.

That is an executor for each directory and list of programs, kept for a while; or, for a command
file, the one sandbox that its door has opened.
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from kakoi._support.late import dataclass
from kakoi._support.parsing import wrong
from kakoi.channel.api import Command
from kakoi.errors import CommandFailedError
from kakoi.gate import Gate
from kakoi.results import ExecutionResult
from kakoi.shell import ShellExecutor, ShellResult, shell_result

_KEPT = 8
_LONGEST = 2000


@lru_cache(maxsize=_KEPT)
def _executor(directory: str, programs: tuple[str, ...]) -> ShellExecutor:
    return ShellExecutor(allowed_commands=programs or None, working_dir=directory)


def executor_for(directory: str | Path = ".", programs: Sequence[str] = ()) -> ShellExecutor:
    """Return the executor that runs only `programs` (empty: the default list) in `directory`."""
    try:
        path = os.path.realpath(directory)
    except (TypeError, ValueError) as error:
        raise wrong("the directory", directory, f"a path: {error}") from None
    return _executor(path, tuple(programs))


class CommandRunner(Protocol):
    """Runs commands in one directory."""

    async def exec(
        self,
        command: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        stdin: bytes | None = None,
    ) -> ShellResult:
        """Run a command to its end; see `ShellExecutor.exec`."""
        ...

    async def perform(
        self, command: Command, work: Callable[[], Awaitable[ExecutionResult]]
    ) -> ShellResult:
        """Do `work` outside of the sandbox; see `ShellExecutor.perform`."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds that a command can run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRunner:
    """Runs commands behind the gate of a door, whose policy and sandbox hold for all of them.

    `cwd`: a directory inside the sandbox. `env`: variables of every command.
    """

    gate: Gate
    cwd: str
    timeout_s: float | None
    env: Mapping[str, str] = field(default_factory=dict)

    async def exec(
        self,
        command: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        stdin: bytes | None = None,
    ) -> ShellResult:
        """Run a command to its end; see `ShellExecutor.exec`."""
        request = Command(
            command=command,
            cwd=self.cwd,
            env={**self.env, **(env or {})},
            stdin=stdin,
            timeout_s=self.timeout_s,
        )
        return shell_result(await self.gate.run(request), request)

    async def perform(
        self, command: Command, work: Callable[[], Awaitable[ExecutionResult]]
    ) -> ShellResult:
        """Do `work` outside of the sandbox; see `ShellExecutor.perform`."""
        return shell_result(await self.gate.perform(command, lambda _channel: work()), command)

    @property
    def timeout(self) -> float | None:
        """Seconds that a command can run."""
        return self.timeout_s


_door: Final[ContextVar[GateRunner | None]] = ContextVar("door", default=None)


@contextlib.contextmanager
def use_runner(runner: GateRunner) -> Iterator[None]:
    """Let built-in tools that are called in this block use `runner`."""
    token = _door.set(runner)
    try:
        yield
    finally:
        _door.reset(token)


def runner_for(directory: str | Path = ".", programs: Sequence[str] = ()) -> CommandRunner:
    """Return what runs a tool's commands in `directory`."""
    runner = _door.get()
    if runner is None:
        return executor_for(directory, programs)
    return replace(runner, cwd=os.path.normpath(os.path.join(runner.cwd, directory)))


async def run_checked(
    runner: CommandRunner,
    command: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> ShellResult:
    """Run a command; raise CommandFailedError with its output unless it succeeds."""
    return checked(await runner.exec(command, env, stdin=stdin))


def checked(result: ShellResult) -> ShellResult:
    """Return the result; raise CommandFailedError with its output unless it is a success."""
    if not result.success:
        output = (result.stderr.strip() or result.stdout.strip())[-_LONGEST:]
        raise CommandFailedError(
            f"Command failed: {output or f'exit code {result.return_code}'}",
            details={
                "command": result.command,
                "return_code": result.return_code,
                "stdout": result.stdout,
                "stderr": result.stderr,
            },
        )
    return result


async def shell(command: str, working_dir: str | Path = ".") -> str:
    """Run a shell command in `working_dir` and return its stdout.

    Raises CommandFailedError (a RuntimeError, "Command failed: …") if its exit code is not 0.
    """
    return (await run_checked(runner_for(working_dir), command)).stdout
