"""`kakoi agent run FILE`: work on a task in the workspace, and leave nothing running behind."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.agents.command_prompt import read_project_template
from kakoi.agents.conversation import Tools
from kakoi.agents.events import AgentEvent, LoopEnded
from kakoi.agents.from_settings import limits_from, model_options, servers_from, transcript_file
from kakoi.agents.instructions import Briefing, system_prompt, task_prompt, with_project_rules
from kakoi.agents.loop import AgentLoop
from kakoi.agents.models import ModelOptions, open_model
from kakoi.agents.project_rules import ProjectRules, read_project_rules
from kakoi.agents.tools import AskUser, open_tools
from kakoi.agents.transcript import TranscriptFile
from kakoi.builtin.command_files import is_command_file, load_command_file
from kakoi.builtin.function_tools import FunctionTools, instructions_for
from kakoi.builtin.registry import Tool
from kakoi.builtin.shell import GateRunner, use_runner
from kakoi.cli.io.agent_view import AgentView
from kakoi.cli.io.approval import Approval, ask_about
from kakoi.cli.io.signals import Signals
from kakoi.cli.target import RunTarget
from kakoi.errors import ConfigurationError
from kakoi.gate import Answer
from kakoi.policy.rules import Policy
from kakoi.sandbox.doors import sandbox_for
from kakoi.settings.audit_log import default_audit_file
from kakoi.settings.tasks import EXECUTOR_IS_OFF, HOW_TO_ENABLE
from kakoi.tools.approval import ApprovalAnswer, Question
from kakoi.tools.toolset import Toolset, open_toolset

_ANSWERS: Final = {
    Answer.NO: ApprovalAnswer.NO,
    Answer.YES: ApprovalAnswer.ONCE,
    Answer.HERE: ApprovalAnswer.HERE,
}
_LONGEST: Final = 1024 * 1024
_NO_OTHER_EXECUTOR: Final = (
    "`tasks.mcp_server.command` is not used: a task about the workspace has no container whose id "
    "could be passed to it; kakoi runs the commands"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceTask:
    """A task about the files of the workspace.

    `functions`: the only tools that it has; None: kakoi's own and those of MCP servers.
    """

    title: str
    body: str
    name: str
    functions: Mapping[str, Tool] | None = None


def read_workspace_task(file: Path) -> WorkspaceTask:
    """The task that a file describes, or the command file that it is."""
    if is_command_file(file):
        command = load_command_file(file)
        if not command.task:
            raise ConfigurationError(f"{file} describes no task", hint="say below it what to do")
        return WorkspaceTask(
            title=command.description, body=command.task, name=command.name, functions=command.tools
        )
    title, body = _read_text(file)
    return WorkspaceTask(title=title, body=body, name=file.stem)


def _read_text(file: Path) -> tuple[str, str]:
    """The title and the text of a task."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_LONGEST + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8 text (byte {error.start})") from None
    if len(data) > _LONGEST:
        raise ConfigurationError(f"{file} is too long for a task (more than {_LONGEST} bytes)")
    if not text.strip():
        raise ConfigurationError(f"{file} is empty", hint="describe what to do")
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith("# "):
        return first[2:].strip(), rest
    return "", text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceTaskRun:
    """One task in one workspace. `yes`: approve what the policy would ask about."""

    target: RunTarget
    task: WorkspaceTask
    cwd: str
    env: dict[str, str]
    transcript: Path | None = None
    yes: bool = False
    quiet: bool = False

    def start(self, view: AgentView) -> tuple[LoopEnded | None, Path, int | None]:
        """Work on the task; returns its outcome, the transcript, and the signal that ended it."""
        return asyncio.run(self._start(view))

    async def _start(self, view: AgentView) -> tuple[LoopEnded | None, Path, int | None]:
        now = datetime.now(UTC)
        settings = self.target.settings.agent
        path = self.transcript or transcript_file(settings, self.task.name, now)
        signals = Signals()
        with signals.caught():
            work = asyncio.ensure_future(self._work(view, path))
            signals.cancel_on_signal(work)
            await asyncio.wait([work])
        if work.cancelled():
            return None, path, signals.received
        return work.result(), path, signals.received

    async def _work(self, view: AgentView, path: Path) -> LoopEnded:
        target, settings = self.target, self.target.settings.agent
        rules = read_project_rules(target.directory)
        policy = rules.applied_to(target.policy())
        options = model_options(settings)
        functions = self.task.functions
        if self._is_off and (functions is not None or not servers_from(settings)):
            raise ConfigurationError(EXECUTOR_IS_OFF, hint=HOW_TO_ENABLE)
        opening = (
            self._open_all_tools(policy, rules, view)
            if functions is None
            else self._open_functions(functions, policy, rules)
        )
        async with open_model(options) as model, opening as (tools, instructions):
            with self._transcript(path, options) as transcript:
                loop = AgentLoop(
                    model,
                    tools,
                    limits=limits_from(settings),
                    listener=_both(transcript, None if self.quiet else view),
                )
                prompt = task_prompt(self.task.title, self.task.body)
                return await loop.run(instructions, prompt)

    @property
    def _is_off(self) -> bool:
        """Has the user turned commands off, rather than not enabled environments for tasks?"""
        loaded = self.target.loaded
        return not loaded.settings.tasks.enabled and loaded.origin("tasks.enabled") != "default"

    @contextlib.asynccontextmanager
    async def _open_all_tools(
        self, policy: Policy, rules: ProjectRules, view: AgentView
    ) -> AsyncIterator[tuple[Tools, str]]:
        """Open kakoi's own tools and those of MCP servers; also yields the instructions."""
        directory, settings = self.target.directory, self.target.settings
        name = settings.tasks.mcp_server.name
        others = servers_from(settings.agent)
        if self._is_off:
            async with open_tools(None, others) as tools:
                view.print_line(f"kakoi: warning: {EXECUTOR_IS_OFF}; {HOW_TO_ENABLE}")
                yield tools, system_prompt(Briefing(tools=tools.tools, problems=tools.problems))
            return
        if settings.tasks.mcp_server.is_foreign:
            view.print_line(f"kakoi: warning: {_NO_OTHER_EXECUTOR}")
        async with (
            self._open_toolset(policy) as own,
            open_tools(own, others, name=name, ask=make_ask(view, yes=self.yes)) as tools,
        ):
            tools.leave_out(rules.without_tools)
            for problem in tools.problems:
                view.print_line(f"kakoi: warning: {shown(problem)}")
            briefing = Briefing(
                workspace=directory,
                policy=policy,
                server=name,
                tools=tools.tools,
                template=read_project_template(directory),
                rules=rules.text,
                problems=tools.problems,
            )
            yield tools, system_prompt(briefing)

    @contextlib.asynccontextmanager
    async def _open_functions(
        self, functions: Mapping[str, Tool], policy: Policy, rules: ProjectRules
    ) -> AsyncIterator[tuple[Tools, str]]:
        """Open the functions, in the sandbox of this call; also yields the instructions."""
        approval = Approval(yes=self.yes, approvals=self.target.approvals)
        approve = approval if self.yes or approval.user_is_present else None
        options = self.target.sandbox_options(policy, approve=approve)
        async with sandbox_for(options) as box:
            runner = GateRunner(
                gate=box.gate,
                cwd=self.cwd,
                timeout_s=self.target.settings.execution.timeout_seconds,
                env=self.env,
            )
            named = {
                name: each for name, each in functions.items() if name not in rules.without_tools
            }
            with use_runner(runner):
                tools = FunctionTools(named, directory=self.cwd)
                yield tools, with_project_rules(instructions_for(self.cwd), rules.text)

    @contextlib.asynccontextmanager
    async def _open_toolset(self, policy: Policy) -> AsyncIterator[Toolset]:
        target = self.target
        audit_file = target.audit_file or default_audit_file(os.environ)
        sandbox = target.sandbox_options(policy, approve=None)
        async with (
            sandbox_for(sandbox) as box,
            open_toolset(
                box.gate,
                settings=target.settings,
                workspace=target.directory,
                cwd=self.cwd,
                audit_file=audit_file,
                door="agent",
                env=self.env,
            ) as tools,
        ):
            yield tools

    def _transcript(self, path: Path, options: ModelOptions) -> TranscriptFile:
        secrets = [options.key, *self.env.values()] if options.key else list(self.env.values())
        return TranscriptFile(
            path,
            clock=lambda: datetime.now(UTC),
            task=self.task.name,
            # A short value would match parts of ordinary words.
            secrets=[secret for secret in secrets if len(secret) >= 8],
        )


def make_ask(view: AgentView, *, yes: bool) -> AskUser | None:
    """How to ask a person where the policy wants one to decide; None without a terminal."""
    if yes:
        return _agree
    if not (os.isatty(0) and os.isatty(2)):
        return None

    async def ask(question: Question) -> ApprovalAnswer:
        view.flush()
        answer = await ask_about(
            question.decision, offer=question.offer, description=question.description
        )
        return _ANSWERS[answer]

    return ask


async def _agree(_question: Question) -> ApprovalAnswer:
    return ApprovalAnswer.ONCE


def _both(
    first: Callable[[AgentEvent], None], second: AgentView | None
) -> Callable[[AgentEvent], None]:
    def show(event: AgentEvent) -> None:
        first(event)
        if second is not None:
            second(event)

    return show
