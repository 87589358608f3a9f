"""`kakoi env`: the environments of tasks."""

from typing import Final

import click

from kakoi.cli.group import LazyGroup, help_end

_COMMANDS: Final = {
    "ls": "List task environments and their state.",
    "exec": "Run a command in a task's environment, judged and recorded.",
    "cp": "Copy a file into a task's environment, or out of it.",
    "logs": "List the jobs of a task, or print the output of a job.",
    "stop": "End and remove a task's environment.",
    "prune": "Remove environments that were left behind.",
    "stats": "Summarize resource usage and failures.",
}


@click.group(
    cls=LazyGroup,
    package=__name__,
    sections={"Commands": _COMMANDS},
    elsewhere={"ps": "ls", "list": "ls", "rm": "stop"},
    epilog=help_end("kakoi env ls", "kakoi env exec TASK -- git status"),
)
def command() -> None:
    """Manage the environments of tasks, whichever process created them."""
