"""`kakoi run`: a command, judged, confined, ended for certain and recorded, on our streams."""

import os
import stat
import sys
from typing import Final

import click

from kakoi.cli.asking import Approval
from kakoi.cli.opening import place_from, place_options, setting_option, variables
from kakoi.cli.session import Runs, Session, quiet_option, verbose_option
from kakoi.cli.terminal import terminal_size
from kakoi.runner.commands import Command

_SECONDS: Final = click.FloatRange(min=0, min_open=True)
_STATUS: Final = (
    "Exit status: the command's own; 124 out of time, 125 kakoi or the sandbox failed, 126 refused "
    "or not executable, 127 not found; 128 + N if signal N ended it or us (130 Ctrl-C)."
)


class RunsWords(Runs):
    """Tells `run -- ls` from `run ls`: after `--` one word is a program, too, and no shell text."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        before = len(given) - len(ctx.params["words"])
        ctx.meta["kakoi.argv"] = before > 0 and given[before - 1] == "--"
        return rest


def _private(_context: click.Context, _parameter: click.Parameter, fd: int | None) -> int | None:
    """A descriptor of the caller, which nothing that we start inherits."""
    if fd is not None:
        try:
            os.set_inheritable(fd, False)
        except OSError:
            raise click.BadParameter(f"{fd} is not open") from None
    return fd


@click.command(cls=RunsWords, epilog=_STATUS, context_settings={"allow_interspersed_args": False})
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@place_options
@setting_option(
    "execution.timeout_seconds",
    "--timeout",
    metavar="SECONDS",
    help="How long it may take, with all that it starts.",
)
@click.option(
    "--idle-timeout", type=_SECONDS, metavar="SECONDS", help="How long it may write nothing."
)
@setting_option("policy.profile", "--profile", metavar="NAME")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="Allow this program, too (`frob`, `git push`). What a rule denies stays denied.",
)
@click.option("--yes", is_flag=True, help="Say yes beforehand where the policy asks.")
@click.option("-t", "--tty", is_flag=True, help="Run it on a terminal of its own.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give it an empty standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it has ended.")
@click.option(
    "--cwd-fd",
    type=click.IntRange(min=3),
    callback=_private,
    metavar="FD",
    help="Write to this descriptor in which directory of the workspace the shell ended, and a `/`.",
)
@quiet_option
@verbose_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    words: tuple[str, ...],
    cwd: str | None,
    env: tuple[str, ...],
    idle_timeout: float | None,
    allow: tuple[str, ...],
    yes: bool,
    tty: bool,
    no_stdin: bool,
    as_json: bool,
    cwd_fd: int | None,
    quiet: bool,
    verbose: bool,
    **_settings: object,
) -> None:
    """Run COMMAND where it can do no harm, and end all of it.

    One argument is shell text. Several, or what follows `--`, are a program and its arguments.
    Standard input is passed on unless it is a terminal; with -t that, too.
    """
    if not words:
        raise click.UsageError("give a command: `kakoi run 'ls | wc -l'` or `kakoi run -- ls -l`")
    place = place_from(context)
    stdin = not no_stdin and _has_input(tty=tty)
    execution = place.settings.execution
    wanted = Command(
        command=words[0] if len(words) == 1 and not context.meta["kakoi.argv"] else words,
        cwd=None if cwd is None else place.within(cwd),
        env=_terminal_variables(tty=tty) | variables(env, os.environ),
        stdin_open=stdin,
        terminal=terminal_size() if tty else None,
        timeout_s=execution.timeout_seconds,
        idle_timeout_s=idle_timeout,
        max_output_bytes=execution.max_output_size,
        report_shell=cwd_fd is not None,
    )
    session = Session(
        place=place,
        policy=place.policy(allow=allow),
        approval=Approval(yes=yes),
        stdin=stdin,
        quiet=quiet,
        verbose=verbose,
        as_json=as_json,
        cwd_fd=cwd_fd,
    )
    sys.exit(session.run([wanted]))


def _has_input(*, tty: bool) -> bool:
    """Is there anything to read? A terminal only if it is given over to the command."""
    if os.isatty(0):
        return tty
    status = os.fstat(0)
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev)


def _terminal_variables(*, tty: bool) -> dict[str, str]:
    return {"TERM": os.environ["TERM"]} if tty and os.environ.get("TERM") else {}
