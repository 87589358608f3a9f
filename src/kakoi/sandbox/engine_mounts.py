"""Does an engine see what we mount? If not, it cannot take over a disk of limited size.

It does if it lives with our mounts, as engines do that a service manager has started on this
machine, or with a copy of them that gets what we add. The kernel says who listens at its socket.
"""

import os
import socket
import struct
from pathlib import Path
from typing import Final

_CONNECT_S: Final = 2.0
_CREDENTIALS: Final = struct.Struct("3i")


def why_not_seen(address: str, place: str) -> str:
    """Why the engine at that socket does not see what we mount at `place`; empty if it does.

    Empty, too, if nobody answers there: then there are no containers either.
    """
    pid = _listener(address)
    if pid is None:
        return ""
    if pid == 0:
        return "the engine runs outside of the container that we run in"
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return ""
        ours, theirs = (Path(f"/proc/{who}/mountinfo").read_text() for who in ("self", str(pid)))
    except OSError:
        return "the engine does not show which mounts it has"
    return "" if gets_our_mounts(ours, theirs, place) else "the engine has mounts of its own"


def gets_our_mounts(ours: str, theirs: str, place: str) -> bool:
    """Does what is mounted at `place` here appear there? Both are texts of a mountinfo."""
    shared = {word for word in _propagation(ours, place) if word.startswith("shared:")}
    there = {word.replace("master:", "shared:") for word in _propagation(theirs, place)}
    return bool(shared & there)


def _propagation(mountinfo: str, place: str) -> list[str]:
    """With whom the mount that `place` lies on shares what is mounted upon it."""
    best, words = "", []
    for line in mountinfo.splitlines():
        fields = line.partition(" - ")[0].split(" ")
        top = fields[4]
        # Of two at one place the later one is above.
        if len(top) >= len(best) and f"{place}/".startswith(f"{top.rstrip('/')}/"):
            best, words = top, fields[6:]
    return words


def _listener(address: str) -> int | None:
    """The process that listens there: 0 if it cannot be seen from here, None if there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_CONNECT_S)
            line.connect(address)
            said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(said)[0])
