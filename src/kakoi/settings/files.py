"""The files that settings come from, and whether anything is set at all."""

import os
from collections.abc import Mapping
from typing import Final

from kakoi._support.user_folders import config_path, home_folder
from kakoi.errors import ConfigurationError

PROJECT_FILES: Final = ("kakoi.yaml", ".kakoi.yaml")
# Not read. In our own folders and with our own name they can only be meant for us, so they are an
# error: the name of each file to the name that it must have.
MISNAMED: Final = {"kakoi.yml": "kakoi.yaml", ".kakoi.yml": ".kakoi.yaml"}
_MISNAMED_USER_FILE: Final = "config.yml"
# Where people look for settings of their own, below the home.
_ELSEWHERE: Final = (
    *(".kakoi/config.yaml", ".kakoi/config.yml", ".kakoi.yaml", ".kakoi.yml"),
    ".config/kakoi.yaml",
)
# Read in a project that has no file of ours.
ORCHESTRATOR_FILE: Final = "orch.yml"
# How the names of variables begin that set something. A test compares them with the model.
_VARIABLES: Final = ("KAKOI_", "EXECUTOR_", "COMMAND_EXECUTOR_", "INSTALL_")
# No verdict depends on it, and the log reads it itself. Only `~` is left to the settings.
_AUDIT_FILE: Final = "KAKOI_AUDIT_FILE"


def user_file(environ: Mapping[str, str]) -> str:
    """Return the user's settings file: KAKOI_CONFIG, or kakoi/config.yaml in the config folder."""
    return environ.get("KAKOI_CONFIG") or os.path.join(config_path(environ), "config.yaml")


def check_names(workspace: str | None, environ: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a settings file has a name under which it is not read."""
    found = [] if environ.get("KAKOI_CONFIG") else [misnamed_user_file(environ)]
    if workspace is not None:
        found += [os.path.normpath(os.path.join(workspace, name)) for name in MISNAMED]
    for path in found:
        if not _is_absent(path):
            raise misnamed_error(path)


def misnamed_error(path: str) -> ConfigurationError:
    """Return the error for a settings file under a name that is not read."""
    right = os.path.splitext(path)[0] + ".yaml"
    return ConfigurationError(f"{path} is not read under this name", hint=f"rename it to {right}")


def misnamed_user_file(environ: Mapping[str, str]) -> str:
    """Return where the user's settings file is with a name that is not read."""
    return os.path.join(config_path(environ), _MISNAMED_USER_FILE)


def unread_files(workspace: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return files that people may expect to be read, because of their name or a section.

    The values say what to do about them.
    """
    home, own = str(home_folder(environ)), user_file(environ)
    found = [os.path.join(home, name) for name in _ELSEWHERE]
    others = ("config.yaml", "config.yml", "orch.yaml")
    found += [path for name in others if _has_section(path := os.path.join(workspace, name))]
    read = {os.path.realpath(os.path.join(workspace, name)) for name in PROJECT_FILES}
    read.add(os.path.realpath(own))
    return {
        path: f"rename it to {ORCHESTRATOR_FILE}"
        if path.endswith("orch.yaml")
        else f"move its content to {own}"
        for path in found
        if os.path.isfile(path) and os.path.realpath(path) not in read
    }


def _has_section(path: str) -> bool:
    """Tell if a file of another program has a section that is meant for us."""
    from pathlib import Path  # Judging does not need them.

    from kakoi._support.parsing import read_text

    section = "sandbox:" if os.path.basename(path).startswith("orch") else "command_executor:"
    try:
        text = read_text(Path(path), follow_links=False) or ""
    except ConfigurationError:
        return False
    return any(line.startswith(section) for line in text.splitlines())


def is_anything_set(workspace: str, environ: Mapping[str, str]) -> bool:
    """Whether a file or a variable could change what a verdict depends on, or break the settings.

    False: these settings are the defaults.
    """
    for name, value in environ.items():
        if name.startswith(_VARIABLES) and value and (name != _AUDIT_FILE or value[0] == "~"):
            return True
    names = (*PROJECT_FILES, *MISNAMED, ORCHESTRATOR_FILE)
    own = (user_file(environ), misnamed_user_file(environ))
    paths = [*own, *(os.path.join(workspace, name) for name in names)]
    return not all(map(_is_absent, paths))


def _is_absent(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # The loader says what is wrong with it.
        return False
    return False
