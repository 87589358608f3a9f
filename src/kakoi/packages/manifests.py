"""What a project's own files ask for, held against the lists entry by entry. Pure.

Where only listed packages may be installed, a manifest is installed as a whole or not at all. Lock
files are not read: a package manager takes whatever they name.

pip reads a requirements file by rules of its own: the encoding that a comment names, variables,
other files. So it is never given the project's file, but `Manifest.lines`: plain ASCII, and nothing
that was not checked. npm reads package.json itself; a file that two readers could
understand in two ways is refused.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

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
_HASH: Final = re.compile(r"\s(--hash=\w+:\w+)", re.ASCII)
_AROUND: Final = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>|,)\s*")
_MARKER: Final = re.compile(r"[A-Za-z0-9_.,'\"<>=!~()+* -]*")
# As in PEP 263: pip decodes a whole file by such a comment in one of its first two lines.
_COOKIE: Final = re.compile(rb"coding[:=]\s*([-\w.]+)")
_UTF_8: Final = (b"utf-8", b"utf8", b"utf_8", b"ascii", b"us-ascii")


@dataclass(frozen=True, slots=True)
class Objection:
    """An entry that may not be installed, and why."""

    entry: str
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file that was read. `lines`: what pip is given in place of a requirements file."""

    objections: tuple[Objection, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """`text` is held against the list; `line` is what a package manager is given for it."""

    text: str
    line: str = ""


def check_manifest(name: str, data: bytes, lists: AllowlistConfig) -> Manifest:
    """What is wrong with a file of this name; no objection, if all of it may be installed."""
    kind = MANIFESTS.get(name)
    if kind is None:
        return Manifest((Objection(name, "nobody here can read such a file"),))
    try:
        entries = list(_python_entries(data) if kind == "pip" else _node_entries(data))
    except (ValueError, RecursionError):
        return Manifest((Objection(name, "it cannot be read"),))
    objections = [
        Objection(entry.text, why)
        for entry in entries
        if (why := _objection(kind, entry.text, lists))
    ]
    return Manifest(tuple(objections), () if objections else tuple(each.line for each in entries))


def _objection(kind: Ecosystem, entry: str, lists: AllowlistConfig) -> str:
    answer = check(InstallRequest(kind, entry), lists)
    if answer and answer.wanted != entry:
        return f"the list has only {answer.wanted}"
    return answer.reason


def _python_entries(data: bytes) -> Iterator[_Entry]:
    """The requirements; a line with options is an entry that no list has."""
    _check_encoding(data)
    for line in _joined(data.removeprefix(codecs.BOM_UTF8).decode("utf-8")):
        # One space for many: the patterns take very long over a line of nothing else.
        said = _COMMENT.sub("", " ".join(line.split()))
        entry, marker = _HASH.sub("", said).strip(), ""
        if not re.search(r"(^|\s)-", entry) and _MARKER.fullmatch(entry.partition(";")[2]):
            before, _, marker = entry.partition(";")  # A marker says when, not what.
            entry = before.strip() or entry
        if entry:
            text = _AROUND.sub(r"\1", re.sub(r"\s*(\[[^][]*\])\s*", r"\1", entry))
            yield _Entry(text, _requirement(text, marker.strip(), _HASH.findall(said)))


def _requirement(entry: str, marker: str, hashes: Iterable[str]) -> str:
    return " ".join([entry, *([f"; {marker}"] if marker else []), *hashes])


def _check_encoding(data: bytes) -> None:
    """ValueError if a comment names an encoding in which the same bytes say something else."""
    for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")[:2]:
        named = _COOKIE.search(line) if line.startswith(b"#") else None
        if named and named[1].lower() not in _UTF_8:
            raise ValueError("another encoding")


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


def _node_entries(data: bytes) -> Iterator[_Entry]:
    """The dependencies as `name@version`; what is no text is no entry that a list has."""
    manifest = json.loads(
        data.decode("utf-8"), object_pairs_hook=_without_doubles, parse_constant=_refuse
    )
    if not isinstance(manifest, dict):
        raise ValueError("no object")
    yield from (_Entry(f"{section}: …") for section in _ELSEWHERE if manifest.get(section))
    for section in _INSTALLED:
        found = manifest.get(section) or {}
        if not isinstance(found, dict):
            raise ValueError(f"{section} is no object")
        for name, version in found.items():
            said = version if isinstance(version, str) else f" {version!r}"
            yield _Entry(f"{name}@{said}" if said else name)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """ValueError for keys of which readers disagree: one that is there twice, or `__proto__`."""
    found = dict(pairs)
    if len(found) != len(pairs) or "__proto__" in found:
        raise ValueError("a key is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
