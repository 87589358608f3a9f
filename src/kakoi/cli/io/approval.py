"""Asking the user at the terminal when the policy wants a person to decide."""

import os
from typing import Final

from kakoi._support.asyncio import BlockingCalls
from kakoi._support.text import shown
from kakoi.approvals import Approvals
from kakoi.approvals.forms import changes_of
from kakoi.cli.io.format import format_decision
from kakoi.cli.io.streams import stderr_has_color, write_stderr
from kakoi.gate import Answer
from kakoi.policy.decide import Decision
from kakoi.policy.explanation import without_hints
from kakoi.policy.rules import Verdict

_ANSWERS: Final = {
    **dict.fromkeys(("y", "yes"), Answer.YES),
    **dict.fromkeys(("a", "always"), Answer.HERE),
}
_EXPLAIN: Final = ("e", "explain", "?", "h", "help")
# Somebody who types `e` more often than this does not mean it.
_MOST_EXPLAINED: Final = 5
_SHORT: Final = 80


class Approval:
    """Answers the gate: yes if approved in advance, else what the user types, else no.

    `approvals`: what can be remembered so that it is not asked again; None: nothing.
    `decision` is the last one that the user was asked about.
    """

    def __init__(self, *, yes: bool, approvals: Approvals | None = None) -> None:
        self._yes = yes
        self._approvals = approvals
        self.user_is_present = os.isatty(0) and os.isatty(2)
        self.decision: Decision | None = None

    async def __call__(self, decision: Decision) -> Answer:
        if self._yes:
            return Answer.YES
        self.decision = decision
        if not self.user_is_present:
            return Answer.NO
        offer = None if self._approvals is None else self._approvals.offer(decision)
        return await ask_about(decision, offer="" if offer is None else offer.text)


async def ask_about(decision: Decision, *, offer: str = "", description: str = "") -> Answer:
    """Ask the user about a decision.

    `offer`: what the answer "always" would cover; empty: it cannot be given here.
    `description`: what the agent says about the command.
    """
    text = format_decision(without_hints(decision), color=stderr_has_color())
    parts = [
        f"{text}\n",
        _whole(decision),
        f"in: {shown(decision.cwd)}\n" if decision.cwd else "",
        f"the agent says: {shown(description)}\n" if description else "",
        *(f"what it would change: {shown(each)}\n" for each in changes_of(decision)),
        "  y  yes, run it once\n  n  no, refuse it\n",
        f"  a  always here: {offer}\n" if offer else "",
        "  e  explain, and ask again\n",
    ]
    write_stderr("".join(parts))
    return await _answer(decision, has_always=bool(offer))


def _whole(decision: Decision) -> str:
    """The whole command, if the findings may show only part of it: nobody approves text unseen."""
    lines = decision.command.strip().splitlines()
    if len(lines) == 1 and len(decision.command) <= _SHORT:
        return ""
    listed = "".join(f"  | {shown(line)}\n" for line in lines)
    return f"\nthe whole {decision.kind}:\n{listed}"


async def _answer(decision: Decision, *, has_always: bool) -> Answer:
    for _ in range(_MOST_EXPLAINED):
        write_stderr(f"kakoi: run it? [y/N{'/a' if has_always else ''}/e] ")
        # The whole line, as the terminal gives it: none of it becomes the command's input.
        typed = await BlockingCalls().call(os.read, 0, 4096)
        word = typed.decode("ascii", "replace").strip().lower()
        if word not in _EXPLAIN:
            answer = _ANSWERS.get(word, Answer.NO)
            return Answer.NO if answer is Answer.HERE and not has_always else answer
        write_stderr(_explanation(decision))
    return Answer.NO


def _explanation(decision: Decision) -> str:
    """Return what the rules that ask are for, and how to be asked less."""
    from kakoi.cli.explanations import explanations

    known, parts = explanations(), []
    asking = {each.rule: each for each in decision.findings if each.verdict is Verdict.ASK}
    for rule, finding in asking.items():
        found = known.get(rule)
        meaning = finding.reason if found is None else found.meaning
        parts.append(f"\nrule {shown(rule)}: {shown(meaning)}\n")
        if found is not None:
            parts.append(f"  why: {shown(found.why)}\n")
        parts.append(f"  more: kakoi explain {shown(rule)}\n")
    parts.append("  your remembered approvals: kakoi policy remembered\n\n")
    return "".join(parts)
