"""`kakoi agent`: a model works on a task, with commands that are judged and confined."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kakoi.cli.asking import has_color
from kakoi.cli.extras import load
from kakoi.cli.opening import place_from, place_options, setting_option, variables
from kakoi.errors import ConfigurationError

if TYPE_CHECKING:
    from kakoi.agent.events import Ended

_LONGEST: Final = 1024 * 1024
_STATUS: Final = (
    "Exit status: 0 the model says that it is done, 1 it is not done, 2 it could not begin; "
    "128 + N if signal N ended it (130 Ctrl-C)."
)


@click.group()
def command() -> None:
    """Let a model work on a task, with commands that are judged and confined."""


@command.command(epilog=_STATUS)
@click.argument("file", type=click.Path(path_type=Path))
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
    file: Path,
    cwd: str | None,
    env: tuple[str, ...],
    transcript: Path | None,
    yes: bool,
    as_json: bool,
    quiet: bool,
    **_settings: object,
) -> None:
    """Work on the task in FILE, a text in Markdown, in the workspace.

    What happens is shown as it happens, and written to a transcript (`kakoi agent replay`).
    """
    place = place_from(context)
    title, body = _read_task(file)
    running = _agent("kakoi.cli.agent_run")
    viewing = _agent("kakoi.cli.agent_view")
    view = viewing.View(color=has_color())
    ended, path, signal = running.Run(
        place=place,
        task=running.LocalTask(title=title, body=body, name=file.stem),
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
