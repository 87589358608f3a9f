"""ShellExecutor: the asynchronous face of spec D over the one gate.

It translates: lists of commands into a policy, results into ShellResult, a person's answer into an
approval. Whether a command may run is the policy's to say, and the sandbox's to enforce.
"""

import asyncio
import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kakoi.background import Held, background
from kakoi.config.opening import open_gate
from kakoi.config.security import ShellSecurity, load_security
from kakoi.descriptors import write_whole
from kakoi.errors import (
    ConfigurationError,
    EmptyCommandError,
    ExecutionTimeoutError,
    SecurityError,
    TimeoutError,
    UserCancelledError,
)
from kakoi.gate import Gate
from kakoi.policy.blocking import with_blocked
from kakoi.policy.decide import Decision, decide
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.policy.rules import Policy, Verdict
from kakoi.printable import shown
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import exit_code_or_raise
from kakoi.sections import wrong

__all__ = ["SecurityError", "ShellExecutor", "ShellResult", "TimeoutError", "UserCancelledError"]

DEFAULT_TIMEOUT_S = 30
_PROFILE = "shell"


@dataclass(frozen=True, slots=True)
class ShellResult:
    """What came of a command; as text, what it said: on stdout if it succeeded, else on stderr.

    `truncated`: it said more than is kept.
    """

    return_code: int
    stdout: str
    stderr: str
    command: str
    truncated: bool = False

    @property
    def success(self) -> bool:
        """Did it exit with 0?"""
        return self.return_code == 0

    def __str__(self) -> str:
        return self.stdout if self.success else self.stderr


class ShellExecutor:
    """Runs commands in a directory, judged and confined.

    `allowed_commands`: programs that may run; None or empty is the default list of spec D.
    `blocked_commands`: what may not, besides what is never allowed (`git push`, `rm -r`).
    `working_dir`: where commands run, and what they may change; None is the current directory.
    `timeout`: seconds; 30, the default, yields to the file's.
    `require_confirmation`: ask at the terminal before each command.
    `security`: the user's own settings; None is their security.toml. A call's list and time go
    before those of the file. Off, confirmation and directories of the file hold for every call.

    The sandbox is opened by the first command and kept until `close`, the end of the executor or of
    the process. An executor may be used from several event loops.
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
        self.timeout = _time(timeout, self._security)
        self.require_confirmation = require_confirmation or self._security.require_confirmation
        listed = _texts("allowed_commands", allowed_commands) or self._security.allowed_commands
        blocked = _texts("blocked_commands", blocked_commands)
        self._policy = _policy(listed, blocked, self._security, str(self.working_dir))
        self.allowed_commands = list(listed or _default_allowed())
        self.blocked_commands = [*blocked, *self._security.blocked_commands]
        self._held: Held[Gate] = Held(
            functools.partial(
                open_gate,
                self._policy,
                self._security.sandbox,
                workspace=str(self.working_dir),
                approver=_ask_at_the_terminal if self.require_confirmation else None,
                ask_always=self.require_confirmation,
                validators=[_rule_of_the_file(self._security, str(self.working_dir))],
            )
        )

    def validate_command(self, command: str) -> bool:
        """True if the command may run, or be asked about; SecurityError says why not."""
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
        """Run `command`: a text for the shell, or a program and its arguments, without one.

        `capture_output` False lets the streams through to ours. A status other than 0 is an answer.
        SecurityError: the policy said no. UserCancelledError: a person did, or none was there.
        TimeoutError: the time was up; everything that the command had started is dead.
        """
        text = command if isinstance(command, str) else _joined(command)
        if not text.strip():
            raise EmptyCommandError("Empty command", hint="give a command to run")
        asked = Command(command=command, env=env or {}, stdin=stdin, timeout_s=self.timeout)
        result = await background().arun(_run(self._held, asked, capture_output))
        if result.reason is Reason.TIMED_OUT:
            raise ExecutionTimeoutError(
                f"Command timed out after {self.timeout:g}s",
                details={
                    "timeout": self.timeout * 1000,
                    "stdout": result.stdout,
                    "stderr": result.stderr,
                    "command": text,
                },
                hint="give it more time, or less to do",
            )
        exit_code_or_raise(result, asked)
        truncated = result.truncated
        return ShellResult(result.exit_code, result.stdout, result.stderr, text, truncated)

    async def close(self) -> None:
        """End the sandbox; the next command opens another."""
        await background().arun(self._held.close())


async def _run(held: Held[Gate], asked: Command, capture_output: bool) -> ExecutionResult:
    gate = await held.get()
    if capture_output:
        return await gate.run(asked)
    async with gate.open(asked) as running:
        async for stream, data in running.output():
            # In a thread: whoever reads our output may be slow, and others run meanwhile.
            await asyncio.to_thread(_pass_on, 1 if stream == "stdout" else 2, data)
        result = await running.result()
    # It was passed on, and so nothing is kept, and nothing is cut.
    return replace(result, stdout="", stderr="", stdout_truncated=False, stderr_truncated=False)


def _pass_on(fd: int, data: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):  # What was printed before comes before.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    write_whole(fd, data)


async def _ask_at_the_terminal(decision: Decision) -> bool:
    """Ask whoever sits there; where nobody does, the answer is no."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    prompt = f"Execute command: {shown(decision.command)}? [y/N] "
    try:
        answer = await asyncio.to_thread(input, prompt)
    except EOFError:
        return False
    return answer.strip().lower() == "y"


# --- Settings → policy -----------------------------------------------------------------------


def _policy(
    listed: Sequence[str] | None, blocked: Sequence[str], security: ShellSecurity, root: str
) -> Policy:
    allowed = AllowedCommands(use_default=False, custom_list=tuple(listed)) if listed else None
    policy = load_policy(_PROFILE, allowed=allowed, roots=[root])
    policy = with_blocked(policy, blocked, origin="blocked_commands")
    return with_blocked(policy, security.blocked_commands, origin=security.origin)


def _default_allowed() -> list[str]:
    return list(load_policy(_PROFILE).entries)


def _rule_of_the_file(security: ShellSecurity, directory: str) -> Callable[[str], None]:
    """What the file says about every command, whatever it is."""

    def check(_command: str) -> None:
        if not security.enabled:
            raise SecurityError(
                "shell execution is off",
                details={"rule": "shell-off"},
                hint=f"`enabled = true` under [shell] in {security.origin} turns it on",
            )
        allowed = security.allowed_directories
        if allowed is not None and not any(Path(directory).is_relative_to(at) for at in allowed):
            raise SecurityError(
                f"the working directory {directory} is not among the allowed directories",
                details={"rule": "allowed-directories"},
                hint=f"add it to `allowed_directories` in {security.origin}",
            )

    return check


def _directory(given: str | Path | None) -> Path:
    try:
        directory = Path.cwd() if given is None else Path(os.path.realpath(given))
    except (TypeError, ValueError, OSError) as error:
        raise wrong("working_dir", given, f"a path: {error}") from None
    if not directory.is_dir():
        raise ConfigurationError(f"working_dir is {directory}; there is no such directory")
    return Path(os.path.realpath(directory))


def _time(given: object, security: ShellSecurity) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 2**31:
        raise wrong("timeout", given, "seconds above zero")
    return security.timeout_s or given if given == DEFAULT_TIMEOUT_S else given


def _texts(what: str, given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
        raise wrong(what, given, "a list of commands")
    if not all(isinstance(each, str) and each.strip() for each in given):
        raise ConfigurationError(f"{what} holds something that is no command")
    return tuple(given)


def _text(command: object) -> str:
    if not isinstance(command, str):
        raise ConfigurationError(f"command is {type(command).__name__}; it must be text")
    return command


def _joined(command: object) -> str:
    if not isinstance(command, Sequence) or isinstance(command, bytes):
        raise ConfigurationError(f"command is {type(command).__name__}; it must be text")
    return shlex.join(map(_text, command))
