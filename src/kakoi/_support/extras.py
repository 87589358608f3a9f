"""Modules behind an extra: the packages that they need may not be installed."""

from importlib import import_module
from typing import Any

from kakoi.errors import ConfigurationError


def load_extra(module: str, *, extra: str, feature: str) -> Any:
    """Import a module of `extra`. ConfigurationError: one of its packages is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "kakoi":
            raise
        raise ConfigurationError(
            f"{feature} needs the package {error.name}, which is not installed",
            hint=f"pip install 'kakoi[{extra}]'",
        ) from error


def missing_framework(error: ModuleNotFoundError, *, extra: str) -> ModuleNotFoundError:
    """Return the error of an import that says what to install, if `error` is not about kakoi."""
    if (error.name or "").partition(".")[0] == "kakoi":
        return error
    return ModuleNotFoundError(
        f"{error.name} is not installed: pip install 'kakoi[{extra}]'", name=error.name
    )
