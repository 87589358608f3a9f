"""`kakoi shell`: an interactive shell in the sandbox, on the user's terminal."""

import os
import sys

import click

from kakoi.channel.api import Command
from kakoi.cli.forwarding_command import ForwardingCommand, verbose_option
from kakoi.cli.group import help_end
from kakoi.cli.io.approval import Approval
from kakoi.cli.io.terminal import terminal_size
from kakoi.cli.options import read_variables, sandbox_options, target_from
from kakoi.cli.session import CommandSession
from kakoi.policy.rules import AllowlistEntry, Policy

# In this order: not every image has bash.
_SHELLS = (("bash", "--norc", "--noprofile"), ("sh",))
_PROMPT = r"(kakoi) \w \$ "


@click.command(
    cls=ForwardingCommand,
    epilog=help_end(
        "kakoi shell",
        "kakoi shell --sandbox docker --image python:3.12-slim",
        exit_codes="the shell's own; 125 kakoi or the sandbox failed.",
    ),
)
@sandbox_options
@verbose_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    cwd: str | None,
    env: tuple[str, ...],
    verbose: bool,
    **_settings: object,
) -> None:
    """Open a shell in the sandbox.

    It is for you, not for an agent: what you type is confined, but not judged. The start and the
    end of the shell are recorded, what you type is not.
    """
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError("a shell needs a terminal as stdin and stdout; `kakoi run` does not")
    target = target_from(context)
    own = {"TERM": os.environ.get("TERM") or "xterm", "PS1": _PROMPT} | read_variables(
        env, os.environ
    )
    commands = [
        Command(
            command=argv,
            cwd=None if cwd is None else target.within(cwd),
            env=own if argv[0] == "bash" else {**own, "PS1": "(kakoi) $ "},
            stdin_open=True,
            terminal=terminal_size(),
        )
        for argv in _SHELLS
    ]
    # By typing this command the user has decided: allow exactly these shells, and nothing else.
    policy = Policy(
        name="your own shell",
        entries={argv[0]: AllowlistEntry(argv[0]) for argv in _SHELLS},
        rules=(),
        origins=("kakoi shell",),
    )
    session = CommandSession(
        target=target,
        policy=policy,
        approval=Approval(yes=False),
        stdin=True,
        verbose=verbose,
    )
    sys.exit(session.run(commands))
