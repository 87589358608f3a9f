"""Arguments of tools: one description provides the schema for clients and the validation.

No schema has alternatives (`anyOf`), because some clients cannot read them.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest
from kakoi.errors import ConfigurationError

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
    """One argument. Without a `default` it is required; an object maps names to strings."""

    kind: Kind
    doc: str
    default: Any = None
    minimum: int = 0
    maximum: int = 2**53 - 1
    longest: int = 4096
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""
        schema: dict[str, Any] = {"type": self.kind, "description": self.doc}
        if self.default not in (None, {}):
            schema["default"] = self.default
        if self.kind == "integer":
            schema |= {"minimum": self.minimum, "maximum": self.maximum}
        if self.kind == "object":
            schema["additionalProperties"] = {"type": "string"}
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema

    def read(self, name: str, value: object) -> Any:
        """Return the validated value. ConfigurationError says what is wrong with it."""
        if self.kind == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # Some clients only have floats.
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
                f"`{name}` has {len(value)} characters; at most {self.longest} are allowed"
            )
        check_unicode(name, value)


def check_unicode(name: str, value: str) -> None:
    """Refuse a lone surrogate: it cannot be encoded."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"`{name}` contains a lone surrogate, which is not valid text"
        ) from None


def _check_entries(name: str, value: Mapping[object, object]) -> None:
    if len(value) > _MOST_ENTRIES:
        raise ConfigurationError(
            f"`{name}` has {len(value)} entries; at most {_MOST_ENTRIES} are allowed"
        )
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, str):
            raise ConfigurationError(f"`{name}` must map names to strings")
        if len(key) + len(entry) > _LONGEST_ENTRY:
            raise ConfigurationError(f"an entry of `{name}` is longer than {_LONGEST_ENTRY}")
        check_unicode(name, key + entry)


def input_schema(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """Return the input schema of a tool."""
    return {
        "type": "object",
        "properties": {name: argument.schema() for name, argument in arguments.items()},
        "required": [name for name, argument in arguments.items() if argument.default is None],
        "additionalProperties": False,
    }


def read_arguments(arguments: Mapping[str, Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated arguments with defaults. Raises ConfigurationError."""
    for name in given:
        if name not in arguments:
            raise ConfigurationError(
                f"there is no argument {name[:64]!r}{nearest(name, arguments)}",
                hint=f"the arguments are {', '.join(arguments)}",
            )
    read = {}
    for name, argument in arguments.items():
        # Some clients send null for omitted arguments.
        value = given.get(name)
        if value is None and argument.default is None:
            raise ConfigurationError(f"`{name}` is missing: {argument.doc}")
        read[name] = argument.default if value is None else argument.read(name, value)
    return read
