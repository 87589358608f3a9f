"""Resource limits of each process of a command, and the check for a full disk.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import resource

RLIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
    # Private writable memory, without shared memory. Not the address space: programs reserve far
    # more of it than they use.
    "data_bytes": resource.RLIMIT_DATA,
    # Counts all processes of the user in its user namespace.
    "processes": resource.RLIMIT_NPROC,
}
# A disk with less than this left counts as full: programs write at least a block.
_ROOM_BYTES = 64 * 1024


def apply_rlimits(wanted: dict[str, int]) -> None:
    """Lower the limits of this process for good; child processes inherit them."""
    for name, value in wanted.items():
        number = RLIMITS[name]
        _, hard = resource.getrlimit(number)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (limit, limit))


def find_full_disk(paths: list[bytes]) -> bytes:
    """Return the first directory whose file system has no space or no inode left."""
    for path in paths:
        try:
            found = os.statvfs(path)
        except (OSError, ValueError):  # The folder is gone, or the path is invalid.
            continue
        if found.f_blocks and found.f_bavail * found.f_frsize < _ROOM_BYTES:
            return path
        if found.f_files and not found.f_favail:
            return path
    return b""
