"""The rules that a project defines for agents: AGENTS.md and .coding-agent-rules.yaml.

They are untrusted. They can add to the system prompt, remove tools and tighten the policy; anything
else in them is an error.

    rules: [Write tests first.]
    tools: {exclude: [write_stdin]}
    policy: {blocked: [git push], block_patterns: [--force], rules: [{id: …}]}
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kakoi._support.fields import RULES, TEXT, TEXTS, ValueKind
from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest, yaml_items
from kakoi.agents.project_files import read_guide, read_project_text
from kakoi.errors import ConfigurationError
from kakoi.policy.blocked_commands import with_blocked
from kakoi.policy.profiles import tightened
from kakoi.policy.rules import Policy

RULES_NAME: Final = ".coding-agent-rules.yaml"
_HINT: Final = "fix it, or remove it"
_KEYS: Final[dict[str, ValueKind]] = {
    "rules": TEXTS,
    "tools.exclude": TEXTS,
    "policy.blocked": TEXTS,
    "policy.block_patterns": TEXTS,
    "policy.rules": RULES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRules:
    """The rules of a project. `text`: for the prompt; `without_tools`: tools to remove."""

    text: str = ""
    without_tools: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    block_patterns: tuple[str, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    origin: str = RULES_NAME

    def applied_to(self, policy: Policy) -> Policy:
        """Return the policy, tightened by these rules."""
        if self.rules:
            policy = tightened(policy, rules=self.rules, origin=self.origin)
        if self.block_patterns:
            patterns = (*policy.block_patterns, *self.block_patterns)
            policy = replace(policy, block_patterns=patterns)
        return with_blocked(policy, self.blocked, origin=self.origin)


def read_project_rules(workspace: str | Path) -> ProjectRules:
    """Read the rules of the project in `workspace`; empty if it has none."""
    path = Path(workspace, RULES_NAME)
    return parse_project_rules(read_guide(workspace), read_project_text(path, hint=_HINT), path)


def parse_project_rules(guide: str | None, rules: str | None, path: Path) -> ProjectRules:
    """Parse the texts of AGENTS.md and .coding-agent-rules.yaml; `path` is for errors."""
    values = {} if rules is None else _values(rules, path)
    added = [f"- {' '.join(each.split())}" for each in values.get("rules", ())]
    text = "\n\n".join(part for part in ((guide or "").strip(), "\n".join(added)) if part)
    return ProjectRules(
        text=text,
        without_tools=values.get("tools.exclude", ()),
        blocked=values.get("policy.blocked", ()),
        block_patterns=values.get("policy.block_patterns", ()),
        rules=values.get("policy.rules", ()),
        origin=str(path),
    )


def _values(text: str, path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in yaml_items(text, path):
        name, where = ".".join(item.keys), f"{path}:{item.line}"
        if name not in _KEYS:
            raise ConfigurationError(
                f"{where}: `{name[:80]}` cannot be set here{nearest(name, _KEYS)}",
                hint=f"this file can only tighten: {', '.join(_KEYS)}",
            )
        if item.value is None:
            continue
        if name == "rules" and isinstance(item.value, str):
            values[name] = (TEXT.read(item.value, where),)
        else:
            values[name] = _KEYS[name].read(item.value, f"{where}: {name}")
    return values
