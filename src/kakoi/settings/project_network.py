"""What a project's own file can change about the network: narrow it, and never widen it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kakoi.errors import ConfigurationError
from kakoi.network.domains import narrowed_lines, parse_domains, public_lines

# From nothing to everything: each reaches all that the one before it does, and more.
_BY_WIDTH: Final = ("none", "allowlist", "open", "bridge", "host")
_MOST_LINES: Final = 1000
_TASKS: Final = "tasks.network"
UserValue = Callable[[str], Any]


def narrowed(name: str, value: Any, user_value: UserValue, *, origin: str) -> Any:
    """Return the effective value of `name` if a project sets it to `value`.

    `user_value`: returns the user's own value of a path.
    Raises ConfigurationError if the project's value would reach more.
    """
    if name.endswith(".allowed_domains"):
        lines: Sequence[str] = value
        if len(lines) > _MOST_LINES:
            raise ConfigurationError(f"{origin}: `{name}` has more than {_MOST_LINES} lines")
        domains = parse_domains(lines, origin=f"{origin}: {name}")
        network = _network_for_list(name, user_value)
        if network == "open":
            return public_lines(domains)
        if _width(network) > _width("open"):
            return tuple(lines)
        return narrowed_lines(parse_domains(user_value(name), origin=name), domains)
    if value != user_value(name) and not _is_narrower(name, value, user_value):
        is_network = name == "sandbox.network"
        current = _network(user_value) if is_network else str(user_value(name)).lower()
        raise ConfigurationError(
            f"{origin}: a project can only narrow `{name}`, which is {current}",
            hint="widen it in your own settings: `kakoi config path` prints the file",
        )
    return value


def without_dormant_lines(name: str, user_value: UserValue) -> tuple[str, ...]:
    """Return the user's own list, for a project that switches from `open` to a list.

    With `open` the list had no effect. The private networks on it, which `open` does not reach, are
    left out so that they stay out of reach.
    """
    lines = tuple(user_value(name))
    if _network_for_list(name, user_value) != "open":
        return lines
    return public_lines(parse_domains(lines, origin=name))


def _network_for_list(name: str, user_value: UserValue) -> str:
    """Return the user's own network for the domain list of this name."""
    if not name.startswith(_TASKS):
        return _network(user_value)
    if not user_value(f"{_TASKS}.external_access"):
        return "none"
    return "allowlist" if user_value(f"{_TASKS}.whitelist_mode") else "open"


def _is_narrower(name: str, value: Any, user_value: UserValue) -> bool:
    if name == f"{_TASKS}.external_access":
        return not value or bool(user_value(name))
    if name == f"{_TASKS}.whitelist_mode":
        return bool(value) or not user_value(name)
    return _width(value) <= _width(_network(user_value))


def _network(user_value: UserValue) -> str:
    """Return the user's `sandbox.network`; if it is empty, the least that it can mean."""
    has_domains = user_value("sandbox.allowed_domains")
    return user_value("sandbox.network") or ("allowlist" if has_domains else "none")


def _width(network: str) -> int:
    """Return the rank of a network; an empty one narrows nothing."""
    return _BY_WIDTH.index(network) if network else len(_BY_WIDTH)
