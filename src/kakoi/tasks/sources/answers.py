"""Answers of a server, read strictly: the other end may be wrong, broken or hostile.

A value is what its reader says, or a SourceError names the place. Texts are sound Unicode.
"""

import json
import re
from collections.abc import Iterator, Mapping

from kakoi.errors import SourceError
from kakoi.sections import shown

# Both trackers take titles of 255 characters.
MAX_TITLE = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Answer:
    """One JSON object. `place` says what it is the answer to, for errors."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            raise unfit(place, value, "an object")
        self._value = value
        self._place = place

    def has(self, name: str) -> bool:
        """Is there a value that is not null?"""
        return self._value.get(name) is not None

    def text(self, name: str) -> str:
        """A text, as it is written but for broken surrogates."""
        value = self._value.get(name)
        if not isinstance(value, str):
            raise unfit(f"{self._place}: `{name}`", value, "text")
        return sound(value)

    def text_or_empty(self, name: str) -> str:
        """The same, and the empty text for null or nothing."""
        return self.text(name) if self.has(name) else ""

    def number(self, name: str) -> int:
        """A whole number from zero on."""
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise unfit(f"{self._place}: `{name}`", value, "a whole number")
        return value

    def flag(self, name: str) -> bool:
        """True only for true: what is not said is not so."""
        return self._value.get(name) is True

    def child(self, name: str) -> "Answer":
        """An object in it."""
        return Answer(self._value.get(name), f"{self._place}: `{name}`")

    def children(self, name: str) -> Iterator["Answer"]:
        """The objects of a list in it."""
        return objects(self._value.get(name), f"{self._place}: `{name}`")

    def names(self, name: str, *, of: str) -> tuple[str, ...]:
        """A list of texts, or of objects that have the text `of`; none for null or nothing."""
        place = f"{self._place}: `{name}`"
        found = []
        for each in _items(self._value.get(name) or [], place):
            found.append(sound(each) if isinstance(each, str) else Answer(each, place).text(of))
        return tuple(found)


def objects(value: object, place: str) -> Iterator[Answer]:
    """The objects of a list."""
    for each in _items(value, place):
        yield Answer(each, place)


def decode(data: bytes, place: str) -> object:
    """The value of a JSON text; None if there is no text at all."""
    if not data.strip():
        return None
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        raise unfit(place, data[:80].decode("utf-8", "replace"), "JSON") from None
    return value


def unfit(place: str, value: object, wanted: str) -> SourceError:
    """That there is something else than what is wanted."""
    return SourceError(
        f"{place} is {shown(value)}; it should be {wanted}",
        details={"status": 0},
        hint="is this the address of the server that you mean, and is it what its name says?",
    )


def sound(text: str) -> str:
    """`text` that can be written anywhere as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def one_line(text: str) -> str:
    """`text` without line breaks and control characters."""
    return _CONTROL.sub(" ", text).strip()


def _items(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise unfit(place, value, "a list")
    return value
