"""What a program's arguments mean: which words run programs, write, delete, send or set.

The facts are data (`programs/*.yaml`). Programs whose arguments are a language of their own have a
reader in `readers/`. The result is a list of `Effect`s; the rules decide which are allowed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi.errors import ConfigurationError
from kakoi.policy.effects.arguments import Arguments, Spec, read_arguments
from kakoi.policy.parsing.words import Word, literal_word
from kakoi.policy.shipped_data import load_data

_LISTS: Final = (
    *("values", "optional", "flags", "stops", "pattern_options", "own", "packages", "modes"),
    *("shows", "to_stdout", "in_place", "trees", "digits"),
)
_EFFECTS: Final = ("value_effects", "flag_effects")
_KEYS: Final = frozenset(
    (
        *_LISTS,
        *_EFFECTS,
        "style",
        "operands",
        "skip",
        "strict",
        "reader",
        "subcommands",
        "like",
        "anywhere",
        "bare",
        "other",
        "any_dash",
        "exact",
        "abbreviates",
    )
)


@dataclass(frozen=True, slots=True)
class Effect:
    """Something an argument does.

    `kind` is a name that the rules use, and `word` is the argument. `option` is the option that
    the argument belongs to, `argv` is what a `runs` starts, and `text` is a detail that depends on
    the kind.
    """

    kind: str
    word: Word
    argv: tuple[Word, ...] = ()
    text: str = ""
    option: Word | None = None


@dataclass(frozen=True, slots=True)
class Invocation:
    """One program with its arguments read."""

    program: str
    subcommand: str
    spec: Spec
    arguments: Arguments
    words: tuple[Word, ...]
    # The words that name it: the program, up to its subcommand.
    named_by: Word
    # The word right behind its subcommand, if that is plain: `view` in `gh pr view 1`.
    second: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a rule can use for it, the most exact first."""
        if not self.subcommand:
            return (self.program,)
        shorter = (f"{self.program} {self.subcommand}", self.program)
        return (f"{shorter[0]} {self.second}", *shorter) if self.second else shorter

    @property
    def short_name(self) -> str:
        """The program and its subcommand, as an answer names it."""
        return self.names[-2:][0]

    @property
    def reads_trees(self) -> bool:
        """Whether it reads everything below a folder that it is given: `grep -r`, `tar -c`."""
        trees = self.spec.trees
        return bool(trees) and ("always" in trees or self.arguments.named(*trees) is not None)

    @property
    def only_asks_about_itself(self) -> bool:
        """Whether it does nothing but show its help or its version."""
        return len(self.words) == 2 and self.words[1].static in _ABOUT_ITSELF

    @property
    def only_shows(self) -> bool:
        """`git apply --check`, `npm publish --help`, `perl --version`: it changes nothing."""
        if self.only_asks_about_itself:
            return self.program not in ("source", ".")
        helps = len(self.words) == 3 and self.words[2].static in ("--help", "-h")
        named = self.arguments.named
        shows = named(*self.spec.shows) and not (named("--apply") or self.arguments.unsure)
        return bool(self.subcommand) and bool(helps or shows)


PLAIN: Final = Spec()
_ABOUT_ITSELF: Final = frozenset("--help --version -help -version -h -V -v".split())
# Readers that also read the words of subcommands without data.
_OF_EVERY_SUBCOMMAND: Final = frozenset({"dotnet"})
# Programs that accept any prefix of a subcommand, and short names that stand for themselves.
_ABBREVIATING: Final = frozenset("npm gem composer bundle".split())
_SHORT_NAMES: Final = frozenset(
    "i in it add t un up r rm ls la ll c s ci run test why ping".split()
)


@cache
def known_programs() -> Mapping[str, Any]:
    """Return the data of every known program."""
    return load_data("effects/programs")


@lru_cache(maxsize=1024)
def spec_of(program: str) -> Spec:
    """Return the spec of a program. Built on first use: a command names a few of hundreds."""
    if program not in known_programs():
        return PLAIN
    return _spec(program, known_programs()[program] or {})


def _spec(name: str, data: dict[str, Any]) -> Spec:
    unknown = set(data) - _KEYS
    if unknown:
        raise ConfigurationError(f"programs: {name}: unknown key {sorted(unknown)[0]!r}")
    if "like" in data:
        own = {key: value for key, value in data.items() if key != "like"}
        data = {**(known_programs()[data["like"]] or {}), **own}
    lists = {key: frozenset(str(data.get(key, "")).split()) for key in _LISTS}
    maps = {key: _spread(data.get(key) or {}) for key in _EFFECTS}
    values = (lists["values"] | frozenset(maps["value_effects"])) - lists["optional"]
    spelled = values | lists["optional"] | lists["flags"] | frozenset(maps["flag_effects"])
    spelled |= lists["in_place"]
    return Spec(
        style=data.get("style", "gnu"),
        values=values,
        optional=lists["optional"],
        flags=lists["flags"],
        value_effects=maps["value_effects"],
        flag_effects=maps["flag_effects"],
        operands=str(data.get("operands", "reads")),
        skip=int(data.get("skip", 0)),
        stops=lists["stops"],
        pattern_options=lists["pattern_options"],
        strict=bool(data.get("strict", False)),
        anywhere=bool(data.get("anywhere", True)),
        reader=str(data.get("reader", "")),
        subcommands={
            each: _spec(f"{name} {sub}", body or {})
            for sub, body in (data.get("subcommands") or {}).items()
            for each in str(sub).split()
        },
        bare=str(data.get("bare", "")),
        own=lists["own"],
        packages=lists["packages"],
        modes=lists["modes"],
        other=str(data.get("other", "")),
        any_dash=bool(data.get("any_dash", False)),
        exact=bool(data.get("exact", False)),
        abbreviates=bool(data.get("abbreviates", False)),
        shows=lists["shows"],
        to_stdout=lists["to_stdout"],
        in_place=lists["in_place"],
        trees=lists["trees"],
        digits=lists["digits"],
        spellings=frozenset(each for each in spelled if each.startswith("--")),
        one_dash=tuple(
            sorted((o for o in spelled if len(o) > 2 and o[1] != "-"), key=len, reverse=True)
        ),
    )


def _spread(effects: Mapping[str, str]) -> dict[str, str]:
    return {option: effect for options, effect in effects.items() for option in options.split()}


def invoke(program: str, words: tuple[Word, ...], *, has_subcommands: bool = False) -> Invocation:
    """Read `words` (the program's own word first) as an invocation of `program`.

    `has_subcommands`: the first operand is a subcommand even if the data lists none.
    """
    spec = spec_of(program)
    if spec.subcommands:
        return _with_subcommand(program, spec, words)
    arguments = read_arguments(spec, words[1:])
    if spec.modes:
        return _with_mode(program, spec, words, arguments)
    first = arguments.operands[0] if has_subcommands and arguments.operands else None
    if first is None:
        return Invocation(program, "", spec, arguments, words, words[0])
    sub = (first.static or "…") if _is_subcommand(first, words, arguments, spec) else "…"
    name = literal_word(f"{program} {sub}", words[0].start, first.end)
    return Invocation(program, sub, spec, arguments, words, name, _second_word(words, first))


def _is_subcommand(first: Word, words: tuple[Word, ...], arguments: Arguments, spec: Spec) -> bool:
    """Whether the first operand is the subcommand: an unknown option could take it as its value."""
    if not spec.exact:
        return True
    before = words[1 : words.index(first)]
    known = spec.values | spec.flags | spec.value_effects.keys() | spec.flag_effects.keys()
    return not any(
        option.word in before and known.isdisjoint(option.names) for option in arguments.options
    )


def _second_word(words: tuple[Word, ...], first: Word) -> str:
    """Return the word right behind the subcommand; empty if it is an option or not plain."""
    behind = words[words.index(first) + 1 :][:1]
    text = (behind[0].static or "") if behind else ""
    return text if text[:1] != "-" else ""


def _with_mode(
    program: str, spec: Spec, words: tuple[Word, ...], arguments: Arguments
) -> Invocation:
    """`dpkg -l`: an option says what the program does. Two of them say nothing certain."""
    named = {name for option in arguments.options for name in option.names} & spec.modes
    mode = "".join(named) if len(named) == 1 else "…" if words[1:] else ""
    return Invocation(program, mode, spec, arguments, words, words[0])


def _with_subcommand(program: str, spec: Spec, words: tuple[Word, ...]) -> Invocation:
    before = read_arguments(replace(spec, style="posix"), words[1:])
    if not before.operands:
        shows = before.named("--version", "-v", "--help", "-h") is not None
        return Invocation(program, "" if shows else spec.bare, spec, before, words, words[0])
    sub = before.operands[0].static or "…"
    if program in _ABBREVIATING and sub not in spec.subcommands and sub not in _SHORT_NAMES:
        longer = [name for name in spec.subcommands if name.startswith(sub)]
        sub = longer[0] if longer else sub
    inner = spec.subcommands.get(sub)
    if inner is None:
        operands = "package" if sub in spec.packages else "text"
        reader = spec.reader if spec.reader in _OF_EVERY_SUBCOMMAND else ""
        inner = replace(spec, operands=operands, reader=reader) if spec.anywhere else PLAIN
        if spec.other and sub not in spec.own:
            inner = replace(inner, operands=spec.other, style="posix")
    elif spec.anywhere:
        inner = _with_options_of(spec, inner)
    after = read_arguments(inner, before.operands[1:])
    both = Arguments(before.options + after.options, after.operands, before.unsure + after.unsure)
    name = literal_word(f"{program} {sub}", words[0].start, before.operands[0].end)
    # Options before the subcommand keep their effects after it.
    inner = replace(
        inner,
        values=spec.values | inner.values,
        flags=spec.flags | inner.flags,
        optional=spec.optional | inner.optional,
        value_effects={**spec.value_effects, **inner.value_effects},
        flag_effects={**spec.flag_effects, **inner.flag_effects},
    )
    return Invocation(program, sub, inner, both, words, name)


def _with_options_of(outer: Spec, inner: Spec) -> Spec:
    """Return `inner` with the long options that the program accepts after any subcommand."""
    known = inner.values | inner.optional | inner.flags | inner.flag_effects.keys()

    def new(options: Iterable[str]) -> frozenset[str]:
        return frozenset(each for each in options if each[:2] == "--" and each not in known)

    return replace(
        inner,
        values=inner.values | new(outer.values),
        optional=inner.optional | new(outer.optional),
        flags=inner.flags | new(outer.flags),
        spellings=inner.spellings | new(outer.spellings),
    )
