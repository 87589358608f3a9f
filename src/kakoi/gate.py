"""Gate: the one road. Decide → ask → run → record, for every command of an agent.

Nothing runs that could not be judged, approved where that is needed, and recorded before it began.
"""

import asyncio
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from kakoi.audit import AuditEntry, AuditLog, Event, ended
from kakoi.errors import (
    ConfigurationError,
    KakoiError,
    SandboxError,
    SecurityError,
    UserCancelledError,
)
from kakoi.policy.decide import DEFAULT_CWD, Decision, decide
from kakoi.policy.rules import Policy, Verdict
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command, Running
from kakoi.sandbox.adapter import SandboxAdapter

_log = logging.getLogger(__name__)
Approver = Callable[[Decision], Awaitable[bool]]
Opener = Callable[[], Awaitable[SandboxAdapter]]
DEFAULT_CONCURRENCY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Whose commands these are, for the record."""

    session: str = ""
    task: str = ""
    user: str = ""


class Gate:
    """Lets commands through to one sandbox.

    `sandbox`: a place, or how to open one: then there is none before a command may run in it.
    `cwd`: where commands start that name no directory; the policy judges paths from there.
    `approver`: is asked when the policy says ask. Without one the answer is no.
    `audit`: where everything is recorded; None records nothing.
    `concurrency`: how many commands may run at once; the others wait their turn.
    `ask_always`: the approver is asked about every command, also where the policy would not.
    `validators`: are shown every command that the policy lets pass, and refuse by SecurityError.
    """

    def __init__(
        self,
        policy: Policy,
        sandbox: SandboxAdapter | Opener,
        *,
        cwd: str = DEFAULT_CWD,
        approver: Approver | None = None,
        audit: AuditLog | None = None,
        labels: Labels | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        ask_always: bool = False,
        validators: Sequence[Callable[[str], object]] = (),
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"concurrency is {concurrency}; it must be at least 1")
        self._policy = policy
        self.sandbox = None if callable(sandbox) else sandbox
        self._open_sandbox = sandbox if callable(sandbox) else None
        self._opening = asyncio.Lock()
        self._cwd = cwd
        self._approver = approver
        self._audit = audit
        self._labels = labels or Labels()
        self._turns = asyncio.Semaphore(concurrency)
        self._ask_always = ask_always
        self._validators = tuple(validators)
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command` to its end.

        SecurityError: the policy said no. UserCancelledError: a person did, or nobody was there
        to be asked. Whatever came of a command that was let through is a result.
        """
        entry = await self._admit(command)
        async with self._turns:
            sandbox = await self._place()
            async with self._recording(entry, sandbox) as record:
                result = await sandbox.run(command)
                await record(result)
        return result

    async def recall(self, command: Command, result: ExecutionResult) -> ExecutionResult:
        """Judge and record `command` as `run` does, but give the `result` of an earlier run of it.

        Nothing is started; the record has `cache` for the sandbox.
        """
        entry = replace(await self._admit(command), sandbox="cache")
        await self._record(entry)
        await self._record_end(ended(entry, result))
        return result

    @contextlib.asynccontextmanager
    async def open(self, command: Command) -> AsyncIterator[Running]:
        """Run with live output and input; leaving the block ends the command. Raises as `run`."""
        entry = await self._admit(command)
        async with self._turns:
            sandbox = await self._place()
            async with self._recording(entry, sandbox) as record:
                channel = await sandbox.channel()
                async with channel.open(command) as running:
                    yield running
                    await record(await running.result())

    async def start(self, command: Command) -> str:
        """Start a job that outlives this call; returns its id. Raises as `run`.

        Jobs take no turn: they may run for ever. Its end is recorded if we live to see it.
        """
        entry = await self._admit(command)
        sandbox = await self._place()
        channel = await sandbox.channel()
        entry = replace(entry, sandbox=sandbox.name)
        await self._record(entry)
        job = await channel.start(command)

        async def see_it_end() -> None:
            with contextlib.suppress(KakoiError):
                result = await channel.wait_job(job)
                if result is not None:
                    await self._record(ended(entry, result))

        task = asyncio.ensure_future(see_it_end())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return job

    async def close(self) -> None:
        """Stop waiting for jobs. The sandbox belongs to whoever made it."""
        for task in list(self._jobs):
            task.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    # --- Before ------------------------------------------------------------------------------

    async def _place(self) -> SandboxAdapter:
        async with self._opening:
            if self.sandbox is None:
                assert self._open_sandbox is not None  # noqa: S101 - one of them was given
                self.sandbox = await self._open_sandbox()
            return self.sandbox

    async def _admit(self, command: Command) -> AuditEntry:
        """Judge, and ask if need be; returns what to record when it starts."""
        text = command.command
        judged = text if isinstance(text, str) else shlex.join(text)
        cwd = command.cwd or self._cwd
        # In a thread: what is not plain is read by a parser that is a program of its own.
        decision = await asyncio.to_thread(decide, self._policy, judged, cwd=cwd)
        entry = AuditEntry(
            event=Event.STARTED,
            id=command.id,
            command=judged,
            cwd=cwd,
            sandbox="" if self.sandbox is None else self.sandbox.name,
            verdict=decision.verdict.value,
            rules=tuple(finding.rule for finding in decision.findings),
            reason=decision.findings[0].reason if decision.findings else "",
            session=self._labels.session,
            task=self._labels.task,
            user=self._labels.user,
        )
        if decision.verdict is Verdict.DENY:
            await self._record(replace(entry, event=Event.REFUSED))
            raise decision.error()
        await self._validate(judged, entry)
        if decision.verdict is Verdict.ASK or self._ask_always:
            await self._ask(decision, entry)
        return entry

    async def _validate(self, judged: str, entry: AuditEntry) -> None:
        for validate in self._validators:
            try:
                await asyncio.to_thread(validate, judged)
            except SecurityError as error:
                refusal = replace(entry, event=Event.REFUSED, verdict=Verdict.DENY.value)
                await self._record(replace(refusal, reason=str(error)))
                raise

    async def _ask(self, decision: Decision, entry: AuditEntry) -> None:
        await self._record(replace(entry, event=Event.ASKED))
        agreed = False
        try:
            agreed = self._approver is not None and await self._approver(decision)
        finally:  # Whoever interrupts the question has not agreed.
            answer = Event.APPROVED if agreed else Event.DECLINED
            await asyncio.shield(self._record(replace(entry, event=answer)))
        if not agreed:
            who = "nobody was there to be asked" if self._approver is None else "it was declined"
            raise _cancelled(decision, who)

    # --- After -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _recording(
        self, entry: AuditEntry, sandbox: SandboxAdapter
    ) -> AsyncIterator[Callable[[ExecutionResult], Awaitable[None]]]:
        """A record of the start, and one of the end on every way out."""
        entry = replace(entry, sandbox=sandbox.name)
        await self._record(entry)
        recorded = False

        async def record(result: ExecutionResult) -> None:
            nonlocal recorded
            recorded = True
            await self._record_end(ended(entry, result))

        try:
            yield record
        except BaseException as error:
            if not recorded:
                lost = isinstance(error, SandboxError)
                reason = Reason.SANDBOX_LOST if lost else Reason.CANCELLED
                result = ExecutionResult(125 if lost else 130, "", "", 0, reason=reason)
                await self._record_end(ended(entry, result))
            raise

    async def _record_end(self, entry: AuditEntry) -> None:
        """What has run has run: its result is not withheld because the record failed."""
        try:
            await asyncio.shield(self._record(entry))
        except KakoiError as error:
            _log.error("the end of command %s is not in the audit log: %s", entry.id, error)

    async def _record(self, entry: AuditEntry) -> None:
        if self._audit is not None:
            await asyncio.to_thread(self._audit.append, entry)


def _cancelled(decision: Decision, who: str) -> UserCancelledError:
    if not decision.findings:
        return UserCancelledError(
            f"every command needs approval here, and {who}", details={"command": decision.command}
        )
    worst = decision.findings[0]
    return UserCancelledError(
        f"this command needs approval, and {who}: {worst.reason}",
        details={"rule": worst.rule, "command": decision.command},
        hint=worst.hint,
    )
