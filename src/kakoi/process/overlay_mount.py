"""The program that gives a container the overlay of a workspace, made of layers.

    python3 -I -S overlay_mount.py

Standard library only, no import of kakoi: it is started by its path, as root. It mounts the overlay
in a mount namespace of its own, as mount_stage.py does for bubblewrap, and moves only the result,
so that no other path leads to the layers. It first reads a length in ten digits, then fields joined
by NUL. The first two say what to do:

    show PATH       mount it at PATH, where a container engine of this machine can mount it from;
                    write `.` to stdout, wait, and unmount it at the end of stdin. A container that
                    has mounted it keeps it.
    replace PID     mount it at INSIDE in the container of PID, in place of what is there of it
    hide PID        remove what is there of it, so that nobody writes to the layers any more

and the others what it is: INSIDE, UID, GID, `write` or `data` (no program can be executed from
it), the project, the identity it must have, the directory of layers, its identity, the names of the
layers, separated by spaces (mount_stage.py), and the paths in the project that nobody can change,
separated by \\n.

It reports errors as mount_stage.py does.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 32, 0x1000, 0x4000, 1 << 19
_MNT_DETACH = 2
_PROJECT = "project"


def main() -> None:
    """Mount or unmount it."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import idmapped_mount  # type: ignore[import-not-found]  # In the same folder.
    import mount_stage as stage  # type: ignore[import-not-found]

    take = idmapped_mount._take
    verb, place, inside, *overlay = os.fsdecode(take(int(take(10)))).split("\0")
    ours = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if verb == "show":
            tree = _make(stage, overlay)
            stage._call("setns", ours, _CLONE_NEWNS)
            return _show(stage, tree, place)
        theirs = os.open(f"/proc/{int(place)}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        tree = -1 if verb == "hide" else _make(stage, overlay)
        name = f"kakoi:{stage._id(os.path.join(overlay[5], overlay[7].split(' ')[0]))}"
        ourselves = os.open("/proc/self", os.O_RDONLY | os.O_CLOEXEC)  # /proc there is another.
        stage._call("setns", theirs, _CLONE_NEWNS)
        _unmount(stage, ourselves, name)
        if tree >= 0:
            _move(stage, tree, inside)
    except OSError as error:
        stage._fail(f"the copy of {overlay[3]} cannot be mounted: {error}", "open a new sandbox")
    os.write(1, b".")


def _make(stage: ModuleType, overlay: list[str]) -> int:
    """Mount it in a mount namespace that only we are in, and return it, detached from there."""
    uid, gid, access, project, seen, folder, folder_seen, layers, guarded = overlay
    base = stage.Source(project, seen, _PROJECT, f"cow {layers}")
    sources = [base, stage.Source(folder, folder_seen, stage.LAYERS, "write")]
    stage._call("unshare", _CLONE_NEWNS)
    stage._call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
    for source in sources:
        stage._open(source, int(uid), int(gid))
    mount_point = "/run/kakoi"
    os.makedirs(mount_point, mode=0o700, exist_ok=True)
    stage._mount_all(mount_point, sources, int(uid), int(gid))
    top = os.path.join(mount_point, _PROJECT)
    _guard(stage, top, guarded.split("\n") if guarded else [])
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree: int = stage._call("syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(top), flags)
    if access == "data":
        stage._set(tree, stage._ATTR_NOEXEC)
    return tree


def _guard(stage: ModuleType, top: str, guarded: list[str]) -> None:
    """Make paths read-only. A directory above them that is a mount cannot be renamed."""
    above = {path[:at] for path in guarded for at in range(len(path)) if path[at : at + 1] == "/"}
    for path in sorted(above | set(guarded)):
        full = os.fsencode(os.path.join(top, path))
        stage._call("mount", full, full, None, _MS_BIND, None)
        if path in guarded:
            flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
            stage._call("mount", None, full, None, flags, None)


def _show(stage: ModuleType, tree: int, path: str) -> None:
    try:
        # Only root can pass this folder: the view itself belongs to the unprivileged user.
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.makedirs(path, exist_ok=True)
        _move(stage, tree, path)
    except OSError as error:
        stage._fail(f"cannot mount a copy: {error}", "run kakoi outside of the container")
    try:
        os.write(1, b".")
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # The parent died before we had finished.
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(path), _MNT_DETACH)
        os.rmdir(path)  # Fails unless it is empty, so it never deletes data.


def _move(stage: ModuleType, tree: int, path: str) -> None:
    flags = _MOVE_MOUNT_F_EMPTY_PATH
    stage._call("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(path), flags)
    os.close(tree)


def _unmount(stage: ModuleType, ourselves: int, name: str) -> None:
    """Unmount the overlay of this name wherever it is in this namespace, with what is on it."""
    for path in _mounted(ourselves, name):
        stage._call("umount2", path, _MNT_DETACH)
    if left := _mounted(ourselves, name):
        stage._fail(f"{os.fsdecode(left[0])} cannot be unmounted", "open a new sandbox")


def _mounted(ourselves: int, name: str) -> list[bytes]:
    """Return where it is mounted, without what is below another of its mounts."""
    found: list[bytes] = []
    with open(os.open("mountinfo", os.O_RDONLY, dir_fd=ourselves), "rb") as file:
        for line in file:
            fields = line.split(b" ")
            if fields[fields.index(b"-") + 2] == name.encode("ascii"):
                path = _plain(fields[4])
                if not any(path.startswith(above + b"/") for above in found):
                    found.append(path)
    return found


def _plain(path: bytes) -> bytes:
    """Undo the kernel's escapes. No codec of Python does, which would be loaded from there."""
    for each in (b" ", b"\t", b"\n", b"\\"):
        path = path.replace(b"\\%03o" % ord(each), each)
    return path


if __name__ == "__main__":
    main()
