"""The log of installations: one line of JSON for each request, one file for each day."""

import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kakoi.packages.allowlist import LONGEST, InstallResult

_log = logging.getLogger(__name__)
_PLAIN: Final = range(0x20, 0x7F)


def plain(text: str) -> str:
    """What may be shown and written down of a text: its plain letters, anything else as `?`.

    A letter that only looks like another one is so seen, and a terminal has nothing to obey.
    """
    data = text.encode("utf-8", "surrogateescape" if _is_encodable(text) else "replace")
    return "".join(chr(byte) if byte in _PLAIN else "?" for byte in data)[:LONGEST]


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def as_line(result: InstallResult, *, also: Sequence[str] = ()) -> str:
    """A result as it stands in the log; what it does not have is left out.

    `also`: what else was installed.
    """
    found = {**dataclasses.asdict(result), "also": list(also) or None}
    return json.dumps({name: value for name, value in found.items() if value is not None})


class InstallLog:
    """`install-YYYYMMDD.jsonl` in a folder, by the day (UTC) of each request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, result: InstallResult, *, also: Sequence[str] = ()) -> None:
        """Write a line. If that cannot be done, it is a warning and changes nothing else."""
        name = f"install-{result.timestamp[:10].replace('-', '')}.jsonl"
        data = (as_line(result, also=also) + "\n").encode("ascii")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not through a link, and not into a pipe that nobody reads: whoever may write to the
            # folder must not choose the file, or keep us waiting.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(self._folder / name, flags | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, data)
            finally:
                os.close(file)
        except OSError as error:
            _log.warning(
                "this is not in the log, %s cannot be written: %s", self._folder, error.strerror
            )
