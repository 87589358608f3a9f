"""`kakoi agent`: a model works on a task, with commands that are judged and confined."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kakoi.cli.asking import has_color
from kakoi.cli.extras import load
from kakoi.cli.managing import json_option, settings_from
from kakoi.cli.opening import config_option, place_from, place_options, setting_option, variables
from kakoi.config.settings import Settings
from kakoi.errors import ConfigurationError
from kakoi.tasks.sources.files import file_key

if TYPE_CHECKING:
    from kakoi.agent.events import Ended

_LONGEST: Final = 1024 * 1024
_SIGNALS: Final = "128 + N if signal N ended it (130 Ctrl-C)."
_STATUS: Final = (
    "Exit status: 0 the model says that it is done, 1 it is not done, 2 it could not begin; "
    f"{_SIGNALS}"
)
_continuous: Final = click.option(
    "--continuous", is_flag=True, help="Go on until a signal comes, instead of ending when idle."
)


@click.group()
def command() -> None:
    """Let a model work on a task, with commands that are judged and confined."""


@command.command(epilog=_STATUS)
@click.argument("target", metavar="URL|FILE")
@setting_option("agent.model", "--model", metavar="PROVIDER:NAME")
@setting_option("agent.base_url", "--model-url", metavar="URL")
@setting_option("agent.max_steps", "--max-steps", metavar="COUNT")
@setting_option("agent.max_seconds", "--max-seconds", metavar="SECONDS")
@setting_option("agent.max_cost", "--max-cost", metavar="USD")
@setting_option("policy.profile", "--profile", metavar="NAME")
@place_options
@click.option(
    "--transcript",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write what happens; it must not be there yet.",
)
@click.option("--yes", is_flag=True, help="Say yes beforehand where the policy asks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it has ended.")
@click.option("-q", "--quiet", is_flag=True, help="Show only how it ended.")
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    target: str,
    cwd: str | None,
    env: tuple[str, ...],
    transcript: Path | None,
    yes: bool,
    as_json: bool,
    quiet: bool,
    **_settings: object,
) -> None:
    """Work on a task.

    URL is an issue, or a pull or merge request: it is done in an environment of its own, pushed and
    proposed. So is a FILE in Markdown that begins with `---` and names its repository. Any other
    FILE is a text about the workspace, and worked on there.

    What happens is shown as it happens, and written to a transcript (`kakoi agent replay`).
    """
    place = place_from(context)
    tasks = _agent("kakoi.cli.agent_tasks")
    if tasks.is_a_task(target):
        if transcript is not None or cwd is not None or env:
            raise click.UsageError("--transcript, --cwd and --env are for a FILE in the workspace")
        by_hand = _tasks(place.settings, as_json=as_json, quiet=quiet, yes=yes, by_hand=True)
        sys.exit(by_hand.run(_key(target)))
    title, body = _read_task(Path(target))
    running = _agent("kakoi.cli.agent_run")
    viewing = _agent("kakoi.cli.agent_view")
    view = viewing.View(color=has_color())
    ended, path, signal = running.Run(
        place=place,
        task=running.LocalTask(title=title, body=body, name=Path(target).stem),
        cwd=place.within(cwd or "."),
        env=variables(env, os.environ),
        transcript=transcript,
        yes=yes,
        quiet=quiet,
    ).start(view)
    if quiet and ended is not None:
        view(ended)
    view.say(f"kakoi: the transcript is {path}")
    view.flush()
    if as_json and ended is not None:
        click.echo(json.dumps(_told(ended, path), indent=2))
    if ended is None:
        sys.exit(128 + (signal or 2))
    sys.exit(0 if ended.is_success else 1)


@command.command(
    epilog=f"Exit status: 0, 1 a source of tasks could not be asked, 2 wrong settings; {_SIGNALS}"
)
@_continuous
@json_option
@config_option
def producer(*, continuous: bool, as_json: bool, config_file: Path | None) -> None:
    """Look for tasks that wait, and put them into the queue.

    What crashed runs have left behind is removed, too, at the start and then every
    `tasks.cleanup.interval_hours`.
    """
    tasks = _tasks(settings_from(config_file), as_json=as_json)
    sys.exit(tasks.produce(continuous=continuous))


@command.command(
    epilog=f"Exit status: 0, 1 a task was not done, 2 it could not begin; {_SIGNALS}"
    " The task is given back then, for another consumer to go on with."
)
@_continuous
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Show only how tasks ended.")
@config_option
def consumer(*, continuous: bool, as_json: bool, quiet: bool, config_file: Path | None) -> None:
    """Do the tasks that are in the queue, one after the other."""
    tasks = _tasks(settings_from(config_file), as_json=as_json, quiet=quiet)
    sys.exit(tasks.consume(continuous=continuous))


@command.command(epilog="Exit status: 0, or 2 for a file that is no transcript.")
@click.argument("file", type=click.Path(path_type=Path))
def replay(*, file: Path) -> None:
    """Show a transcript as it was shown live."""
    reading = _agent("kakoi.agent.transcript")
    lines_of = _agent("kakoi.cli.agent_view").lines_of
    transcript = reading.read_transcript(file)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for _at, event in transcript.events:
        for line in lines_of(event, color=color):
            click.echo(line.encode("utf-8", "replace"))
    if transcript.is_cut:
        raise ConfigurationError(
            f"{file} ends in the middle of a line", hint="whoever wrote it was ended"
        )


def _tasks(
    settings: Settings,
    *,
    as_json: bool,
    quiet: bool = False,
    yes: bool = False,
    by_hand: bool = False,
) -> Any:
    # What goes wrong with a task is for whoever runs this, too.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="kakoi: %(message)s")
    view = _agent("kakoi.cli.agent_view").View(color=has_color())
    ask = _agent("kakoi.cli.agent_run").asking(view, yes=yes) if by_hand else None
    tasks = _agent("kakoi.cli.agent_tasks").Tasks
    return tasks(settings, view, as_json=as_json, quiet=quiet, ask=ask)


def _key(target: str) -> str:
    return target if "://" in target else file_key(target)


def _agent(module: str) -> Any:
    return load(module, extra="agent,mcp", what="the agent")


def _told(ended: "Ended", path: Path) -> dict[str, Any]:
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


def _read_task(file: Path) -> tuple[str, str]:
    """The title and the text of a task."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_LONGEST + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is no UTF-8 text (byte {error.start})") from None
    if len(data) > _LONGEST:
        raise ConfigurationError(f"{file} has more than {_LONGEST} bytes; that is no task")
    if not text.strip():
        raise ConfigurationError(f"{file} is empty", hint="write down what is to be done")
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith("# "):
        return first[2:].strip(), rest
    return "", text
