"""A section of a configuration file, read strictly.

Every wrong value is a ConfigurationError that says where it is and what is wanted there; an unknown
key names the nearest known one. Keys in camelCase or with dashes are read as snake_case.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping

from kakoi.errors import ConfigurationError
from kakoi.redact import redact

_LONGEST = 80


class Section:
    """Keys and values. `origin` is where they are from, for errors; `known` are the keys."""

    def __init__(self, data: object, origin: str, known: str) -> None:
        if data is not None and not isinstance(data, Mapping):
            raise wrong(origin, data, "a section of keys and values")
        self.origin = origin
        self._values: dict[str, object] = {}
        for key, value in (data or {}).items():
            name = _known(key, origin, known.split())
            if name in self._values:
                raise ConfigurationError(f"{origin}: `{name}` is given twice, in two spellings")
            self._values[name] = value

    def has(self, name: str) -> bool:
        """Is there a value? None (an empty value in YAML) is none."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        """The value as it is, or None."""
        return self._values.get(name)

    def at(self, name: str) -> str:
        """Where the value of `name` is."""
        return f"{self.origin}.{name}"

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        value = self._values.get(name)
        return default if value is None else as_text(value, self.at(name))

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._values.get(name)
        return default if value is None else as_flag(value, self.at(name))

    def seconds(self, name: str, default: float) -> float:
        """A time in seconds, above zero."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
            raise wrong(self.at(name), value, "a number of seconds above zero")
        return float(value)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, none of them empty; None if there is no value."""
        value = self._values.get(name)
        return None if value is None else as_texts(value, self.at(name))


def as_text(value: object, where: str) -> str:
    """A text that a program can be given."""
    if not isinstance(value, str):
        raise wrong(where, value, "text")
    if "\0" in value:
        raise wrong(where, value, "text without a NUL")
    return value


def as_flag(value: object, where: str) -> bool:
    """True or false, and nothing that could be taken for it."""
    if not isinstance(value, bool):
        raise wrong(where, value, "true or false")
    return value


def as_texts(value: object, where: str) -> tuple[str, ...]:
    """A list of texts, none of them empty."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise wrong(where, value, "a list of texts")
    if not all(each.strip() and "\0" not in each for each in value):
        raise wrong(where, value, "a list of texts, none of them empty or with a NUL")
    return tuple(value)


def wrong(origin: str, value: object, wanted: str, *, hint: str = "") -> ConfigurationError:
    """That the value at `origin` is not what is wanted there."""
    return ConfigurationError(f"{origin} is {shown(value)}; it must be {wanted}", hint=hint)


def shown(value: object) -> str:
    """A value in an error message: short, and something that can be printed, whatever it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _LONGEST
    try:
        told = short.repr(value)
    except Exception:  # Its own `repr` failed.
        return f"a {type(value).__name__}"
    told = told if len(told) <= _LONGEST else told[: _LONGEST - 3] + "..."
    return redact(told.encode("utf-8", "backslashreplace").decode())


def snake_case(key: str) -> str:
    """A key as we write it: `maxSize` and `max-size` are `max_size`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower().replace("-", "_")


def nearest(given: object, known: Iterable[str]) -> str:
    """`; did you mean …?`, if one of the known names is close to what was given; else nothing."""
    close = isinstance(given, str) and difflib.get_close_matches(given[:_LONGEST], known, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _known(key: object, origin: str, known: list[str]) -> str:
    written = key[:_LONGEST] if isinstance(key, str) else shown(key)
    plain = snake_case(written)
    if plain in known:
        return plain
    raise ConfigurationError(
        f"{origin}: unknown key `{written}`{nearest(plain, known)}",
        hint=f"known are: {', '.join(known)}",
    )
