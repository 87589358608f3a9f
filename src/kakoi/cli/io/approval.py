"""Asking the user at the terminal when the policy wants a person to decide."""

import os

from kakoi._support.asyncio import BlockingCalls
from kakoi._support.text import shown
from kakoi.cli.io.format import format_decision
from kakoi.cli.io.streams import stderr_has_color, write_stderr
from kakoi.policy.decide import Decision

_YES = (b"y", b"yes")
_SHORT = 80


class Approval:
    """Answers the gate: yes if approved in advance, else what the user types, else no.

    `decision` is the last one that the user was asked about.
    """

    def __init__(self, *, yes: bool) -> None:
        self._yes = yes
        self.user_is_present = os.isatty(0) and os.isatty(2)
        self.decision: Decision | None = None

    async def __call__(self, decision: Decision) -> bool:
        if self._yes:
            return True
        self.decision = decision
        if not self.user_is_present:
            return False
        text = format_decision(decision, color=stderr_has_color())
        return await ask_at_terminal(f"{text}\n{_full_command(decision.command)}")


async def ask_at_terminal(question: str) -> bool:
    """Does the user agree? `question` says what would run and why it is asked, in whole lines."""
    write_stderr(f"{question}kakoi: run it? [y/N] ")
    # The whole line, as the terminal gives it: none of it becomes the command's input.
    answer = await BlockingCalls().call(os.read, 0, 4096)
    return answer.strip().lower() in _YES


def _full_command(command: str) -> str:
    """The whole command, if the findings may show only part of it: nobody approves text unseen."""
    lines = command.strip().splitlines()
    if len(lines) == 1 and len(command) <= _SHORT:
        return ""
    return "".join(["\nthe whole command:\n", *(f"  | {shown(line)}\n" for line in lines)])
