"""`kakoi exec`: a command in the environment of a task, through the same gate as its agent's."""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kakoi.cli.asking import Approval
from kakoi.cli.live import Input, pass_through
from kakoi.cli.managing import find
from kakoi.cli.opening import Place, config_option
from kakoi.cli.session import Runs, Session, quiet_option, verbose_option
from kakoi.cli.terminal import terminal_size
from kakoi.config.environments import environment_manager, environment_options
from kakoi.config.loading import load_settings
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import Holding
from kakoi.sandbox.docker_checks import holding_in
from kakoi.tasks.reaching import SETTING


@dataclass(frozen=True, kw_only=True)
class _InTask(Session):
    """A session in an environment that is there, and stays."""

    task: str

    async def _work(self, stack: contextlib.AsyncExitStack, commands: Sequence[Command]) -> int:
        manager = environment_manager(self.place.settings, approver=self.approval)
        found = await find(manager, self.task)
        environment = await stack.enter_async_context(manager.attached(found.task))
        stdin = Input() if self.stdin else None
        (command,) = commands
        async with environment.gate.open(command) as running:
            limits, holding = manager.options.limits, Holding()
            if self.verbose or self.as_json:
                holding = await holding_in(await environment.adapter.channel(), limits)
            self._tell_limits(holding, limits, command)
            result = await pass_through(
                running,
                stdin=stdin,
                terminal=command.terminal is not None,
                shown=not self.as_json,
            )
        self._tell_result(result, command, environment.adapter.name, holding)
        return result.exit_code


@click.command(
    cls=Runs,
    context_settings={"allow_interspersed_args": False},
    epilog="Exit status: the command's own; 124 out of time, 125 kakoi or the environment failed, "
    "126 refused or not executable, 127 not found; 128 + N if signal N ended it or us.",
)
@click.argument("task")
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long it may take, with all that it starts [default: the settings'].",
)
@click.option("--cwd", metavar="DIR", help="Where to start (default: in the project).")
@click.option("--yes", is_flag=True, help="Say yes beforehand where the policy asks.")
@click.option("-t", "--tty", is_flag=True, help="Run it on a terminal of its own.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give it an empty standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it has ended.")
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

    One argument is shell text. Several, or what follows `--`, are a program and its arguments.
    Options stand before TASK.
    """
    is_argv = words[:1] == ("--",) or len(words) > 1
    given = words[1:] if words[:1] == ("--",) else words
    if not given:
        raise click.UsageError("give a command: `kakoi exec TASK -- ls -l`")
    loaded = load_settings(".", config_file=config_file)
    options = environment_options(loaded.settings)
    stdin = not no_stdin and (tty or not os.isatty(0))
    wanted = Command(
        command=given if is_argv else given[0],
        cwd=cwd or options.container.inside,
        env={"TERM": os.environ["TERM"]} if tty and os.environ.get("TERM") else {},
        stdin_open=stdin,
        terminal=terminal_size() if tty else None,
        timeout_s=timeout or options.timeout_s,
        max_output_bytes=options.max_output_bytes,
    )
    session = _InTask(
        place=Place(loaded=loaded),
        policy=options.policy,
        approval=Approval(yes=yes),
        stdin=stdin,
        quiet=quiet,
        verbose=verbose,
        as_json=as_json,
        task=task,
        remedy=f"add `{{}}` to {SETTING}, and prepare the task anew",
    )
    sys.exit(session.run([wanted]))
