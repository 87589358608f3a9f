"""What a program's arguments mean: which words run programs, write, delete, send or set.

The facts are data (`programs/*.yaml`); programs whose arguments are a language of their own have a
reader in `reading/`. The outcome is a list of `Effect`s. Whether an effect is fine is for the
rules to say, not for this module.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final

import yaml

from kakoi.errors import ConfigurationError
from kakoi.policy.reading.arguments import Arguments, Spec, read_arguments
from kakoi.policy.words import Word, literal_word

# The C loader reads the data about ten times faster; the pure one gives the same values.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_LISTS: Final = ("values", "optional", "flags", "stops", "pattern_options", "own", "packages")
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
    )
)


@dataclass(frozen=True, slots=True)
class Effect:
    """Something an argument does.

    `kind` is a word of the rules and `word` the argument that does it; `option` is the option that
    made it do so, `argv` what a `runs` starts, `text` a detail that the kind explains.
    """

    kind: str
    word: Word
    argv: tuple[Word, ...] = ()
    text: str = ""
    option: Word | None = None


@dataclass(frozen=True, slots=True)
class Invocation:
    """One program with its arguments understood."""

    program: str
    subcommand: str
    spec: Spec
    arguments: Arguments
    words: tuple[Word, ...]
    # The words that name it: the program, up to its subcommand.
    named_by: Word

    @property
    def names(self) -> tuple[str, ...]:
        """The names a rule may use for it, the most exact first."""
        if self.subcommand:
            return (f"{self.program} {self.subcommand}", self.program)
        return (self.program,)


PLAIN: Final = Spec()
# Programs that take any beginning of a subcommand, and short names that stand for themselves.
_ABBREVIATING: Final = frozenset("npm gem composer bundle".split())
_SHORT_NAMES: Final = frozenset(
    "i in it add t un up r rm ls la ll c s ci run test why ping".split()
)


def load_data(folder: str, *, only: str = "") -> dict[str, Any]:
    """The YAML files of one of our own data folders (or one of them), merged.

    The same key in two files is an error.
    """
    merged: dict[str, Any] = {}
    for file in sorted(resources.files("kakoi.policy").joinpath(folder).iterdir(), key=str):
        if not file.name.endswith(".yaml") or (only and file.name != f"{only}.yaml"):
            continue
        data = yaml.load(file.read_text("utf-8"), Loader=_Loader) or {}  # noqa: S506
        for key, value in data.items():
            if key in merged:
                raise ConfigurationError(f"{folder}/{file.name}: {key!r} is there already")
            merged[str(key)] = value
    return merged


@cache
def known_programs() -> Mapping[str, Any]:
    """Every program we know something of, as the data has it."""
    return load_data("programs")


@lru_cache(maxsize=1024)
def spec_of(program: str) -> Spec:
    """What we know of a program; made when it is first met: a command names a few of hundreds."""
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
        other=str(data.get("other", "")),
        any_dash=bool(data.get("any_dash", False)),
        spellings=frozenset(each for each in spelled if each.startswith("--")),
        one_dash=tuple(
            sorted((o for o in spelled if len(o) > 2 and o[1] != "-"), key=len, reverse=True)
        ),
    )


def _spread(effects: Mapping[str, str]) -> dict[str, str]:
    return {option: effect for options, effect in effects.items() for option in options.split()}


def invoke(program: str, words: tuple[Word, ...], *, has_subcommands: bool = False) -> Invocation:
    """Understand `words` (the program's own word first) as an invocation of `program`.

    `has_subcommands` says that the first operand names one even if the data knows none.
    """
    spec = spec_of(program)
    if spec.subcommands:
        return _with_subcommand(program, spec, words)
    arguments = read_arguments(spec, words[1:])
    first = arguments.operands[0] if has_subcommands and arguments.operands else None
    if first is None:
        return Invocation(program, "", spec, arguments, words, words[0])
    sub = first.static or "…"
    name = literal_word(f"{program} {sub}", words[0].start, first.end)
    return Invocation(program, sub, spec, arguments, words, name)


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
        inner = replace(spec, operands=operands, reader="") if spec.anywhere else PLAIN
        if spec.other and sub not in spec.own:
            inner = replace(inner, operands=spec.other, style="posix")
    elif spec.anywhere:
        inner = _with_options_of(spec, inner)
    after = read_arguments(inner, before.operands[1:])
    both = Arguments(before.options + after.options, after.operands, before.unsure + after.unsure)
    name = literal_word(f"{program} {sub}", words[0].start, before.operands[0].end)
    # Effects of the options before the subcommand stay in force behind it.
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
    """`inner`, with the long options that the program takes behind any subcommand."""
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
