"""Where a user's files of kakoi are, as the XDG specification wants it."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from kakoi.errors import ConfigurationError


def environment(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """The variables that say where files are: those that are given, else those of this process."""
    return os.environ if given is None else given


def config_folder(environ: Mapping[str, str]) -> Path:
    """What the user has written: settings."""
    return _folder(environ, "XDG_CONFIG_HOME", ".config")


def state_folder(environ: Mapping[str, str]) -> Path:
    """What is to be kept: the record, copies of workspaces, transcripts, the queue."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """What can be had again: downloads."""
    return _folder(environ, "XDG_CACHE_HOME", ".cache")


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    named = environ.get(variable, "")
    # The specification has relative ones ignored.
    return Path(named if os.path.isabs(named) else Path(_home(environ), below_home), "kakoi")


def _home(environ: Mapping[str, str]) -> str:
    if environ.get("HOME"):
        return environ["HOME"]
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise ConfigurationError(
            f"HOME is not set, and this machine knows no home of user {os.geteuid()}",
            hint="set HOME to a folder of yours",
        ) from None
