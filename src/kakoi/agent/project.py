"""What the authors of a project want a model to be told: text of strangers, read with limits."""

import os
import re
import stat
from pathlib import Path
from typing import Final

from kakoi.errors import ConfigurationError

GUIDE_NAME: Final = "AGENTS.md"
_MAX_BYTES: Final = 64 * 1024
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def project_text(path: Path, *, hint: str) -> str | None:
    """The text of a project's file; None if there is none.

    No link is followed: it could lead to anything that its author wants to be told.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise ConfigurationError(f"{path} cannot be read: {why}", hint=hint) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError(f"{path} is no plain file", hint=hint)
    with open(fd, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    return checked_text(data, path, hint=hint)


def checked_text(data: bytes, path: Path, *, hint: str) -> str:
    """The bytes of such a file as text, if it is one and not too long."""
    if len(data) > _MAX_BYTES:
        raise ConfigurationError(f"{path} has more than {_MAX_BYTES} bytes", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} is no UTF-8 text (byte {error.start})", hint=hint
        ) from None
    text = text.replace("\r\n", "\n")
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigurationError(f"{path} holds a control character in line {line}", hint=hint)
    return text


def project_guide(project: str | Path) -> str | None:
    """AGENTS.md at the root of a project; None if it has none."""
    return project_text(Path(project, GUIDE_NAME), hint="mend it, or remove it")
