"""Arguments of tools: one description gives the schema that clients see and the check of what
they send.

No argument has a schema of alternatives, which some clients cannot read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kakoi.errors import ConfigurationError
from kakoi.sections import nearest

Kind = Literal["string", "integer", "boolean", "object"]
_TYPES: Final[Mapping[Kind, type]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
}
_MOST_ENTRIES: Final = 64
_LONGEST_ENTRY: Final = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument. Without a `default` it has to be given; an object maps names to texts."""

    kind: Kind
    doc: str
    default: Any = None
    minimum: int = 0
    maximum: int = 2**53 - 1
    longest: int = 4096
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """As JSON Schema."""
        told: dict[str, Any] = {"type": self.kind, "description": self.doc}
        if self.default not in (None, {}):
            told["default"] = self.default
        if self.kind == "integer":
            told |= {"minimum": self.minimum, "maximum": self.maximum}
        if self.kind == "object":
            told["additionalProperties"] = {"type": "string"}
        if self.choices:
            told["enum"] = list(self.choices)
        return told

    def read(self, name: str, value: object) -> Any:
        """The value, if it is one; ConfigurationError says what is wrong with it."""
        if self.kind == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # Some clients have no other numbers.
        if not isinstance(value, _TYPES[self.kind]) or (
            isinstance(value, bool) and self.kind != "boolean"
        ):
            raise ConfigurationError(f"`{name}` must be of type {self.kind}")
        if isinstance(value, str):
            self._check_text(name, value)
        elif isinstance(value, dict):
            _check_entries(name, value)
        elif isinstance(value, int) and not self.minimum <= value <= self.maximum:
            raise ConfigurationError(
                f"`{name}` is {value}; it must be from {self.minimum} to {self.maximum}"
            )
        return value

    def _check_text(self, name: str, value: str) -> None:
        if self.choices and value not in self.choices:
            raise ConfigurationError(f"`{name}` must be one of {', '.join(self.choices)}")
        if len(value) > self.longest:
            raise ConfigurationError(
                f"`{name}` has {len(value)} characters; at most {self.longest} can be taken"
            )
        check_unicode(name, value)


def check_unicode(name: str, value: str) -> None:
    """Refuse half of a character: nothing can be done with it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"`{name}` holds a lone surrogate; it is no text") from None


def _check_entries(name: str, value: Mapping[object, object]) -> None:
    if len(value) > _MOST_ENTRIES:
        raise ConfigurationError(f"`{name}` has {len(value)} entries; at most {_MOST_ENTRIES}")
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, str):
            raise ConfigurationError(f"`{name}` must map names to texts")
        if len(key) + len(entry) > _LONGEST_ENTRY:
            raise ConfigurationError(f"an entry of `{name}` is longer than {_LONGEST_ENTRY}")
        check_unicode(name, key + entry)


def schema_of(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """The input schema of a tool."""
    return {
        "type": "object",
        "properties": {name: argument.schema() for name, argument in arguments.items()},
        "required": [name for name, argument in arguments.items() if argument.default is None],
        "additionalProperties": False,
    }


def read_arguments(arguments: Mapping[str, Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool was given, with its defaults; ConfigurationError if something is wrong."""
    for name in given:
        if name not in arguments:
            raise ConfigurationError(
                f"there is no argument {name[:64]!r}{nearest(name, arguments)}",
                hint=f"the arguments are {', '.join(arguments)}",
            )
    read = {}
    for name, argument in arguments.items():
        # Some clients send null for what they leave out.
        value = given.get(name)
        if value is None and argument.default is None:
            raise ConfigurationError(f"`{name}` is missing: {argument.doc}")
        read[name] = argument.default if value is None else argument.read(name, value)
    return read
