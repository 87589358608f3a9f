"""What a project's own file may say about the network: that less is reached, and never more."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kakoi.egress.domains import narrowed_lines, parse_domains, public_lines
from kakoi.errors import ConfigurationError

# From nothing to everything; each reaches what the one before it does, and more.
_BY_WIDTH: Final = ("none", "allowlist", "open", "bridge", "host")
_MOST_LINES: Final = 1000
_TASKS: Final = "tasks.network"
Ours = Callable[[str], Any]


def narrowed(name: str, value: Any, ours: Ours, *, origin: str) -> Any:
    """The value that holds for `name`, if a project says `value`; `ours`: the user's own, by path.

    ConfigurationError: it would reach more.
    """
    if name.endswith(".allowed_domains"):
        lines: Sequence[str] = value
        if len(lines) > _MOST_LINES:
            raise ConfigurationError(f"{origin}: `{name}` has more than {_MOST_LINES} lines")
        theirs = parse_domains(lines, origin=f"{origin}: {name}")
        reach = _reach(name, ours)
        if reach == "open":
            return public_lines(theirs)
        if _width(reach) > _width("open"):
            return tuple(lines)
        return narrowed_lines(parse_domains(ours(name), origin=name), theirs)
    if value != ours(name) and not _is_narrower(name, value, ours):
        raise ConfigurationError(
            f"{origin}: a project can only narrow `{name}`, which is {_shown(name, ours)}",
            hint="widen it in your own settings: `kakoi config path` says where",
        )
    return value


def without_dormant_lines(name: str, ours: Ours) -> tuple[str, ...]:
    """The user's own list, for a project that switches from `open` to a list.

    In `open` it did nothing. Its private networks, which `open` does not reach, stay out of reach.
    """
    lines = tuple(ours(name))
    if _reach(name, ours) != "open":
        return lines
    return public_lines(parse_domains(lines, origin=name))


def _reach(name: str, ours: Ours) -> str:
    """The network that holds for the list of this name, if no project says anything."""
    if not name.startswith(_TASKS):
        return _network(ours)
    if not ours(f"{_TASKS}.external_access"):
        return "none"
    return "allowlist" if ours(f"{_TASKS}.whitelist_mode") else "open"


def _is_narrower(name: str, value: Any, ours: Ours) -> bool:
    if name == f"{_TASKS}.external_access":
        return not value or bool(ours(name))
    if name == f"{_TASKS}.whitelist_mode":
        return bool(value) or not ours(name)
    return _width(value) <= _width(_network(ours))


def _network(ours: Ours) -> str:
    """What `sandbox.network` means where it is empty, at the least."""
    return ours("sandbox.network") or ("allowlist" if ours("sandbox.allowed_domains") else "none")


def _width(network: str) -> int:
    """Nothing said is nothing narrowed."""
    return _BY_WIDTH.index(network) if network else len(_BY_WIDTH)


def _shown(name: str, ours: Ours) -> str:
    return _network(ours) if name == "sandbox.network" else str(ours(name)).lower()
