"""The `kakoi` command: finds the subcommand's file when it is asked for, and not before."""

import difflib
import signal
import sys
from importlib import import_module

import click

from kakoi import __version__
from kakoi.errors import KakoiError

# Subcommand → its one-line help. The module of the same name (with `_` for `-`) holds a click
# command `command`.
COMMANDS = {
    "run": "Run a command: judged, confined, ended for certain, recorded.",
    "shell": "A shell of your own, confined.",
    "changes": "List what `run --cow` would change in the project.",
    "diff": "Show what it would change, line by line.",
    "apply": "Take its changes over into the project.",
    "discard": "Throw its changes away.",
    "checkpoint": "Remember its changes as they are now, under a name.",
    "rollback": "Go back to a checkpoint.",
    "check": "Judge a command without running it.",
    "policy": "Show what may run, and why.",
    "audit": "Show what happened, and check that the log is whole.",
    "doctor": "Say what this machine can confine, and what would help.",
    "config": "Show the settings that hold, and where each comes from.",
    "explain": "Say what an error or a rule means, and what to do.",
    "mcp": "Serve commands to agents over the Model Context Protocol.",
    "agent": "Let a model work on a task, with commands that are judged and confined.",
    "prompt": "Print what a model is to be told about commands.",
    "install-client": "Make kakoi known to Claude Code, Cursor, Codex, VS Code or Gemini CLI.",
    "hook": "Judge the commands of an agent that runs them itself.",
    "install": "Install packages that are on a list.",
    "image": "Make the images of environments, list and check them.",
    "cache": "Keep downloads of packages, of which every task gets a copy.",
    "ps": "List the environments of tasks, and what they are doing.",
    "exec": "Run a command in the environment of a task, judged and recorded.",
    "cp": "Copy a file into the environment of a task, or out of it.",
    "logs": "List the jobs of a task, or print what a job has written.",
    "stop": "End the environment of a task and take it away.",
    "prune": "Take away environments that were left behind.",
    "stats": "Sum up what environments use, and what has failed.",
    "completion": "Print what a shell needs to complete these commands.",
    "version": "Say what is installed.",
}


class Lazy(click.Group):
    """Imports a subcommand's module only when that subcommand is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        found: click.Command = import_module(f"kakoi.cli.{module}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            advice = f" Did you mean `kakoi {close[0]}`?" if close else ""
            ctx.fail(f"There is no command {args[0]!r}.{advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """An error of ours is told with its way out and exit status 2, never as a traceback."""
        try:
            return super().invoke(ctx)
        except KakoiError as error:
            import_module("kakoi.cli.telling").say_error(error)
            sys.exit(2)
        except KeyboardInterrupt:
            # Not click's own way: it has a status that means something else in many commands.
            sys.exit(128 + signal.SIGINT)


_STATUS = (
    "Exit status: 0 it went well, 2 wrong usage or settings, or no room for what is written; 128 + "
    "N if signal N ended it (130 Ctrl-C); `kakoi COMMAND -h` has its others."
)


@click.group(cls=Lazy, epilog=_STATUS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="kakoi %(version)s")
def app() -> None:
    """Run shell commands for AI agents: judged, confined, ended for certain, recorded."""
