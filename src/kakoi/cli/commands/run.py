"""`kakoi run`: run a command judged, confined, reliably ended and recorded, on our streams."""

import os
import sys
from typing import Final

import click

from kakoi.cli.forwarding_command import ForwardingCommand, quiet_option, verbose_option
from kakoi.cli.group import help_end
from kakoi.cli.options import read_variables, sandbox_options, setting_option, target_from

_SECONDS: Final = click.FloatRange(min=0, min_open=True)
_HELP_END: Final = help_end(
    "kakoi run 'ls | wc -l'",
    "kakoi run --timeout 60 --allow-domain example.org -- curl -sS https://example.org",
    exit_codes="the command's own; 124 timeout; 125 kakoi or the sandbox failed; 126 refused or "
    "not executable; 127 not found; 128 + N if signal N ended the command or kakoi (130 Ctrl-C).",
)


class ArgvCommand(ForwardingCommand):
    """Distinguishes `run -- ls` from `run ls`: after `--`, one word is a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        rest = super().parse_args(ctx, args)
        before = len(typed) - len(ctx.params["words"])
        ctx.meta["kakoi.argv"] = before > 0 and typed[before - 1] == "--"
        return rest


def _private(_context: click.Context, _parameter: click.Parameter, fd: int | None) -> int | None:
    """A descriptor of the caller; nothing that kakoi starts inherits it."""
    if fd is not None:
        try:
            os.set_inheritable(fd, False)
        except OSError:
            raise click.BadParameter(f"{fd} is not open") from None
    return fd


@click.command(
    cls=ArgvCommand, epilog=_HELP_END, context_settings={"allow_interspersed_args": False}
)
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@sandbox_options
@setting_option(
    "execution.timeout_seconds",
    "--timeout",
    metavar="SECONDS",
    help="End the command and everything it started after this time.",
)
@click.option(
    "--idle-timeout",
    type=_SECONDS,
    metavar="SECONDS",
    help="End it after this time without output.",
)
@setting_option("policy.profile", "--profile", metavar="NAME")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="Allow this program (`frob`, `git push`; repeatable). What a rule denies stays denied.",
)
@click.option("--yes", is_flag=True, help="Approve in advance what the policy would ask about.")
@click.option("-t", "--tty", is_flag=True, help="Run the command on a terminal of its own.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give the command an empty stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.option(
    "--cwd-fd",
    type=click.IntRange(min=3),
    callback=_private,
    metavar="FD",
    help="Write the directory of the workspace in which the shell ended to this descriptor, "
    "followed by `/`.",
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
    """Run COMMAND if the policy allows it, confined to the workspace, and end everything it starts.

    One argument is shell text. Several arguments, or those after `--`, are a program and its
    arguments. Stdin is forwarded unless it is a terminal; `-t` forwards a terminal too.
    """
    if not words:
        raise click.UsageError("missing command: `kakoi run 'ls | wc -l'` or `kakoi run -- ls -l`")
    target = target_from(context)
    from kakoi.cli.one_command import run_one  # The completion of a word does without it.

    status = run_one(
        target,
        words,
        is_argv=context.meta["kakoi.argv"],
        cwd=None if cwd is None else target.within(cwd),
        env=read_variables(env, os.environ),
        idle_timeout_s=idle_timeout,
        allow=allow,
        yes=yes,
        tty=tty,
        no_stdin=no_stdin,
        as_json=as_json,
        cwd_fd=cwd_fd,
        quiet=quiet,
        verbose=verbose,
    )
    sys.exit(status)
