"""A user's list of blocked commands → rules of the policy.

An entry is a command as people write it: `sudo`, `git push`, `rm -rf /`. It becomes a rule for what
it names, and the rule is held against the entry itself: one that could never match is an error.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kakoi.errors import ConfigurationError
from kakoi.policy.decide import decide
from kakoi.policy.profiles import tightened
from kakoi.policy.rules import Policy, Verdict


def with_blocked(policy: Policy, entries: Iterable[str], *, origin: str) -> Policy:
    """`policy` without what the entries name. What it refuses already needs no rule."""
    for entry in entries:
        readings = list(_readings(entry, origin))
        if not _is_refused(policy, entry):
            policy = _with_one(policy, entry, readings, origin)
    return policy


def _is_refused(policy: Policy, entry: str) -> bool:
    """By a rule of its own: a command that is only not on the list may be put there."""
    findings = decide(policy, entry).findings
    return any(f.verdict is Verdict.DENY and f.rule != "not-listed" for f in findings)


def _with_one(
    policy: Policy, entry: str, readings: Iterable[Mapping[str, Any]], origin: str
) -> Policy:
    for conditions in readings:
        rule = {
            "id": "blocked-by-list",
            "verdict": "deny",
            "reason": f"`{entry}` is on the list of blocked commands",
            "hint": "Do it in another way, or ask your user to take it off the list.",
            "match": [entry],
            **conditions,
        }
        try:
            return tightened(policy, rules=[rule], origin=origin)
        except ConfigurationError:
            continue
    raise _hopeless(entry, origin)


def _readings(entry: str, origin: str) -> Iterator[Mapping[str, Any]]:
    """What the entry may mean, the most exact first."""
    try:
        words = shlex.split(entry)
    except ValueError:
        raise _hopeless(entry, origin) from None
    if not words:
        raise ConfigurationError(f"{origin}: a blocked command is empty")
    program, rest = words[0], words[1:]
    options = [word for word in rest if word.startswith("-") and word != "-"]
    plain = [word for word in rest if word not in options]
    # Of `-rf`, one letter: an option matches in any company.
    flags = [word if word.startswith("--") else word[:2] for word in options]
    given = {"flags": flags} if flags else {}
    if plain:
        yield {"commands": [f"{program} {plain[0]}"], **given, **_operands(plain[1:])}
    yield {"commands": [program], **given, **_operands(plain)}


def _operands(words: list[str]) -> Mapping[str, Any]:
    return {"operands": [re.escape(word) for word in words]} if words else {}


def _hopeless(entry: str, origin: str) -> ConfigurationError:
    return ConfigurationError(
        f"{origin}: the blocked command {entry!r} names nothing that could be recognised",
        hint="name a program, with a subcommand or options: `git push`, `rm -r`",
    )
