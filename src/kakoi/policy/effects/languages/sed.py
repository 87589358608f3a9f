"""GNU sed scripts: what they do besides editing their input.

`sed_effects` follows the grammar of GNU sed's own compiler, because a reading that is off by one
character takes `w /etc/passwd` for text, or text for a command. The caller joins several `-e`
scripts with newlines, as sed does itself.
"""

import re
from collections.abc import Callable

from kakoi._support.late import pattern
from kakoi.policy.effects.languages.code_effect import (
    HARMLESS_OUTPUTS,
    CodeEffect,
    CodeEffectKind,
    snippet,
)

# sed asks the C library about bytes; Python's str.isspace would accept Unicode spaces too.
_BLANKS = " \t"
_SPACES = " \t\n\v\f\r"
_DIGITS = "0123456789"
_PLAIN_COMMANDS = "=dDFgGhHnNpPxz"
# Inside brackets only these spell a class; sed and the C library disagree about anything else
# that starts with `[:`, `[.` or `[=`.
_BRACKET_CLASS = pattern(r"\[(?::[a-z]+:|\.[^.\n]\.|=[^=\n]=)\]")
_UNESCAPED_LINE_END = pattern(r"(?:[^\\\n]|\\.|\\\Z)*", re.DOTALL)


class _NotUnderstoodError(Exception):
    """The script left the grammar known here."""


class _Cursor:
    """A position in the script; the empty string stands for its end."""

    __slots__ = ("open_blocks", "position", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.open_blocks = 0

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def take(self) -> str:
        character = self.peek()
        self.position += len(character)
        return character

    def skip(self, characters: str) -> None:
        while self.peek() and self.peek() in characters:
            self.position += 1

    def take_until(self, stops: str) -> str:
        start = self.position
        while self.peek() and self.peek() not in stops:
            self.position += 1
        return self.text[start : self.position]


def sed_effects(script: str) -> tuple[CodeEffect, ...]:
    """Return every program, file or further code the script reaches for, in the order written.

    An empty result means that the script only turns input into output. Never raises: if it cannot
    be read, `CodeEffectKind.UNREADABLE` follows the effects found before.
    """
    cursor = _Cursor(script)
    effects: list[CodeEffect] = []
    start = 0
    try:
        cursor.skip(_SPACES + ";")
        while cursor.peek():
            start = cursor.position
            effects += _read_command(cursor)
            cursor.skip(_SPACES + ";")
        if cursor.open_blocks:
            raise _NotUnderstoodError
    except _NotUnderstoodError:
        effects.append(CodeEffect(CodeEffectKind.UNREADABLE, snippet(script[start:])))
    return tuple(dict.fromkeys(effects))


def _read_command(cursor: _Cursor) -> list[CodeEffect]:
    start = cursor.position
    _skip_addresses(cursor)
    name = cursor.take()
    if name and name in _PLAIN_COMMANDS:
        _expect_end_of_command(cursor)
        return []
    read = _COMMANDS.get(name)
    if read is None:
        raise _NotUnderstoodError
    found = read(cursor)
    text = snippet(cursor.text[start : cursor.position])
    return [CodeEffect(effect, text, target) for effect, target in found]


def _skip_addresses(cursor: _Cursor) -> None:
    if _skip_address(cursor):
        cursor.skip(_BLANKS)
        if cursor.peek() == ",":
            cursor.take()
            cursor.skip(_BLANKS)
            if not _skip_address(cursor):
                raise _NotUnderstoodError
    cursor.skip(_BLANKS)
    if cursor.peek() == "!":
        cursor.take()
        cursor.skip(_BLANKS)


def _skip_address(cursor: _Cursor) -> bool:
    first = cursor.peek()
    if first == "$":
        cursor.take()
    elif first and first in "/\\":
        cursor.take()
        _skip_delimited(cursor, first if first == "/" else cursor.take(), brackets=True)
        cursor.skip(_BLANKS + "IM")
    elif first and first in _DIGITS + "+~":
        cursor.take()
        cursor.skip(_DIGITS + _BLANKS)
        if cursor.peek() == "~":
            cursor.take()
            cursor.skip(_BLANKS)
            cursor.skip(_DIGITS)
    else:
        return False
    return True


def _skip_delimited(cursor: _Cursor, delimiter: str, *, brackets: bool) -> None:
    # A delimiter of several bytes is split differently in each locale.
    if not delimiter.isascii() or delimiter in ("", "\n"):
        raise _NotUnderstoodError
    while True:
        character = cursor.take()
        if character == delimiter:
            return
        if character in ("", "\n"):
            raise _NotUnderstoodError
        if character == "\\":
            cursor.take()
        elif character == "[" and brackets:
            _skip_bracket(cursor)


def _skip_bracket(cursor: _Cursor) -> None:
    """Skip a bracket expression: inside it, neither `\\` nor the delimiter is special to sed."""
    if cursor.peek() == "^":
        cursor.take()
    if cursor.peek() == "]":
        cursor.take()
    while (character := cursor.take()) != "]":
        if character in ("", "\n"):
            raise _NotUnderstoodError
        if character == "[" and cursor.peek() and cursor.peek() in ".:=":
            spelled = _BRACKET_CLASS.match(cursor.text, cursor.position - 1)
            if spelled is None:
                raise _NotUnderstoodError
            cursor.position = spelled.end()


def _expect_end_of_command(cursor: _Cursor) -> None:
    cursor.skip(_BLANKS)
    if cursor.peek() not in ("", "\n", ";", "}", "#"):
        raise _NotUnderstoodError


_Found = list[tuple[CodeEffectKind, str | None]]


def _read_comment(cursor: _Cursor) -> _Found:
    cursor.take_until("\n")
    return []


def _read_label(cursor: _Cursor) -> _Found:
    cursor.skip(_BLANKS)
    label = cursor.take_until(_BLANKS + "\n;}#")
    # Versions of sed differ on whether these end a label, so the rest has two readings.
    if any(character in label for character in "\v\f\r"):
        raise _NotUnderstoodError
    return []


def _open_block(cursor: _Cursor) -> _Found:
    cursor.open_blocks += 1
    return []


def _close_block(cursor: _Cursor) -> _Found:
    cursor.open_blocks -= 1
    if cursor.open_blocks < 0:
        raise _NotUnderstoodError
    _expect_end_of_command(cursor)
    return []


def _read_number(cursor: _Cursor) -> _Found:
    cursor.skip(_BLANKS)
    cursor.skip(_DIGITS)
    _expect_end_of_command(cursor)
    return []


def _take_text(cursor: _Cursor) -> str:
    """Return the argument of `a`, `i`, `c` and `e`: it ends at a newline without a backslash."""
    cursor.skip(_BLANKS)
    if cursor.peek() == "\\":
        # sed takes the character after `a\` literally, even a newline or a second backslash.
        cursor.take()
        cursor.take()
    start = cursor.position
    line = _UNESCAPED_LINE_END.match(cursor.text, start)
    cursor.position = line.end() if line else start
    return cursor.text[start : cursor.position]


def _read_text(cursor: _Cursor) -> _Found:
    _take_text(cursor)
    return []


def _read_execute(cursor: _Cursor) -> _Found:
    return [(CodeEffectKind.RUNS, _take_text(cursor) or None)]


def _read_input_file(cursor: _Cursor) -> _Found:
    cursor.skip(_BLANKS)
    return [(CodeEffectKind.READS, cursor.take_until("\n") or None)]


def _read_output_file(cursor: _Cursor) -> _Found:
    cursor.skip(_BLANKS)
    name = cursor.take_until("\n")
    return [] if name in HARMLESS_OUTPUTS else [(CodeEffectKind.WRITES, name or None)]


def _read_transliteration(cursor: _Cursor) -> _Found:
    delimiter = cursor.take()
    _skip_delimited(cursor, delimiter, brackets=False)
    _skip_delimited(cursor, delimiter, brackets=False)
    _expect_end_of_command(cursor)
    return []


def _read_substitution(cursor: _Cursor) -> _Found:
    delimiter = cursor.take()
    _skip_delimited(cursor, delimiter, brackets=True)
    _skip_delimited(cursor, delimiter, brackets=False)
    found: _Found = []
    while True:
        cursor.skip("gpiImM" + _DIGITS + _BLANKS)
        match cursor.peek():
            case "e":
                cursor.take()
                found.append((CodeEffectKind.RUNS, None))
            case "w":
                cursor.take()
                return found + _read_output_file(cursor)
            case "" | "\n" | ";" | "}" | "#":
                return found
            case "\r" if cursor.text.startswith("\r\n", cursor.position):
                return found
            case _:
                raise _NotUnderstoodError


_COMMANDS: dict[str, Callable[[_Cursor], _Found]] = {
    "#": _read_comment,
    "{": _open_block,
    "}": _close_block,
    "s": _read_substitution,
    "y": _read_transliteration,
    "e": _read_execute,
    "w": _read_output_file,
    "W": _read_output_file,
    "r": _read_input_file,
    "R": _read_input_file,
    **dict.fromkeys("aic", _read_text),
    **dict.fromkeys(":btTv", _read_label),
    **dict.fromkeys("qQlL", _read_number),
}
