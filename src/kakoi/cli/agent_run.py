"""`kakoi agent run`: a task of a file, from its text to an end in which nothing stays behind."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kakoi.agent.events import Ended, Event
from kakoi.agent.instructions import Briefing, system_prompt, task_prompt
from kakoi.agent.loop import AgentLoop
from kakoi.agent.models import ModelOptions, open_model
from kakoi.agent.prompt import own_template
from kakoi.agent.servers import Ask
from kakoi.agent.tools import open_tools
from kakoi.agent.transcript import TranscriptFile
from kakoi.cli.agent_view import View
from kakoi.cli.asking import ask_at_terminal
from kakoi.cli.extras import load
from kakoi.cli.live import Signals
from kakoi.cli.opening import Place
from kakoi.config.agents import limits_from, model_options, servers_from, transcript_file
from kakoi.config.project_rules import read_project_rules
from kakoi.config.recording import default_audit_file
from kakoi.printable import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """A task on this machine's own files."""

    title: str
    body: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One task in one workspace. `yes`: to whatever the policy would ask a person."""

    place: Place
    task: LocalTask
    cwd: str
    env: dict[str, str]
    transcript: Path | None = None
    yes: bool = False
    quiet: bool = False

    def start(self, view: View) -> tuple[Ended | None, Path, int | None]:
        """Work on it to the end: how it ended, the transcript, and the signal that ended it."""
        return asyncio.run(self._start(view))

    async def _start(self, view: View) -> tuple[Ended | None, Path, int | None]:
        now = datetime.now(UTC)
        settings = self.place.settings.agent
        path = self.transcript or transcript_file(settings, self.task.name, now)
        signals = Signals()
        with signals.caught():
            work = asyncio.ensure_future(self._work(view, path))
            signals.end(work)
            await asyncio.wait([work])
        if work.cancelled():
            return None, path, signals.received
        return work.result(), path, signals.received

    async def _work(self, view: View, path: Path) -> Ended:
        place, settings = self.place, self.place.settings.agent
        serving = load("kakoi.mcp_server.serving", extra="mcp", what="the agent")
        rules = read_project_rules(place.directory)
        policy = rules.applied_to(place.policy())
        options = model_options(settings)
        wanted = serving.Wanted(
            settings=place.settings,
            policy=policy,
            sandbox=place.config,
            unfit=place.unfit,
            workspace=place.directory,
            cwd=self.cwd,
            audit_file=place.audit_file or default_audit_file(os.environ),
            env=self.env,
        )
        async with (
            open_model(options) as model,
            serving.open_house(wanted) as house,
            open_tools(
                serving.make_server(house), servers_from(settings), ask=asking(view, yes=self.yes)
            ) as tools,
        ):
            tools.leave_out(rules.without_tools)
            for problem in tools.problems:
                view.say(f"kakoi: warning: {shown(problem)}")
            briefing = Briefing(
                workspace=place.directory,
                policy=policy,
                offers=tools.offers,
                template=own_template(place.directory),
                rules=rules.text,
                problems=tools.problems,
            )
            with self._transcript(path, options) as transcript:
                loop = AgentLoop(
                    model,
                    tools,
                    limits=limits_from(settings),
                    listener=_both(transcript, None if self.quiet else view),
                )
                prompt = task_prompt(self.task.title, self.task.body)
                return await loop.run(system_prompt(briefing), prompt)

    def _transcript(self, path: Path, options: ModelOptions) -> TranscriptFile:
        secrets = [options.key, *self.env.values()] if options.key else list(self.env.values())
        return TranscriptFile(
            path,
            clock=lambda: datetime.now(UTC),
            task=self.task.name,
            # A value of a few letters would be found in every word.
            secrets=[secret for secret in secrets if len(secret) >= 8],
        )


def asking(view: View, *, yes: bool) -> Ask | None:
    """Who is asked where the policy wants a person to decide: nobody, if there is no terminal."""
    if yes:
        return _agree
    if not (os.isatty(0) and os.isatty(2)):
        return None

    async def ask(question: str) -> bool:
        view.flush()
        return await ask_at_terminal("".join(f"{shown(line)}\n" for line in question.splitlines()))

    return ask


async def _agree(_question: str) -> bool:
    return True


def _both(first: Callable[[Event], None], second: View | None) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        first(event)
        if second is not None:
            second(event)

    return tell
