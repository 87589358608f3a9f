"""Reads the files with which a project instructs a model: untrusted text, read with limits."""

import os
import stat
from pathlib import Path
from typing import Final

from kakoi._support.late import pattern
from kakoi.errors import ConfigurationError

GUIDE_NAME: Final = "AGENTS.md"
_MAX_BYTES: Final = 64 * 1024
_UNPRINTABLE: Final = pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def read_project_text(path: Path, *, hint: str) -> str | None:
    """Return the text of a project's file; None if it does not exist.

    Links are not followed: they could point to any file on this machine.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise ConfigurationError(f"{path} cannot be read: {why}", hint=hint) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError(f"{path} is not a regular file", hint=hint)
    with open(fd, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    return decode_project_text(data, path, hint=hint)


def decode_project_text(data: bytes, path: Path, *, hint: str) -> str:
    """Decode the content of such a file. Raises ConfigurationError if it is invalid or too long."""
    if len(data) > _MAX_BYTES:
        raise ConfigurationError(f"{path} has more than {_MAX_BYTES} bytes", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} is not UTF-8 text (byte {error.start})", hint=hint
        ) from None
    text = text.replace("\r\n", "\n")
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigurationError(f"{path} contains a control character in line {line}", hint=hint)
    return text


def read_guide(project: str | Path) -> str | None:
    """Return AGENTS.md at the root of a project; None if it has none."""
    return read_project_text(Path(project, GUIDE_NAME), hint="fix it, or remove it")
