"""What each process of a command may use, and whether a disk is full.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import resource

RLIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
    # Private memory that can be written. Not the address space: programs reserve far more of that
    # than they use, and shared memory is not in here.
    "data_bytes": resource.RLIMIT_DATA,
    # All of the user's, in its user namespace.
    "processes": resource.RLIMIT_NPROC,
}
# What has less than this left is full: a program asks for a block or more at once.
_ROOM_BYTES = 64 * 1024


def limit_us(wanted: dict[str, int]) -> None:
    """Lower the limits of this process, for good, and of all that it will start."""
    for name, value in wanted.items():
        number = RLIMITS[name]
        _, hard = resource.getrlimit(number)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (limit, limit))


def full_place(paths: list[bytes]) -> bytes:
    """The first of these directories whose file system has no room, or no inode, left."""
    for path in paths:
        try:
            found = os.statvfs(path)
        except (OSError, ValueError):  # It is gone, or could never be.
            continue
        if found.f_blocks and found.f_bavail * found.f_frsize < _ROOM_BYTES:
            return path
        if found.f_files and not found.f_favail:
            return path
    return b""
