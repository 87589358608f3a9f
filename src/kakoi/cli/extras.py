"""Modules behind an extra: found when they are asked for, with the way to them if they are not."""

from importlib import import_module
from typing import Any

from kakoi.errors import ConfigurationError


def load(module: str, *, extra: str, what: str) -> Any:
    """The module of that name. ConfigurationError: a package of the extra is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "kakoi":
            raise
        raise ConfigurationError(
            f"{what} needs the package {error.name}, which is not installed",
            hint=f"pip install 'kakoi[{extra}]'",
        ) from error
