"""Gate: the only path into a sandbox. Decide → ask → run → record, for everything an agent does.

Every command and file access is judged, approved if approval is needed, and recorded before it
starts. Otherwise it does not happen.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kakoi._support.asyncio import wait_done
from kakoi.approvals import Approvals, describe
from kakoi.audit import AuditEntry, AuditLog, Event, decision_entry, end_entry
from kakoi.backends.adapter import DEFAULT_CONCURRENCY, SandboxAdapter
from kakoi.channel.api import Channel, Command, JobInfo, RunningCommand, new_id
from kakoi.errors import (
    AuditError,
    ConfigurationError,
    KakoiError,
    SandboxError,
    SecurityError,
)
from kakoi.gate.calls import (
    Answer,
    Approver,
    Call,
    RecordLabels,
    answer_of,
    approval_error,
    cancelled_result,
    depends_on_shell,
    judged_text,
    lost_result,
    with_variables,
)
from kakoi.gate.connections import (
    DedicatedSandboxFor,
    RefusalWatch,
    WatchableProxy,
    WatchedRunning,
    with_blocked_connections,
)
from kakoi.gate.jobs import Jobs
from kakoi.policy.decide import DEFAULT_CWD, Decision, decide, known_decision
from kakoi.policy.file_access import FileAccess, decide_access
from kakoi.policy.rules import Policy, Verdict
from kakoi.results import ExecutionResult

_log = logging.getLogger(__name__)
_Done = TypeVar("_Done")
Opener = Callable[[], Awaitable[SandboxAdapter]]


_PLAIN_CALL = Call()


class Gate:
    """Judges, runs and records commands and file accesses in one sandbox.

    `sandbox`: a sandbox, or a function that opens one. It is called only once a command is
        allowed to run.
    `cwd`: the directory for commands that name none; the policy judges relative paths from there.
    `approver`: asked when the verdict is `ask`. Without an approver the answer is no.
    `audit`: where everything is recorded; None records nothing.
    `concurrency`: how many commands and file accesses can run at once; others wait for one of
        `turns`.
    `ask_always`: ask the approver about every command and file access, even if the policy allows
        it.
    `validators`: called with every command that the policy allows, and with the text of every file
        access (`read /etc/hosts`); they refuse by raising SecurityError.
    `proxy`: decides what the sandbox can reach; results list what it refused.
    `confined`: whichever sandbox is opened, it confines commands, on a network of its own.
    `dedicated`: finds the commands that run in a sandbox of their own.
    `approvals`: answers of the user that are remembered, and answer before the approver is asked.
    """

    def __init__(
        self,
        policy: Policy,
        sandbox: SandboxAdapter | Opener,
        *,
        cwd: str = DEFAULT_CWD,
        approver: Approver | None = None,
        audit: AuditLog | None = None,
        labels: RecordLabels | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        ask_always: bool = False,
        validators: Sequence[Callable[[str], object]] = (),
        proxy: WatchableProxy | None = None,
        confined: bool = False,
        dedicated: DedicatedSandboxFor | None = None,
        approvals: Approvals | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"concurrency is {concurrency}; it must be at least 1")
        self._policy = policy
        self.sandbox = None if callable(sandbox) else sandbox
        self._opener = sandbox if callable(sandbox) else None
        self._opening = asyncio.Lock()
        self._cwd = cwd
        self._approver = approver
        self._audit = audit
        self.labels = labels or RecordLabels()
        self.concurrency = concurrency
        self.turns = asyncio.Semaphore(concurrency)
        self._ask_always = ask_always
        self._validators = tuple(validators)
        self._jobs = Jobs()
        self._has_to_warn = policy.is_open
        self.proxy = proxy
        self._may_confine = confined
        self._dedicated = dedicated
        self.approvals = None if ask_always else approvals

    @property
    def confined(self) -> bool:
        """Whether a sandbox with a network of its own stands behind every command."""
        return self._may_confine and (self.sandbox is None or self.sandbox.name != "host")

    @property
    def policy(self) -> Policy:
        """The policy that judges commands."""
        return self._policy

    def with_policy(self, policy: Policy, *, approver: Approver | None, session: str) -> "Gate":
        """Return a gate with another policy to the same sandbox, audit log and `turns`."""
        gate = Gate(
            policy,
            self.open_sandbox,
            cwd=self._cwd,
            approver=approver,
            audit=self._audit,
            labels=replace(self.labels, session=session),
            concurrency=self.concurrency,
            proxy=self.proxy,
            confined=self.confined,
            dedicated=self._dedicated,
        )
        gate.turns = self.turns
        gate._has_to_warn = False  # This gate opens the sandbox, and warns.
        return gate

    def enter(self, sandbox: SandboxAdapter, *, cwd: str) -> None:
        """Use this sandbox, which is open; commands start in `cwd`, as they see it."""
        self.sandbox = sandbox
        self._cwd = cwd

    async def record_verdict(self, decision: Decision, *, session: str) -> None:
        """Record a decision about a command that does not run here."""
        await self._record(self._judged(decision, new_id(), self._cwd, session))

    def _judged(
        self,
        decision: Decision,
        id: str,
        cwd: str,
        session: str,
        event: Event = Event.JUDGED,
        sandbox: str = "",
    ) -> AuditEntry:
        labels = self.labels
        return decision_entry(
            decision,
            id=id,
            cwd=cwd,
            event=event,
            sandbox=sandbox,
            session=session or labels.session,
            task=labels.task,
            user=labels.user,
        )

    async def judge(self, command: Command, call: Call = _PLAIN_CALL) -> Decision:
        """Return the policy's decision. Nothing is asked, recorded or run.

        Images without bash run text with `sh`, which may parse it differently. Until the sandbox
        is open, it is assumed to have bash.
        """
        decision = await self._decide(command, call, read_by="bash")
        if self.sandbox is None or not depends_on_shell(command, decision):
            return decision
        shell = await self.sandbox.shell()
        return decision if shell == "bash" else await self._decide(command, call, read_by=shell)

    def judge_access(self, access: FileAccess) -> Decision:
        """Return the policy's decision. Nothing is asked, recorded or done."""
        return decide_access(self._policy, access, cwd=self._cwd)

    async def _decide(self, command: Command, call: Call, *, read_by: str) -> Decision:
        text, cwd = judged_text(command, call.variables), command.cwd or self._cwd
        confined = self.confined
        known = known_decision(self._policy, text, cwd=cwd, read_by=read_by, confined=confined)
        if known is not None:
            return known
        # In a thread: commands that are not simple are parsed by an external program.
        return await asyncio.to_thread(
            decide, self._policy, text, cwd=cwd, read_by=read_by, confined=confined
        )

    async def run(self, command: Command, call: Call = _PLAIN_CALL) -> ExecutionResult:
        """Run `command` to its end.

        Raises SecurityError if the policy refuses, UserCancelledError if the user declines or
        nobody can be asked. Once a command is allowed, any outcome is a result.
        """
        entry = await self._admit(command, call)
        command = with_variables(command, call.variables)
        async with (
            self.turns,
            self._place(command) as (sandbox, watch),
            self._recording(entry, sandbox) as record,
        ):
            result = with_blocked_connections(await sandbox.run(command), watch)
            await record(result)
        return result

    async def refuse_hopeless(self, command: Command) -> None:
        """Raise like `run` if nothing could let the command pass. Opens and runs nothing."""
        decision = await self._decide(command, _PLAIN_CALL, read_by="bash")
        needs_approval = decision.verdict is Verdict.ASK or self._ask_always
        hopeless = decision.verdict is Verdict.DENY
        if needs_approval and self._approver is None:
            hopeless = hopeless or not await self._remembered(decision)
        if hopeless:
            await self._pass(decision, command.id, command.cwd or self._cwd, _PLAIN_CALL)

    async def recall(self, command: Command, result: ExecutionResult) -> ExecutionResult:
        """Judge and record `command` like `run`, but return the `result` of an earlier run.

        Starts nothing. The audit record names `cache` as the sandbox.
        """
        entry = replace(await self._admit(command), sandbox="cache")
        await self._record_first(entry, lambda: end_entry(entry, cancelled_result()))
        await self._record_end(end_entry(entry, result))
        return result

    @contextlib.asynccontextmanager
    async def open(
        self, command: Command, call: Call = _PLAIN_CALL
    ) -> AsyncIterator[RunningCommand]:
        """Run with live input and output. Leaving the block ends the command. Raises like `run`."""
        entry = await self._admit(command, call)
        command = with_variables(command, call.variables)
        async with (
            self.turns,
            self._place(command) as (sandbox, watch),
            self._recording(entry, sandbox) as record,
        ):
            channel = await sandbox.channel()
            async with WatchedRunning(channel.open(command), watch) as running:
                yield running
                await record(await running.result())

    async def perform(
        self,
        command: Command,
        work: Callable[[Channel], Awaitable[_Done]],
        call: Call = _PLAIN_CALL,
    ) -> _Done:
        """Do `work` over the channel, judged and recorded as the equivalent `command`.

        If `work` returns an ExecutionResult, that is recorded. Raises like `run`, and whatever
        `work` raises.
        """
        async with self._working(await self._admit(command, call)) as (channel, results):
            done = await work(channel)
            if isinstance(done, ExecutionResult):
                results.append(done)
            return done

    async def access(
        self,
        access: FileAccess,
        work: Callable[[Channel], Awaitable[_Done]],
        call: Call = _PLAIN_CALL,
    ) -> _Done:
        """Do `work` over the channel, which is what `access` says: judged, approved and recorded.

        `work` must use the paths of `access.resolved(…)`. Raises like `run`, and whatever `work`
        raises.
        """
        async with self.accessing(access, call) as channel:
            return await work(channel)

    @contextlib.asynccontextmanager
    async def accessing(
        self, access: FileAccess, call: Call = _PLAIN_CALL
    ) -> AsyncIterator[Channel]:
        """Like `access`, for longer work: done in the block, and recorded at its end."""
        entry = await self._pass(self.judge_access(access), new_id(), self._cwd, call)
        async with self._working(entry) as (channel, _results):
            yield channel

    @contextlib.asynccontextmanager
    async def _working(
        self, entry: AuditEntry
    ) -> AsyncIterator[tuple[Channel, list[ExecutionResult]]]:
        """Yield the channel, and a list for the result; record the start and the end."""
        async with self.turns:
            sandbox = await self.open_sandbox()
            async with self._recording(entry, sandbox) as record:
                results: list[ExecutionResult] = []
                clock = asyncio.get_running_loop().time
                began = clock()
                try:
                    yield await sandbox.channel(), results
                except (OSError, ConfigurationError) as error:
                    took_ms = round((clock() - began) * 1000)
                    await record(ExecutionResult(1, "", "", took_ms, error=str(error)))
                    raise
                took_ms = round((clock() - began) * 1000)
                await record(results[0] if results else ExecutionResult(0, "", "", took_ms))

    async def start(self, command: Command, call: Call = _PLAIN_CALL) -> str:
        """Start a job that outlives this call; returns its id. Raises like `run`.

        Jobs do not count toward `concurrency`: they can run forever. A caller that waits for one
        can hold one of `turns` meanwhile. The end of a job is recorded if this process is still
        running then.
        """
        entry = await self._admit(command, call)
        if call.ready is not None:
            await call.ready()
        started = with_variables(command, call.variables)
        async with contextlib.AsyncExitStack() as place:
            sandbox, watch = await place.enter_async_context(self._place(command))
            channel = await sandbox.channel()
            entry = replace(entry, sandbox=sandbox.name)
            beginning = asyncio.ensure_future(self._begin(channel, entry, started))
            try:
                await asyncio.shield(beginning)
            except AuditError:
                raise
            except BaseException as error:
                # The job may have started anyway: its reply could have been on the way.
                ending = self._call_off(channel, entry, beginning, error)
                await asyncio.shield(self._jobs.track(command.id, ending))
                raise
            if sandbox is not self.sandbox:
                await self._jobs.keep_place(command.id, channel, place.pop_all())
        end = self._see_it_end(channel, entry, command.max_output_bytes, watch)
        self._jobs.track(command.id, end)
        return command.id

    async def wait(self, job: str, *, wait_s: float | None) -> ExecutionResult | None:
        """Return the recorded result of a job; None if it still runs after `wait_s`.

        Its output stays in the sandbox: use `Channel.read_output`.
        """
        if job in self._jobs:
            return await self._jobs.wait(job, wait_s=wait_s)
        return await (await self.job_channel(job)).wait_job(job, wait_s=wait_s)

    async def stop(self, job: str) -> ExecutionResult:
        """End a job and everything it started; returns its result, recorded."""
        channel = await self.job_channel(job)
        result = await channel.stop_job(job)
        return await self._jobs.wait(job) or result

    @property
    def running_jobs(self) -> list[str]:
        """The jobs of this gate that have not ended."""
        return self._jobs.running

    async def job_channel(self, job: str) -> Channel:
        """Return the channel to the sandbox in which a job runs."""
        if own := self._jobs.own_channel(job):
            return own
        if self.sandbox is None:
            raise ConfigurationError(f"there is no job {job!r}: nothing has been started yet")
        return await self.sandbox.channel()

    async def list_jobs(self) -> list[JobInfo]:
        """Return the jobs that the sandboxes know, running or ended."""
        shared = [] if self.sandbox is None else [await self.sandbox.channel()]
        channels = [*shared, *self._jobs.own_channels()]
        return [job for channel in channels for job in await channel.list_jobs()]

    async def _see_it_end(
        self, channel: Channel, entry: AuditEntry, limit_bytes: int, watch: RefusalWatch | None
    ) -> ExecutionResult:
        try:
            result = await channel.wait_job(entry.id)
            assert result is not None  # noqa: S101 - without a timeout it always returns a result
            # All output is still in the sandbox; it is truncated only when it is read.
            result = replace(
                result,
                stdout_truncated=result.stdout_bytes > limit_bytes,
                stderr_truncated=result.stderr_bytes > limit_bytes,
            )
        except (KakoiError, OSError) as error:
            result = lost_result(error)
        result = with_blocked_connections(result, watch)
        await self._record_end(end_entry(entry, result))
        return result

    def _watch(self) -> RefusalWatch | None:
        return None if self.proxy is None else self.proxy.watch_refusals()

    @contextlib.asynccontextmanager
    async def _place(
        self, command: Command
    ) -> AsyncIterator[tuple[SandboxAdapter, RefusalWatch | None]]:
        """The sandbox in which the command runs, and what notes the connections refused there."""
        dedicated = None if self._dedicated is None else await self._dedicated(command)
        if dedicated is None:
            yield await self.open_sandbox(), self._watch()
            return
        async with dedicated as (sandbox, proxy):
            yield sandbox, proxy.watch_refusals()

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
            await self._record_end(end_entry(entry, result))
        return result

    async def close(self, *, ended: bool = False) -> None:
        """Stop waiting for jobs, and end those in sandboxes of their own.

        The caller still owns the sandbox. `ended`: it has been ended; the ends of its jobs are
        recorded.
        """
        await self._jobs.close(ended=ended)

    # --- Before ------------------------------------------------------------------------------

    async def open_sandbox(self) -> SandboxAdapter:
        """Return the sandbox; open it if necessary."""
        if self.sandbox is not None and not self._has_to_warn:
            return self.sandbox
        async with self._opening:
            if self.sandbox is None:
                assert self._opener is not None  # noqa: S101 - one of them was given
                self.sandbox = await self._opener()
            if self._has_to_warn and self.sandbox.name == "host":
                self._has_to_warn = False
                text = "nothing protects this machine: policy `%s` refuses nothing on the bare host"
                _log.warning(text, self._policy.name)
            return self.sandbox

    async def _admit(self, command: Command, call: Call = _PLAIN_CALL) -> AuditEntry:
        """Judge the command and let it pass; see `_pass`."""
        decision = await self.judge(command, call)
        if self.sandbox is None and depends_on_shell(command, decision):
            await self.open_sandbox()
            decision = await self.judge(command, call)
        return await self._pass(decision, command.id, command.cwd or self._cwd, call)

    async def _pass(self, decision: Decision, id: str, cwd: str, call: Call) -> AuditEntry:
        """Let what was judged pass: ask if necessary, and return the entry for its start."""
        rules = ", ".join(finding.rule for finding in decision.findings[:5])
        _log.info(
            "the policy `%s` says %s%s",
            self._policy.name,
            decision.verdict.value,
            f" ({rules})" if rules else "",
        )
        sandbox = "" if self.sandbox is None else self.sandbox.name
        entry = self._judged(decision, id, cwd, call.session, Event.STARTED, sandbox)
        if decision.verdict is Verdict.DENY:
            await self._record(entry)
            raise decision.error()
        await self._validate(decision.command, entry)
        if decision.verdict is Verdict.ASK or self._ask_always:
            await self._ask(decision, entry, call)
        return entry

    async def _validate(self, command: str, entry: AuditEntry) -> None:
        for validate in self._validators:
            try:
                await asyncio.to_thread(validate, command)
            except SecurityError as error:
                refusal = replace(entry, event=Event.REFUSED, verdict=Verdict.DENY.value)
                await self._record(replace(refusal, reason=str(error)))
                raise

    async def _ask(self, decision: Decision, entry: AuditEntry, call: Call) -> None:
        approved_by = call.approved_by or await self._remembered(decision)
        if call.before_asking is not None and not approved_by:
            call.before_asking(decision)
        approver = call.approver or self._approver
        declined = replace(entry, event=Event.DECLINED)
        await self._record_first(replace(entry, event=Event.ASKED), lambda: declined)
        if approved_by:
            reason = f"approved by {approved_by}"
            return await self._record(replace(entry, event=Event.APPROVED, reason=reason))
        agreed: bool | Answer = False
        answer = declined
        try:
            agreed = approver is not None and await answer_of(approver, decision)
            if agreed:
                answer = replace(entry, event=Event.APPROVED)
            if agreed is Answer.HERE:
                answer = replace(answer, reason=await self._remember(decision))
        finally:  # An interrupted question is not an approval.
            await asyncio.shield(self._record(answer))
        if not agreed:
            who = "there was nobody to ask" if approver is None else "it was declined"
            raise approval_error(decision, who)

    async def _remembered(self, decision: Decision) -> str:
        """Return which remembered approvals answer the question; empty if none do."""
        if self.approvals is None:
            return ""
        found = await asyncio.to_thread(self.approvals.answer, decision)
        return f"the remembered approval {describe(found)}" if found else ""

    async def _remember(self, decision: Decision) -> str:
        """Remember the approval; return what to record about it. The command runs in any case."""
        try:
            if self.approvals is None:
                raise ConfigurationError("approvals are not remembered here")
            found = await asyncio.to_thread(self.approvals.remember, decision)
        except (KakoiError, OSError) as error:
            _log.warning("the command runs this time, but will need approval again: %s", error)
            return f"approved once: {error}"
        return f"approved, and remembered as {describe(found)}"

    # --- After -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _recording(
        self, entry: AuditEntry, sandbox: SandboxAdapter
    ) -> AsyncIterator[Callable[[ExecutionResult], Awaitable[None]]]:
        """Record the start, and on every exit path the end."""
        if entry.sandbox != sandbox.name:  # It was not open when the command was judged.
            entry = replace(entry, sandbox=sandbox.name)
        await self._record_first(entry, lambda: end_entry(entry, cancelled_result()))
        recorded = False

        async def record(result: ExecutionResult) -> None:
            nonlocal recorded
            recorded = True
            await self._record_end(end_entry(entry, result))

        try:
            yield record
        except BaseException as error:
            if not recorded:
                lost = isinstance(error, SandboxError)
                result = lost_result(error) if lost else cancelled_result()
                await self._record_end(end_entry(entry, result))
            raise

    async def _record_first(self, entry: AuditEntry, last: Callable[[], AuditEntry]) -> None:
        """Record `entry`. If we are cancelled meanwhile, record `last()` after it."""
        if self._record_now(entry):
            return
        # A write that has begun cannot be stopped.
        writing = asyncio.ensure_future(self._record_in_thread(entry))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await wait_done(self._follow(writing, last()))
            raise

    async def _follow(self, writing: "asyncio.Task[None]", last: AuditEntry) -> None:
        await asyncio.wait([writing])
        if writing.exception() is None:
            await self._record_end(last)

    async def _record_end(self, entry: AuditEntry) -> None:
        """Record the end. The command has run, so a failed record does not withhold its result."""
        try:
            if not self._record_now(entry):
                await asyncio.shield(self._record_in_thread(entry))
        except KakoiError as error:
            _log.error("the end of command %s is not in the audit log: %s", entry.id, error)

    async def _record(self, entry: AuditEntry) -> None:
        if not self._record_now(entry):
            await self._record_in_thread(entry)

    def _record_now(self, entry: AuditEntry) -> bool:
        """Record it if that cannot take long. If not, `_record_in_thread` must do it."""
        return self._audit is None or self._audit.append_now(entry) is not None

    async def _record_in_thread(self, entry: AuditEntry) -> None:
        assert self._audit is not None  # noqa: S101 - or `_record_now` would have done it
        await asyncio.to_thread(self._audit.append, entry)
