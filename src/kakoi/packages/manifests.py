"""A project's own manifests, checked against the lists entry by entry. Pure.

If only listed packages can be installed, a manifest is installed as a whole or not at all. Lock
files are not read: a package manager would take whatever they name.

pip reads more from a requirements file than packages (the encoding in a comment, variables, other
files), and npm obeys more of a package.json than its dependencies. So neither gets the project's
file but `Manifest.text`: plain ASCII, and nothing that was not checked. A package.json that two
parsers could read differently is refused.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi.packages.allowlist import AllowlistConfig, Ecosystem, InstallRequest, check_dependency

# File name → type of its packages.
MANIFESTS: Final[dict[str, Ecosystem]] = {"requirements.txt": "pip", "package.json": "npm"}
_INSTALLED: Final = (
    *("dependencies", "devDependencies", "optionalDependencies", "peerDependencies"),
)
# Sections that replace packages by others.
_ELSEWHERE: Final = (
    *("overrides", "resolutions", "workspaces", "bundleDependencies", "bundledDependencies"),
)
_COMMENT: Final = pattern(r"(^|\s+)#.*$")
_HASH: Final = pattern(r"\s(--hash=\w+:\w+)", re.ASCII)
_AROUND: Final = pattern(r"\s*(===|==|~=|!=|<=|>=|<|>|,)\s*")
_MARKER: Final = pattern(r"[A-Za-z0-9_.,'\"<>=!~()+* -]*")
# As in PEP 263: pip decodes a whole file by such a comment in one of its first two lines.
_COOKIE: Final = pattern(rb"coding[:=]\s*([-\w.]+)")
_UTF_8: Final = (b"utf-8", b"utf8", b"utf_8", b"ascii", b"us-ascii")


@dataclass(frozen=True, slots=True)
class Objection:
    """An entry that is not allowed, and why."""

    entry: str
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed manifest. `text`: what the package manager gets instead of the file."""

    objections: tuple[Objection, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry: `text` is checked against the list; the package manager gets the rest.

    `line`: in a requirements file. `section`, `name`, `version`: in a package.json.
    """

    text: str
    line: str = ""
    section: str = ""
    name: str = ""
    version: str = ""


def check_manifest(name: str, data: bytes, lists: AllowlistConfig) -> Manifest:
    """Check a file of this name; there are no objections if all of it can be installed."""
    kind = MANIFESTS.get(name)
    if kind is None:
        return Manifest((Objection(name, "this kind of file is not supported"),))
    try:
        entries = list(_python_entries(data) if kind == "pip" else _node_entries(data))
    except (ValueError, RecursionError):
        return Manifest((Objection(name, "it cannot be read"),))
    objections = [
        Objection(entry.text, why)
        for entry in entries
        if (why := _objection(kind, entry.text, lists))
    ]
    if objections:
        return Manifest(tuple(objections))
    return Manifest(text=_as_requirements(entries) if kind == "pip" else _as_package(entries))


def _as_requirements(entries: Iterable[_Entry]) -> str:
    return "".join(f"{each.line}\n" for each in entries)


def _as_package(entries: Iterable[_Entry]) -> str:
    found: dict[str, Any] = {"private": True}
    for each in entries:
        found.setdefault(each.section, {})[each.name] = each.version
    return json.dumps(found)


def _objection(kind: Ecosystem, entry: str, lists: AllowlistConfig) -> str:
    return check_dependency(InstallRequest(kind, entry), lists).reason


def _python_entries(data: bytes) -> Iterator[_Entry]:
    """Yield the requirements; a line with options is an entry that is on no list."""
    _check_encoding(data)
    for line in _joined(data.removeprefix(codecs.BOM_UTF8).decode("utf-8")):
        # Collapse spaces: the patterns are very slow on a line of nothing else.
        requirement = _COMMENT.sub("", " ".join(line.split()))
        entry, marker = _HASH.sub("", requirement).strip(), ""
        if not re.search(r"(^|\s)-", entry) and _MARKER.fullmatch(entry.partition(";")[2]):
            before, _, marker = entry.partition(";")  # A marker only says when to install.
            entry = before.strip() or entry
        if entry:
            text = _AROUND.sub(r"\1", re.sub(r"\s*(\[[^][]*\])\s*", r"\1", entry))
            yield _Entry(text, _requirement(text, marker.strip(), _HASH.findall(requirement)))


def _requirement(entry: str, marker: str, hashes: Iterable[str]) -> str:
    return " ".join([entry, *([f"; {marker}"] if marker else []), *hashes])


def _check_encoding(data: bytes) -> None:
    """Raise ValueError if a comment names an encoding that gives the bytes another meaning."""
    for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")[:2]:
        named = _COOKIE.search(line) if line.startswith(b"#") else None
        if named and named[1].lower() not in _UTF_8:
            raise ValueError("another encoding")


def _joined(text: str) -> Iterator[str]:
    """Yield the lines as pip joins them: any line end counts, and a comment ends a joined line."""
    begun = ""
    for line in text.splitlines():
        is_comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not is_comment:
            begun += line.strip("\\")
        else:
            yield begun + (f" {line}" if is_comment else line)
            begun = ""
    yield begun


def _node_entries(data: bytes) -> Iterator[_Entry]:
    """Yield the dependencies as `name@version`; a version that is not text is on no list."""
    manifest = json.loads(
        data.decode("utf-8"), object_pairs_hook=_without_doubles, parse_constant=_refuse
    )
    if not isinstance(manifest, dict):
        raise ValueError("no object")
    yield from (_Entry(f"{section}: …") for section in _ELSEWHERE if manifest.get(section))
    for section in _INSTALLED:
        found = manifest.get(section) or {}
        if not isinstance(found, dict):
            raise ValueError(f"{section} is not an object")
        for name, version in found.items():
            wanted = version if isinstance(version, str) else f" {version!r}"
            text = f"{name}@{wanted}" if wanted else name
            yield _Entry(text, section=section, name=name, version=wanted)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError for keys that parsers treat differently: duplicates, and `__proto__`."""
    found = dict(pairs)
    if len(found) != len(pairs) or "__proto__" in found:
        raise ValueError("duplicate key")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not valid JSON")
