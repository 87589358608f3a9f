"""The program that lends root's directory to an unprivileged user while its input is open.

    python3 -I -S lending.py

Standard library only, no import of kakoi: it is started by its path, as root. It mounts a second,
*idmapped* view of the directory (see staging.py) where a container engine of this machine can take
it from, writes `.` on its output, and waits. The view is gone when it exits, and it exits when
whoever started it closes its input, or dies.

What it reads first is a length of ten digits and fields joined by NUL: UID, GID, the place of the
view, the directory, what is known of it, as `device inode owner group`, and `write` or `data`.
Failures are told as in staging.py.
"""

from __future__ import annotations

import ctypes
import os
import sys

_AT_FDCWD = -100
_MOVE_MOUNT = 429
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MNT_DETACH = 2


def main() -> None:
    """Mount, wait, unmount."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import staging  # type: ignore[import-not-found]  # It is beside us.

    uid, gid, place, path, seen, access = os.fsdecode(_take(int(_take(10)))).split("\0")
    source = staging.Source(path, seen, "", access)
    staging._open(source, int(uid), int(gid))
    try:
        # Nobody but root gets past it: the view itself is the unprivileged user's.
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        os.makedirs(place, exist_ok=True)
        target = os.fsencode(place)
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        staging._call("syscall", _MOVE_MOUNT, source.fd, b"", _AT_FDCWD, target, flags)
    except OSError as error:
        staging._fail(f"cannot mount a view of {path}: {error}", "give the workspace to a user")
    os.close(source.fd)
    try:
        os.write(1, b".")
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # Whoever started us is gone, in the middle of something.
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(place), _MNT_DETACH)
        os.rmdir(place)  # Only ever an empty one.


def _take(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


if __name__ == "__main__":
    main()
