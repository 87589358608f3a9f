"""Kinds of values: how each is read from a file or from the environment, and told to editors."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kakoi.egress.domains import parse_domains
from kakoi.errors import ConfigurationError
from kakoi.sections import as_flag, as_text, as_texts, nearest, wrong

_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_WORDS: Final = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
_WHOLE: Final = re.compile(r"\s*[+-]?\d{1,18}\s*")
_LONGEST_S: Final = 2**31


@dataclass(frozen=True, slots=True)
class Kind:
    """`read` takes a value of a file, `read_text` one of the environment; both say what is wrong.

    `schema` is for editors, in the words of JSON Schema.
    """

    read: Callable[[object, str], Any]
    read_text: Callable[[str, str], Any]
    schema: Mapping[str, Any]


def _path(value: object, where: str) -> str:
    """Of a file or folder of this machine; `~` is the home, as in a shell."""
    path = os.path.expanduser(as_text(value, where))
    if path.startswith("~"):
        raise wrong(where, value, "a path; that user has no home", hint="write ./~ for such a name")
    return path


def _flag_text(value: str, where: str) -> bool:
    if value.lower() not in _WORDS:
        raise wrong(where, value, "true or false")
    return _WORDS[value.lower()]


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(where, value, "a number")
    if not 0 < value < _LONGEST_S:
        raise wrong(where, value, "a number above zero")
    return value


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LONGEST_S:
        raise wrong(where, value, "a whole number above zero")
    return value


def _from_zero(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LONGEST_S:
        raise wrong(where, value, "zero or a whole number above it")
    return value


def _size(value: object, where: str) -> int:
    """Bytes, or a text such as `4g`, `512m`, `10GiB`: a k is 1024."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if not 0 < size < 2**63:
        raise wrong(where, value, "a size such as `4g` or `512m`")
    return size


def _objects(wanted: str) -> Callable[[object, str], tuple[Mapping[str, Any], ...]]:
    def read(value: object, where: str) -> tuple[Mapping[str, Any], ...]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise wrong(where, value, wanted)
        return tuple(value)

    return read


def _amount(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LONGEST_S:
        raise wrong(where, value, "zero or a number above it")
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


def _domains(value: object, where: str) -> tuple[str, ...]:
    """The lines as they are written; that they mean something is known now."""
    lines = as_texts(value, where)
    parse_domains(lines, origin=where)
    return lines


def _listed_domains(value: str, where: str) -> tuple[str, ...]:
    return _domains(list(_listed(value, where)), where)


def _no_text(value: str, where: str) -> Any:
    raise ConfigurationError(f"{where} cannot be set in the environment")


def choice(*names: str) -> Kind:
    """One of these texts."""
    wanted = ", ".join(f"`{name}`" for name in names if name)

    def read(value: object, where: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise wrong(where, value, f"one of {wanted}{nearest(value, names)}")
        return value

    return Kind(read, read, {"enum": list(names)})


def or_none(kind: Kind) -> Kind:
    """The same, or the word `none`."""

    def read(value: object, where: str) -> Any:
        return None if value == "none" else kind.read(value, where)

    def read_text(value: str, where: str) -> Any:
        return None if value == "none" else kind.read_text(value, where)

    return Kind(read, read_text, {"anyOf": [kind.schema, {"const": "none"}]})


TEXT: Final = Kind(as_text, as_text, {"type": "string"})
PATH: Final = Kind(_path, _path, {"type": "string"})
FLAG: Final = Kind(as_flag, _flag_text, {"type": "boolean"})
NUMBER: Final = Kind(_positive, _numeric(_positive), {"type": "number", "exclusiveMinimum": 0})
COUNT: Final = Kind(_count, _numeric(_count), {"type": "integer", "minimum": 1})
FROM_ZERO: Final = Kind(_from_zero, _numeric(_from_zero), {"type": "integer", "minimum": 0})
SIZE: Final = Kind(
    _size, _numeric(_size), {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}
)
_TEXTS_SCHEMA: Final = {"type": "array", "items": {"type": "string"}}
TEXTS: Final = Kind(as_texts, _listed, _TEXTS_SCHEMA)
DOMAINS: Final = Kind(_domains, _listed_domains, _TEXTS_SCHEMA)
AMOUNT: Final = Kind(_amount, _numeric(_amount), {"type": "number", "minimum": 0})
_ARRAY: Final = {"type": "array", "items": {"type": "object"}}
SERVERS: Final = Kind(_objects("a list of servers"), _no_text, _ARRAY)
RULES: Final = Kind(_objects("a list of rules"), _no_text, _ARRAY)
