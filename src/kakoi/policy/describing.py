"""A policy told: what may run, and where each part comes from."""

from typing import Any

from kakoi.policy.catalogue import HEADINGS
from kakoi.policy.rules import Entry, Policy, Verdict


def policy_as_dict(policy: Policy) -> dict[str, Any]:
    """The policy for machines."""
    return {
        "name": policy.name,
        "origins": list(policy.origins),
        "block_patterns": list(policy.block_patterns),
        "commands": [
            {
                "command": entry.command,
                "verdict": entry.verdict.value,
                "category": entry.category,
                "reason": entry.reason,
                "origin": entry.origin,
            }
            for entry in policy.entries.values()
        ],
        "rules": [
            {
                "id": rule.id,
                "verdict": rule.verdict.value,
                "reason": rule.reason,
                "hint": rule.hint,
                "commands": sorted(rule.commands),
                "match": list(rule.match),
                "not_match": list(rule.not_match),
                "origin": rule.origin,
            }
            for rule in policy.rules
        ],
    }


def policy_as_text(policy: Policy) -> str:
    """The policy for people."""
    lines = [f"policy {policy.name}, from {', '.join(policy.origins)}", ""]
    if policy.block_patterns:
        lines += ["refused text: " + "  ".join(policy.block_patterns), ""]
    lines.append("allowed commands")
    for category, heading in HEADINGS.items():
        _add_group(lines, heading, [e for e in policy.entries.values() if e.category == category])
    for verdict, title in ((Verdict.ALLOW, "allowed beside them"), (Verdict.ASK, "asked first")):
        hidden = [e for e in policy.entries.values() if not e.category and e.verdict is verdict]
        if hidden:
            lines += ["", title]
        for reason in dict.fromkeys(entry.reason for entry in hidden):
            _add_group(lines, reason, [e for e in hidden if e.reason == reason])
    lines += ["", "rules (deny > ask > allow; anything else is refused)"]
    lines += [
        f"  {rule.verdict.value:<5} {rule.id:<24} {rule.reason}  [{rule.origin}]"
        for rule in policy.rules
    ]
    return "\n".join(lines)


def _add_group(lines: list[str], heading: str, entries: list[Entry]) -> None:
    if entries:
        origins = ", ".join(dict.fromkeys(entry.origin for entry in entries))
        lines.append(f"  {heading}: {', '.join(e.command for e in entries)}  [{origins}]")
