"""What this machine offers to confine with: each found by trying, none of it left behind."""

import asyncio
import contextlib
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kakoi.errors import KakoiError
from kakoi.policy.parsing.script import Unreadable
from kakoi.policy.syntax import parse_by_record
from kakoi.process import ProcessExecutor
from kakoi.runner.commands import new_id
from kakoi.sandbox.landlock import kept_by, missing_from

_LIMIT_S = 20.0
# Not plain: only the parser itself can read it.
_TEXT = 'for x in a b; do case $x in a) echo "${x:-$(pwd)}" ;; esac; done | sort'
_AREA = "this machine"
# CLONE_NEWUSER, in a process that ends with it.
_UNSHARE = (
    "import ctypes, sys\n"
    "c = ctypes.CDLL(None, use_errno=True)\n"
    "sys.exit(ctypes.get_errno() if c.unshare(0x10000000) else 0)"
)
_LANDLOCK_CREATE_RULESET = 444  # The same number on every architecture.
_LANDLOCK_VERSION = 1
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_CONTROLLERS = ("memory", "cpu", "pids")


class Status(StrEnum):
    """What came of trying something."""

    OK = "ok"
    NOT_OK = "not ok"
    NOT_ENFORCED = "not enforced"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `fix` is one command, or step, that would change it."""

    area: str
    name: str
    status: Status
    detail: str = ""
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Does it work?"""
        return self.status is Status.OK


def good(area: str, name: str, detail: str = "") -> Check:
    """It works."""
    return Check(area, name, Status.OK, detail)


def bad(area: str, name: str, detail: str, fix: str = "") -> Check:
    """It does not work."""
    return Check(area, name, Status.NOT_OK, detail, fix)


async def tried(area: str, name: str, work: Awaitable[Check], *, limit_s: float) -> Check:
    """What came of `work`; its failure, too, and that it took too long, is an answer."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except KakoiError as error:
        return bad(area, name, str(error), error.hint)
    except TimeoutError:
        return bad(area, name, f"there was no answer within {limit_s:g} s")
    except Exception as error:  # A slip of ours at one must not hide the others.
        return bad(area, name, f"{type(error).__name__}: {error}")


async def examine_machine(state_folder: Path) -> list[Check]:
    """The kernel, Python, the parser, and the folder that the audit log is written to."""
    trials: dict[str, Callable[[], Check]] = {
        "python": lambda: good(_AREA, "python", platform.python_version()),
        "shfmt": _check_parser,
        "landlock": _check_landlock,
        "seccomp": _check_seccomp,
        "cgroups": _check_cgroups,
        "terminals": _check_terminals,
        "audit log": lambda: _check_state_folder(state_folder),
    }
    found = [
        await tried(_AREA, name, asyncio.to_thread(trial), limit_s=_LIMIT_S)
        for name, trial in trials.items()
    ]
    name = "user namespaces"
    return [*found, await tried(_AREA, name, _check_user_namespaces(name), limit_s=_LIMIT_S)]


def _check_parser() -> Check:
    if isinstance(parse_by_record(_TEXT), Unreadable):
        return bad(_AREA, "shfmt", "the parser of commands does not work", "pip install shfmt-py")
    return good(_AREA, "shfmt", "reads commands")


async def _check_user_namespaces(name: str) -> Check:
    done = await ProcessExecutor().spawn(sys.executable, ["-I", "-S", "-c", _UNSHARE])
    if done.exit_code == 0:
        return good(_AREA, name, "this user can make one")
    why = f"this user may not make one: {os.strerror(done.exit_code)}"
    return bad(_AREA, name, why, "sysctl -w user.max_user_namespaces=15000")


def _check_landlock() -> Check:
    found = _libc().syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if found > 0:
        newer = (
            f"; a newer kernel keeps {', '.join(missing)}"
            if (missing := missing_from(found))
            else ""
        )
        return good(_AREA, "landlock", f"ABI {found} keeps {', '.join(kept_by(found))}{newer}")
    why = "switched off" if ctypes.get_errno() == errno.EOPNOTSUPP else "not in this kernel"
    return bad(_AREA, "landlock", why, "add landlock to lsm= when booting")


def _check_seccomp() -> Check:
    # Without a filter the kernel refuses, and how it does tells whether it knows filters.
    _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    if ctypes.get_errno() == errno.EFAULT:
        return good(_AREA, "seccomp", "filters can be set")
    why = os.strerror(ctypes.get_errno())
    return bad(_AREA, "seccomp", why, "boot a kernel with CONFIG_SECCOMP_FILTER")


def _libc() -> ctypes.CDLL:
    ctypes.set_errno(0)
    return ctypes.CDLL(None, use_errno=True)


def _check_terminals() -> Check:
    try:
        for fd in os.openpty():
            os.close(fd)
    except OSError as error:
        return bad(_AREA, "terminals", str(error), "mount -t devpts devpts /dev/pts")
    return good(_AREA, "terminals", "can be made")


def _check_state_folder(folder: Path) -> Check:
    """Where the log is to be: the folder, or the nearest one above it that exists."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    trial = place / f".kakoi-doctor-{new_id()}"
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        fix = "name another file with KAKOI_AUDIT_FILE"
        return bad(_AREA, "audit log", f"{place} cannot be written to: {error.strerror}", fix)
    return good(_AREA, "audit log", f"can be written to {folder}")


# --- Control groups --------------------------------------------------------------------------


def _check_cgroups() -> Check:
    fix = "systemd-run --user --scope -p Delegate=yes kakoi doctor"
    try:
        folders = dict(own_cgroups(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo")))
    except OSError as error:
        return bad(_AREA, "cgroups", str(error), fix)
    limitable = [name for name in _CONTROLLERS if name in folders and _can_make(folders[name])]
    missing = [name for name in _CONTROLLERS if name not in limitable]
    if missing:
        why = f"this user cannot limit {', '.join(missing)}"
        return bad(_AREA, "cgroups", why, fix)
    return good(_AREA, "cgroups", f"{', '.join(limitable)} can be limited")


def own_cgroups(memberships: str, mounts: str) -> Iterator[tuple[str, Path]]:
    """Controller → the folder of the group that we are in, on version 1 and version 2."""
    places = _cgroup_mounts(mounts)
    for line in memberships.splitlines():
        number, controllers, path = line.split(":", 2)
        kind = "" if number == "0" else controllers
        for names, (root, mounted) in places.items():
            if names != kind:
                continue
            folder = Path(mounted, os.path.relpath(path, root) if path.startswith(root) else ".")
            yield from ((name, folder) for name in _controllers(kind, folder))


def _controllers(kind: str, folder: Path) -> list[str]:
    if kind:
        return kind.split(",")
    with contextlib.suppress(OSError):
        return _text(folder / "cgroup.controllers").split()
    return []


def _cgroup_mounts(mounts: str) -> Mapping[str, tuple[str, str]]:
    """Controllers (none: version 2) → what is mounted of that hierarchy, and where."""
    found = {}
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, mounted = fields.split(" ")[3:5]
        if kind == "cgroup2":
            found[""] = (root, mounted)
        elif kind == "cgroup":
            known = [name for name in options.split(",") if name not in ("rw", "ro")]
            found[",".join(known)] = (root, mounted)
    return found


def _can_make(folder: Path) -> bool:
    trial = folder / f"kakoi-doctor-{new_id()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _text(path: str | Path) -> str:
    return Path(path).read_text("utf-8", "replace")
