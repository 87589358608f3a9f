"""What a program's arguments mean: which words run programs, write, delete, send or set.

The facts are data (`programs/*.yaml`); programs whose arguments are a language of their own have a
reader in `readers.py`. The outcome is a list of `Effect`s. Whether an effect is fine is for the
rules to say, not for this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import yaml

from kakoi.errors import ConfigurationError
from kakoi.policy.arguments import Arguments, Spec, read_arguments
from kakoi.policy.words import Word, literal_word

# The C loader reads the data about ten times faster; the pure one gives the same values.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_LISTS: Final = ("values", "optional", "flags", "stops")
_EFFECTS: Final = ("value_effects", "flag_effects")
_KEYS: Final = frozenset(
    (*_LISTS, *_EFFECTS, "style", "operands", "skip", "strict", "reader", "subcommands", "like")
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


def load_data(folder: str, *, only: str = "") -> dict[str, Any]:
    """The YAML files of one of our own data folders (or one of them), merged.

    The same key in two files is an error.
    """
    merged: dict[str, Any] = {}
    for file in sorted(resources.files("kakoi.policy").joinpath(folder).iterdir(), key=str):
        if not file.name.endswith(".yaml") or (only and file.name != f"{only}.yaml"):
            continue
        data = yaml.load(file.read_text("utf-8"), Loader=_Loader) or {}  # noqa: S506 (a safe loader)
        for key, value in data.items():
            if key in merged:
                raise ConfigurationError(f"{folder}/{file.name}: {key!r} is there already")
            merged[str(key)] = value
    return merged


@lru_cache(maxsize=1)
def specs() -> Mapping[str, Spec]:
    """Every program we know something of."""
    data = load_data("programs")
    return {name: _spec(name, data[name] or {}, data) for name in data}


def _spec(name: str, data: dict[str, Any], every: Mapping[str, Any]) -> Spec:
    unknown = set(data) - _KEYS
    if unknown:
        raise ConfigurationError(f"programs: {name}: unknown key {sorted(unknown)[0]!r}")
    if "like" in data:
        data = {**(every[data["like"]] or {}), **{k: v for k, v in data.items() if k != "like"}}
    lists = {key: frozenset(str(data.get(key, "")).split()) for key in _LISTS}
    maps = {key: _spread(data.get(key) or {}) for key in _EFFECTS}
    values = lists["values"] | frozenset(maps["value_effects"]) - lists["optional"]
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
        strict=bool(data.get("strict", False)),
        reader=str(data.get("reader", "")),
        subcommands={
            each: _spec(f"{name} {sub}", body or {}, every)
            for sub, body in (data.get("subcommands") or {}).items()
            for each in str(sub).split()
        },
        spellings=frozenset(each for each in spelled if each.startswith("--")),
    )


def _spread(effects: Mapping[str, str]) -> dict[str, str]:
    return {option: effect for options, effect in effects.items() for option in options.split()}


def invoke(program: str, words: tuple[Word, ...], *, has_subcommands: bool = False) -> Invocation:
    """Understand `words` (the program's own word first) as an invocation of `program`.

    `has_subcommands` says that the first operand names one even if the data knows none.
    """
    spec = specs().get(program, PLAIN)
    rest = words[1:]
    if spec.subcommands:
        before = read_arguments(_up_to_first_operand(spec), rest)
        if before.operands:
            sub = before.operands[0].static or ""
            inner = spec.subcommands.get(sub, PLAIN)
            after = read_arguments(inner, before.operands[1:])
            both = Arguments(
                before.options + after.options, after.operands, before.unsure + after.unsure
            )
            name = literal_word(f"{program} {sub}", words[0].start, before.operands[0].end)
            return Invocation(program, sub or "…", _merged(spec, inner), both, words, name)
        return Invocation(program, "", spec, before, words, words[0])
    arguments = read_arguments(spec, rest)
    first = arguments.operands[0] if has_subcommands and arguments.operands else None
    if first is None:
        return Invocation(program, "", spec, arguments, words, words[0])
    sub = first.static or "…"
    name = literal_word(f"{program} {sub}", words[0].start, first.end)
    return Invocation(program, sub, spec, arguments, words, name)


def _up_to_first_operand(spec: Spec) -> Spec:
    return Spec(
        style="posix",
        values=spec.values,
        optional=spec.optional,
        flags=spec.flags,
        value_effects=spec.value_effects,
        flag_effects=spec.flag_effects,
        spellings=spec.spellings,
    )


def _merged(outer: Spec, inner: Spec) -> Spec:
    return Spec(
        style=inner.style,
        values=outer.values | inner.values,
        value_effects={**outer.value_effects, **inner.value_effects},
        flag_effects={**outer.flag_effects, **inner.flag_effects},
        operands=inner.operands,
        skip=inner.skip,
        stops=inner.stops,
        strict=inner.strict,
        reader=inner.reader,
    )
