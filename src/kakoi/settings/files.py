"""The files that settings come from, and whether anything is set at all."""

import os
from collections.abc import Mapping
from typing import Final

from kakoi._support.user_folders import config_path

PROJECT_FILES: Final = ("kakoi.yaml", ".kakoi.yaml")
# Read in a project that has no file of ours.
ORCHESTRATOR_FILE: Final = "orch.yml"
# How the names of variables begin that set something. A test compares them with the model.
_VARIABLES: Final = ("KAKOI_", "EXECUTOR_", "COMMAND_EXECUTOR_", "INSTALL_")


def user_file(environ: Mapping[str, str]) -> str:
    """Return the user's settings file: KAKOI_CONFIG, or kakoi/config.yaml in the config folder."""
    return environ.get("KAKOI_CONFIG") or os.path.join(config_path(environ), "config.yaml")


def is_anything_set(workspace: str, environ: Mapping[str, str]) -> bool:
    """Whether a file or a variable could change a setting. False: all of them are the defaults."""
    if any(name.startswith(_VARIABLES) and value for name, value in environ.items()):
        return True
    names = (*PROJECT_FILES, ORCHESTRATOR_FILE)
    paths = [user_file(environ), *(os.path.join(workspace, name) for name in names)]
    return not all(map(_is_absent, paths))


def _is_absent(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # The loader says what is wrong with it.
        return False
    return False
