"""Where kakoi keeps a user's files, by the XDG base directory specification."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kakoi.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def environment(variables: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return `variables`, or those of this process if it is None."""
    return os.environ if variables is None else variables


def config_folder(environ: Mapping[str, str]) -> "Path":
    """Return the folder of what the user writes: settings."""
    return _as_path(config_path(environ))


def state_folder(environ: Mapping[str, str]) -> "Path":
    """Return the folder of data to keep: audit log, workspace copies, transcripts, the queue."""
    return _as_path(_folder(environ, "XDG_STATE_HOME", ".local/state"))


def cache_folder(environ: Mapping[str, str]) -> "Path":
    """Return the folder of data that can be fetched again: downloads."""
    return _as_path(cache_path(environ))


def config_path(environ: Mapping[str, str]) -> str:
    """Return the same as `config_folder`, without loading `pathlib`: judging starts faster."""
    return _folder(environ, "XDG_CONFIG_HOME", ".config")


def cache_path(environ: Mapping[str, str]) -> str:
    """Return the same as `cache_folder`, without loading `pathlib`."""
    return _folder(environ, "XDG_CACHE_HOME", ".cache")


def home_folder(environ: Mapping[str, str]) -> "Path":
    """Return the user's home directory."""
    return _as_path(_home(environ))


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> str:
    named = environ.get(variable, "")
    # The specification says to ignore relative paths.
    parent = named if os.path.isabs(named) else os.path.join(_home(environ), below_home)
    return os.path.join(parent, "kakoi")


def _home(environ: Mapping[str, str]) -> str:
    if environ.get("HOME"):
        return environ["HOME"]
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise ConfigurationError(
            f"HOME is not set, and user {os.geteuid()} has no home directory on this machine",
            hint="set HOME to a folder you own",
        ) from None


def _as_path(path: str) -> "Path":
    from pathlib import Path

    return Path(path)
