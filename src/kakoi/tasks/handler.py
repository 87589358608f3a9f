"""TaskHandler: an issue in, a change out.

    prepare → prompt → loop → push, and propose it → cleanup → say what came of it

The environment is taken away on every way out. Whatever fails is logged and told in a comment, and
the task ends in error; who cancels the handler gets the task back as it was, to be gone on with.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from kakoi.agent.conversation import Model, Tools, Turn
from kakoi.agent.events import Ended, Event, Listener, Outcome
from kakoi.agent.instructions import Briefing, system_prompt, task_prompt
from kakoi.agent.loop import AgentLoop, Limits, ignore
from kakoi.agent.project import checked_text
from kakoi.agent.prompt import TEMPLATE_NAME
from kakoi.agent.transcript import TranscriptFile
from kakoi.errors import ExecutionError, KakoiError
from kakoi.gate import Gate
from kakoi.policy.rules import Policy
from kakoi.redact import redact
from kakoi.tasks.collecting import files_there
from kakoi.tasks.delivery import Author, Delivery, Work
from kakoi.tasks.our_git import OurGit
from kakoi.tasks.publication import push
from kakoi.tasks.remotes import Credential
from kakoi.tasks.resuming import earlier_turns, note
from kakoi.tasks.sources.source import Change, TaskSource, mark
from kakoi.tasks.task import PROTECTED, Task
from kakoi.tasks.telling import (
    Handled,
    branch_name,
    comment_of,
    commit_message,
    request_body,
    request_title,
    tell,
    with_protected,
    words_of,
)
from kakoi.tasks.unfinished import Keeping, Unfinished
from kakoi.tasks.values import ContainerInfo
from kakoi.tasks.watching import Watch, WatchedModel
from kakoi.waiting import finish

__all__ = ["Agent", "Handled", "HandlerOptions", "TaskHandler"]
_log = logging.getLogger(__name__)
# One more than may be read: whoever reads it says in better words that it is too long.
_MAX_RULES_BYTES: Final = 64 * 1024 + 1


class Place(Protocol):
    """A prepared environment."""

    @property
    def gate(self) -> Gate: ...


class Environments(Protocol):
    """Who makes environments. `prepare` leaves nothing if it fails; `cleanup` never raises."""

    async def prepare(self, task: Task) -> ContainerInfo: ...
    def find(self, container_id: str) -> Place: ...
    async def cleanup(self, task_uuid: str) -> None: ...


class ToolBox(Tools, Protocol):
    """Tools, of which some may be missing."""

    problems: list[str]

    def leave_out(self, names: Sequence[str]) -> None: ...


class Rules(Protocol):
    """What a project asks for."""

    @property
    def text(self) -> str: ...
    @property
    def without_tools(self) -> tuple[str, ...]: ...
    def applied_to(self, policy: Policy) -> Policy: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What works on tasks.

    `open_tools`: the tools whose commands go through a gate, in a folder behind it.
    `rule_files`: names of files of a project; `read_rules`: what those that are there ask for.
    """

    open_model: Callable[[], AbstractAsyncContextManager[Model]]
    open_tools: Callable[[Gate, str], AbstractAsyncContextManager[ToolBox]]
    read_rules: Callable[[Mapping[str, bytes]], Rules]
    rule_files: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """`transcripts`: the folder of what was said. `secrets`: never told to anybody.

    `check_s`: the tracker is asked at most so often if a task is still wanted.
    `max_attempts`: a task that was begun so often without an end is not begun again.
    `protected`: paths of a project that may not be changed.
    `keep_s`: what was changed is kept at most so often, in `transcripts`, until the task ends.
    """

    transcripts: Path
    author: Author = field(default_factory=Author)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    check_s: float = 10.0
    max_attempts: int = 5
    keep_s: float = 30.0
    protected: tuple[str, ...] = PROTECTED


class TaskHandler:
    """Does tasks, one at a time. `clock`: the time of day. `listener`: is told what happens."""

    def __init__(
        self,
        environments: Environments,
        agent: Agent,
        options: HandlerOptions,
        *,
        clock: Callable[[], datetime],
        git: OurGit,
        credential_for: Callable[[str], Credential | None],
        listener: Listener = ignore,
    ) -> None:
        self._environments = environments
        self._agent = agent
        self._options = options
        self._clock = clock
        self._git = git
        self._credential_for = credential_for
        self._listener = listener

    async def handle(self, task: Task, source: TaskSource, *, attempt: int = 1) -> Handled:
        """Do `task` to its end. An error is an end, too: it is told, and nothing is raised.

        `attempt`: how often it was begun, this time included.
        """
        try:
            handled = await self._handle(task, source, attempt)
        except KakoiError as error:
            handled = self._failed(task, error, Handled(stage="error"))
        except Exception as error:
            # Of one task: whoever does tasks must live to do the next one.
            where = self._safe("".join(traceback.format_exception(error)))
            _log.error("the task %s failed, and that is a defect of kakoi\n%s", task.key, where)
            handled = Handled(stage="error", error=f"kakoi failed: {type(error).__name__}")
        handled = self._without_secrets(handled)
        if handled.ended is not None and handled.stage != "paused" and not handled.is_kept:
            self._unfinished(task).discard()
        await finish(tell(source, task, handled, self._safe(comment_of(handled))))
        return handled

    async def _handle(self, task: Task, source: TaskSource, attempt: int) -> Handled:
        if attempt > self._options.max_attempts:
            raise ExecutionError(
                f"it was begun {attempt - 1} times, and whoever did it was ended each time",
                hint="give it the waiting label again to have it tried again",
            )
        await mark(source, task, "processing")
        info = await self._environments.prepare(task)
        try:
            return await self._work(task, source, info)
        finally:
            await finish(self._environments.cleanup(task.uuid))

    async def _work(self, task: Task, source: TaskSource, info: ContainerInfo) -> Handled:
        gate = self._environments.find(info.container_id).gate
        channel = await (await gate.place()).channel()
        project = info.workspace_path
        delivery = Delivery(channel, project, author=self._options.author)
        base = await delivery.begin()
        names = (TEMPLATE_NAME, *self._agent.rule_files)
        files = await files_there(channel, project, names, most_bytes=_MAX_RULES_BYTES)
        template = files.pop(TEMPLATE_NAME, None)
        rules = self._agent.read_rules(files)
        tightened = gate.under(rules.applied_to(gate.policy), approver=None, session="")
        keeping = self._keeping(task, delivery, base)
        watch = Watch(source, task, every_s=self._options.check_s)
        earlier = await self._earlier(task, delivery)
        async with self._agent.open_model() as model:
            watched = WatchedModel(model, watch, keeping.between_steps)
            try:
                async with self._agent.open_tools(tightened, project) as tools:
                    tools.leave_out(rules.without_tools)
                    briefing = Briefing(
                        workspace=project,
                        policy=tightened.policy,
                        offers=tools.offers,
                        template=None if template is None else _text(template),
                        rules=with_protected(rules.text, self._options.protected),
                        problems=tools.problems,
                    )
                    handled = await self._loop(task, watched, tools, briefing, earlier)
            except asyncio.CancelledError:
                await finish(keeping.now())
                raise
            finally:
                await finish(tightened.close())
        if watch.stage == "paused":
            await keeping.now()
        if watch.stage is not None:
            return replace(handled, stage=watch.stage, error="")
        if handled.stage != "done":
            return handled
        work = await delivery.collect(base)
        if work is None:
            return handled
        try:
            return await self._deliver(task, source, handled, work)
        except KakoiError as error:
            # It was paid for, and whoever mends what is in the way can apply it.
            await keeping.now()
            return self._failed(task, error, replace(handled, is_kept=True))

    async def _earlier(self, task: Task, delivery: Delivery) -> Sequence[Turn]:
        """What was said before an interruption, with the changes of then brought back."""
        turns = await asyncio.to_thread(
            earlier_turns, self._options.transcripts, task_uuid=task.uuid, key=task.key
        )
        if not turns:
            self._unfinished(task).discard()  # Of another beginning.
            return ()
        return (*turns, note(is_back=await self._unfinished(task).bring_back(delivery)))

    def _unfinished(self, task: Task) -> Unfinished:
        return Unfinished(self._options.transcripts, task.uuid)

    def _keeping(self, task: Task, delivery: Delivery, base: str) -> Keeping:
        return Keeping(
            self._unfinished(task),
            delivery,
            base,
            every_s=self._options.keep_s,
            clock=asyncio.get_running_loop().time,
        )

    async def _loop(
        self,
        task: Task,
        model: WatchedModel,
        tools: Tools,
        briefing: Briefing,
        earlier: Sequence[Turn],
    ) -> Handled:
        options = self._options
        path = options.transcripts / f"{self._clock():%Y%m%dT%H%M%S.%f}-{task.uuid}.jsonl"
        with TranscriptFile(
            path, clock=self._clock, task=task.key, secrets=options.secrets
        ) as transcript:
            loop = AgentLoop(
                model, tools, limits=self._agent.limits, listener=_both(transcript, self._listener)
            )
            model.watch.pause = loop.pause
            prompt = task_prompt(task.title, task.body, words_of(task.comments))
            ended = await loop.run(system_prompt(briefing), prompt, earlier)
        return _handled(ended, path)

    async def _deliver(
        self, task: Task, source: TaskSource, handled: Handled, work: Work
    ) -> Handled:
        """Push, and for an issue open a request; a request that is there has the branch already."""
        branch = task.source_branch if task.kind == "pull_request" else None
        branch = branch or branch_name(task, work.commit)
        # Without secrets before it is disarmed, which may take one apart, and afterwards.
        handled = self._without_secrets(handled)
        message = commit_message(task, handled.summary, [*map(self._safe, work.messages)])
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
        handled = replace(handled, branch=branch, remarks=pushed.remarks)
        if task.kind == "pull_request":
            return handled
        title = self._safe(request_title(task))
        change = Change(branch=branch, title=title, body=self._safe(request_body(task, handled)))
        return replace(handled, url=await source.propose(task, change))

    def _failed(self, task: Task, error: KakoiError, handled: Handled) -> Handled:
        _log.error("the task %s failed: %s", task.key, self._safe(str(error)))
        way = f"\n\n{error.hint}" if error.hint else ""
        return replace(handled, stage="error", error=f"{error}{way} ({error.code})")

    def _without_secrets(self, handled: Handled) -> Handled:
        ended = handled.ended
        if ended is not None:
            summary, error = self._safe(ended.summary), self._safe(ended.error)
            ended = replace(ended, summary=summary, error=error)
        summary, error = self._safe(handled.summary), self._safe(handled.error)
        return replace(handled, summary=summary, error=error, ended=ended)

    def _safe(self, text: str) -> str:
        return redact(text, self._options.secrets)


def _handled(ended: Ended, transcript: Path) -> Handled:
    return Handled(
        stage="done" if ended.outcome is Outcome.DONE else "error",
        summary=ended.summary,
        error=ended.error,
        ended=ended,
        transcript=transcript,
    )


def _text(data: bytes) -> str:
    return checked_text(data, Path(TEMPLATE_NAME), hint="mend it, or remove it")


def _both(first: Listener, second: Listener) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        first(event)
        second(event)

    return tell
