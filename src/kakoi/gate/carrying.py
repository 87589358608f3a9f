"""Which variables of one command the next one has, too.

They are judged as what they will be: assignments in front of that command. So a variable that the
policy would not let stand there is not carried on, and what is carried on is judged again, with
every command that has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kakoi.gate.calls import assignments
from kakoi.policy.decide import decide
from kakoi.policy.rules import Policy, Verdict
from kakoi.runner.shells import changes_the_shell

# They are in front of every later command, and in the record of each.
MOST_VARIABLES: Final = 64
MOST_CHARACTERS: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Carried:
    """What the next command is to have, and why it does not have more."""

    variables: Mapping[str, str]
    left_behind: Mapping[str, str] = field(default_factory=dict)


def carry(
    policy: Policy, had: Mapping[str, str], exports: Mapping[str, str | None], *, cwd: str
) -> Carried:
    """`had`: what the command was given to carry; `exports`: what it has changed, or unset."""
    kept = {name: value for name, value in had.items() if exports.get(name, value) is not None}
    left: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for name, value in exports.items():
        if value is not None:
            wanted[name] = value
        elif name not in had:
            left[name] = "it cannot be unset for good"
    if not _objection(policy, {**kept, **wanted}, cwd):
        return Carried({**kept, **wanted}, left)
    for name, value in wanted.items():
        # By itself first: the reason is about this one then.
        why = _objection(policy, {name: value}, cwd) or _objection(
            policy, {**kept, name: value}, cwd
        )
        if why:
            left[name] = why
        else:
            kept[name] = value
    return Carried(kept, left)


def _objection(policy: Policy, variables: Mapping[str, str], cwd: str) -> str:
    """Why a command could not have these; empty if it could."""
    if not variables:
        return ""
    text = assignments(variables)
    if len(variables) > MOST_VARIABLES or len(text) > MOST_CHARACTERS:
        return f"at most {MOST_VARIABLES} variables and {MOST_CHARACTERS} characters are kept"
    if any(map(changes_the_shell, variables)):
        return "it would change what the shell does"
    decision = decide(policy, text, cwd=cwd)
    if decision.verdict is Verdict.ALLOW:
        return ""
    return decision.findings[0].reason
