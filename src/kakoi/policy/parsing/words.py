"""Words of shell text, and what is certain about them: static, partly dynamic, or dynamic.

A `Word` keeps what the shell will do to it: which characters were quoted, where an expansion is,
whether a glob, a brace or a tilde is live. Quoting itself is gone: `'r''m'`, `r\\m` and `$'\\x72m'`
are all the static word `rm`.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from kakoi._support.late import dataclass, pattern

MAX_BRACE_WORDS = 128
MAX_BRACES = 32

# Text in single or double quotes, or neither.
_CHUNK = pattern(r"'([^']*)'|\"([^\"]*)\"|([^'\"]+)")

# File names that mean standard input.
STDIN_NAMES = frozenset(
    {"-", "/dev/stdin", "//dev/stdin", "/dev/fd/0", "//dev/fd/0", "/proc/self/fd/0"}
)
# The name of an expansion that stands for any file below the folder before it.
FOUND = "{}"


class Expands(StrEnum):
    """The kinds of expansion."""

    VARIABLE = "variable"
    COMMAND = "command substitution"
    ARITHMETIC = "arithmetic"
    PROCESS = "process substitution"
    BRACES = "brace expansion"
    SHAPE = "known shape"
    """unknown text with a known beginning: `name` is that beginning"""
    FED = "argument from xargs"


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters that are certainly there; `quoted` ones have no special meaning to the shell."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Expansion:
    """A part that is known only at run time.

    `name` is the variable, `operator` what `${…}` does to it (`%`, `:-`, `@P`, `!`…), `operand` the
    word after the operator; `commands` are the indexes of the simple commands inside.
    """

    kind: Expands
    quoted: bool = False
    name: str = ""
    operator: str = ""
    operand: "Word | None" = None
    commands: tuple[int, ...] = ()


Part = Literal | Expansion


@dataclass(frozen=True, slots=True)
class Word:
    """One word; `make_word` and `literal_word` make it.

    `text` is its unquoted text, or None if it has an expansion. `static` is the one value that it
    certainly has, else None.
    """

    parts: tuple[Part, ...]
    start: int
    end: int
    text: str | None
    static: str | None
    glob: bool = False
    tilde: bool = False
    from_braces: bool = False

    @property
    def prefix(self) -> str:
        """The characters before the first expansion."""
        if self.text is not None:
            return self.text
        known = ""
        for part in self.parts:
            if isinstance(part, Literal):
                known += part.text
            elif part.kind is Expands.SHAPE:
                known += part.name
            else:
                break
        return known

    @property
    def shape(self) -> str | None:
        """The text with stand-ins for parts of known shape; None if anything else is unknown."""
        if self.text is not None:
            return self.text
        if any(part.kind is not Expands.SHAPE for part in self.expansions()):
            return None
        return self.prefix

    @property
    def may_be_many(self) -> bool:
        """Whether it can expand to several words, or none: `$x`, `"$@"`, `"${a[@]}"`."""
        return any(
            part.kind is not Expands.SHAPE
            and (not part.quoted or part.name in ("@", "*") or part.operator == "[@]")
            for part in self.expansions()
        )

    @property
    def shown(self) -> str:
        """The word for messages, with expansions as an ellipsis."""
        if self.text is not None:
            return self.text
        return "".join(p.text if isinstance(p, Literal) else "…" for p in self.parts)

    def expansions(self) -> Iterator[Expansion]:
        """Return the expansions of this word, outermost only."""
        return (part for part in self.parts if isinstance(part, Expansion))

    def after(self, length: int) -> "Word":
        """Return the word without its first `length` literal characters, such as `--file=`."""
        rest: list[Part] = []
        for part in self.parts:
            if length and isinstance(part, Literal):
                taken = min(length, len(part.text))
                length -= taken
                part = replace(part, text=part.text[taken:])
                if not part.text:
                    continue
            rest.append(part)
        return make_word(tuple(rest), self.start, self.end)


def make_word(parts: tuple[Part, ...], start: int, end: int, *, from_braces: bool = False) -> Word:
    """Return a Word made of the parts, with its glob and tilde detected."""
    if len(parts) == 1 and type(parts[0]) is Literal:
        only = parts[0]
        if only.quoted:
            return Word(parts, start, end, only.text, only.text, False, False, from_braces)
        text = only.text
        glob, tilde = _has_glob(text), text[:1] == "~"
        static = None if glob or tilde else text
        return Word(parts, start, end, text, static, glob, tilde, from_braces)
    text_parts: list[str] | None = []
    bare = ""
    for part in parts:
        if isinstance(part, Literal):
            if text_parts is not None:
                text_parts.append(part.text)
            bare += "" if part.quoted else part.text
        else:
            text_parts = None
    first = parts[0] if parts else None
    tilde = isinstance(first, Literal) and not first.quoted and first.text.startswith("~")
    text_value = None if text_parts is None else "".join(text_parts)
    glob = _has_glob(bare)
    static = None if glob or tilde else text_value
    return Word(parts, start, end, text_value, static, glob, tilde, from_braces)


def plain_word(raw: str, start: int, end: int) -> Word:
    """Return the word of source text that has quotes, but no expansions or backslashes."""
    if "'" not in raw and '"' not in raw:
        return make_word((Literal(raw),), start, end)
    parts: list[Part] = []
    for found in _CHUNK.finditer(raw):
        bare = found[3]
        if bare is not None:
            parts.append(Literal(bare))
        else:
            parts.append(Literal(found[1] if found[2] is None else found[2], True))
    return make_word(tuple(parts), start, end)


def literal_word(text: str, start: int, end: int) -> Word:
    """Return a static word with exactly this value."""
    return Word((Literal(text, True),), start, end, text, text)


def _has_glob(bare: str) -> bool:
    return "*" in bare or "?" in bare or ("[" in bare and "]" in bare)


# ── unquoting ────────────────────────────────────────────────────────────────────────────────


def unquoted_parts(raw: str) -> list[Part]:
    """Return the parts of a bare literal: `a\\ b` is `a`, a quoted blank, `b`."""
    if "\\" not in raw:
        return [Literal(raw)]
    parts: list[Part] = []
    start = at = 0
    while at < len(raw):
        if raw[at] != "\\":
            at += 1
            continue
        if at > start:
            parts.append(Literal(raw[start:at]))
        follower = raw[at + 1 : at + 2]
        if follower and follower != "\n":
            parts.append(Literal(follower, True))
        at += 2
        start = at
    if start < len(raw):
        parts.append(Literal(raw[start:]))
    return parts


def double_quoted_text(raw: str, *, special: str = '$`"\\') -> str:
    """Return the text of a literal in double quotes; a heredoc has other `special` characters."""
    if "\\" not in raw:
        return raw
    out: list[str] = []
    at = 0
    while at < len(raw):
        char = raw[at]
        follower = raw[at + 1 : at + 2]
        if char == "\\" and follower == "\n":
            at += 2
        elif char == "\\" and follower and follower in special:
            out.append(follower)
            at += 2
        else:
            out.append(char)
            at += 1
    return "".join(out)


_ANSI_C = {
    "a": 7, "b": 8, "e": 27, "E": 27, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11,
    "\\": 92, "'": 39, '"': 34, "?": 63,
}  # fmt: skip
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")


def ansi_c_text(raw: str) -> str:
    """Return the text of `$'…'` as bash decodes it (a NUL ends the string)."""
    out = bytearray()
    at = 0
    while at < len(raw):
        if raw[at] != "\\" or at + 1 >= len(raw):
            out += raw[at].encode("utf-8", "surrogatepass")
            at += 1
            continue
        piece, at = _ansi_c_escape(raw, at + 1)
        if b"\0" in piece:
            break
        out += piece
    return out.decode("utf-8", "surrogateescape")


def _ansi_c_escape(raw: str, at: int) -> tuple[bytes, int]:
    char = raw[at]
    if char in _ANSI_C:
        return bytes([_ANSI_C[char]]), at + 1
    if char in _OCTAL:
        digits = _digits(raw, at, _OCTAL, 3)
        return bytes([int(digits, 8) & 255]), at + len(digits)
    if char == "c" and at + 1 < len(raw):
        return bytes([ord(raw[at + 1]) & 31]), at + 2
    if char in "xuU":
        if raw[at : at + 2] == "x{":
            braced = _digits(raw, at + 2, _HEX, 8)
            end = at + 2 + len(braced)
            return bytes([int(braced or "0", 16) & 255]), end + (raw[end : end + 1] == "}")
        digits = _digits(raw, at + 1, _HEX, {"x": 2, "u": 4, "U": 8}[char])
        if digits:
            value = int(digits, 16)
            encoded = bytes([value]) if char == "x" else _utf8(value)
            return encoded, at + 1 + len(digits)
    return b"\\" + char.encode("utf-8", "surrogatepass"), at + 1


def _utf8(value: int) -> bytes:
    return chr(min(value, 0x10FFFF)).encode("utf-8", "surrogatepass")


def _digits(raw: str, at: int, allowed: frozenset[str], most: int) -> str:
    end = at
    while end < len(raw) and end - at < most and raw[end] in allowed:
        end += 1
    return raw[at:end]


# ── braces ───────────────────────────────────────────────────────────────────────────────────


def brace_words(word: Word) -> tuple[Word, ...]:
    """Return the words that `a{b,c}d` expands to; the word itself if no brace in it is live."""
    if not any(type(p) is Literal and not p.quoted and "{" in p.text for p in word.parts):
        return (word,)
    atoms: list[str | Part] = []
    for part in word.parts:
        if isinstance(part, Literal) and not part.quoted:
            atoms.extend(part.text)
        else:
            atoms.append(part)
    try:
        if atoms.count("{") > MAX_BRACES:
            raise OverflowError
        expanded = _expand(atoms)
    except OverflowError:
        unknown = Expansion(Expands.BRACES)
        return (make_word((unknown,), word.start, word.end, from_braces=True),)
    if len(expanded) == 1 and expanded[0] == atoms:
        return (word,)
    return tuple(
        make_word(_joined(each), word.start, word.end, from_braces=True)
        for each in expanded
        if each
    )


def _joined(atoms: list[str | Part]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for atom in atoms:
        if not isinstance(atom, str):
            parts.append(atom)
        elif parts and isinstance(parts[-1], Literal) and not parts[-1].quoted:
            parts[-1] = Literal(parts[-1].text + atom)
        else:
            parts.append(Literal(atom))
    return tuple(parts)


def _expand(atoms: list[str | Part]) -> list[list[str | Part]]:
    for at, atom in enumerate(atoms):
        if atom != "{":
            continue
        choices, end = _choices(atoms, at)
        if not choices:
            continue
        tails = _expand(atoms[end:])
        heads = [each for choice in choices for each in _expand(choice)]
        if len(heads) * len(tails) > MAX_BRACE_WORDS:
            raise OverflowError
        return [atoms[:at] + head + tail for head in heads for tail in tails]
    return [atoms]


def _choices(atoms: list[str | Part], at: int) -> tuple[list[list[str | Part]], int]:
    """Return the alternatives of the brace at `at`, and where it ends; none if it is plain."""
    depth = 0
    choices: list[list[str | Part]] = [[]]
    for end in range(at, len(atoms)):
        atom = atoms[end]
        if atom == "{":
            depth += 1
        elif atom == "}":
            depth -= 1
            if depth == 0:
                return (choices if len(choices) > 1 else _sequence(choices[0])), end + 1
        elif atom == "," and depth == 1:
            choices.append([])
            continue
        if end > at:
            choices[-1].append(atom)
    return [], at


def _sequence(atoms: list[str | Part]) -> list[list[str | Part]]:
    """Expand `1..5`, `a..e`, `1..9..2`; empty if the atoms are not a sequence."""
    if not all(isinstance(atom, str) for atom in atoms):
        return []
    pieces = "".join(str(atom) for atom in atoms).split("..")
    if len(pieces) not in (2, 3):
        return []
    try:
        step = abs(int(pieces[2])) or 1 if len(pieces) == 3 else 1
        if all(len(p) == 1 and p.isascii() and p.isalpha() for p in pieces[:2]):
            low, high, named = ord(pieces[0]), ord(pieces[1]), True
        else:
            low, high, named = int(pieces[0]), int(pieces[1]), False
    except ValueError:
        return []
    if abs(high - low) // step >= MAX_BRACE_WORDS:
        raise OverflowError
    values = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    return [list(chr(v)) if named else list(str(v)) for v in values]
