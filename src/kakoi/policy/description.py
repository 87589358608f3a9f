"""A policy as text or data: what may run, and where each part comes from."""

from typing import Any

from kakoi.policy.default_commands import HEADINGS
from kakoi.policy.rules import AllowlistEntry, Policy, Verdict


def policy_as_dict(policy: Policy) -> dict[str, Any]:
    """Return the policy as data for JSON."""
    return {
        "name": policy.name,
        "origins": list(policy.origins),
        "block_patterns": list(policy.block_patterns),
        "any_command": policy.any_command,
        "unreadable": policy.unreadable.value,
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
            for rule in (*policy.rules_for_all, *policy.rules)
        ],
        "directories": None if policy.directories is None else list(policy.directories),
    }


def policy_as_text(policy: Policy) -> str:
    """Return the policy as text for people."""
    lines = _preamble(policy)
    if policy.entries:
        lines.append("allowed commands")
    for category, heading in HEADINGS.items():
        _add_group(lines, heading, [e for e in policy.entries.values() if e.category == category])
    titles = {
        Verdict.ALLOW: "also allowed",
        Verdict.ASK: "allowed after approval",
        Verdict.DENY: "allowed only where a sandbox confines them",
    }
    for verdict, title in titles.items():
        hidden = [e for e in policy.entries.values() if not e.category and e.verdict is verdict]
        if hidden:
            lines += ["", title]
        for reason in dict.fromkeys(entry.reason for entry in hidden):
            _add_group(lines, reason, [e for e in hidden if e.reason == reason])
    rest = "allowed" if policy.any_command else "refused"
    if policy.entries:
        lines.append("")
    lines.append(f"rules (deny > ask > allow; anything else is {rest})")
    lines += [
        f"  {rule.verdict.value:<5} {rule.id:<24} {rule.reason}  [{rule.origin}]"
        for rule in (*policy.rules_for_all, *policy.rules)
    ]
    return "\n".join(lines)


def _preamble(policy: Policy) -> list[str]:
    """Return what holds for every command."""
    lines = [f"policy {policy.name}, from {', '.join(policy.origins)}", ""]
    if policy.block_patterns:
        lines += ["refused text: " + "  ".join(policy.block_patterns), ""]
    if policy.directories is not None:
        lines += ["only in: " + ("  ".join(policy.directories) or "no directory"), ""]
    if policy.any_command:
        lines += ["every command is allowed unless a rule refuses it", ""]
    if policy.unreadable is Verdict.ALLOW:
        lines += ["commands that cannot be parsed run too, and are recorded as `unreadable`", ""]
    return lines


def _add_group(lines: list[str], heading: str, entries: list[AllowlistEntry]) -> None:
    if entries:
        origins = ", ".join(dict.fromkeys(entry.origin for entry in entries))
        lines.append(f"  {heading}: {', '.join(e.command for e in entries)}  [{origins}]")
