"""What a shell has exported, parsed from the output of `export -p` before and after a command.

The output is untrusted: text that does not have the form of a shell's own list is ignored. Nothing
in it is evaluated.
"""

import re
from collections.abc import Mapping
from typing import Final

from kakoi._support.late import pattern

# Every shell sets them for itself.
_THE_SHELLS_OWN: Final = frozenset(("_", "PWD", "OLDPWD", "SHLVL"))
_HEAD: Final = pattern(rb"(?:declare -[A-Za-z]+|export|typeset -x) ([A-Za-z_][A-Za-z0-9_]*)")
_BARE: Final = pattern(rb"[^\s'\"$`\\]+")
_SINGLE: Final = pattern(rb"'([^']*)'")
_DOUBLE: Final = pattern(rb'"((?:[^"\\$`]|\\.)*)"', re.DOTALL)
_ANSI: Final = pattern(rb"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPED: Final = pattern(rb'\\([$`"\\])')
_JOINED: Final = pattern(rb"\\\n")
_ANSI_ESCAPED: Final = pattern(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_LETTERS: Final[Mapping[bytes, bytes]] = {
    b"a": b"\a",
    b"b": b"\b",
    b"e": b"\x1b",
    b"E": b"\x1b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}


def parse_exports(report: bytes) -> dict[str, str | None] | None:
    """Return what changed between the two lists in a report; None marks an unset variable.

    Returns None if that is unknown: the shell was killed before it reported, or the lists are too
    long.
    """
    parts = report.split(b"\0")
    if len(parts) != 3 or parts[2]:
        return None
    before, after = (parse_list(part) for part in parts[:2])
    if before is None or after is None:
        return None
    changed: dict[str, str | None] = {
        name: value for name, value in after.items() if before.get(name) != value
    }
    gone = {name: None for name in before if name not in after}
    return {name: value for name, value in (changed | gone).items() if name not in _THE_SHELLS_OWN}


def parse_list(printed: bytes) -> dict[str, str] | None:
    """Return the variables that `export -p` of bash, dash or busybox printed; None if malformed.

    A name without a value is not in the environment.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(printed):
        head = _HEAD.match(printed, at)
        if head is None:
            return None
        value, at = b"", head.end()
        has_value = printed[at : at + 1] == b"="
        if has_value:
            value, at = _value(printed, at + 1)
        if printed[at : at + 1] != b"\n":
            return None
        at += 1
        if has_value:
            found[head[1].decode("ascii")] = value.decode("utf-8", "surrogateescape")
    return found


def _value(printed: bytes, at: int) -> tuple[bytes, int]:
    """The word that begins there, without its quotes, and where it ends."""
    value = b""
    while True:
        if found := _BARE.match(printed, at):
            value += found[0]
        elif found := _SINGLE.match(printed, at):
            value += found[1]
        elif found := _DOUBLE.match(printed, at):
            value += _ESCAPED.sub(rb"\1", _JOINED.sub(b"", found[1]))
        elif found := _ANSI.match(printed, at):
            value += _ANSI_ESCAPED.sub(_unescaped, found[1])
        else:
            return value, at
        at = found.end()


def _unescaped(found: "re.Match[bytes]") -> bytes:
    code = found[1]
    if code.isdigit():
        return bytes((int(code, 8) & 0xFF,))
    return _LETTERS.get(code, code)
