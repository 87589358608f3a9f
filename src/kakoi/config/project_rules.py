"""The rules that a project brings for agents: AGENTS.md and .coding-agent-rules.yaml.

Strangers write them. They add to what a model is told, take tools away and tighten the policy;
anything else in them is an error.

    rules: [Write tests first.]
    tools: {exclude: [write_stdin]}
    policy: {blocked: [git push], block_patterns: [--force], rules: [{id: …}]}
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kakoi.agent.project import project_guide, project_text
from kakoi.config.kinds import RULES, TEXT, TEXTS, Kind
from kakoi.documents import yaml_items
from kakoi.errors import ConfigurationError
from kakoi.policy.blocking import with_blocked
from kakoi.policy.profiles import tightened
from kakoi.policy.rules import Policy
from kakoi.sections import nearest

RULES_NAME: Final = ".coding-agent-rules.yaml"
_HINT: Final = "mend it, or remove it"
_KEYS: Final[dict[str, Kind]] = {
    "rules": TEXTS,
    "tools.exclude": TEXTS,
    "policy.blocked": TEXTS,
    "policy.block_patterns": TEXTS,
    "policy.rules": RULES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRules:
    """What a project asks for. `text`: for the prompt; `without_tools`: names to leave out."""

    text: str = ""
    without_tools: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    block_patterns: tuple[str, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    origin: str = RULES_NAME

    def applied_to(self, policy: Policy) -> Policy:
        """The policy, tightened."""
        if self.rules:
            policy = tightened(policy, rules=self.rules, origin=self.origin)
        if self.block_patterns:
            patterns = (*policy.block_patterns, *self.block_patterns)
            policy = replace(policy, block_patterns=patterns)
        return with_blocked(policy, self.blocked, origin=self.origin)


def read_project_rules(workspace: str | Path) -> ProjectRules:
    """The rules of the project in `workspace`; none are no error."""
    path = Path(workspace, RULES_NAME)
    return project_rules(project_guide(workspace), project_text(path, hint=_HINT), path)


def project_rules(guide: str | None, rules: str | None, path: Path) -> ProjectRules:
    """The rules in the texts of AGENTS.md and .coding-agent-rules.yaml; `path` is for errors."""
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
                hint=f"this file only tightens: {', '.join(_KEYS)}",
            )
        if item.value is None:
            continue
        if name == "rules" and isinstance(item.value, str):
            values[name] = (TEXT.read(item.value, where),)
        else:
            values[name] = _KEYS[name].read(item.value, f"{where}: {name}")
    return values
