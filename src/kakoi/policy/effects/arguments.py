"""Argument vectors → options and operands, according to the program's `Spec`.

A `Spec` says which options take a value, which spellings exist (so that GNU abbreviations are
recognised), and what an option or an operand does: its *effect*.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal as Choice
from typing import NamedTuple

from kakoi._support.late import dataclass, pattern
from kakoi.policy.parsing.words import Expands, Word

# Effects that are harmless by themselves, and whose targets are checked wherever they point.
_TAME_EFFECTS = frozenset(
    {"writes", "reads", "none", "git-changes", "sets", "package", "index", "unverified", "verified"}
)
_DIGITS = pattern(r".(?:[xX][0-9a-fA-F]+|[0-7]*)", re.DOTALL)
Style = Choice["gnu", "posix", "single"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known about one program or subcommand.

    `style` is how options are written: `gnu` (anywhere, clusters, abbreviations), `posix` (they
    end at the first operand), `single` (`-name value`, no clusters). After one of `stops`, all
    words are operands. `operands` describes the operands after the first `skip`, or all of them if
    one of `pattern_options` is present. `anywhere`: options that can precede a subcommand can also
    follow it. `packages`: subcommands whose operands name packages. `bare`: the subcommand that
    runs if there is none. `other`: what the operands of a subcommand are if it is neither known
    nor one of the program's `own`. `any_dash`: a long option can have one dash. `one_dash`:
    spellings of several letters after one dash. A `strict` spec lists every option: an unknown
    option is an effect by itself. `modes`: options of which one says what the program does, as a
    subcommand does. With `exact`, nothing is its subcommand behind an unknown option. With
    `abbreviates`, a `single` spec takes the beginnings of names.
    `shows`: options with which it changes nothing. `to_stdout`: options with which the operands
    are only read, `in_place` those with which they are written. `trees`: options with which it
    reads everything below a folder (`always`: without one). `digits`: letters that only digits
    follow as their value.
    """

    style: Style = "gnu"
    values: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    value_effects: Mapping[str, str] = field(default_factory=dict)
    flag_effects: Mapping[str, str] = field(default_factory=dict)
    operands: str = "reads"
    skip: int = 0
    stops: frozenset[str] = frozenset()
    pattern_options: frozenset[str] = frozenset()
    anywhere: bool = True
    one_dash: tuple[str, ...] = ()
    strict: bool = False
    reader: str = ""
    subcommands: Mapping[str, "Spec"] = field(default_factory=dict)
    bare: str = ""
    spellings: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    other: str = ""
    any_dash: bool = False
    exact: bool = False
    abbreviates: bool = False
    shows: frozenset[str] = frozenset()
    to_stdout: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()
    digits: frozenset[str] = frozenset()

    def knows(self, option: str) -> bool:
        """Whether the option is in the data."""
        return (
            option in self.values
            or option in self.flags
            or option in self.value_effects
            or option in self.flag_effects
            or option in self.optional
        )

    @property
    def has_traps(self) -> bool:
        """Whether an option of this program can do something worth a rule."""
        effects = (*self.value_effects.values(), *self.flag_effects.values())
        return any(effect not in _TAME_EFFECTS for effect in effects)


class Option(NamedTuple):
    """One option as written: every name it can stand for, its word and its value."""

    names: tuple[str, ...]
    word: Word
    value: Word | None


@dataclass(frozen=True, slots=True)
class Arguments:
    """Options, operands, and words that can turn out to be options at run time (`unsure`)."""

    options: tuple[Option, ...]
    operands: tuple[Word, ...]
    unsure: tuple[Word, ...]

    def named(self, *names: str) -> Option | None:
        """Return the first option with one of these names, or None."""
        for option in self.options:
            if any(name in names for name in option.names):
                return option
        return None


def read_arguments(spec: Spec, words: Iterable[Word]) -> Arguments:
    """Sort the words after a program (or subcommand) into options and operands."""
    reader = _Reader(spec, tuple(words))
    reader.read()
    return Arguments(tuple(reader.options), tuple(reader.operands), tuple(reader.unsure))


def is_pipe(word: Word) -> bool:
    """Whether the word is `<(…)` or `>(…)`, which becomes a path of the shell's own."""
    return len(word.parts) == 1 and any(p.kind is Expands.PROCESS for p in word.expansions())


class _Reader:
    def __init__(self, spec: Spec, words: tuple[Word, ...]) -> None:
        self.spec = spec
        self.words = words
        self.at = 0
        self.options: list[Option] = []
        self.operands: list[Word] = []
        self.unsure: list[Word] = []

    def read(self) -> None:
        words = self.words
        while self.at < len(words):
            word = words[self.at]
            self.at += 1
            known = word.prefix if word.text is None else word.text
            if known[:1] != "-":
                # A quoted expansion is one word; an unquoted one can become any number of options.
                if word.text is None and not known and word.may_be_many and not is_pipe(word):
                    self.unsure.append(word)
                self.operands.append(word)
                if self.spec.style == "posix":
                    self.operands.extend(words[self.at :])
                    return
            elif known == "--" and word.text is not None:
                self.operands.extend(words[self.at :])
                return
            elif known == "-" and word.text is not None:
                self.operands.append(word)
            else:
                if word.glob and "=" not in known:
                    self.unsure.append(word)  # a file can be named like any option
                self.option(word, known)
                if self.spec.stops and not self.spec.stops.isdisjoint(self.options[-1].names):
                    self.operands.extend(words[self.at :])
                    return

    def option(self, word: Word, known: str) -> None:
        if known[:2] == "--" or self.spec.style == "single":
            self.long(word, known)
        elif self.spec.any_dash and "-" + known.partition("=")[0] in self.spec.spellings:
            self.long(word, known, dash="-")
        else:
            self.cluster(word, known)

    def long(self, word: Word, known: str, *, dash: str = "") -> None:
        name, equals, _ = known.partition("=")
        if self.spec.style == "single" and ":" in name:
            name, equals = name.partition(":")[:2]
        if word.text is None and not equals:
            self.unsure.append(word)
        names = self.possible(dash + name)
        value = word.after(len(name) + 1) if equals else None
        if value is None and not self.spec.values.isdisjoint(names):
            value = self.next_word()
        self.options.append(Option(names, word, value))

    def possible(self, name: str) -> tuple[str, ...]:
        spec = self.spec
        if spec.style == "single":
            bare = "-" + name.lstrip("-")
            if spec.abbreviates and bare not in spec.one_dash:
                # Perl's Getopt::Long accepts the beginning of a name, in any letter case.
                full = tuple(o for o in spec.one_dash if o.startswith(bare.lower()))
                return (name, bare, *full)
            return (bare,) if bare == name else (name, bare)
        if name in spec.spellings or not spec.spellings:
            return (name,)
        full = tuple(each for each in spec.spellings if each.startswith(name))
        return full if full and len(name) > 2 else (name,)

    def cluster(self, word: Word, known: str) -> None:
        spec = self.spec
        for name in spec.one_dash:
            if known.startswith(name):
                self.one_dash(word, known, name)
                return
        skipped = 0
        for index, char in enumerate(known[1:], 1):
            name = "-" + char
            if index < skipped:
                continue
            if name in spec.digits:
                skipped = index + len(_DIGITS.match(known[index:])[0])  # type: ignore[index]
            if name in spec.values or name in spec.optional:
                rest = index + 1 < len(known) or word.text is None
                value = word.after(index + 1) if rest else None
                if value is None and name in spec.values:
                    value = self.next_word()
                self.options.append(Option((name,), word, value))
                return
            self.options.append(Option((name,), word, None))
        if word.text is None:
            self.unsure.append(word)

    def one_dash(self, word: Word, known: str, name: str) -> None:
        """`-MFfile`, `-MF file`, `-specs=file`: an option of several letters after one dash."""
        value = None
        if len(known) > len(name) or word.text is None:
            value = word.after(len(name) + known.startswith(name + "="))
        elif name in self.spec.values:
            value = self.next_word()
        self.options.append(Option((name,), word, value))

    def next_word(self) -> Word | None:
        if self.at >= len(self.words):
            return None
        self.at += 1
        return self.words[self.at - 1]
