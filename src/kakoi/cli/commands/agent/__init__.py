"""`kakoi agent`: let a model work on a task, with commands that are judged and confined."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kakoi._support.extras import load_extra
from kakoi.cli.group import CommandGroup, help_end
from kakoi.cli.io.streams import stderr_has_color, stdout_has_color
from kakoi.cli.options import (
    config_option,
    json_option,
    read_variables,
    sandbox_options,
    setting_option,
    settings_from,
    target_from,
)
from kakoi.errors import ConfigurationError
from kakoi.settings.model import Settings
from kakoi.tasks.sources.files import file_key

if TYPE_CHECKING:
    from kakoi.agents.events import LoopEnded

_SIGNALS: Final = "128 + N if signal N ended it (130 Ctrl-C)."
_continuous: Final = click.option(
    "--continuous", is_flag=True, help="Run until a signal comes, instead of ending when idle."
)


@click.group(
    cls=CommandGroup,
    epilog=help_end("kakoi agent run task.md", "kakoi agent consumer --continuous"),
)
def command() -> None:
    """Let a model work on a task, with commands that are judged and confined."""


@command.command(
    epilog=help_end(
        "kakoi agent run task.md",
        "kakoi agent run --max-cost 2 https://github.com/owner/project/issues/7",
        exit_codes="0 the model reports success; 1 the task is not done; 2 it could not start; "
        + _SIGNALS,
    )
)
@click.argument("task", metavar="URL|FILE")
@setting_option("agent.model", "--model", metavar="PROVIDER:NAME")
@setting_option("agent.base_url", "--model-url", metavar="URL")
@setting_option("agent.max_steps", "--max-steps", metavar="COUNT")
@setting_option("agent.max_seconds", "--max-seconds", metavar="SECONDS")
@setting_option("agent.max_cost", "--max-cost", metavar="USD")
@setting_option("policy.profile", "--profile", metavar="NAME")
@sandbox_options
@click.option(
    "--transcript",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the transcript to this new file.",
)
@click.option("--yes", is_flag=True, help="Approve in advance what the policy would ask about.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    task: str,
    cwd: str | None,
    env: tuple[str, ...],
    transcript: Path | None,
    yes: bool,
    as_json: bool,
    quiet: bool,
    **_settings: object,
) -> None:
    """Work on a task.

    URL is an issue, or a pull or merge request: the work is done in an environment of its own,
    pushed and proposed. The same happens with a Markdown FILE that begins with `---` and names its
    repository. Any other FILE describes work in the workspace, and is done there. If its front
    matter has `name` and `allowed_tools`, the model has just those of the built-in tools (shell,
    git, file).

    Progress is printed and written to a transcript (`kakoi agent replay`).
    """
    target = target_from(context)
    tasks = _load("kakoi.cli.commands.agent.tracker_tasks")
    if tasks.is_tracker_task(task):
        if transcript is not None or cwd is not None or env:
            raise click.UsageError("--transcript, --cwd and --env need a FILE about the workspace")
        by_hand = _tasks(target.settings, as_json=as_json, quiet=quiet, yes=yes, by_hand=True)
        sys.exit(by_hand.run(_key(task)))
    local = _load("kakoi.cli.commands.agent.workspace_task")
    view = _load("kakoi.cli.io.agent_view").AgentView(color=stderr_has_color())
    ended, path, signal = local.WorkspaceTaskRun(
        target=target,
        task=local.read_workspace_task(Path(task)),
        cwd=target.within(cwd or "."),
        env=read_variables(env, os.environ),
        transcript=transcript,
        yes=yes,
        quiet=quiet,
    ).start(view)
    if quiet and ended is not None:
        view(ended)
    view.print_line(f"kakoi: the transcript is {path}")
    view.flush()
    if as_json and ended is not None:
        click.echo(json.dumps(_outcome_as_dict(ended, path), indent=2))
    if ended is None:
        sys.exit(128 + (signal or 2))
    sys.exit(0 if ended.is_success else 1)


@command.command(
    epilog=help_end(
        "kakoi agent producer",
        "kakoi agent producer --continuous --json",
        exit_codes=f"0 success; 1 a task source failed; 2 settings error; {_SIGNALS}",
    )
)
@_continuous
@json_option
@config_option
def producer(*, continuous: bool, as_json: bool, config_file: Path | None) -> None:
    """Find waiting tasks, and put them into the queue.

    Also removes what crashed runs left behind: at the start, and then every
    `tasks.cleanup.interval_hours`.
    """
    tasks = _tasks(settings_from(config_file), as_json=as_json)
    sys.exit(tasks.produce(continuous=continuous))


@command.command(
    epilog=help_end(
        "kakoi agent consumer",
        "kakoi agent consumer --continuous --quiet",
        exit_codes=f"0 success; 1 a task was not done; 2 it could not start; {_SIGNALS} The "
        "task is then returned to the queue, and another consumer continues it.",
    )
)
@_continuous
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print only how tasks ended.")
@config_option
def consumer(*, continuous: bool, as_json: bool, quiet: bool, config_file: Path | None) -> None:
    """Work on the tasks in the queue, one after the other."""
    tasks = _tasks(settings_from(config_file), as_json=as_json, quiet=quiet)
    sys.exit(tasks.consume(continuous=continuous))


@command.command(
    epilog=help_end(
        "kakoi agent replay transcript.jsonl",
        "kakoi agent replay transcript.jsonl | less",
        exit_codes="0 success; 2 the file is not a transcript.",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
def replay(*, file: Path) -> None:
    """Print a transcript as it was printed live."""
    event_lines = _load("kakoi.cli.io.agent_view").event_lines
    transcript = _load("kakoi.agents.transcript").read_transcript(file)
    color = stdout_has_color()
    for _at, event in transcript.events:
        for line in event_lines(event, color=color):
            click.echo(line.encode("utf-8", "replace"))
    if transcript.is_cut:
        raise ConfigurationError(
            f"{file} ends in the middle of a line", hint="the process that wrote it was killed"
        )


def _tasks(
    settings: Settings,
    *,
    as_json: bool,
    quiet: bool = False,
    yes: bool = False,
    by_hand: bool = False,
) -> Any:
    # Problems with a task also concern the person who runs this.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="kakoi: %(message)s")
    view = _load("kakoi.cli.io.agent_view").AgentView(color=stderr_has_color())
    local = _load("kakoi.cli.commands.agent.workspace_task")
    ask = local.make_ask(view, yes=yes) if by_hand else None
    tasks = _load("kakoi.cli.commands.agent.tracker_tasks").TrackerTasks
    return tasks(settings, view, as_json=as_json, quiet=quiet, ask=ask)


def _key(task: str) -> str:
    return task if "://" in task else file_key(task)


def _load(module: str) -> Any:
    return load_extra(module, extra="agent", feature="the agent")


def _outcome_as_dict(ended: "LoopEnded", path: Path) -> dict[str, Any]:
    return {
        "outcome": str(ended.outcome),
        "summary": ended.summary,
        "error": ended.error,
        "steps": ended.steps,
        "input_tokens": ended.usage.input_tokens,
        "output_tokens": ended.usage.output_tokens,
        "cost": ended.usage.cost,
        "transcript": str(path),
    }
