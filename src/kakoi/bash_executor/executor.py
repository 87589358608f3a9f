"""CommandExecutor: blocking or awaited calls through the gate to one sandbox.

The gate's result is returned or raised as a `CommandAnswer` says, and results of commands that the
caller declared pure are cached (`PureResults`).
"""

import asyncio
import functools
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from kakoi._support.asyncio import LazyResource, background
from kakoi._support.late import dataclass, pattern
from kakoi._support.parsing import wrong
from kakoi._support.text import short_repr
from kakoi.backends.settings import SandboxConfig
from kakoi.backends.workspace import identify, is_within
from kakoi.bash_executor import checks
from kakoi.bash_executor.command_log import CommandLog
from kakoi.bash_executor.validator import CommandValidator, refusal
from kakoi.channel.api import Command
from kakoi.errors import (
    ConfigurationError,
    ExecutionError,
    ExecutionTimeoutError,
    KakoiError,
    SandboxError,
    SecurityError,
    TimeoutError,
    UserCancelledError,
)
from kakoi.gate import Gate
from kakoi.policy.decide import Decision, decide
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.policy.rules import Policy
from kakoi.results import ExecutionResult, Reason, mark_truncated
from kakoi.sandbox.doors import DoorSandbox, sandbox_for
from kakoi.sandbox.options import SandboxOptions


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer to one command. `error` and `code`: why there is no result; empty if there is."""

    stdout: str
    stderr: str
    cwd: str
    exit_code: int
    error: str = ""
    code: str = ""

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.error

    def as_dict(self) -> dict[str, str]:
        """Return the answer as `execute` returns it: every value is a string."""
        fields = {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "cwd": self.cwd,
            "exit_code": str(self.exit_code),
        }
        return fields | {"error": self.error, "code": self.code} if self.error else fields


def answer_from_result(
    result: ExecutionResult, *, cwd: str, limit_s: float, note: str
) -> CommandAnswer:
    """Return the answer; raise if the command timed out or lost its sandbox.

    `note`: a line to append to stderr.
    """
    stdout, stderr = _output(result)
    if result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT):
        raise ExecutionTimeoutError(
            f"Command timed out after {limit_s:g}s",
            details={"timeout": limit_s * 1000, "stdout": stdout, "stderr": stderr, "cwd": cwd},
            hint="raise `executor.timeout`, or run a shorter command",
        )
    if result.reason in (Reason.SANDBOX_LOST, Reason.CANCELLED):
        raise SandboxError(
            f"the sandbox was lost: {result.error}" if result.error else "the sandbox was lost",
            details={"stdout": stdout, "stderr": stderr, "cwd": cwd},
            hint="run it again: the next command opens a new sandbox",
        )
    if result.reason is Reason.NEVER_STARTED:
        note = f"kakoi: the command was not started: {result.error}\n"
    elif result.error:
        note = f"kakoi: {result.error}\n{note}"
    if note and stderr and not stderr.endswith("\n"):
        note = f"\n{note}"
    return CommandAnswer(stdout, stderr + note, cwd, result.exit_code)


def answer_from_error(error: KakoiError, *, cwd: str) -> CommandAnswer:
    """Return an error as one of several answers, with the exit code that `kakoi run` would use."""
    status = 125
    if isinstance(error, TimeoutError):
        status = 124
    elif isinstance(error, SecurityError):
        status = 126
    stdout, stderr = (str(error.details.get(name, "")) for name in ("stdout", "stderr"))
    return CommandAnswer(stdout, stderr, cwd, status, str(error), error.code)


def cancelled_answer(cwd: str) -> CommandAnswer:
    """Return the answer of a command that was stopped or not started because another one failed."""
    return CommandAnswer("", "", cwd, 130, "another command of the batch failed", "CANCELLED")


def _output(result: ExecutionResult) -> tuple[str, str]:
    stdout, stderr = result.stdout, result.stderr
    if result.stdout_truncated:
        stdout = mark_truncated(stdout, total_bytes=result.stdout_bytes)
    if result.stderr_truncated:
        stderr = mark_truncated(stderr, total_bytes=result.stderr_bytes)
    return stdout, stderr


_MOVES: Final = pattern(r"\b(?:cd|pushd|popd)\b")


class TrackedDirectory:
    """Where the next command starts: a directory below `root`, without links on the way.

    It follows `cd`. The shell reports where it ended; the report counts only if it is below the
    root. This is not a security boundary: the sandbox limits what a command can touch.
    """

    def __init__(self, root: str) -> None:
        seen = identify(root, what="root_dir")
        if not seen.is_directory:
            raise ConfigurationError(f"root_dir is {root!r}, which is not a directory")
        self.root = seen.path
        self.path = seen.path

    def check(self) -> None:
        """Raise ExecutionError if the path has become a link; the next command starts above it."""
        if os.path.realpath(self.path) == self.path:
            return
        gone = self.path
        self.path = self._nearest()
        raise ExecutionError(
            f"the working directory {gone!r} has become a link; nothing was run",
            details={"cwd": gone},
            hint=f"the next command starts in {self.path}",
        )

    def lost(self, start: str) -> None:
        """Handle a command that could not start: if `start` is gone, the next one starts above."""
        if start == self.path and not os.path.isdir(start):
            self.path = self._nearest()

    def follow(self, start: str, end: str | None, command: str = "") -> str:
        """Follow a command from `start` to `end` (None: unknown); return a note for the user."""
        if end is None:
            if not _MOVES.search(command):  # It cannot have changed the directory.
                return ""
            return (
                "kakoi: the shell did not report where it ended;"
                f" the working directory is still {self.path!r}\n"
            )
        if end == start:  # A command that stays must not undo a `cd` of another one meanwhile.
            return ""
        try:
            real = os.path.realpath(end)
        except (OSError, ValueError):
            real = ""
        if not is_within(real, self.root):
            return (
                f"kakoi: {short_repr(end)} is outside {self.root!r};"
                f" the working directory is still {self.path!r}\n"
            )
        self.path = real
        return ""

    def _nearest(self) -> str:
        """Return the closest directory above that still exists, or the root."""
        above = os.path.dirname(self.path)
        while is_within(above, self.root):
            if os.path.isdir(above) and os.path.realpath(above) == above:
                return above
            above = os.path.dirname(above)
        return self.root


DEFAULT_TIMEOUT_S = 30.0
_T = TypeVar("_T")


class CommandExecutor:
    """Runs the commands that its validator allows, each in the directory where the last one ended.

    `root_dir`: the directory that commands can change, and where the first one starts.
    `timeout`: the timeout of a command in seconds.
    `sandbox`: where commands run; without it, in the best sandbox of this machine.
    `pure_commands`: commands whose results are cached until another command runs, or a file below
        the root changes (see `PureResults`).
    `log`: where every command is logged (see `CommandLog`).
    `config_file`: the configuration it was created from, for those who ask.

    It can be used from several threads, and inside a running event loop. Its sandbox is opened for
    the first command that is allowed to run, and removed by `close`, with the executor or at exit.

        with CommandExecutor(CommandValidator(["ls"])) as executor:
            print(executor.execute("ls")["stdout"])
    """

    def __init__(
        self,
        validator: CommandValidator,
        root_dir: str | os.PathLike[str] = ".",
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        sandbox: SandboxConfig | None = None,
        pure_commands: Iterable[str] = (),
        log: CommandLog | None = None,
        config_file: Path | None = None,
    ) -> None:
        if not isinstance(validator, CommandValidator):
            raise wrong("the validator", validator, "a CommandValidator")
        if not isinstance(sandbox, SandboxConfig | None):
            raise wrong("the sandbox", sandbox, "a SandboxConfig")
        self._directory = TrackedDirectory(checks.path("root_dir", root_dir))
        self._timeout_s = checks.seconds("timeout", timeout)
        self._pure = PureResults(pure_commands, root=self._directory.root)
        self._log = log or CommandLog(logging.INFO)
        self._policy = _for_root(validator.policy, self._directory.root)
        self._validator = validator
        options = SandboxOptions(
            config=sandbox or SandboxConfig(),
            policy=self._policy,
            workspace=self._directory.root,
            validators=validator.validators,
        )
        self._held: LazyResource[DoorSandbox] = LazyResource(
            functools.partial(sandbox_for, options)
        )
        self._is_closed = False
        self._config_file = config_file

    @property
    def config_file(self) -> Path | None:
        """The configuration that `create_executor` took; None if it was created without."""
        return self._config_file

    def get_cwd(self) -> str:
        """Return where the next command starts: the directory in which the last one ended."""
        return self._directory.path

    @property
    def root_dir(self) -> str:
        """The directory that is never left, with links resolved."""
        return self._directory.root

    def execute(self, command: str, *, timeout: float | None = None) -> dict[str, str]:
        """Run `command`; return its `stdout`, `stderr`, `cwd` (where it ended) and `exit_code`.

        A command that exits with a non-zero exit code, is not found (127) or could not be started
        (126) is a result, not an error. Raises SecurityError if the command was refused, which
        means it had no effect; TimeoutError if it ran too long and was killed with everything it
        started (`details` has its output so far); SandboxError if the sandbox failed;
        ExecutionError if its directory was replaced; AuditError if it could not be recorded and
        therefore did not run.
        """
        return _wait(self._execute(checks.command(command), self._limit_s(timeout)))

    async def aexecute(
        self,
        command: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, and it ends all of it
    ) -> dict[str, str]:
        """Run `execute` as a coroutine. Cancelling it kills the command first."""
        limit_s = self._limit_s(timeout)
        return await background().arun(self._execute(checks.command(command), limit_s))

    def execute_many(
        self, commands: Iterable[str], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[dict[str, str]]:
        """Run several commands; return a result for each, in the same order.

        One after the other, each starts where the previous one ended. In parallel, all start in
        the current directory, and it does not change. A command without a result of its own has
        one with `error`, and its `exit_code` is 126 (refused), 124 (timeout) or 125 (any other
        failure). `stop_on_error`: nothing is started after the first failure, and the list ends
        with it; commands that already run in parallel are killed (130).
        """
        texts = _commands(commands)
        return _wait(self._execute_many(texts, parallel, stop_on_error))

    async def aexecute_many(
        self, commands: Iterable[str], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[dict[str, str]]:
        """Run `execute_many` as a coroutine."""
        texts = _commands(commands)
        return await background().arun(self._execute_many(texts, parallel, stop_on_error))

    def close(self) -> None:
        """Kill running commands and remove the sandbox. A closed executor runs nothing more."""
        self._is_closed = True
        _wait(self._held.close())

    async def aclose(self) -> None:
        """Run `close` as a coroutine."""
        self._is_closed = True
        await background().arun(self._held.close())

    def __enter__(self) -> "CommandExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> "CommandExecutor":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # --- In the background loop --------------------------------------------------------------

    async def _execute(self, text: str, limit_s: float) -> dict[str, str]:
        return (await self._run(text, limit_s)).as_dict()

    async def _run(self, text: str, limit_s: float, *, stay_in: str = "") -> CommandAnswer:
        """Run one command, and log it in any case. `stay_in`: start here, and ignore a `cd`."""
        start, moves = stay_in or self._directory.path, not stay_in
        try:
            answer, cached = await self._judge_and_run(text, start, limit_s, moves=moves)
        except BaseException as error:
            self._log.failed(text, start, error)
            raise
        self._log.ran(text, start, answer.exit_code, cached=cached)
        return answer

    async def _judge_and_run(
        self, text: str, start: str, limit_s: float, *, moves: bool
    ) -> tuple[CommandAnswer, bool]:
        if self._is_closed:
            raise ConfigurationError("this executor is closed", hint="create a new one")
        command = self._command(text, start, limit_s)
        self._directory.check()
        gate = (await self._held.get()).gate
        try:
            result, cached = await self._run_or_recall(gate, command, text, start)
        except SecurityError as error:
            raise _translated(error) from None
        except UserCancelledError:
            decision = await asyncio.to_thread(decide, self._policy, text, cwd=start)
            raise refusal(decision) from None
        note = ""
        if result.reason is Reason.NEVER_STARTED:
            self._directory.lost(start)
        elif moves:
            note = self._directory.follow(start, result.cwd, text)
        cwd = self._directory.path if moves else start
        return answer_from_result(result, cwd=cwd, limit_s=limit_s, note=note), cached

    async def _run_or_recall(
        self, gate: Gate, command: Command, text: str, start: str
    ) -> tuple[ExecutionResult, bool]:
        """Run the command, or take its result from the cache; both go through the gate."""
        if not self._pure.is_used:
            return await gate.run(command), False
        if not await asyncio.to_thread(self._pure.is_pure, text, start):
            self._pure.clear()
            try:
                return await gate.run(command), False
            finally:
                self._pure.clear()
        state, age = await asyncio.to_thread(self._pure.state), self._pure.age
        known = self._pure.get(text, start, state=state)
        if known is not None:
            return await gate.recall(command, known), True
        result = await gate.run(command)
        self._pure.put(text, start, result, age=age, state=state)
        return result, False

    def _command(self, text: str, start: str, limit_s: float) -> Command:
        try:
            return Command(command=text, cwd=start, timeout_s=limit_s, report_shell=True)
        except ConfigurationError as error:
            unfit = error
        # No program accepts such a text; the validator's error explains why.
        self._validator.validate(text)
        raise unfit

    # --- Several -----------------------------------------------------------------------------

    async def _execute_many(
        self, texts: Sequence[str], parallel: bool, stop_on_error: bool
    ) -> list[dict[str, str]]:
        run = self._in_parallel if parallel else self._in_order
        return [answer.as_dict() for answer in await run(texts, stop_on_error=stop_on_error)]

    async def _in_order(self, texts: Sequence[str], *, stop_on_error: bool) -> list[CommandAnswer]:
        answers: list[CommandAnswer] = []
        for text in texts:
            answers.append(await self._answer(text))
            if stop_on_error and not answers[-1].ok:
                break
        return answers

    async def _in_parallel(
        self, texts: Sequence[str], *, stop_on_error: bool
    ) -> list[CommandAnswer]:
        start = self._directory.path
        tasks = [asyncio.create_task(self._answer(text, stay_in=start)) for text in texts]
        try:
            for first in asyncio.as_completed(tasks):
                if not (await first).ok and stop_on_error:
                    break
        finally:  # Also on an interrupt: nothing is left running.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [cancelled_answer(start) if task.cancelled() else task.result() for task in tasks]

    async def _answer(self, text: str, *, stay_in: str = "") -> CommandAnswer:
        """Run one command of several; an error is its answer and leaves the others intact."""
        try:
            return await self._run(text, self._timeout_s, stay_in=stay_in)
        except KakoiError as error:
            return answer_from_error(error, cwd=stay_in or self._directory.path)

    def _limit_s(self, timeout: float | None) -> float:
        return self._timeout_s if timeout is None else checks.seconds("timeout", timeout)


def _wait(work: Coroutine[Any, Any, _T]) -> _T:
    return background().run(work)


def _for_root(policy: Policy, root: str) -> Policy:
    return replace(policy, roots=(root,))


def _translated(error: SecurityError) -> SecurityError:
    """Return a validator's error as it is, and the policy's as this interface words it."""
    return refusal(error.decision) if isinstance(error.decision, Decision) else error


def _commands(value: object) -> list[str]:
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise wrong("commands", value, "a list of commands", hint="execute() takes one")
    return [checks.command(each) for each in value]


_MOST: Final = 256
_LONGEST: Final = 64 * 1024
_NOWHERE: Final = "/nonexistent/kakoi"
_MOST_FILES: Final = 20_000
# CLOCK_REALTIME_COARSE, from which the kernel takes change times. Python has no name for it.
_KERNEL_CLOCK: Final = 5
_Key = tuple[str, str]


class PureResults:
    """The last results by command and directory, kept until an impure command runs.

    `pure_commands`: programs (`pwd`) or programs with a subcommand (`git status`) that the caller
    declares pure. A command is pure if every program in it is, and the policy sees no file that it
    writes below the root. `root`: a result is used again only while nothing below it has changed,
    by any process. With more than 20,000 files there, nothing is cached. Changes elsewhere are
    not noticed.
    """

    def __init__(self, pure_commands: object = (), *, root: str = "/") -> None:
        self._root = root
        listed = checks.texts("pure_commands", pure_commands)
        allowed = AllowedCommands(use_default=False, custom_list=listed)
        # The policy knows which programs a command runs and what it writes. With this list and no
        # writable root it is used only for that.
        policy = (
            load_policy("bash-executor", allowed=allowed, roots=(_NOWHERE,)) if listed else None
        )
        self._policy = policy and replace(policy, block_patterns=(*policy.block_patterns, ">"))
        self._kept: OrderedDict[_Key, tuple[bytes, ExecutionResult]] = OrderedDict()
        self._age = 0

    @property
    def is_used(self) -> bool:
        """True if any command is pure."""
        return self._policy is not None

    def is_pure(self, command: str, cwd: str) -> bool:
        """Tell if the result of this command can be used again."""
        return self._policy is not None and decide(self._policy, command, cwd=cwd).allowed

    def state(self) -> bytes | None:
        """Return what changes with every file below the root; None if that cannot be known."""
        return tree_state(self._root)

    def get(self, command: str, cwd: str, *, state: bytes | None) -> ExecutionResult | None:
        """Return the cached result, or None. `state`: that of the root, now."""
        kept_state, result = self._kept.get((command, cwd), (None, None))
        if result is None or state is None or kept_state != state:
            return None
        self._kept.move_to_end((command, cwd))
        return result

    @property
    def age(self) -> int:
        """A number that changes with every command that may have changed something."""
        return self._age

    def put(
        self, command: str, cwd: str, result: ExecutionResult, *, age: int, state: bytes | None
    ) -> None:
        """Cache the result of a command that started at `age` and `state`, if that is allowed."""
        small = result.stdout_bytes + result.stderr_bytes <= _LONGEST
        if result.ok and result.cwd == cwd and small and age == self._age and state is not None:
            self._kept[command, cwd] = state, result
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop all results: an impure command is about to run, or has run."""
        self._kept.clear()
        self._age += 1


def tree_state(
    root: str, *, most_files: int = _MOST_FILES, now_ns: int | None = None
) -> bytes | None:
    """Return a digest of the names, sizes and change times of all files below `root`.

    None if there are too many, if a directory cannot be read, or if the last change was just now,
    so that another one could get the same time.
    """
    if now_ns is None:
        now_ns = time.clock_gettime_ns(_KERNEL_CLOCK)
    digest, count, folders = hashlib.blake2b(), 0, [root]
    try:
        while folders:
            with os.scandir(folders.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            count += len(entries)
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                if count > most_files or about.st_ctime_ns >= now_ns:
                    return None
                facts = (about.st_mode, about.st_ino, about.st_size, about.st_ctime_ns)
                digest.update(repr((entry.path, facts)).encode("utf-8", "surrogateescape"))
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    except OSError:
        return None
    return digest.digest()
