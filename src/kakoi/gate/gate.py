"""Gate: the one road. Decide → ask → run → record, for every command of an agent.

Nothing runs that could not be judged, approved where that is needed, and recorded before it began.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kakoi.audit import AuditEntry, AuditLog, Event, ended, judged
from kakoi.errors import (
    AuditError,
    ConfigurationError,
    KakoiError,
    SandboxError,
    SecurityError,
)
from kakoi.gate.calls import (
    Approver,
    Call,
    Labels,
    cancelled_result,
    depends_on_its_shell,
    judged_text,
    lost_result,
    not_agreed,
    undisturbed,
    with_variables,
)
from kakoi.gate.jobs import Jobs
from kakoi.gate.reaching import Watch, Watchable, WatchedRunning, with_blocked
from kakoi.policy.decide import DEFAULT_CWD, Decision, decide
from kakoi.policy.rules import Policy, Verdict
from kakoi.results import ExecutionResult
from kakoi.runner.commands import Channel, Command, Running, new_id
from kakoi.sandbox.adapter import SandboxAdapter

_log = logging.getLogger(__name__)
_Done = TypeVar("_Done")
Opener = Callable[[], Awaitable[SandboxAdapter]]
DEFAULT_CONCURRENCY = 16


_PLAIN_CALL = Call()


class Gate:
    """Lets commands through to one sandbox.

    `sandbox`: a place, or how to open one: then there is none before a command may run in it.
    `cwd`: where commands start that name no directory; the policy judges paths from there.
    `approver`: is asked when the policy says ask. Without one the answer is no.
    `audit`: where everything is recorded; None records nothing.
    `concurrency`: how many commands may run at once; the others wait their turn.
    `ask_always`: the approver is asked about every command, also where the policy would not.
    `validators`: are shown every command that the policy lets pass, and refuse by SecurityError.
    `proxy`: who decides what the sandbox may reach; results tell what it refused.
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
        proxy: Watchable | None = None,
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
        self.labels = labels or Labels()
        self._turns = asyncio.Semaphore(concurrency)
        self._ask_always = ask_always
        self._validators = tuple(validators)
        self._jobs = Jobs()
        self.proxy = proxy

    @property
    def policy(self) -> Policy:
        """What may run."""
        return self._policy

    def under(self, policy: Policy, *, approver: Approver | None, session: str) -> "Gate":
        """The same road to the same place and record, for commands of ours under their policy."""
        return Gate(
            policy,
            self.place,
            cwd=self._cwd,
            approver=approver,
            audit=self._audit,
            labels=replace(self.labels, session=session),
            proxy=self.proxy,
        )

    async def record_verdict(self, decision: Decision, *, session: str) -> None:
        """Record a decision about something that is not run here."""
        await self._record(self._judged(decision, new_id(), self._cwd, session))

    def _judged(self, decision: Decision, id: str, cwd: str, session: str) -> AuditEntry:
        labels = self.labels
        named = {"session": session or labels.session, "task": labels.task, "user": labels.user}
        return judged(decision, id=id, cwd=cwd, **named)

    async def judge(self, command: Command, call: Call = _PLAIN_CALL) -> Decision:
        """What the policy says; nothing is asked, recorded or run.

        Images without bash read a text with `sh`, which may find other commands in it. As long as
        there is no sandbox, it is taken to have bash.
        """
        decision = await self._decide(command, call, read_by="bash")
        if self.sandbox is None or not depends_on_its_shell(command, decision):
            return decision
        shell = await self.sandbox.shell()
        return decision if shell == "bash" else await self._decide(command, call, read_by=shell)

    async def _decide(self, command: Command, call: Call, *, read_by: str) -> Decision:
        text, cwd = judged_text(command, call.variables), command.cwd or self._cwd
        # In a thread: what is not plain is read by a parser that is a program of its own.
        return await asyncio.to_thread(decide, self._policy, text, cwd=cwd, read_by=read_by)

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command` to its end.

        SecurityError: the policy said no. UserCancelledError: a person did, or nobody was there
        to be asked. Whatever came of a command that was let through is a result.
        """
        entry = await self._admit(command)
        async with self._turns:
            sandbox = await self.place()
            async with self._recording(entry, sandbox) as record:
                watch = self._watch()
                result = with_blocked(await sandbox.run(command), watch)
                await record(result)
        return result

    async def recall(self, command: Command, result: ExecutionResult) -> ExecutionResult:
        """Judge and record `command` as `run` does, but give the `result` of an earlier run of it.

        Nothing is started; the record has `cache` for the sandbox.
        """
        entry = replace(await self._admit(command), sandbox="cache")
        await self._record_first(entry, ended(entry, cancelled_result()))
        await self._record_end(ended(entry, result))
        return result

    @contextlib.asynccontextmanager
    async def open(self, command: Command) -> AsyncIterator[Running]:
        """Run with live output and input; leaving the block ends the command. Raises as `run`."""
        entry = await self._admit(command)
        async with self._turns:
            sandbox = await self.place()
            async with self._recording(entry, sandbox) as record:
                channel = await sandbox.channel()
                async with WatchedRunning(channel.open(command), self._watch()) as running:
                    yield running
                    await record(await running.result())

    async def perform(
        self,
        command: Command,
        work: Callable[[Channel], Awaitable[_Done]],
        call: Call = _PLAIN_CALL,
    ) -> _Done:
        """Do `work` over the channel, judged and recorded as `command`, which would do the same.

        A result that `work` gives is what is recorded. Raises as `run`, and what `work` raises.
        """
        entry = await self._admit(command, call)
        async with self._turns:
            sandbox = await self.place()
            async with self._recording(entry, sandbox) as record:
                try:
                    done = await work(await sandbox.channel())
                except (OSError, ConfigurationError) as error:
                    await record(ExecutionResult(1, "", "", 0, error=str(error)))
                    raise
                result = done if isinstance(done, ExecutionResult) else None
                await record(result or ExecutionResult(0, "", "", 0))
        return done

    async def start(self, command: Command, call: Call = _PLAIN_CALL) -> str:
        """Start a job that outlives this call; returns its id. Raises as `run`.

        Jobs take no turn: they may run for ever. Its end is recorded if we live to see it.
        """
        entry = await self._admit(command, call)
        if call.ready is not None:
            await call.ready()
        sandbox = await self.place()
        channel = await sandbox.channel()
        entry = replace(entry, sandbox=sandbox.name)
        watch = self._watch()
        started = with_variables(command, call.variables)
        beginning = asyncio.ensure_future(self._begin(channel, entry, started))
        try:
            await asyncio.shield(beginning)
        except AuditError:
            raise
        except BaseException as error:
            # It may have begun all the same: the answer was on its way.
            ending = self._call_off(channel, entry, beginning, error)
            await asyncio.shield(self._jobs.see_to_its_end(command.id, ending))
            raise
        end = self._see_it_end(channel, entry, command.max_output_bytes, watch)
        self._jobs.see_to_its_end(command.id, end)
        return command.id

    async def wait(self, job: str, *, wait_s: float) -> ExecutionResult | None:
        """The result of a job, recorded; None if it still runs after `wait_s`.

        Its output is in the sandbox: `Channel.read_output`.
        """
        if job in self._jobs:
            return await self._jobs.wait(job, wait_s=wait_s)
        return await (await self._channel_to(job)).wait_job(job, wait_s=wait_s)

    async def stop(self, job: str) -> ExecutionResult:
        """End a job and everything it started; returns its result, recorded."""
        channel = await self._channel_to(job)
        result = await channel.stop_job(job)
        return await self._jobs.wait(job) or result

    @property
    def running_jobs(self) -> list[str]:
        """The jobs of this gate that have not ended."""
        return self._jobs.running

    async def _channel_to(self, job: str) -> Channel:
        if self.sandbox is None:
            raise ConfigurationError(f"there is no job {job!r}: nothing was started yet")
        return await self.sandbox.channel()

    async def _see_it_end(
        self, channel: Channel, entry: AuditEntry, limit_bytes: int, watch: Watch | None
    ) -> ExecutionResult:
        try:
            result = await channel.wait_job(entry.id)
            assert result is not None  # noqa: S101 - without a time there is no other answer
            # All of it is still in the sandbox: what is cut is cut when it is read.
            result = replace(
                result,
                stdout_truncated=result.stdout_bytes > limit_bytes,
                stderr_truncated=result.stderr_bytes > limit_bytes,
            )
        except (KakoiError, OSError) as error:
            result = lost_result(error)
        result = with_blocked(result, watch)
        await self._record_end(ended(entry, result))
        return result

    def _watch(self) -> Watch | None:
        return None if self.proxy is None else self.proxy.watch()

    async def _begin(self, channel: Channel, entry: AuditEntry, command: Command) -> None:
        await self._record(entry)
        await channel.start(command)

    async def _call_off(
        self,
        channel: Channel,
        entry: AuditEntry,
        beginning: "asyncio.Task[None]",
        error: BaseException,
    ) -> ExecutionResult:
        result = lost_result(error) if isinstance(error, SandboxError) else cancelled_result()
        await asyncio.wait([beginning])
        if not isinstance(beginning.exception(), AuditError):
            with contextlib.suppress(KakoiError, OSError):
                result = await channel.stop_job(entry.id)
            await self._record_end(ended(entry, result))
        return result

    async def close(self) -> None:
        """Stop waiting for jobs. The sandbox belongs to whoever made it."""
        await self._jobs.close()

    # --- Before ------------------------------------------------------------------------------

    async def place(self) -> SandboxAdapter:
        """The sandbox, opened if it was not."""
        async with self._opening:
            if self.sandbox is None:
                assert self._open_sandbox is not None  # noqa: S101 - one of them was given
                self.sandbox = await self._open_sandbox()
            return self.sandbox

    async def _admit(self, command: Command, call: Call = _PLAIN_CALL) -> AuditEntry:
        """Judge, and ask if need be; returns what to record when it starts."""
        decision = await self.judge(command, call)
        if self.sandbox is None and depends_on_its_shell(command, decision):
            await self.place()
            decision = await self.judge(command, call)
        rules = ", ".join(finding.rule for finding in decision.findings[:5])
        _log.info(
            "the policy `%s` says %s%s",
            self._policy.name,
            decision.verdict.value,
            f" ({rules})" if rules else "",
        )
        sandbox = "" if self.sandbox is None else self.sandbox.name
        entry = self._judged(decision, command.id, command.cwd or self._cwd, call.session)
        entry = replace(entry, sandbox=sandbox)
        if decision.verdict is Verdict.DENY:
            await self._record(entry)
            raise decision.error()
        entry = replace(entry, event=Event.STARTED)
        await self._validate(decision.command, entry)
        if decision.verdict is Verdict.ASK or self._ask_always:
            await self._ask(decision, entry, call.approver or self._approver)
        return entry

    async def _validate(self, judged: str, entry: AuditEntry) -> None:
        for validate in self._validators:
            try:
                await asyncio.to_thread(validate, judged)
            except SecurityError as error:
                refusal = replace(entry, event=Event.REFUSED, verdict=Verdict.DENY.value)
                await self._record(replace(refusal, reason=str(error)))
                raise

    async def _ask(self, decision: Decision, entry: AuditEntry, approver: Approver | None) -> None:
        declined = replace(entry, event=Event.DECLINED)
        await self._record_first(replace(entry, event=Event.ASKED), declined)
        agreed = False
        try:
            agreed = approver is not None and await approver(decision)
        finally:  # Whoever interrupts the question has not agreed.
            answer = replace(entry, event=Event.APPROVED) if agreed else declined
            await asyncio.shield(self._record(answer))
        if not agreed:
            who = "nobody was there to be asked" if approver is None else "it was declined"
            raise not_agreed(decision, who)

    # --- After -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _recording(
        self, entry: AuditEntry, sandbox: SandboxAdapter
    ) -> AsyncIterator[Callable[[ExecutionResult], Awaitable[None]]]:
        """A record of the start, and one of the end on every way out."""
        entry = replace(entry, sandbox=sandbox.name)
        await self._record_first(entry, ended(entry, cancelled_result()))
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
                result = lost_result(error) if lost else cancelled_result()
                await self._record_end(ended(entry, result))
            raise

    async def _record_first(self, entry: AuditEntry, last: AuditEntry) -> None:
        """Record `entry`; if we are interrupted meanwhile, `last` follows."""
        # What is being written cannot be stopped any more.
        writing = asyncio.ensure_future(self._record(entry))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await undisturbed(self._follow(writing, last))
            raise

    async def _follow(self, writing: "asyncio.Task[None]", last: AuditEntry) -> None:
        await asyncio.wait([writing])
        if writing.exception() is None:
            await self._record_end(last)

    async def _record_end(self, entry: AuditEntry) -> None:
        """What has run has run: its result is not withheld because the record failed."""
        try:
            await asyncio.shield(self._record(entry))
        except KakoiError as error:
            _log.error("the end of command %s is not in the audit log: %s", entry.id, error)

    async def _record(self, entry: AuditEntry) -> None:
        if self._audit is not None:
            await asyncio.to_thread(self._audit.append, entry)
