"""What a project's own files ask for, held against the lists entry by entry. Pure.

Where only listed packages may be installed, a manifest is installed as a whole or not at all: its
package manager reads it itself, so every entry of it must be allowed as it stands. Lock files are
not read: whoever installs by them takes what they name.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kakoi.packages.allowlist import AllowlistConfig, Ecosystem, InstallRequest, check

# Name of a file → the type of its packages.
MANIFESTS: Final[dict[str, Ecosystem]] = {"requirements.txt": "pip", "package.json": "npm"}
_INSTALLED: Final = (
    *("dependencies", "devDependencies", "optionalDependencies", "peerDependencies"),
)
# What puts other packages in the place of those.
_ELSEWHERE: Final = (
    *("overrides", "resolutions", "workspaces", "bundleDependencies", "bundledDependencies"),
)
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_HASH: Final = re.compile(r"\s--hash=\w+:\w+")
_AROUND: Final = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>|,)\s*")


@dataclass(frozen=True, slots=True)
class Objection:
    """An entry that may not be installed, and why."""

    entry: str
    reason: str


def check_manifest(name: str, text: str, lists: AllowlistConfig) -> list[Objection]:
    """What is wrong with a file of this name; nothing, if all of it may be installed."""
    kind = MANIFESTS.get(name)
    if kind is None:
        return [Objection(name, "nobody here can read such a file")]
    try:
        entries = list(_python_entries(text) if kind == "pip" else _node_entries(text))
    except (ValueError, RecursionError):
        return [Objection(name, "it cannot be read")]
    return [Objection(entry, why) for entry in entries if (why := _objection(kind, entry, lists))]


def _objection(kind: Ecosystem, entry: str, lists: AllowlistConfig) -> str:
    answer = check(InstallRequest(kind, entry), lists)
    if answer and answer.wanted != entry:
        return f"the list has only {answer.wanted}"
    return answer.reason


def _python_entries(text: str) -> Iterator[str]:
    """The requirements; a line with options is an entry that no list has."""
    for line in _joined(text):
        # One space for many: the patterns take very long over a line of nothing else.
        entry = _HASH.sub("", _COMMENT.sub("", " ".join(line.split()))).strip()
        if not re.search(r"(^|\s)-", entry):
            entry = entry.partition(";")[0].strip() or entry  # A marker says when, not what.
        if entry:
            yield _AROUND.sub(r"\1", re.sub(r"\s*(\[[^][]*\])\s*", r"\1", entry))


def _joined(text: str) -> Iterator[str]:
    """The lines as pip puts them together: any end of a line counts, and a comment ends, too."""
    begun = ""
    for line in text.splitlines():
        is_comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not is_comment:
            begun += line.strip("\\")
        else:
            yield begun + (f" {line}" if is_comment else line)
            begun = ""
    yield begun


def _node_entries(text: str) -> Iterator[str]:
    """The dependencies as `name@version`; what is no text is no entry that a list has."""
    manifest = json.loads(text)
    if not isinstance(manifest, dict):
        raise ValueError("no object")
    yield from (f"{section}: …" for section in _ELSEWHERE if manifest.get(section))
    for section in _INSTALLED:
        found = manifest.get(section) or {}
        if not isinstance(found, dict):
            raise ValueError(f"{section} is no object")
        for name, version in found.items():
            said = version if isinstance(version, str) else f" {version!r}"
            yield f"{name}@{said}" if said else name
