"""CommandExecutor: blocking calls, or awaited ones, through the one gate to one sandbox."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kakoi.background import Held, background
from kakoi.bash_executor import checks
from kakoi.bash_executor.caching import PureResults
from kakoi.bash_executor.logs import CommandLog
from kakoi.bash_executor.outcomes import Answer, answer_of, cancelled_answer, failed_answer
from kakoi.bash_executor.tracking import TrackedDirectory
from kakoi.bash_executor.validator import CommandValidator, refusal
from kakoi.config.opening import open_gate
from kakoi.errors import ConfigurationError, KakoiError, SecurityError, UserCancelledError
from kakoi.gate import Gate
from kakoi.policy.decide import Decision, decide
from kakoi.policy.rules import Policy
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.settings import SandboxConfig
from kakoi.sections import wrong

DEFAULT_TIMEOUT_S = 30.0
_T = TypeVar("_T")


class CommandExecutor:
    """Runs commands that its validator lets pass, one directory after the other.

    `root_dir`: the directory that commands may change, and where the first one starts.
    `timeout`: how many seconds a command may take.
    `sandbox`: where they run; without it, the best that this machine has.
    `pure_commands`: whose results are kept until another command runs (see `caching`).
    `log`: where every command is told (see `logs`).

    It may be used from several threads, and inside of a running event loop. Its sandbox is opened
    at the first command that may run, and taken away by `close`, with the executor, and at exit.
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
    ) -> None:
        if not isinstance(validator, CommandValidator):
            raise wrong("the validator", validator, "a CommandValidator")
        if not isinstance(sandbox, SandboxConfig | None):
            raise wrong("the sandbox", sandbox, "a SandboxConfig")
        self._directory = TrackedDirectory(checks.path("root_dir", root_dir))
        self._timeout_s = checks.seconds("timeout", timeout)
        self._pure = PureResults(pure_commands)
        self._log = log or CommandLog(logging.INFO)
        self._policy = _for_root(validator.policy, self._directory.root)
        self._validator = validator
        self._held = Held(
            _opener(self._policy, sandbox or SandboxConfig(), self._directory.root, validator)
        )
        self._is_closed = False

    def get_cwd(self) -> str:
        """Where the next command starts: the directory that the last one ended in."""
        return self._directory.path

    @property
    def root_dir(self) -> str:
        """The directory that is never left, without links."""
        return self._directory.root

    def execute(self, command: str, *, timeout: float | None = None) -> dict[str, str]:
        """Run `command`; returns its `stdout`, `stderr`, `cwd` (where it ended) and `exit_code`.

        A command that exits with another status than 0, that is not found (127) or could not be
        started (126) has been run: that is a result. SecurityError: it was refused, and had no
        effect. TimeoutError: it ran too long and was ended, with all that it started; `details`
        holds its output so far. SandboxError: the sandbox failed. ExecutionError: its directory
        was exchanged. AuditError: it could not be recorded, so it did not run.
        """
        return _wait(self._execute(checks.command(command), self._limit_s(timeout)))

    async def aexecute(
        self,
        command: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, and it ends all of it
    ) -> dict[str, str]:
        """`execute` for coroutines. Cancelling it ends the command first."""
        limit_s = self._limit_s(timeout)
        return await background().arun(self._execute(checks.command(command), limit_s))

    def execute_many(
        self, commands: Iterable[str], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[dict[str, str]]:
        """Run several commands; returns a result for each, in their order.

        One after the other, each starts where the one before ended. In parallel, all start where
        the executor is now, and it stays there. A command without a result of its own (refused,
        out of time) has one with `error` in it, its `exit_code` is 126 (refused), 124 (out of
        time) or 125 (another failure). `stop_on_error`: nothing is run after the first that fails,
        and the list ends with it; what already runs in parallel is ended (130).
        """
        texts = _commands(commands)
        return _wait(self._execute_many(texts, parallel, stop_on_error))

    async def aexecute_many(
        self, commands: Iterable[str], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[dict[str, str]]:
        """`execute_many` for coroutines."""
        texts = _commands(commands)
        return await background().arun(self._execute_many(texts, parallel, stop_on_error))

    def close(self) -> None:
        """End what runs and take the sandbox away. A closed executor runs nothing any more."""
        self._is_closed = True
        _wait(self._held.close())

    async def aclose(self) -> None:
        """`close` for coroutines."""
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

    async def _run(self, text: str, limit_s: float, *, stay_in: str = "") -> Answer:
        """One command, told in the log whatever comes of it. `stay_in`: a `cd` does not last."""
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
    ) -> tuple[Answer, bool]:
        if self._is_closed:
            raise ConfigurationError("this executor is closed", hint="make a new one")
        command = self._command(text, start, limit_s)
        self._directory.check()
        gate = await self._held.get()
        try:
            result, cached = await self._through(gate, command, text, start)
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
        return answer_of(result, cwd=cwd, limit_s=limit_s, note=note), cached

    async def _through(
        self, gate: Gate, command: Command, text: str, start: str
    ) -> tuple[ExecutionResult, bool]:
        """By the gate, or from the cache by the gate."""
        if not self._pure.is_used:
            return await gate.run(command), False
        if not await asyncio.to_thread(self._pure.is_pure, text, start):
            self._pure.clear()
            try:
                return await gate.run(command), False
            finally:
                self._pure.clear()
        known, age = self._pure.get(text, start), self._pure.age
        if known is not None:
            return await gate.recall(command, known), True
        result = await gate.run(command)
        self._pure.put(text, start, result, age=age)
        return result, False

    def _command(self, text: str, start: str, limit_s: float) -> Command:
        try:
            return Command(command=text, cwd=start, timeout_s=limit_s, report_shell=True)
        except ConfigurationError as error:
            unfit = error
        # No program can be given such a text, and the validator has words for why.
        self._validator.validate(text)
        raise unfit

    # --- Several -----------------------------------------------------------------------------

    async def _execute_many(
        self, texts: Sequence[str], parallel: bool, stop_on_error: bool
    ) -> list[dict[str, str]]:
        run = self._in_parallel if parallel else self._in_order
        return [answer.as_dict() for answer in await run(texts, stop_on_error=stop_on_error)]

    async def _in_order(self, texts: Sequence[str], *, stop_on_error: bool) -> list[Answer]:
        answers: list[Answer] = []
        for text in texts:
            answers.append(await self._answer(text))
            if stop_on_error and not answers[-1].ok:
                break
        return answers

    async def _in_parallel(self, texts: Sequence[str], *, stop_on_error: bool) -> list[Answer]:
        start = self._directory.path
        tasks = [asyncio.create_task(self._answer(text, stay_in=start)) for text in texts]
        try:
            for first in asyncio.as_completed(tasks):
                if not (await first).ok and stop_on_error:
                    break
        finally:  # Also if we are interrupted: nothing runs on without us.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [cancelled_answer(start) if task.cancelled() else task.result() for task in tasks]

    async def _answer(self, text: str, *, stay_in: str = "") -> Answer:
        """A failure is one of the answers: it does not take those of the others away."""
        try:
            return await self._run(text, self._timeout_s, stay_in=stay_in)
        except KakoiError as error:
            return failed_answer(error, cwd=stay_in or self._directory.path)

    def _limit_s(self, timeout: float | None) -> float:
        return self._timeout_s if timeout is None else checks.seconds("timeout", timeout)


def _wait(work: Coroutine[Any, Any, _T]) -> _T:
    return background().run(work)


def _opener(
    policy: Policy, sandbox: SandboxConfig, root: str, validator: CommandValidator
) -> Callable[[], Any]:
    """Without the executor in it: whoever drops that drops the sandbox."""
    return lambda: open_gate(policy, sandbox, workspace=root, validators=validator.validators)


def _for_root(policy: Policy, root: str) -> Policy:
    return replace(policy, roots=(root,))


def _translated(error: SecurityError) -> SecurityError:
    """Of a validator as it is; of the policy in the words of this face."""
    return refusal(error.decision) if isinstance(error.decision, Decision) else error


def _commands(given: object) -> list[str]:
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Iterable):
        raise wrong("commands", given, "a list of commands", hint="execute() takes one")
    return [checks.command(each) for each in given]
