"""Proposals: what a person may want to add, from what the audit log says was refused or asked.

A refusal because a program is not on the list proposes that program; a question about a command
that can be remembered proposes that. Nothing is proposed that any other rule denies. What an agent
ran often is not a reason to allow it: a person accepts each proposal by itself.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

from kakoi._support.late import dataclass, pattern
from kakoi.approvals.forms import AskedCommand, asked_commands
from kakoi.audit import AuditRecord, Event
from kakoi.policy.decide import Decision, decide
from kakoi.policy.rules import Policy, Verdict

# Judging takes a few milliseconds for each text: of more of them, the most frequent are judged.
MOST_TEXTS: Final = 1000
_MOST_EXAMPLES: Final = 3
_PROGRAM: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}(?: [a-z][a-z0-9:_-]{0,63})?")
_CUT: Final = "[kakoi: command cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One thing to add. `program`: to the list; `command`: to what is remembered.

    `count`: how often it was refused or asked about; `approved`: how often the user then agreed.
    `then`: the verdict on the examples afterwards.
    """

    program: str = ""
    command: AskedCommand | None = None
    count: int
    approved: int
    examples: tuple[str, ...]
    then: Verdict

    @property
    def kind(self) -> Literal["program", "approval"]:
        """What is added."""
        return "program" if self.command is None else "approval"

    @property
    def text(self) -> str:
        """What is added, for people."""
        return self.program if self.command is None else self.command.text


@dataclass(slots=True)
class _Tally:
    count: int = 0
    approved: int = 0


def proposals(
    records: Iterable[AuditRecord],
    policy: Policy,
    workspace: str,
    *,
    confined: bool,
    with_program: Callable[[str], Policy],
    is_remembered: Callable[[Decision], bool],
) -> list[Proposal]:
    """Return the proposals for a workspace, most frequent first.

    `with_program`: returns the policy with a program added. `is_remembered`: whether a question is
    answered already.
    """
    found: dict[str | AskedCommand, _Tally] = {}
    examples: dict[str | AskedCommand, list[str]] = {}
    wider: dict[str, Policy] = {}
    for (text, cwd), tally in _stopped(records, workspace):
        decision = decide(policy, text, cwd=cwd, confined=confined)
        names: Iterable[str | AskedCommand] = ()
        if decision.verdict is Verdict.ASK and not is_remembered(decision):
            names = asked_commands(decision)
        elif decision.verdict is Verdict.DENY:
            names = _missing_programs(decision)
            for program in map(str, names):
                wider.setdefault(program, with_program(program))
            judged = (decide(wider[n], text, cwd=cwd, confined=confined) for n in map(str, names))
            # Another rule denies it, or other programs are missing as well.
            if any(each.verdict is Verdict.DENY for each in judged):
                names = ()
        for name in names:
            total = found.setdefault(name, _Tally())
            total.count += tally.count
            total.approved += tally.approved
            kept = examples.setdefault(name, [])
            if len(kept) < _MOST_EXAMPLES:
                kept.append(text)
    made = [
        _proposal(name, tally, examples[name], wider, workspace, confined=confined)
        for name, tally in found.items()
    ]
    return sorted(made, key=lambda each: (-each.count, each.text))


def _proposal(
    name: str | AskedCommand,
    tally: _Tally,
    examples: list[str],
    wider: Mapping[str, Policy],
    workspace: str,
    *,
    confined: bool,
) -> Proposal:
    then = Verdict.ALLOW
    if isinstance(name, str):
        verdicts = [
            decide(wider[name], each, cwd=workspace, confined=confined).verdict for each in examples
        ]
        then = max(verdicts, key=lambda each: each.severity)
    return Proposal(
        program=name if isinstance(name, str) else "",
        command=None if isinstance(name, str) else name,
        count=tally.count,
        approved=tally.approved,
        examples=tuple(examples),
        then=then,
    )


def _missing_programs(decision: Decision) -> tuple[str, ...]:
    """Return the one program that is not on the list; empty if anything else is denied."""
    denied = [each for each in decision.findings if each.verdict is Verdict.DENY]
    names = {each.subject for each in denied}
    if any(each.rule != "not-listed" for each in denied) or len(names) != 1:
        return ()
    # Spelled out in the text: `'a b'` is one program, and not the subcommand of another.
    typed = decision.command[denied[0].start : denied[0].end].split()
    return tuple(
        n for n in names if _PROGRAM.fullmatch(n) and n.split() == typed[: n.count(" ") + 1]
    )


def _stopped(
    records: Iterable[AuditRecord], workspace: str
) -> Iterator[tuple[tuple[str, str], _Tally]]:
    """Yield the texts that were refused or asked about, most frequent first."""
    tallies: dict[tuple[str, str], _Tally] = {}
    asked: dict[str, _Tally] = {}
    inside = workspace.rstrip("/") + "/"
    for record in records:
        cwd = os.path.normpath(record.cwd) if record.cwd else ""
        if not f"{cwd}/".startswith(inside) or record.kind or _CUT in record.command:
            continue
        stops = record.event in (Event.REFUSED, Event.ASKED) or (
            record.event is Event.JUDGED and record.verdict != Verdict.ALLOW.value
        )
        if stops and record.command:
            tally = tallies.setdefault((record.command, cwd), _Tally())
            tally.count += 1
            asked[record.id] = tally
        elif record.event is Event.APPROVED and record.id in asked:
            asked.pop(record.id).approved += 1
    counts = Counter({key: tally.count for key, tally in tallies.items()})
    for key, _ in counts.most_common(MOST_TEXTS):
        yield key, tallies[key]
