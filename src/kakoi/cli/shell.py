"""`kakoi shell`: a shell of your own in the sandbox, on your terminal."""

import os
import sys

import click

from kakoi.cli.asking import Approval
from kakoi.cli.opening import place_from, place_options, variables
from kakoi.cli.session import Runs, Session, verbose_option
from kakoi.cli.terminal import terminal_size
from kakoi.policy.rules import Entry, Policy
from kakoi.runner.commands import Command

# In this order: not every image has bash.
_SHELLS = (("bash", "--norc", "--noprofile"), ("sh",))
_PROMPT = r"(kakoi) \w \$ "


@click.command(
    cls=Runs,
    epilog="Exit status: the shell's own; 125 kakoi or the sandbox failed.",
)
@place_options
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

    It is yours, not an agent's: what you type is confined, but not judged. Its start and its end
    are recorded, what is typed is not.
    """
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError(
            "a shell needs a terminal for its input and output; `kakoi run` needs none"
        )
    place = place_from(context)
    own = {"TERM": os.environ.get("TERM") or "xterm", "PS1": _PROMPT} | variables(env, os.environ)
    commands = [
        Command(
            command=argv,
            cwd=None if cwd is None else place.within(cwd),
            env=own if argv[0] == "bash" else {**own, "PS1": "(kakoi) $ "},
            stdin_open=True,
            terminal=terminal_size(),
        )
        for argv in _SHELLS
    ]
    # Whoever types this command has decided: the door allows exactly these shells, and no more.
    policy = Policy(
        name="your own shell",
        entries={argv[0]: Entry(argv[0]) for argv in _SHELLS},
        rules=(),
        origins=("kakoi shell",),
    )
    session = Session(
        place=place,
        policy=policy,
        approval=Approval(yes=False),
        stdin=True,
        verbose=verbose,
    )
    sys.exit(session.run(commands))
