"""JSON answers of a server, parsed strictly: the server may be wrong, broken or hostile.

A value has the expected type, or a SourceError says where it does not. Texts are valid Unicode.
"""

import json
from collections.abc import Iterator, Mapping

from kakoi._support.late import pattern
from kakoi._support.text import short_repr
from kakoi.errors import SourceError

# Both trackers limit titles to 255 characters.
MAX_TITLE = 255
_CONTROL = pattern(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class JsonAnswer:
    """One JSON object. `origin` says in errors where it comes from."""

    def __init__(self, value: object, origin: str) -> None:
        if not isinstance(value, Mapping):
            raise unexpected_value(origin, value, "an object")
        self._value = value
        self._origin = origin

    def has(self, name: str) -> bool:
        """Is there a value that is not null?"""
        return self._value.get(name) is not None

    def text(self, name: str) -> str:
        """A text, unchanged except for broken surrogates."""
        value = self._value.get(name)
        if not isinstance(value, str):
            raise unexpected_value(f"{self._origin}: `{name}`", value, "text")
        return valid_unicode(value)

    def text_or_empty(self, name: str) -> str:
        """The same, or an empty text if it is null or missing."""
        return self.text(name) if self.has(name) else ""

    def number(self, name: str) -> int:
        """A non-negative integer."""
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise unexpected_value(f"{self._origin}: `{name}`", value, "a whole number")
        return value

    def flag(self, name: str) -> bool:
        """True only if the value is true; false if it is missing."""
        return self._value.get(name) is True

    def child(self, name: str) -> "JsonAnswer":
        """An object in it."""
        return JsonAnswer(self._value.get(name), f"{self._origin}: `{name}`")

    def children(self, name: str) -> Iterator["JsonAnswer"]:
        """The objects of a list in it."""
        return objects(self._value.get(name), f"{self._origin}: `{name}`")

    def names(self, name: str, *, of: str) -> tuple[str, ...]:
        """A list of texts, or of the texts `of` of objects; empty if it is null or missing."""
        origin = f"{self._origin}: `{name}`"
        found = []
        for each in _items(self._value.get(name) or [], origin):
            found.append(
                valid_unicode(each) if isinstance(each, str) else JsonAnswer(each, origin).text(of)
            )
        return tuple(found)


def objects(value: object, origin: str) -> Iterator[JsonAnswer]:
    """The objects of a list."""
    for each in _items(value, origin):
        yield JsonAnswer(each, origin)


def decode(data: bytes, origin: str) -> object:
    """The value of a JSON text; None for an empty text."""
    if not data.strip():
        return None
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        raise unexpected_value(origin, data[:80].decode("utf-8", "replace"), "JSON") from None
    return value


def unexpected_value(origin: str, value: object, wanted: str) -> SourceError:
    """The error for a value of another type than expected."""
    return SourceError(
        f"{origin} is {short_repr(value)}; it should be {wanted}",
        details={"status": 0},
        hint="check the address of the server",
    )


def valid_unicode(text: str) -> str:
    """`text` without broken surrogates, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def one_line(text: str) -> str:
    """`text` without line breaks and control characters."""
    return _CONTROL.sub(" ", text).strip()


def _items(value: object, origin: str) -> list[object]:
    if not isinstance(value, list):
        raise unexpected_value(origin, value, "a list")
    return value
