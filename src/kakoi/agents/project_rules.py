"""What a project tells agents, in AGENTS.md and .coding-agent-rules.yaml: read with limits.

These files are untrusted. They can add to the system prompt, remove tools and tighten the policy;
anything else in them is an error.

    rules: [Write tests first.]
    tools: {exclude: [write_stdin]}
    policy: {blocked: [git push], block_patterns: [--force], rules: [{id: …}]}
"""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kakoi._support.fields import RULES, TEXT, TEXTS, ValueKind
from kakoi._support.late import dataclass, pattern
from kakoi._support.parsing import nearest, yaml_items
from kakoi.errors import ConfigurationError
from kakoi.policy.blocked_commands import with_blocked
from kakoi.policy.profiles import tightened
from kakoi.policy.rules import Policy

GUIDE_NAME: Final = "AGENTS.md"
RULES_NAME: Final = ".coding-agent-rules.yaml"
_HINT: Final = "fix it, or remove it"
_MAX_BYTES: Final = 64 * 1024
_UNPRINTABLE: Final = pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
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


def read_project_text(path: Path, *, hint: str) -> str | None:
    """Return the text of a project's file; None if it does not exist.

    Links are not followed: they could point to any file on this machine.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise ConfigurationError(f"{path} cannot be read: {why}", hint=hint) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError(f"{path} is not a regular file", hint=hint)
    with open(fd, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    return decode_project_text(data, path, hint=hint)


def decode_project_text(data: bytes, path: Path, *, hint: str) -> str:
    """Decode the content of such a file. Raises ConfigurationError if it is invalid or too long."""
    if len(data) > _MAX_BYTES:
        raise ConfigurationError(f"{path} has more than {_MAX_BYTES} bytes", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} is not UTF-8 text (byte {error.start})", hint=hint
        ) from None
    text = text.replace("\r\n", "\n")
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigurationError(f"{path} contains a control character in line {line}", hint=hint)
    return text


def read_guide(project: str | Path) -> str | None:
    """Return AGENTS.md at the root of a project; None if it has none."""
    return read_project_text(Path(project, GUIDE_NAME), hint=_HINT)
