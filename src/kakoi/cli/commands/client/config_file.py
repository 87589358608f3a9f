"""Puts an entry into the settings file of another program; every other byte stays unchanged.

A file that does not parse is not touched. The result is parsed again and compared with what was
intended, so that a bug in here is an error and never a damaged file.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kakoi._support.late import dataclass, pattern

_SPACE: Final = pattern(r"[ \t\r\n]*")
_INDENT: Final = pattern(r"^([ \t]+)\"", re.MULTILINE)
_DECODER: Final = json.JSONDecoder()


class CannotMerge(Exception):
    """An entry cannot be added to this file; the text says why."""


def with_json_entry(text: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    """JSON with `entry` at `section` → `name`. Other keys of an existing entry are kept."""
    if not text.strip():
        text = "{}\n"
    document = _json(text)
    if not isinstance(document, dict):
        raise CannotMerge("it is not a JSON object")
    servers = document.get(section, {})
    if not isinstance(servers, dict):
        raise CannotMerge(f"its `{section}` is not an object")
    before = servers.get(name, {})
    if not isinstance(before, dict):
        raise CannotMerge(f"its `{section}.{name}` is not an object")
    merged = {**before, **entry}
    if name in servers and merged == before:
        return text
    top = _Object.at(text, _SPACE.match(text).end())  # type: ignore[union-attr]
    if section not in top.members:
        changed = top.with_member(section, {name: merged}, depth=1)
    else:
        servers_object = _Object.at(text, top.members[section][0])
        if name in servers_object.members:
            start, end = servers_object.members[name]
            changed = text[:start] + servers_object.rendered(merged, depth=2) + text[end:]
        else:
            changed = servers_object.with_member(name, merged, depth=2)
    if _json(changed) != {**document, section: {**servers, name: merged}}:
        raise CannotMerge("kakoi cannot add to the way it is written")
    return changed


@dataclass(frozen=True, slots=True)
class _Object:
    """An object within a valid JSON text, with the positions of its members' values."""

    text: str
    start: int
    end: int
    members: Mapping[str, tuple[int, int]]

    @classmethod
    def at(cls, text: str, start: int) -> "_Object":
        members: dict[str, tuple[int, int]] = {}
        at = _after_space(text, start + 1)
        while text[at] != "}":
            key, at = _DECODER.raw_decode(text, at)
            begin = _after_space(text, _after_space(text, at) + 1)
            _, end = _DECODER.raw_decode(text, begin)
            members[key] = (begin, end)
            at = _after_space(text, end)
            if text[at] == ",":
                at = _after_space(text, at + 1)
        return cls(text, start, at + 1, members)

    def with_member(self, name: str, value: object, *, depth: int) -> str:
        """The whole text, with one more member at the end of this object."""
        line, outer = self._line(depth), self._line(depth - 1)
        member = f"{line}{json.dumps(name)}: {self.rendered(value, depth=depth)}"
        if not self.members:
            inside = f"{{{member}{outer}}}"
            return self.text[: self.start] + inside + self.text[self.end :]
        last = max(end for _, end in self.members.values())
        rest = self.text[last : self.end - 1]
        closing = rest if "\n" in rest else outer
        return f"{self.text[:last]},{member}{closing}}}{self.text[self.end :]}"

    def rendered(self, value: object, *, depth: int) -> str:
        """A value in the style of this text at that depth."""
        written = json.dumps(value, indent=self._indent, ensure_ascii=False)
        return written.replace("\n", self._line(depth))

    def _line(self, depth: int) -> str:
        return ("\r\n" if "\r\n" in self.text else "\n") + self._indent * depth

    @property
    def _indent(self) -> str:
        """The indentation that the text already uses."""
        found = _INDENT.search(self.text)
        return found[1] if found else "  "


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise CannotMerge(f"it is not valid JSON: {error.msg}, line {error.lineno}") from None
    except RecursionError:
        raise CannotMerge("it is nested too deeply") from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CannotMerge("it has a duplicate key")
    return found


def _no_constant(name: str) -> Any:
    raise CannotMerge(f"it is not valid JSON: {name}")


# --- TOML ------------------------------------------------------------------------------------


def with_toml_entry(text: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    """TOML with `entry` as the table `section.name`; values are strings or lists of them."""
    document = _toml(text)
    servers = document.get(section, {})
    before = servers.get(name, {}) if isinstance(servers, dict) else {}
    if not isinstance(servers, dict) or not isinstance(before, dict):
        raise CannotMerge(f"its `{section}` is not a table")
    merged = {**before, **entry}
    if name in servers and merged == before:
        return text
    lines = "".join(f"{key} = {_toml_value(value)}\n" for key, value in entry.items())
    if name in servers:
        changed = _with_lines(text, section, name, lines, entry)
    else:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        changed = f"{text}{gap}[{section}.{name}]\n{lines}"
    if _toml(changed, "the result would be") != {**document, section: {**servers, name: merged}}:
        raise CannotMerge(f"its `{section}.{name}` is written in a way that kakoi cannot change")
    return changed


def _with_lines(text: str, section: str, name: str, lines: str, entry: Mapping[str, Any]) -> str:
    """Put `lines` right below the table's heading, and remove the lines that they replace."""
    heading = re.compile(rf"^[ \t]*\[\s*{section}\s*\.\s*{name}\s*\][^\n]*\n?", re.MULTILINE)
    found = heading.search(text)
    if found is None:
        raise CannotMerge(f"its `{section}.{name}` is written in a way that kakoi cannot change")
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, found.end())
    end = following.start() if following else len(text)
    kept, rest = "", text[found.end() : end]
    replaced = re.compile(rf"[ \t]*({'|'.join(map(re.escape, entry))})[ \t]*=")
    while rest:
        line, rest = _statement(rest)
        kept += "" if replaced.match(line) else line
    head = found[0] if found[0].endswith("\n") else found[0] + "\n"
    return text[: found.start()] + head + lines + kept + text[end:]


def _statement(text: str) -> tuple[str, str]:
    """The first statement, which may span lines, and the rest."""
    lines = text.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        first = "".join(lines[:count])
        try:
            tomllib.loads(first)
        except tomllib.TOMLDecodeError:
            continue
        return first, "".join(lines[count:])
    return text, ""


def _toml(text: str, what: str = "it is") -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number can also be too long.
        raise CannotMerge(f"{what} invalid TOML: {error}") from None


def _toml_value(value: str | list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    # TOML has the same escapes as JSON.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
