"""Where kakoi keeps a user's files, by the XDG base directory specification."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from kakoi.errors import ConfigurationError


def environment(variables: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return `variables`, or those of this process if it is None."""
    return os.environ if variables is None else variables


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of what the user writes: settings."""
    return _folder(environ, "XDG_CONFIG_HOME", ".config")


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of data to keep: audit log, workspace copies, transcripts, the queue."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of data that can be fetched again: downloads."""
    return _folder(environ, "XDG_CACHE_HOME", ".cache")


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    named = environ.get(variable, "")
    # The specification says to ignore relative paths.
    return Path(named if os.path.isabs(named) else home_folder(environ) / below_home, "kakoi")


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's home directory."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        raise ConfigurationError(
            f"HOME is not set, and user {os.geteuid()} has no home directory on this machine",
            hint="set HOME to a folder you own",
        ) from None
