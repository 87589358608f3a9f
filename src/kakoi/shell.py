"""ShellExecutor: an asynchronous interface for running shell commands through the gate.

It translates lists of commands into a policy, results into ShellResult, and a person's answer into
an approval. The policy decides if a command can run, and the sandbox enforces it.
"""

import asyncio
import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kakoi._support.asyncio import LazyResource, background
from kakoi._support.files import write_whole
from kakoi._support.late import dataclass
from kakoi._support.parsing import wrong
from kakoi._support.text import shown
from kakoi.backends.adapter import check_ended
from kakoi.channel.api import Command
from kakoi.errors import (
    ConfigurationError,
    EmptyCommandError,
    ExecutionTimeoutError,
    SecurityError,
    TimeoutError,
    UserCancelledError,
)
from kakoi.policy.blocked_commands import with_blocked
from kakoi.policy.decide import Decision, decide
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.policy.rules import Policy, Verdict
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.doors import DoorSandbox, sandbox_for
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.policy import with_switches
from kakoi.settings.shell_security import ShellSecurity, load_security

__all__ = ["SecurityError", "ShellExecutor", "ShellResult", "TimeoutError", "UserCancelledError"]

DEFAULT_TIMEOUT_S = 30
_PROFILE = "shell"


@dataclass(frozen=True, slots=True)
class ShellResult:
    """The result of a command; `str()` gives its stdout if it succeeded, otherwise its stderr.

    `truncated`: there was more output than is kept.
    """

    return_code: int
    stdout: str
    stderr: str
    command: str
    truncated: bool = False

    @property
    def success(self) -> bool:
        """True if the exit code was 0."""
        return self.return_code == 0

    def __str__(self) -> str:
        return self.stdout if self.success else self.stderr


class ShellExecutor:
    """Runs commands in a directory, judged and confined.

    `allowed_commands`: programs that can run; None or empty means the default list.
    `blocked_commands`: commands to refuse besides those that are never allowed (`git push`,
        `rm -r`).
    `working_dir`: where commands run, and what they can change; None means the current directory.
    `timeout`: in seconds; the default, 30, gives way to the file's.
    `require_confirmation`: ask at the terminal before each command.
    `security`: the user's own settings; None reads their security.toml. The lists and the timeout
        of a call take precedence over the file's; `enabled`, `require_confirmation` and
        `allowed_directories` of the file apply to every call.

    The sandbox is opened by the first command and kept until `close`, or until the executor or the
    process ends. An executor can be used from several event loops.

        result = await ShellExecutor().exec("ls -la")
    """

    def __init__(
        self,
        allowed_commands: Sequence[str] | None = None,
        blocked_commands: Sequence[str] | None = None,
        working_dir: str | Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        require_confirmation: bool = False,
        *,
        security: ShellSecurity | None = None,
    ) -> None:
        self._security = security or load_security()
        self.working_dir = _directory(working_dir)
        self.timeout = _timeout(timeout, self._security)
        self.require_confirmation = require_confirmation or self._security.require_confirmation
        listed = _texts("allowed_commands", allowed_commands) or self._security.allowed_commands
        blocked = _texts("blocked_commands", blocked_commands)
        self._policy = _policy(listed, blocked, self._security, str(self.working_dir))
        self.allowed_commands = list(listed or _default_allowed())
        self.blocked_commands = [*blocked, *self._security.blocked_commands]
        options = SandboxOptions(
            config=self._security.sandbox,
            policy=self._policy,
            workspace=str(self.working_dir),
            approve=_ask_at_the_terminal if self.require_confirmation and _is_terminal() else None,
            ask_always=self.require_confirmation,
        )
        self._held: LazyResource[DoorSandbox] = LazyResource(
            functools.partial(sandbox_for, options)
        )

    def validate_command(self, command: str) -> bool:
        """Return True if the command can run, or needs approval; otherwise raise SecurityError."""
        decision = decide(self._policy, _text(command), cwd=str(self.working_dir))
        if decision.verdict is Verdict.DENY:
            raise decision.error()
        return True

    async def exec(
        self,
        command: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        capture_output: bool = True,
        *,
        stdin: bytes | None = None,
    ) -> ShellResult:
        """Run `command`: text for the shell, or a program and its arguments without a shell.

        With `capture_output=False` the output goes to our own streams. A non-zero exit code is a
        result. Raises SecurityError if the policy refused the command, UserCancelledError if a
        person refused it or nobody could be asked, and TimeoutError if it ran too long: everything
        that the command started is dead by then.
        """
        text = command if isinstance(command, str) else _joined(command)
        if not text.strip():
            raise EmptyCommandError("Empty command", hint="pass a command to run")
        request = Command(command=command, env=env or {}, stdin=stdin, timeout_s=self.timeout)
        return shell_result(
            await background().arun(_run(self._held, request, capture_output)), request
        )

    async def perform(
        self, command: Command, work: Callable[[], Awaitable[ExecutionResult]]
    ) -> ShellResult:
        """Do `work` outside of the sandbox, judged and recorded as the equivalent `command`.

        For what needs an account of the user. Raises like `exec`.
        """
        return shell_result(await background().arun(_perform(self._held, command, work)), command)

    async def close(self) -> None:
        """Close the sandbox; the next command opens a new one."""
        await background().arun(self._held.close())


def shell_result(result: ExecutionResult, command: Command) -> ShellResult:
    """Return the result as `exec` does. Raises TimeoutError, or why there is no exit code."""
    words = command.command
    text = words if isinstance(words, str) else _joined(words)
    if result.reason is Reason.TIMED_OUT:
        timeout_s = command.timeout_s or 0
        raise ExecutionTimeoutError(
            f"Command timed out after {timeout_s:g}s",
            details={
                "timeout": timeout_s * 1000,
                "stdout": result.stdout,
                "stderr": result.stderr,
                "command": text,
            },
            hint="raise the timeout, or run a shorter command",
        )
    check_ended(result, command)
    return ShellResult(result.exit_code, result.stdout, result.stderr, text, result.truncated)


async def _run(
    held: LazyResource[DoorSandbox], command: Command, capture_output: bool
) -> ExecutionResult:
    gate = (await held.get()).gate
    if capture_output:
        return await gate.run(command)
    async with gate.open(command) as running:
        async for stream, data in running.output():
            # In a thread: the reader of our output may be slow, and others run meanwhile.
            await asyncio.to_thread(_forward, 1 if stream == "stdout" else 2, data)
        result = await running.result()
    # The output was forwarded, so nothing is kept and nothing is truncated.
    return replace(result, stdout="", stderr="", stdout_truncated=False, stderr_truncated=False)


async def _perform(
    held: LazyResource[DoorSandbox],
    command: Command,
    work: Callable[[], Awaitable[ExecutionResult]],
) -> ExecutionResult:
    gate = (await held.get()).gate
    return await gate.perform(command, lambda _channel: work())


def _forward(fd: int, data: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):  # Earlier prints come first.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    write_whole(fd, data)


def _is_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin is not None and sys.stdin.isatty()


async def _ask_at_the_terminal(decision: Decision) -> bool:
    """Ask the user at the terminal."""
    prompt = f"Execute command: {shown(decision.command)}? [y/N] "
    try:
        answer = await asyncio.to_thread(input, prompt)
    except EOFError:
        return False
    return answer.strip().lower() == "y"


# --- Policy ----------------------------------------------------------------------------------


def _policy(
    listed: Sequence[str] | None, blocked: Sequence[str], security: ShellSecurity, root: str
) -> Policy:
    allowed = AllowedCommands(use_default=False, custom_list=tuple(listed)) if listed else None
    policy = load_policy(_PROFILE, allowed=allowed, roots=[root])
    policy = with_switches(
        policy,
        enabled=security.enabled,
        require_confirmation=False,  # The executor itself asks, also if only its caller wants it.
        directories=security.allowed_directories,
        where=f"{security.off_by or security.origin} says so",
    )
    policy = with_blocked(policy, blocked, origin="blocked_commands")
    return with_blocked(policy, security.blocked_commands, origin=security.origin)


def _default_allowed() -> list[str]:
    return list(load_policy(_PROFILE).entries)


def _directory(value: str | Path | None) -> Path:
    try:
        directory = Path.cwd() if value is None else Path(os.path.realpath(value))
    except (TypeError, ValueError, OSError) as error:
        raise wrong("working_dir", value, f"a path: {error}") from None
    if not directory.is_dir():
        raise ConfigurationError(f"working_dir is {directory}, which is not a directory")
    return Path(os.path.realpath(directory))


def _timeout(value: object, security: ShellSecurity) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
        raise wrong("timeout", value, "seconds above zero")
    return security.timeout_s or value if value == DEFAULT_TIMEOUT_S else value


def _texts(what: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise wrong(what, value, "a list of commands")
    if not all(isinstance(each, str) and each.strip() for each in value):
        raise ConfigurationError(f"{what} contains something that is not a command")
    return tuple(value)


def _text(command: object) -> str:
    if not isinstance(command, str):
        raise ConfigurationError(f"command is {type(command).__name__}; it must be text")
    return command


def _joined(command: object) -> str:
    if not isinstance(command, Sequence) or isinstance(command, bytes):
        raise ConfigurationError(f"command is {type(command).__name__}; it must be text")
    return shlex.join(map(_text, command))
