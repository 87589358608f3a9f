"""The program that gives an unprivileged user access to root's directory while its stdin is open.

    python3 -I -S idmapped_mount.py

Standard library only, no import of kakoi: it is started by its path, as root. It mounts a second,
*idmapped* view of the directory (see mount_stage.py) where a container engine of this machine can
mount it from, writes `.` to stdout, and waits. The view disappears when it exits, and it exits when
its parent closes its stdin or dies.

It first reads a length in ten digits, then fields joined by NUL: UID, GID, the path of the view,
the directory, the identity the directory must have, as `device inode owner group`, and `write` or
`data`. It reports errors as mount_stage.py does.
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
    import mount_stage as stage  # type: ignore[import-not-found]  # In the same folder.

    uid, gid, mount_point, path, seen, access = os.fsdecode(_take(int(_take(10)))).split("\0")
    source = stage.Source(path, seen, "", access)
    stage._open(source, int(uid), int(gid))
    try:
        # Only root can pass this folder: the view itself belongs to the unprivileged user.
        os.makedirs(os.path.dirname(mount_point), mode=0o700, exist_ok=True)
        os.makedirs(mount_point, exist_ok=True)
        target = os.fsencode(mount_point)
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        stage._call("syscall", _MOVE_MOUNT, source.fd, b"", _AT_FDCWD, target, flags)
    except OSError as error:
        stage._fail(f"cannot mount a view of {path}: {error}", "give the workspace to a user")
    os.close(source.fd)
    try:
        os.write(1, b".")
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # The parent died before we had finished.
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(mount_point), _MNT_DETACH)
        os.rmdir(mount_point)  # Fails unless it is empty, so it never deletes data.


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
