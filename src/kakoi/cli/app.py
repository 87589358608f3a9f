"""The `kakoi` command: its subcommands by purpose, and how its errors are reported."""

import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

from kakoi import __version__
from kakoi.cli.garbage import collect_garbage
from kakoi.cli.group import LazyGroup, help_end
from kakoi.errors import KakoiError

PACKAGE: Final = "kakoi.cli.commands"

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Run commands": {
        "run": "Run a command: judged, confined, reliably ended, recorded.",
        "shell": "Open a confined shell for yourself.",
        "install": "Install packages that are on the allowlist.",
    },
    "Judge and explain": {
        "check": "Judge a command without running it.",
        "policy": "Show what is allowed, and why.",
        "explain": "Explain an error code or a policy rule, and what to do.",
    },
    "Review what happened": {
        "copy": "Review, apply or discard what `run --cow` changed.",
        "audit": "Show the audit log, and verify that it is intact.",
    },
    "Connect agents": {
        "mcp": "Serve commands to agents over the Model Context Protocol.",
        "client": "Add kakoi to Claude Code, Cursor, Codex, VS Code or Gemini CLI.",
        "hook": "Judge the commands of an agent that runs them itself.",
        "prompt": "Print the section of a system prompt that explains commands to a model.",
    },
    "Work on tasks": {
        "agent": "Let a model work on a task, with commands that are judged and confined.",
        "env": "Manage task environments: list, enter, copy files, stop.",
        "image": "Build, list and check the images of environments.",
        "cache": "Manage the package downloads that tasks share.",
    },
    "Set up": {
        "doctor": "Test what this machine can confine, and suggest improvements.",
        "config": "Show the effective settings, and where each comes from.",
        "completion": "Print a shell completion script.",
        "version": "Show the installed versions.",
    },
}

# Names that people try at the top level.
_ELSEWHERE: Final = {
    "ps": "env ls",
    "ls": "env ls",
    **{name: f"env {name}" for name in ("exec", "cp", "logs", "stop", "prune", "stats")},
    **{name: f"copy {name}" for name in ("changes", "diff", "apply", "discard")},
    **{name: f"copy {name}" for name in ("checkpoint", "rollback")},
    "install-client": "client install",
}


class App(LazyGroup):
    """The top-level group."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        collect_garbage()
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Report an error of kakoi's with a hint and exit code 2, never as a traceback."""
        try:
            return super().invoke(ctx)
        except KakoiError as error:
            import_module("kakoi.cli.io.messages").print_error(error)
            sys.exit(2)
        except KeyboardInterrupt:
            # click would exit with 1, which means something else in many commands.
            sys.exit(128 + signal.SIGINT)


@click.group(
    cls=App,
    package=PACKAGE,
    sections=SECTIONS,
    elsewhere=_ELSEWHERE,
    epilog=help_end(
        "kakoi run 'ls | wc -l'",
        "kakoi check 'git push --force'",
        exit_codes="0 success; 2 usage or settings error, or output could not be written; 128 + N "
        "if signal N ended kakoi (130 Ctrl-C). `kakoi COMMAND -h` lists the others.",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", message="kakoi %(version)s")
def app() -> None:
    """Run shell commands for AI agents: judged, confined, reliably ended, and recorded."""
