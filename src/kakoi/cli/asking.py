"""Asking whoever sits at the terminal, when the policy wants a person to decide."""

import contextlib
import os
import sys

from kakoi.cli.output import OutputClosed, write_all
from kakoi.cli.render import render
from kakoi.policy.decide import Decision
from kakoi.printable import shown
from kakoi.waiting import Aside

_YES = (b"y", b"yes")
_SHORT = 80


class Approval:
    """Answers for the gate: yes if that was said beforehand, else what is typed, else no.

    `decision` is what was asked about and not agreed to.
    """

    def __init__(self, *, yes: bool) -> None:
        self._yes = yes
        self.somebody_is_there = os.isatty(0) and os.isatty(2)
        self.decision: Decision | None = None

    async def __call__(self, decision: Decision) -> bool:
        if self._yes:
            return True
        self.decision = decision
        if not self.somebody_is_there:
            return False
        told = render(decision, color=has_color())
        return await ask_at_terminal(f"{told}\n{_rest_of(decision.command)}")


async def ask_at_terminal(told: str) -> bool:
    """Is it to be run? `told`: what and why, in whole lines."""
    put(f"{told}kakoi: run it? [y/N] ")
    # The whole line, as the terminal gives it; nothing of it is the command's input.
    answer = await Aside().call(os.read, 0, 4096)
    return answer.strip().lower() in _YES


def _rest_of(command: str) -> str:
    """All of a command that the findings may not have shown all of: nobody agrees unseen."""
    lines = command.strip().splitlines()
    if len(lines) == 1 and len(command) <= _SHORT:
        return ""
    return "".join(["\nthe whole command:\n", *(f"  | {shown(line)}\n" for line in lines)])


def has_color() -> bool:
    """Is standard error a terminal that may be painted on?"""
    return os.isatty(2) and "NO_COLOR" not in os.environ


def put(text: str) -> None:
    """Write to standard error, without a buffer: what cannot be written is lost, not a failure."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with contextlib.suppress(OutputClosed, OSError):
        write_all(2, text.encode(encoding, "backslashreplace"))
