"""`kakoi env exec`: run a command in a task's environment, through the same gate as its agent."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from kakoi._support.late import dataclass
from kakoi.backends.adapter import LimitReport
from kakoi.backends.docker.checks import read_limit_report
from kakoi.channel.api import Command
from kakoi.cli.forwarding_command import ForwardingCommand, quiet_option, verbose_option
from kakoi.cli.group import help_end
from kakoi.cli.io.approval import Approval
from kakoi.cli.io.passthrough import TerminalInput, pass_through
from kakoi.cli.io.terminal import terminal_size
from kakoi.cli.options import config_option
from kakoi.cli.session import CommandSession
from kakoi.cli.target import RunTarget
from kakoi.settings.loader import load_settings
from kakoi.tasks.environments import find_environment
from kakoi.tasks.from_settings import environment_manager, environment_options
from kakoi.tasks.network import SETTING


@dataclass(frozen=True, kw_only=True)
class _TaskSession(CommandSession):
    """A session in an existing environment, which stays."""

    task: str

    async def _work(self, stack: contextlib.AsyncExitStack, commands: Sequence[Command]) -> int:
        manager = environment_manager(self.target.settings, approver=self.approval)
        found = await find_environment(manager, self.task)
        environment = await stack.enter_async_context(manager.attached(found.task))
        stdin = TerminalInput() if self.stdin else None
        (command,) = commands
        async with environment.gate.open(command) as running:
            limits, holding = manager.options.limits, LimitReport()
            if self.verbose or self.as_json:
                holding = await read_limit_report(await environment.adapter.channel(), limits)
            self._report_limits(holding, limits, command)
            result = await pass_through(
                running,
                stdin=stdin,
                terminal=command.terminal is not None,
                shown=not self.as_json,
            )
        self._report_result(result, command, environment.adapter.name, holding)
        return result.exit_code


@click.command(
    cls=ForwardingCommand,
    context_settings={"allow_interspersed_args": False},
    epilog=help_end(
        "kakoi env exec 3f2a 'git log --oneline | head'",
        "kakoi env exec --timeout 60 3f2a -- make test",
        exit_codes="the command's own; 124 timeout; 125 kakoi or the environment failed; 126 "
        "refused or not executable; 127 not found; 128 + N if signal N ended the command or kakoi.",
    ),
)
@click.argument("task")
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the command and everything it started after this time [default: from the settings].",
)
@click.option("--cwd", metavar="DIR", help="Where to start (default: in the project).")
@click.option("--yes", is_flag=True, help="Approve in advance what the policy would ask about.")
@click.option("-t", "--tty", is_flag=True, help="Run the command on a terminal of its own.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give the command an empty stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@quiet_option
@verbose_option
@config_option
def command(
    *,
    task: str,
    words: tuple[str, ...],
    timeout: float | None,
    cwd: str | None,
    yes: bool,
    tty: bool,
    no_stdin: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    config_file: Path | None,
) -> None:
    """Run COMMAND in the environment of TASK, judged and recorded.

    One argument is shell text. Several arguments, or those after `--`, are a program and its
    arguments. Options go before TASK.
    """
    is_argv = words[:1] == ("--",) or len(words) > 1
    argv = words[1:] if words[:1] == ("--",) else words
    if not argv:
        raise click.UsageError("missing command: `kakoi env exec TASK -- ls -l`")
    loaded = load_settings(".", config_file=config_file)
    options = environment_options(loaded.settings)
    stdin = not no_stdin and (tty or not os.isatty(0))
    wanted = Command(
        command=argv if is_argv else argv[0],
        cwd=cwd or options.container.inside,
        env={"TERM": os.environ["TERM"]} if tty and os.environ.get("TERM") else {},
        stdin_open=stdin,
        terminal=terminal_size() if tty else None,
        timeout_s=timeout or options.timeout_s,
        max_output_bytes=options.max_output_bytes,
    )
    session = _TaskSession(
        target=RunTarget(loaded=loaded),
        policy=options.policy,
        approval=Approval(yes=yes),
        stdin=stdin,
        quiet=quiet,
        verbose=verbose,
        as_json=as_json,
        task=task,
        remedy=f"add `{{}}` to {SETTING}, and prepare the task again",
    )
    sys.exit(session.run([wanted]))
