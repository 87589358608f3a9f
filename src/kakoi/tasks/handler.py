"""TaskHandler: an issue in, a change out.

    prepare → prompt → loop → push and open a request → cleanup → report the result

Without environments, a task has only the tools of other MCP servers, and its result is a comment.
The environment is removed in every case. A failure is logged and reported in a comment, and the
task ends in error. If the handler is cancelled, the task stays as it was, and can be resumed.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.agents.command_prompt import TEMPLATE_NAME
from kakoi.agents.conversation import Model, ModelAnswer, ToolDescription, Tools, Turn
from kakoi.agents.events import AgentEvent, EventListener, LoopEnded, Outcome
from kakoi.agents.instructions import Briefing, system_prompt, task_prompt
from kakoi.agents.loop import AgentLoop, LoopLimits, ignore_events
from kakoi.agents.project_rules import ProjectRules, decode_project_text
from kakoi.agents.transcript import TranscriptFile
from kakoi.errors import ExecutionError, KakoiError, SourceError
from kakoi.gate import Gate
from kakoi.network.git_remotes import GitCredential
from kakoi.settings.tasks import TaskSection
from kakoi.tasks.changes import Author, PackedChange, ProjectChanges, push
from kakoi.tasks.comments import (
    TaskResult,
    branch_name,
    commit_message,
    format_comment,
    format_result,
    is_own_comment,
    report,
    request_body,
    request_title,
    rules_with_protected,
)
from kakoi.tasks.environment import ContainerInfo
from kakoi.tasks.host_git import HostGit
from kakoi.tasks.resume import PeriodicSave, SavedChanges, earlier_turns, resume_note
from kakoi.tasks.sources.source import (
    Stage,
    StageLabels,
    TaskChange,
    TaskSource,
    TaskStatus,
    is_still_assigned,
    set_stage,
)
from kakoi.tasks.task import Task
from kakoi.tasks.transfer import read_files


class TaskMonitor:
    """Is a task still wanted while an agent works on it? Asks its tracker, at most every `every_s`.

    `stage`: what a person requested instead; None means continue. `pause`: called then.
    """

    def __init__(self, source: TaskSource, task: Task, *, every_s: float) -> None:
        self.stage: Stage | None = None
        self.pause: Callable[[], None] = _nothing
        self._source = source
        self._task = task
        self._every_s = every_s
        self._asked_at: float | None = None

    async def check(self) -> None:
        """Ask, if it is due. If the tracker does not answer, ask again later."""
        now = asyncio.get_running_loop().time()
        if self._asked_at is not None and now - self._asked_at < self._every_s:
            return
        self._asked_at = now
        try:
            found = await self._source.fetch_status(self._task.key)
        except SourceError as error:
            _log.warning("cannot check whether %s is still wanted: %s", self._task.key, error)
            return
        self.stage = requested_stage(self._task, found, self._source.labels, self._source.assignee)
        if self.stage is not None:
            self.pause()


def requested_stage(
    task: Task, found: TaskStatus, labels: StageLabels, assignee: str
) -> Stage | None:
    """`stopped` or `paused`, if a person requested it by a label, by closing or reassigning."""
    if not is_still_assigned(task, found, assignee):
        return "stopped"
    stage = labels.stage_of(found.labels)
    return stage if stage in ("paused", "stopped") else None


class MonitoredModel:
    """A model that is asked only while its task is wanted. `before`: runs before each request."""

    def __init__(
        self,
        model: Model,
        monitor: TaskMonitor,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.monitor = monitor
        self._model = model
        self._before = before

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def is_priced(self) -> bool:
        return self._model.is_priced

    async def ask(
        self, instructions: str, turns: Sequence[Turn], tools: Sequence[ToolDescription]
    ) -> ModelAnswer:
        if self._before is not None:
            await self._before()
        await self.monitor.check()
        # Pausing the loop cancels this call: the cancellation arrives here.
        await asyncio.sleep(0)
        return await self._model.ask(instructions, turns, tools)


def _nothing() -> None: ...


__all__ = ["Agent", "HandlerOptions", "TaskHandler", "TaskResult"]
_log = logging.getLogger(__name__)
# One byte more than is allowed: the reader of the file has a better error for one too long.
_DEFAULTS: Final = TaskSection()
_MAX_RULES_BYTES: Final = 64 * 1024 + 1


class PreparedEnvironment(Protocol):
    """A prepared environment."""

    @property
    def gate(self) -> Gate: ...
    def info(self) -> ContainerInfo: ...


class EnvironmentManager(Protocol):
    """Creates environments. A failed one leaves nothing; `cleanup` never raises."""

    async def prepare_environment(self, task: Task) -> PreparedEnvironment: ...
    async def cleanup(self, task_uuid: str) -> None: ...


class ToolBox(Tools, Protocol):
    """Tools, of which some can be missing or left out."""

    problems: list[str]

    def leave_out(self, names: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The agent that works on tasks.

    `open_tools`: opens the tools for a gate and a folder behind it; commands run through that gate.
        Without a gate there are only the tools of other servers.
    `rule_files`: the names of a project's rule files; `read_rules`: parses those that exist.
    `server`: the name of the server that kakoi's own tools belong to.
    """

    open_model: Callable[[], AbstractAsyncContextManager[Model]]
    open_tools: Callable[[Gate | None, str], AbstractAsyncContextManager[ToolBox]]
    read_rules: Callable[[Mapping[str, bytes]], ProjectRules]
    rule_files: tuple[str, ...] = ()
    server: str = _DEFAULTS.mcp_server.name
    limits: LoopLimits = field(default_factory=LoopLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of a handler.

    `transcripts`: the folder for transcripts. `secrets`: removed from everything that is published.
    `check_s`: the least time between two checks whether the task is still wanted.
    `max_attempts`: a task that was started this often without ending is not started again.
    `protected`: paths of a project that must not be changed.
    `keep_s`: the least time between two saves of the changes so far, to `transcripts`.
    """

    transcripts: Path
    author: Author = field(default_factory=Author)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    check_s: float = _DEFAULTS.sources.check_seconds
    max_attempts: int = _DEFAULTS.queue.max_attempts
    keep_s: float = _DEFAULTS.keep_seconds
    protected: tuple[str, ...] = _DEFAULTS.protected_paths


class TaskHandler:
    """Handles tasks, one at a time. `clock`: the time of day. `listener`: receives the events.

    `environments`: None if tasks cannot run commands.
    """

    def __init__(
        self,
        environments: EnvironmentManager | None,
        agent: Agent,
        options: HandlerOptions,
        *,
        clock: Callable[[], datetime],
        git: HostGit,
        credential_for: Callable[[str], GitCredential | None],
        listener: EventListener = ignore_events,
    ) -> None:
        self._environments = environments
        self._agent = agent
        self._options = options
        self._clock = clock
        self._git = git
        self._credential_for = credential_for
        self._listener = listener

    async def handle(self, task: Task, source: TaskSource, *, attempt: int = 1) -> TaskResult:
        """Work on `task` until it ends. An error is reported as its result, not raised.

        `attempt`: how often it was started, including this time.
        """
        try:
            result = await self._handle(task, source, attempt)
        except KakoiError as error:
            result = self._failed(task, error, TaskResult(stage="error"))
        except Exception as error:
            # It concerns one task only: the worker must survive to handle the next one.
            trace = self._safe("".join(traceback.format_exception(error)))
            _log.error("task %s failed because of a bug in kakoi\n%s", task.key, trace)
            result = TaskResult(stage="error", error=f"kakoi failed: {type(error).__name__}")
        result = self._without_secrets(result)
        if result.ended is not None and result.stage != "paused" and not result.is_kept:
            self._saved_changes(task).discard()
        await finish(report(source, task, result, self._safe(format_result(result))))
        return result

    async def _handle(self, task: Task, source: TaskSource, attempt: int) -> TaskResult:
        if attempt > self._options.max_attempts:
            raise ExecutionError(
                f"the task was started {attempt - 1} times, and its worker was killed each time",
                hint="add the waiting label again to retry it",
            )
        await set_stage(source, task, "processing")
        if self._environments is None:
            return await self._work_without_commands(task, source)
        environment = await self._environments.prepare_environment(task)
        try:
            return await self._work(task, source, environment)
        finally:
            await finish(self._environments.cleanup(task.uuid))

    async def _work_without_commands(self, task: Task, source: TaskSource) -> TaskResult:
        monitor = TaskMonitor(source, task, every_s=self._options.check_s)
        earlier = await self._earlier_turns(task)
        async with self._agent.open_model() as model, self._agent.open_tools(None, "") as tools:
            briefing = Briefing(tools=tools.tools, problems=tools.problems)
            monitored = MonitoredModel(model, monitor)
            result = await self._loop(task, monitored, tools, briefing, earlier)
        if monitor.stage is not None:
            return replace(result, stage=monitor.stage, error="")
        return result

    async def _work(
        self, task: Task, source: TaskSource, environment: PreparedEnvironment
    ) -> TaskResult:
        gate, project = environment.gate, environment.info().workspace_path
        channel = await (await gate.open_sandbox()).channel()
        changes = ProjectChanges(channel, project, author=self._options.author)
        base = await changes.begin(environment.info().commit)
        names = (TEMPLATE_NAME, *self._agent.rule_files)
        files = await read_files(channel, project, names, most_bytes=_MAX_RULES_BYTES)
        template = files.pop(TEMPLATE_NAME, None)
        rules = self._agent.read_rules(files)
        tightened = gate.with_policy(rules.applied_to(gate.policy), approver=None, session="")
        saver = self._periodic_save(task, changes, base)
        monitor = TaskMonitor(source, task, every_s=self._options.check_s)
        earlier = await self._earlier(task, changes)
        async with self._agent.open_model() as model:
            monitored = MonitoredModel(model, monitor, saver.save_if_due)
            try:
                async with self._agent.open_tools(tightened, project) as tools:
                    tools.leave_out(rules.without_tools)
                    briefing = Briefing(
                        workspace=project,
                        policy=tightened.policy,
                        server=self._agent.server,
                        tools=tools.tools,
                        template=None if template is None else _text(template),
                        rules=rules_with_protected(rules.text, self._options.protected),
                        problems=tools.problems,
                    )
                    result = await self._loop(task, monitored, tools, briefing, earlier)
            except asyncio.CancelledError:
                await finish(saver.save())
                raise
            finally:
                await finish(tightened.close())
        if monitor.stage == "paused":
            await saver.save()
        if monitor.stage is not None:
            return replace(result, stage=monitor.stage, error="")
        work = await changes.collect(base) if result.stage == "done" else None
        if work is None:
            return result
        return await self._deliver_or_save(task, source, result, work, saver)

    async def _deliver_or_save(
        self,
        task: Task,
        source: TaskSource,
        result: TaskResult,
        work: PackedChange,
        saver: PeriodicSave,
    ) -> TaskResult:
        try:
            return await self._deliver(task, source, result, work)
        except KakoiError as error:
            # The work was paid for: a person who fixes the cause can apply it.
            await saver.save()
            return self._failed(task, error, replace(result, is_kept=True))

    async def _earlier(self, task: Task, changes: ProjectChanges) -> Sequence[Turn]:
        """The conversation before an interruption, with the changes of that time restored."""
        turns = await self._earlier_turns(task)
        if not turns:
            self._saved_changes(task).discard()  # They belong to an earlier start.
            return ()
        return (*turns, resume_note(is_restored=await self._saved_changes(task).restore(changes)))

    async def _earlier_turns(self, task: Task) -> Sequence[Turn]:
        return await asyncio.to_thread(
            earlier_turns, self._options.transcripts, task_uuid=task.uuid, key=task.key
        )

    def _saved_changes(self, task: Task) -> SavedChanges:
        return SavedChanges(self._options.transcripts, task.uuid)

    def _periodic_save(self, task: Task, changes: ProjectChanges, base: str) -> PeriodicSave:
        return PeriodicSave(
            self._saved_changes(task),
            changes,
            base,
            every_s=self._options.keep_s,
            clock=asyncio.get_running_loop().time,
        )

    async def _loop(
        self,
        task: Task,
        model: MonitoredModel,
        tools: Tools,
        briefing: Briefing,
        earlier: Sequence[Turn],
    ) -> TaskResult:
        options = self._options
        path = options.transcripts / f"{self._clock():%Y%m%dT%H%M%S.%f}-{task.uuid}.jsonl"
        with TranscriptFile(
            path, clock=self._clock, task=task.key, secrets=options.secrets
        ) as transcript:
            loop = AgentLoop(
                model, tools, limits=self._agent.limits, listener=_both(transcript, self._listener)
            )
            model.monitor.pause = loop.pause
            prompt = task_prompt(
                task.title,
                task.body,
                [format_comment(each) for each in task.comments if not is_own_comment(each)],
            )
            ended = await loop.run(system_prompt(briefing), prompt, earlier)
        return _result_from(ended, path)

    async def _deliver(
        self, task: Task, source: TaskSource, result: TaskResult, work: PackedChange
    ) -> TaskResult:
        """Push; for an issue, also open a request. An existing request has the branch already."""
        branch = task.source_branch if task.kind == "pull_request" else None
        branch = branch or branch_name(task, work.commit)
        # Secrets are removed before disarming, which could split one, and again afterwards.
        result = self._without_secrets(result)
        message = commit_message(task, result.summary, [*map(self._safe, work.messages)])
        pushed = await push(
            self._git,
            work,
            repository=task.repository,
            branch=branch,
            message=self._safe(message),
            author=self._options.author,
            credential=self._credential_for(task.repository),
            protected=self._options.protected,
        )
        result = replace(result, branch=branch, remarks=pushed.remarks)
        if task.kind == "pull_request":
            return result
        title = self._safe(request_title(task))
        change = TaskChange(branch=branch, title=title, body=self._safe(request_body(task, result)))
        return replace(result, url=await source.propose(task, change))

    def _failed(self, task: Task, error: KakoiError, result: TaskResult) -> TaskResult:
        _log.error("task %s failed: %s", task.key, self._safe(str(error)))
        hint = f"\n\n{error.hint}" if error.hint else ""
        return replace(result, stage="error", error=f"{error}{hint} ({error.code})")

    def _without_secrets(self, result: TaskResult) -> TaskResult:
        ended = result.ended
        if ended is not None:
            summary, error = self._safe(ended.summary), self._safe(ended.error)
            ended = replace(ended, summary=summary, error=error)
        summary, error = self._safe(result.summary), self._safe(result.error)
        return replace(result, summary=summary, error=error, ended=ended)

    def _safe(self, text: str) -> str:
        return redact(text, self._options.secrets)


def _result_from(ended: LoopEnded, transcript: Path) -> TaskResult:
    return TaskResult(
        stage="done" if ended.outcome is Outcome.DONE else "error",
        summary=ended.summary,
        error=ended.error,
        ended=ended,
        transcript=transcript,
    )


def _text(data: bytes) -> str:
    return decode_project_text(data, Path(TEMPLATE_NAME), hint="fix it, or remove it")


def _both(first: EventListener, second: EventListener) -> Callable[[AgentEvent], None]:
    def notify(event: AgentEvent) -> None:
        first(event)
        second(event)

    return notify
