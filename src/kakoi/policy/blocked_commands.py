"""A user's list of blocked commands → rules of the policy.

An entry is a command as people write it: `sudo`, `git push`, `rm -rf /`. It becomes a rule, and the
rule must match the entry itself: an entry whose rule could never match is an error.
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
    """Return `policy` with the entries blocked. Entries that it already denies need no rule."""
    for entry in entries:
        readings = list(_readings(entry, origin))
        if not _is_refused(policy, entry):
            policy = _with_one(policy, entry, readings, origin)
    return policy


def _is_refused(policy: Policy, entry: str) -> bool:
    """Whether a rule denies it. A command that is merely not listed could still be added."""
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
    raise _unrecognised(entry, origin)


def _readings(entry: str, origin: str) -> Iterator[Mapping[str, Any]]:
    """Yield what the entry can mean, the most exact reading first."""
    try:
        words = shlex.split(entry)
    except ValueError:
        raise _unrecognised(entry, origin) from None
    if not words:
        raise ConfigurationError(f"{origin}: a blocked command is empty")
    program, rest = words[0], words[1:]
    options = [word for word in rest if word.startswith("-") and word != "-"]
    plain = [word for word in rest if word not in options]
    # One letter of `-rf` is enough: an option matches inside any cluster.
    flags = [word if word.startswith("--") else word[:2] for word in options]
    by_flags = {"flags": flags} if flags else {}
    if plain:
        yield {"commands": [f"{program} {plain[0]}"], **by_flags, **_operands(plain[1:])}
    yield {"commands": [program], **by_flags, **_operands(plain)}


def _operands(words: list[str]) -> Mapping[str, Any]:
    return {"operands": [re.escape(word) for word in words]} if words else {}


def _unrecognised(entry: str, origin: str) -> ConfigurationError:
    return ConfigurationError(
        f"{origin}: the blocked command {entry!r} does not name anything that can be recognised",
        hint="name a program, with a subcommand or options: `git push`, `rm -r`",
    )
