"""Fields that can be set: each states its default, the kind of its values and what it means, once.

A dataclass of any layer can have such fields. `read_section` reads it from a section of a file, and
`same_as` lets the settings model offer a field of a lower layer without repeating it.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

from kakoi._support.late import dataclass, pattern
from kakoi._support.parsing import (
    Section,
    as_flag,
    as_folders,
    as_seconds,
    as_size,
    as_text,
    as_texts,
    nearest,
    size_text,
    wrong,
)
from kakoi.errors import ConfigurationError

_Model = TypeVar("_Model")
_WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
# The name of an MCP server is part of the names of its tools, which models must accept.
_SERVER_NAME: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_WHOLE: Final = pattern(r"\s*[+-]?\d{1,18}\s*")
_LARGEST: Final = 2**31


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How a value is read.

    `read` takes a value from a file, `read_text` one from an environment variable. Both take the
    origin as well, and raise ConfigurationError with it if the value is wrong.
    `schema` is the JSON Schema for editors. `none` is how None is written, if it is a value.
    """

    read: Callable[[object, str], Any]
    read_text: Callable[[str, str], Any]
    schema: Mapping[str, Any]
    none: str | None = None

    def written(self, value: Any) -> Any:
        """Return the value as a file has it; a size with its unit."""
        if value is None:
            return self.none
        is_size = SIZE.schema in (self.schema, *self.schema.get("anyOf", ()))
        return size_text(value) if is_size and isinstance(value, int) else value


def _path(value: object, where: str) -> str:
    """Read the path of a file or folder on this machine; `~` is the home, as in a shell."""
    path = os.path.expanduser(as_text(value, where))
    if path.startswith("~"):
        raise wrong(
            where,
            value,
            "a path, and that user has no home directory",
            hint="write ./~ if the name begins with ~",
        )
    return path


def _server_name(value: object, where: str) -> str:
    text = as_text(value, where)
    if not _SERVER_NAME.fullmatch(text) or "__" in text:
        raise wrong(where, text, "1 to 32 letters, digits, `-` or single `_`")
    return text


def _flag_text(value: str, where: str) -> bool:
    if value.lower() not in _WORDS:
        raise wrong(where, value, "true or false")
    return _WORDS[value.lower()]


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(where, value, "a number")
    if not 0 < value < _LARGEST:
        raise wrong(where, value, "a number above zero")
    return value


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        raise wrong(where, value, "a whole number above zero")
    return value


def _from_zero(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise wrong(where, value, "zero or a positive whole number")
    return value


def _objects(wanted: str) -> Callable[[object, str], tuple[Mapping[str, Any], ...]]:
    def read(value: object, where: str) -> tuple[Mapping[str, Any], ...]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise wrong(where, value, wanted)
        return tuple(value)

    return read


def _amount(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        raise wrong(where, value, "zero or a positive number")
    return float(value)


def _numeric(read: Callable[[object, str], Any]) -> Callable[[str, str], Any]:
    def from_text(value: str, where: str) -> Any:
        try:
            number: object = int(value) if _WHOLE.fullmatch(value) else float(value)
        except ValueError:
            number = value
        return read(number, where)

    return from_text


def _listed(value: str, where: str) -> tuple[str, ...]:
    return as_texts([each.strip() for each in value.split(",") if each.strip()], where)


def _listed_folders(value: str, where: str) -> tuple[str, ...]:
    return as_folders(list(_listed(value, where)), where)


def _no_text(value: str, where: str) -> Any:
    raise ConfigurationError(f"{where} cannot be set in the environment")


def choice(*names: str) -> ValueKind:
    """Return the kind of a value that is one of `names`."""
    wanted = ", ".join(f"`{name}`" for name in names if name)

    def read(value: object, where: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise wrong(where, value, f"one of {wanted}{nearest(value, names)}")
        return value

    return ValueKind(read, read, {"enum": list(names)})


def or_none(kind: ValueKind) -> ValueKind:
    """Return the kind of a value that is of `kind`, or the word `none`, which is read as None."""
    return _nullable(kind, "none", {"anyOf": [kind.schema, {"const": "none"}]})


def or_empty(kind: ValueKind) -> ValueKind:
    """Return the kind of a value that is one of `kind`, or an empty text, which is read as None."""
    return _nullable(kind, "", {"enum": ["", *kind.schema["enum"]]})


def _nullable(kind: ValueKind, none: str, schema: Mapping[str, Any]) -> ValueKind:
    def read(value: object, where: str) -> Any:
        return None if value == none else kind.read(value, where)

    def read_text(value: str, where: str) -> Any:
        return None if value == none else kind.read_text(value, where)

    return ValueKind(read, read_text, schema, none)


TEXT: Final = ValueKind(as_text, as_text, {"type": "string"})
SERVER_NAME: Final = ValueKind(
    _server_name, _server_name, {"type": "string", "pattern": f"^{_SERVER_NAME.pattern}$"}
)
PATH: Final = ValueKind(_path, _path, {"type": "string"})
FLAG: Final = ValueKind(as_flag, _flag_text, {"type": "boolean"})
NUMBER: Final = ValueKind(_positive, _numeric(_positive), {"type": "number", "exclusiveMinimum": 0})
SECONDS: Final = ValueKind(as_seconds, _numeric(as_seconds), NUMBER.schema)
COUNT: Final = ValueKind(_count, _numeric(_count), {"type": "integer", "minimum": 1})
FROM_ZERO: Final = ValueKind(_from_zero, _numeric(_from_zero), {"type": "integer", "minimum": 0})
SIZE: Final = ValueKind(
    as_size, _numeric(as_size), {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}
)
_TEXTS_SCHEMA: Final = {"type": "array", "items": {"type": "string"}}
TEXTS: Final = ValueKind(as_texts, _listed, _TEXTS_SCHEMA)
FOLDERS: Final = ValueKind(
    as_folders,
    _listed_folders,
    {"type": "array", "items": {"type": "string", "pattern": "^[/~]"}},
)
AMOUNT: Final = ValueKind(_amount, _numeric(_amount), {"type": "number", "minimum": 0})
_ARRAY: Final = {"type": "array", "items": {"type": "object"}}
SERVERS: Final = ValueKind(_objects("a list of servers"), _no_text, _ARRAY)
RULES: Final = ValueKind(_objects("a list of rules"), _no_text, _ARRAY)


# What a project's file, which is not trusted, can do with a setting: nothing; choose any value;
# only lower a number; only add to a list that tightens the policy; only narrow network access
# (settings/project_network.py).
InProject = Literal["nothing", "choose", "lower", "add", "narrow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `also`: its paths in other programs' configuration files."""

    kind: ValueKind
    doc: str
    env: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    project: InProject = "nothing"


def described(
    default: Any,
    kind: ValueKind,
    doc: str,
    *,
    env: str = "",
    also: str = "",
    project: InProject = "nothing",
) -> Any:
    """Return a dataclass field with its `Setting`; `env` and `also` are separated by spaces."""
    setting = Setting(
        kind=kind, doc=doc, env=tuple(env.split()), also=tuple(also.split()), project=project
    )
    return dataclasses.field(default=default, metadata={"setting": setting})


def same_as(
    model: type[Any], name: str, *, env: str = "", also: str = "", project: InProject = "nothing"
) -> Any:
    """Return a dataclass field with the default, kind and description of `model`'s field `name`."""
    own = model.__dataclass_fields__[name]
    kind, doc = own.metadata["setting"].kind, own.metadata["setting"].doc
    field = described(own.default, kind, doc, env=env, also=also, project=project)
    metadata = {**field.metadata, "same_as": (model, name)}
    return dataclasses.field(default=field.default, metadata=metadata)


def subsection(model: type[Any]) -> Any:
    """Return a dataclass field for a section of its own, with the fields of `model`."""
    return dataclasses.field(default_factory=model, metadata={"section": model})


def read_section(model: type[_Model], data: object, *, origin: str) -> _Model:
    """Build a dataclass from a section of a file; what is left out has its default.

    In files the names of times have no `_s` at the end: they are always in seconds.
    """
    fields = {
        field.name.removesuffix("_s"): field
        for field in dataclasses.fields(model)  # type: ignore[arg-type]  # It is a dataclass.
        if {"setting", "section"} & set(field.metadata)
    }
    given = Section(data, origin, " ".join(fields))
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if not given.has(key):
            continue
        if "section" in field.metadata:
            below = field.metadata["section"]
            values[field.name] = read_section(below, given.raw(key), origin=given.at(key))
        else:
            values[field.name] = field.metadata["setting"].kind.read(given.raw(key), given.at(key))
    return _made(model, values, origin, {field.name: key for key, field in fields.items()})


def model_from(model: type[_Model], section: Any, *, origin: str) -> _Model:
    """Build a dataclass from a section of the settings whose fields are the `same_as` its own.

    `origin`: the path of the section, for errors.
    """
    keys = {
        field.metadata["same_as"][1]: field.name
        for field in dataclasses.fields(section)
        if field.metadata.get("same_as", (None,))[0] is model
    }
    values = {name: getattr(section, key) for name, key in keys.items()}
    for field in dataclasses.fields(model):  # type: ignore[arg-type]  # It is a dataclass.
        if "section" in field.metadata:
            below = getattr(section, field.name)
            at = f"{origin}.{field.name}"
            values[field.name] = model_from(field.metadata["section"], below, origin=at)
    return _made(model, values, origin, keys)


def _made(
    model: type[_Model], values: Mapping[str, Any], origin: str, keys: Mapping[str, str]
) -> _Model:
    """Build a dataclass; its error names the key in the file instead of the field."""
    try:
        return model(**values)
    except ConfigurationError as error:
        name, space, rest = str(error).partition(" ")
        named = f"{origin}.{keys.get(name, name)}"
        raise ConfigurationError(f"{named}{space}{rest}", hint=error.hint) from None
