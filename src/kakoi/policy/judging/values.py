"""What the expansions of a script can become, if the script itself says so.

`for f in *.txt; do mv "$f" out/; done` names its files, and `x=build; mkdir $x` its directory. A
word whose variables are set in the script is judged with every value they can have, including none
at all if the assignment may not have happened. A value from elsewhere (`read`, `$1`, the output of
a program) stays unknown, or has a known *shape* at best. When in doubt, a value is unknown.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.judging.outputs import (
    found_below,
    heredoc_passed_on,
    plain_output,
    printed_by_pipeline,
)
from kakoi.policy.parsing.script import Assignment, Script, SimpleCommand
from kakoi.policy.parsing.words import FOUND, Expands, Expansion, Literal, Part, Word, make_word

MAX_VARIANTS: Final = 16
_MAX_DEPTH: Final = 4
_MAX_PARTS: Final = 500
_MAX_ELEMENTS: Final = 128
_NUMBERS: Final = frozenset("? # $ RANDOM SECONDS LINENO UID EUID PPID BASHPID".split())
_NUMBERS_OF_BASH: Final = frozenset("RANDOM SECONDS UID EUID BASHPID".split())
# Variables that the environment certainly sets, by shape. The home directory is always outside.
_ENVIRONMENT: Final = {
    "PWD": ".",
    "TMPDIR": "/tmp",  # noqa: S108
    "HOME": "/home/user",
    "USER": "_",
    "LOGNAME": "_",
}
# Variables that the shell sets by itself, or that mean more than their text.
_SPECIAL: Final = frozenset("REPLY MAPFILE OPTARG OPTIND _ IFS PWD OLDPWD DIRSTACK COPROC".split())
_FILLING: Final = frozenset(
    "read mapfile readarray getopts printf wait declare local export typeset readonly unset".split()
)
# In any shell other than bash, an assignment before one of these persists.
_SPECIAL_BUILTINS: Final = frozenset(
    ": . break continue eval exec exit return set shift times trap unset".split()
)
_DECLARING: Final = frozenset("declare local export typeset readonly".split())
_MOVING: Final = frozenset("cd pushd popd".split())
_DEFAULTING: Final = (":-", "-", ":=", "=")
_NOTHING: Final = Word((), 0, 0, "", "")
_NAME: Final = pattern(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Variable:
    """The values of a variable; after the command `since` it is certainly set.

    `within` is the body of the loop that sets it.
    """

    values: tuple[Word, ...] | None
    since: int | None = None
    within: tuple[int, int] = (0, 0)

    def surely_set(self, index: int) -> bool:
        """Whether it has one of its values when command `index` runs."""
        first, end = self.within
        return (self.since is not None and self.since < index) or first <= index < end


class Values:
    """The values a script gives to its variables."""

    def __init__(
        self, script: Script, inherited: Mapping[str, Variable], *, posix: bool = False
    ) -> None:
        self.script = script
        # Other shells than bash have no `RANDOM`: there it is an ordinary variable, or unset.
        self.numbers = _NUMBERS - _NUMBERS_OF_BASH if posix else _NUMBERS
        self.parts_left = 0
        self.known: dict[str, Variable] = dict(inherited)
        # Arrays that one certain assignment sets and nothing else changes, with its command.
        self.arrays: dict[str, tuple[int, tuple[Word, ...]]] = {}
        self.moves = any(_program(command) in _MOVING for command in script.commands)
        functions = {definition.name for definition in script.definitions}
        for index, command in enumerate(script.commands):
            for assignment in command.assignments:
                if not command.words or _program(command) in _DECLARING:
                    self._assign(assignment, command, index)
                elif _program(command) in functions:
                    # `x=a cmd` sets x for the body of a function, not for the words of this text.
                    value = None if assignment.value is None else (assignment.value,)
                    self._add(assignment.name, Variable(value))
                elif posix and _program(command) in _SPECIAL_BUILTINS:
                    self._add(assignment.name, Variable(None))
            for name in _names_filled(command):
                self._add(name, Variable(None))
        for binding in script.bindings:
            self._add(binding.name, Variable(binding.values, within=binding.body))
        # A name that is known only at run time, or a trap, can have changed any of them.
        if any(_may_set_anything(command) for command in script.commands):
            self.known = dict.fromkeys(self.known, Variable(None))
            self.arrays = {}

    def _assign(self, assignment: Assignment, command: SimpleCommand, index: int) -> None:
        flags = {word.prefix for word in command.words[1:] if word.prefix.startswith("-")}
        plain = flags <= {"-x", "-r", "-g"} and assignment.name not in _SPECIAL
        certain = command.certain and command.scope == ()
        alone = assignment.name not in self.known and not assignment.appends
        if assignment.elements and plain and certain and alone:
            self._add(assignment.name, Variable(None))
            self.arrays[assignment.name] = (index, assignment.elements)
        elif assignment.value is None or assignment.appends or not plain:
            self._add(assignment.name, Variable(None))
        else:
            since = index if certain else None
            self._add(assignment.name, Variable((assignment.value,), since))

    def _add(self, name: str, new: Variable) -> None:
        old = self.known.get(name)
        self.arrays.pop(name, None)
        if old is None:
            self.known[name] = new
        elif old.values is None or new.values is None:
            self.known[name] = Variable(None)
        else:
            since = new.since if old.since is None else old.since
            within = old.within if new.within == (0, 0) else new.within
            self.known[name] = Variable((*old.values, *new.values), since, within)

    def are_names(self, name: str) -> bool:
        """Whether every value of the variable is a plain name in the text."""
        variable = self.known.get(name)
        values = variable.values if variable else None
        return bool(values) and all(_NAME.fullmatch(value.static or "") for value in values or ())

    def to_inherit(self) -> dict[str, Variable]:
        """Return the variables for a text that runs later in the same shell, without positions."""
        inherited = {}
        for name, variable in self.known.items():
            resolved = [w for v in variable.values or () for w in self._resolve(v, {}, -1)]
            usable = variable.values is not None and all(
                word.shape is not None for word in resolved
            )
            inherited[name] = Variable(tuple(resolved), -1) if usable else Variable(None)
        return inherited

    # ── variants ──

    def variants(self, words: tuple[Word, ...], index: int) -> Iterator[tuple[Word, ...]]:
        """Yield the words of command `index` with every combination of known values filled in."""
        if all(word.text is not None for word in words):
            yield words
            return
        names = sorted(self._names(words))
        choices = [self._choices(name, index) for name in names]
        total = 1
        for choice in choices:
            total *= len(choice)
        if total > MAX_VARIANTS:
            yield words
            return
        for chosen in product(*choices):
            setting = dict(zip(names, chosen, strict=True))
            yield tuple(each for word in words for each in self._resolve(word, setting, index))

    def _choices(self, name: str, index: int) -> tuple[Word, ...]:
        variable = self.known[name]
        values = variable.values or ()
        return values if variable.surely_set(index) else (*values, _NOTHING)

    def _names(self, words: tuple[Word, ...]) -> set[str]:
        """Return the variables that decide what the words become, each visited once."""
        names: set[str] = set()
        for _ in range(_MAX_DEPTH):
            parts = [part for word in words for part in word.expansions()]
            inner = [part.operand for part in parts if part.operand is not None]
            used = {part.name for part in parts if part.kind is Expands.VARIABLE}
            for name in (used & self.known.keys()) - names:
                values = self.known[name].values
                if values is not None:
                    names.add(name)
                    inner.extend(values)
            words = tuple(inner)
        return names

    def _resolve(self, word: Word, setting: Mapping[str, Word], index: int) -> list[Word]:
        if word.text is not None:
            return [word]
        self.parts_left = _MAX_PARTS
        only = word.parts[0] if len(word.parts) == 1 else None
        if isinstance(only, Expansion) and only.operator == "[@]" and only.name in self.arrays:
            return self._elements(only, word, index)
        parts = [
            each
            for part in word.parts
            for each in (self._expand(part, setting, 0) if isinstance(part, Expansion) else [part])
        ]
        return _split(parts, word) if self.parts_left > 0 else [word]

    def _elements(self, part: Expansion, word: Word, index: int) -> list[Word]:
        """Return the words of `"${a[@]}"` in command `index`; without quotes they are split."""
        since, elements = self.arrays[part.name]
        if since >= index or len(elements) > _MAX_ELEMENTS:
            return [word]
        if part.quoted:
            return list(elements)
        if any(element.text is None for element in elements):
            return [word]
        texts = [Literal(element.text or "") for element in elements]
        return [each for text in texts for each in _split([text], word)]

    def _expand(self, part: Expansion, setting: Mapping[str, Word], depth: int) -> list[Part]:
        # A value made of values made of values can exceed the memory.
        self.parts_left -= 1
        if depth > _MAX_DEPTH or self.parts_left <= 0:
            return [part]
        if part.kind is Expands.ARITHMETIC:
            return [_shape("0", part)]
        if part.kind is Expands.COMMAND:
            return [self._output(part, depth)]
        return self._variable(part, setting, depth) if part.kind is Expands.VARIABLE else [part]

    def _output(self, part: Expansion, depth: int) -> Part:
        commands = [self.script.commands[i] for i in part.commands if i < len(self.script.commands)]
        if len(commands) != len(part.commands) or not commands:
            return part
        text = heredoc_passed_on(commands)
        if text is not None:
            return Literal(text, part.quoted)
        printed = printed_by_pipeline(commands, part.commands)
        # After a `cd`, `.` is no longer the directory where the value was computed.
        elsewhere = printed == "." and depth > 0 and self.moves
        temporary = printed == "/tmp/_" and "TMPDIR" in self.known  # noqa: S108
        return part if printed is None or elsewhere or temporary else _shape(printed, part)

    def _variable(self, part: Expansion, setting: Mapping[str, Word], depth: int) -> list[Part]:
        if part.operator == "length":
            return [_shape("0", part)]
        if part.name in self.known:
            value = setting.get(part.name)
            return [part] if value is None else self._value(part, value, setting, depth)
        if part.operator in _DEFAULTING:
            return [part] if part.name in _ENVIRONMENT else self._operand(part, setting, depth)
        if part.operator or (part.name == "PWD" and depth > 0 and self.moves):
            return [part]
        shape = "0" if part.name in self.numbers else _ENVIRONMENT.get(part.name)
        return [part] if shape is None else [_shape(shape, part)]

    def _value(
        self, part: Expansion, value: Word, setting: Mapping[str, Word], depth: int
    ) -> list[Part]:
        """Return what `${name…}` makes of one value of the variable."""
        operator = part.operator
        # The value can contain the variable itself: `OUT=${OUT:-build}`.
        rest = {name: word for name, word in setting.items() if name != part.name}
        if operator in _DEFAULTING and value.text == "":
            return self._operand(part, rest, depth)
        if operator == "" or operator in _DEFAULTING:
            return self._inner(value, part, rest, depth)
        if operator in ("%", "%%") and part.operand is not None and value.text is not None:
            cut = without_suffix(value, part.operand, longest=operator == "%%")
            return [part] if cut is None else [Literal(cut, part.quoted)]
        basename = operator == "##" and part.operand is not None and part.operand.text == "*/"
        if basename and value.text is not None:
            return [Literal(value.text.rpartition("/")[2], part.quoted)]
        return [part]

    def _operand(self, part: Expansion, setting: Mapping[str, Word], depth: int) -> list[Part]:
        """Return the default in `${x:-default}`, in which quotes still quote."""
        return self._inner(part.operand or _NOTHING, part, setting, depth, keep_quotes=True)

    def _inner(
        self,
        value: Word,
        outer: Expansion,
        setting: Mapping[str, Word],
        depth: int,
        *,
        keep_quotes: bool = False,
    ) -> list[Part]:
        parts: list[Part] = []
        for part in value.parts:
            if isinstance(part, Literal) and value.tilde and not parts:
                parts.append(Expansion(Expands.SHAPE, True, _ENVIRONMENT["HOME"]))
                parts.append(Literal(part.text.partition("/")[2], outer.quoted))
            elif isinstance(part, Literal):
                parts.append(Literal(part.text, outer.quoted or (keep_quotes and part.quoted)))
            elif part.name == outer.name and part.operator in _DEFAULTING:
                parts.extend(self._operand(part, setting, depth + 1))
            else:
                quoted = replace(part, quoted=outer.quoted or part.quoted)
                parts.extend(self._expand(quoted, setting, depth + 1))
        return parts

    # ── xargs ──

    def fed(self, argv: tuple[Word, ...], command: SimpleCommand) -> tuple[Word, ...]:
        """Return the command line of xargs, with the shape of its input lines as arguments."""
        commands = [self.script.commands[index] for index in command.feeders]
        printed = printed_by_pipeline(commands, command.feeders) if commands else None
        bodies = [redirect.body for redirect in command.redirects if redirect.body is not None]
        if len(bodies) == 1 and not commands:
            printed = plain_output((bodies[0].static or "").strip())
        folder = found_below(commands[0]) if printed is None and commands else None
        if folder is not None:
            return tuple(_with_folder(word, folder) for word in argv)
        if printed is None:
            return argv
        return tuple(_with_shape(word, printed) for word in argv)


def _with_folder(word: Word, folder: str) -> Word:
    """Return the word with a file somewhere below `folder` in place of what xargs is fed."""
    if not any(part.kind is Expands.FED for part in word.expansions()):
        return word
    found = (Literal(folder.rstrip("/") + "/", True), Expansion(Expands.FED, True, FOUND))
    parts: list[Part] = []
    for part in word.parts:
        parts += found if isinstance(part, Expansion) and part.kind is Expands.FED else (part,)
    return make_word(tuple(parts), word.start, word.end)


def _with_shape(word: Word, printed: str) -> Word:
    if not any(part.kind is Expands.FED for part in word.expansions()):
        return word
    parts = tuple(
        _shape(printed, p) if isinstance(p, Expansion) and p.kind is Expands.FED else p
        for p in word.parts
    )
    return make_word(parts, word.start, word.end)


def _shape(text: str, part: Expansion) -> Expansion:
    return Expansion(Expands.SHAPE, part.quoted, text, commands=part.commands)


def without_suffix(value: Word, pattern: Word, *, longest: bool) -> str | None:
    """Return what `${x%pattern}` makes of a value; None if a glob in the value leaves it open."""
    text, ending = value.text, pattern.text
    if text is None or ending is None or len(text) > 200:
        return None
    if value.glob:
        return text.removesuffix(ending) if text.endswith(ending) and not pattern.glob else None
    cuts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((text[:at] for at in cuts if fnmatchcase(text[at:], ending)), text)


def _program(command: SimpleCommand) -> str:
    return (command.words[0].static or "") if command.words else ""


def _names_filled(command: SimpleCommand) -> Iterator[str]:
    """Yield variables that a builtin sets to a value that is not in the text."""
    if _program(command) in _FILLING:
        for word in command.words[1:]:
            text = word.shown
            # The name can be in one word with its option: `printf -vNAME`, `read -raNAME`.
            begins = range(2, len(text)) if text.startswith("-") else (0,)
            yield from (name[0] for at in begins if (name := _NAME.match(text, at)))


def _may_set_anything(command: SimpleCommand) -> bool:
    program = _program(command)
    words = command.words[1:]
    if program == "trap":
        return any(re.search(r"=|\bread\b|\bprintf\b|\bunset\b", w.shown) for w in words)
    if program == "printf":
        return _prints_into_unknown(words)
    return program in _FILLING and any(word.text is None for word in words)


def _prints_into_unknown(words: tuple[Word, ...]) -> bool:
    """`printf -v "$name" …`, also if the option itself can come from an expansion."""
    first = words[0] if len(words) > 1 else _NOTHING
    if first.static == "-v":
        return words[1].text is None
    return first.text is None and re.fullmatch(r"(?:-v?)?[\w…\[\]]*", first.shown) is not None


def _split(parts: list[Part], word: Word) -> list[Word]:
    """Return the words of the parts: unquoted blanks separate, empty unquoted parts vanish."""
    words: list[list[Part]] = [[]]
    for part in parts:
        if isinstance(part, Expansion) or part.quoted or not re.search(r"[ \t\n]", part.text):
            if isinstance(part, Expansion) or part.quoted or part.text:
                words[-1].append(part)
            continue
        for at, piece in enumerate(re.split(r"[ \t\n]+", part.text)):
            if at:
                words.append([])
            if piece:
                words[-1].append(Literal(piece))
    return [make_word(tuple(each), word.start, word.end) for each in words if each]
