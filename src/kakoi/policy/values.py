"""What the expansions of a script can become, where the script itself says so.

`for f in *.txt; do mv "$f" out/; done` names its files; `tmp=$(mktemp)` is a temporary file. A word
whose variables are all set in the text is judged by every value they can have. What comes from
elsewhere (`read`, `$1`, the output of a program) stays unknown.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final

from kakoi.policy.script import Command, Script
from kakoi.policy.words import Expands, Expansion, Literal, Part, Word, literal_word, make_word

MAX_VARIANTS: Final = 16
_NUMBERS: Final = frozenset(
    "? # $ ! RANDOM SECONDS LINENO UID EUID PPID BASHPID COLUMNS LINES EPOCHSECONDS OPTIND".split()
)
_TEXTS: Final = frozenset(
    "USER LOGNAME HOSTNAME OSTYPE HOSTTYPE MACHTYPE LANG TERM BASH_VERSION".split()
)
_PLACES: Final = {"PWD": ".", "TMPDIR": "/tmp/_", "HOME": "~", "OLDPWD": ""}  # noqa: S108
# What programs print, by a stand-in: a short plain text that begins with no dash and holds no path,
# a directory, a temporary file, options of a compiler. Only for words that nobody can turn into
# another output: `date +-rf` prints an option, so its format must be plain.
_PRINTED: Final = {
    **dict.fromkeys("date nproc whoami id uname arch wc seq".split(), "_"),
    **dict.fromkeys(("pkg-config", "python3-config", "llvm-config"), "-I_"),
    "pwd": ".",
    "mktemp": "/tmp/_",  # noqa: S108
}
_PLAIN_WORD: Final = re.compile(
    r"\+?[%\w][%\w.:/@^~-]*|-[a-zA-Z]|--(?:short|abbrev)(?:=\d+)?|--(?:tags|always|long|abbrev-ref|"
    r"verify|show-toplevel|show-current|count|exact-match|quiet|utc|iso-8601|all|octopus|cflags|libs)"
)
_PLAIN_GIT: Final = frozenset("rev-parse merge-base describe rev-list symbolic-ref branch".split())
_PATH_GIT: Final = frozenset("ls-files diff ls-tree".split())
# Filters that pass lines on as they are, and filters that cut them.
_SIEVES: Final = frozenset("grep head tail sort uniq".split())
_FILTERS: Final = frozenset("head tail sort uniq tr cut grep wc rev tac".split())
_FILLING: Final = frozenset(
    "read mapfile readarray getopts printf wait declare local export typeset readonly".split()
)
PATH_BELOW: Final = "./_"


class Values:
    """The values a script gives to its variables."""

    def __init__(self, script: Script, inherited: Mapping[str, tuple[Word, ...] | None]) -> None:
        self.script = script
        self.known: dict[str, tuple[Word, ...] | None] = dict(inherited)
        for command in script.commands:
            for assignment in command.assignments:
                given: tuple[Word, ...] | None = assignment.elements
                if assignment.value is not None:
                    # What `x+=…` makes of x depends on what x was.
                    given = None if assignment.appends else (assignment.value,)
                self.add(assignment.name, given)
            for name in _names_read(command):
                self.known[name] = None
        for binding in script.bindings:
            self.add(binding.name, binding.values)
        if any(_sets_in_trap(command) for command in script.commands):
            self.known = dict.fromkeys(self.known)

    def add(self, name: str, values: tuple[Word, ...] | None) -> None:
        before = self.known.get(name, ())
        self.known[name] = None if values is None or before is None else (*before, *values)

    def are_names(self, name: str) -> bool:
        """Whether every value of the variable is a plain name, given in the text."""
        values = self.known.get(name)
        return bool(values) and all(
            value.static is not None and re.fullmatch(r"[A-Za-z_]\w*", value.static)
            for value in values or ()
        )

    def variants(self, words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
        """The words with every combination of known values in place of their variables."""
        if all(word.text is not None for word in words):
            yield words
            return
        names = sorted({n for word in words for n in self._names(word, 0)})
        choices = [self.known[name] or () for name in names]
        total = 1
        for choice in choices:
            total *= max(1, len(choice))
        if total > MAX_VARIANTS:
            yield words
            return
        for chosen in product(*(choice or (None,) for choice in choices)):
            setting = dict(zip(names, chosen, strict=True))
            yield tuple(each for word in words for each in self._resolve(word, setting))

    def _names(self, word: Word, depth: int) -> Iterator[str]:
        for part in word.expansions():
            if part.kind is Expands.VARIABLE and self.known.get(part.name) and depth < 4:
                yield part.name
                for value in self.known[part.name] or ():
                    yield from self._names(value, depth + 1)
            if part.operand is not None and depth < 4:
                yield from self._names(part.operand, depth + 1)

    def _resolve(self, word: Word, setting: Mapping[str, Word | None]) -> list[Word]:
        if word.text is not None:
            return [word]
        parts: list[Part] = []
        for part in word.parts:
            parts.extend(
                self._parts_of(part, setting, 0) if isinstance(part, Expansion) else [part]
            )
        return _split(parts, word)

    def _parts_of(
        self, part: Expansion, setting: Mapping[str, Word | None], depth: int
    ) -> list[Part]:
        if depth > 4:
            return [part]
        if part.kind is Expands.ARITHMETIC:
            return [Literal("0", True)]
        if part.kind is Expands.COMMAND:
            text = self.output_of(part.commands)
            return [part] if text is None else [Literal(text, True)]
        if part.kind is Expands.VARIABLE:
            return self._variable(part, setting, depth)
        return [part]

    def _variable(
        self, part: Expansion, setting: Mapping[str, Word | None], depth: int
    ) -> list[Part]:
        if part.name in _NUMBERS or part.operator == "#":
            return [Literal("0", True)]
        value = setting.get(part.name)
        if part.operator in ("%", "%%") and value is not None and not _cut_is_harmless(value):
            return [part]
        if value is not None and part.operator in (
            "",
            "%",
            "%%",
            "[@]",
            "[]",
            ":-",
            "-",
            ":=",
            "=",
        ):
            return [
                each for inner in value.parts for each in self._inner(inner, part, setting, depth)
            ]
        if part.operator == "##" and part.operand is not None and part.operand.text == "*/":
            return [Literal("_", True)]
        if part.name in self.known:
            return [part]
        if part.operator in (":-", "-", ":=", "=") and part.operand is not None:
            return [
                each
                for inner in part.operand.parts
                for each in self._inner(inner, part, setting, depth)
            ]
        if part.name in _TEXTS and not part.operator:
            return [Literal("_", True)]
        place = _PLACES.get(part.name)
        return [Literal(place, True)] if place and not part.operator else [part]

    def _inner(
        self, inner: Part, outer: Expansion, setting: Mapping[str, Word | None], depth: int
    ) -> list[Part]:
        if isinstance(inner, Expansion):
            nested = replace(inner, quoted=outer.quoted)
            return self._parts_of(nested, setting, depth + 1)
        return [Literal(inner.text, outer.quoted)]

    def fed(self, argv: tuple[Word, ...], command: Command) -> tuple[Word, ...]:
        """xargs' command line, with the shape of the lines it reads in place of its arguments."""
        if not command.feeders:
            return argv
        first, *others = (self.script.commands[index] for index in command.feeders)
        shape = printed_by(first)
        if shape is None or any(_program_and_first(c)[0] not in _SIEVES for c in others):
            return argv
        return tuple(_with_shape(word, shape) for word in argv)

    def output_of(self, commands: tuple[int, ...]) -> str | None:
        """A stand-in for what these commands print, if its shape is known."""
        if not commands or any(index >= len(self.script.commands) for index in commands):
            return None
        first, *rest = (self.script.commands[index] for index in commands)
        if any(_program_and_first(command)[0] not in _FILTERS for command in rest):
            return None
        return printed_by(first)


def printed_by(command: Command) -> str | None:
    """A stand-in for a line that `command` prints: a name, a number, a path; None if unknown."""
    program, first = _program_and_first(command)
    if program in ("date", "seq", "wc", "git", "id", "uname", "pkg-config") and not _plain(command):
        return PATH_BELOW if program == "git" and first in _PATH_GIT else None
    if program == "git":
        return _printed_by_git(command, first)
    if program == "find":
        return PATH_BELOW if _searches_below(command) else None
    if program in ("ls", "fd", "rg") or (program == "grep" and _lists_files(command)):
        last = command.words[-1].static
        below = last is not None and not last.startswith(("/", "~", ".."))
        return PATH_BELOW if below else None
    return _PRINTED.get(program)


def _plain(command: Command) -> bool:
    """Whether no argument can put an option or a path into the output."""
    if _program_and_first(command)[0] == "wc" and any(
        not word.prefix.startswith("-") for word in command.words[1:]
    ):
        return False
    return all(_PLAIN_WORD.fullmatch(word.static or " ") for word in command.words[1:])


def _printed_by_git(command: Command, subcommand: str) -> str | None:
    if any(word.static == "--show-toplevel" for word in command.words):
        return "."
    if subcommand in _PLAIN_GIT:
        return "_"
    return PATH_BELOW if subcommand in _PATH_GIT else None


def _searches_below(command: Command) -> bool:
    start = command.words[1].static if len(command.words) > 1 else "."
    if start is None:
        return False
    return start in ("-name", "-type") or (not start.startswith(("-", "/")) and ".." not in start)


def _lists_files(command: Command) -> bool:
    return any(
        word.prefix.startswith("--files-with")
        or (word.prefix[:1] == "-" and word.prefix[1:2] != "-" and {"l", "L"} & set(word.prefix))
        for word in command.words[1:]
    )


def _program_and_first(command: Command) -> tuple[str, str]:
    if not command.words:
        return "", ""
    operands = [word.static or "" for word in command.words[1:] if not word.prefix.startswith("-")]
    return command.words[0].static or "", operands[0] if operands else ""


def _with_shape(word: Word, shape: str) -> Word:
    """The word with its unknown part replaced by a stand-in of that shape."""
    if word.text is not None:
        return word
    text = "".join(shape if isinstance(part, Expansion) else part.text for part in word.parts)
    return literal_word(text, word.start, word.end)


def _names_read(command: Command) -> Iterator[str]:
    """Variables that a builtin fills with something not seen in the text."""
    if command.words and command.words[0].static in _FILLING:
        for word in command.words[1:]:
            name = re.match(r"(?:-[A-Za-z]*[vap])?([A-Za-z_]\w*)", word.shown)
            if name:
                yield name[1]


def _sets_in_trap(command: Command) -> bool:
    """Whether a `trap` may change variables behind the back of the text."""
    trap = bool(command.words) and command.words[0].static == "trap"
    return trap and any(re.search(r"=|\bread\b|\bprintf\b", w.shown) for w in command.words[1:])


def _cut_is_harmless(value: Word) -> bool:
    """Whether every beginning of the value is as harmless as the whole: `${f%.txt}`."""
    text = value.text
    return text is not None and not text.startswith("-") and ".." not in text


def _split(parts: list[Part], word: Word) -> list[Word]:
    """The words that an unquoted expansion with blanks in it becomes."""
    bare_blank = any(
        isinstance(p, Literal) and not p.quoted and any(c in p.text for c in " \t\n") for p in parts
    )
    if not bare_blank:
        resolved = make_word(tuple(parts), word.start, word.end)
        if resolved.text == "~" or (resolved.text or "").startswith("~/"):
            return [replace(resolved, tilde=True)]
        return [resolved]
    words: list[list[Part]] = [[]]
    for part in parts:
        if isinstance(part, Expansion) or part.quoted:
            words[-1].append(part)
            continue
        for at, piece in enumerate(re.split(r"[ \t\n]+", part.text)):
            if at:
                words.append([])
            if piece:
                words[-1].append(Literal(piece))
    return [make_word(tuple(each), word.start, word.end) for each in words if each] or [
        literal_word("", word.start, word.end)
    ]
