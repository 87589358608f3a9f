"""What this machine can confine with. Each check tries it, and leaves nothing behind."""

import asyncio
import contextlib
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from kakoi._support.late import dataclass
from kakoi.backends.landlock import restrictions_missing_from, restrictions_of
from kakoi.channel.api import new_id
from kakoi.errors import KakoiError
from kakoi.policy.parsing.parser import parse_with_shfmt
from kakoi.policy.parsing.script import Unreadable
from kakoi.process import ProcessExecutor

_LIMIT_S = 20.0
# Not simple: only the parser itself can read it.
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


class CheckStatus(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    NOT_OK = "not ok"
    NOT_ENFORCED = "not enforced"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `fix`: one command or step that would make it work."""

    area: str
    name: str
    status: CheckStatus
    detail: str = ""
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Whether it works."""
        return self.status is CheckStatus.OK


def passed(area: str, name: str, detail: str = "") -> Check:
    """It works."""
    return Check(area, name, CheckStatus.OK, detail)


def failed(area: str, name: str, detail: str, fix: str = "") -> Check:
    """It does not work."""
    return Check(area, name, CheckStatus.NOT_OK, detail, fix)


async def run_check(area: str, name: str, work: Awaitable[Check], *, limit_s: float) -> Check:
    """The check that `work` gives; an error and a timeout are failed checks."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except KakoiError as error:
        return failed(area, name, str(error), error.hint)
    except TimeoutError:
        return failed(area, name, f"no answer within {limit_s:g} s")
    except Exception as error:  # A bug of ours in one check must not hide the others.
        return failed(area, name, f"{type(error).__name__}: {error}")


async def check_machine(state_folder: Path) -> list[Check]:
    """Check the kernel, Python, the parser, and the folder of the audit log."""
    trials: dict[str, Callable[[], Check]] = {
        "python": lambda: passed(_AREA, "python", platform.python_version()),
        "shfmt": _check_parser,
        "landlock": _check_landlock,
        "seccomp": _check_seccomp,
        "cgroups": _check_cgroups,
        "terminals": _check_terminals,
        "audit log": lambda: _check_state_folder(state_folder),
    }
    found = [
        await run_check(_AREA, name, asyncio.to_thread(trial), limit_s=_LIMIT_S)
        for name, trial in trials.items()
    ]
    name = "user namespaces"
    return [*found, await run_check(_AREA, name, _check_user_namespaces(name), limit_s=_LIMIT_S)]


def _check_parser() -> Check:
    if isinstance(parse_with_shfmt(_TEXT), Unreadable):
        return failed(_AREA, "shfmt", "the command parser does not work", "pip install shfmt-py")
    return passed(_AREA, "shfmt", "parses commands")


async def _check_user_namespaces(name: str) -> Check:
    done = await ProcessExecutor().spawn(sys.executable, ["-I", "-S", "-c", _UNSHARE])
    if done.exit_code == 0:
        return passed(_AREA, name, "this user can create them")
    why = f"this user cannot create them: {os.strerror(done.exit_code)}"
    return failed(_AREA, name, why, "sysctl -w user.max_user_namespaces=15000")


def _check_landlock() -> Check:
    abi = _libc().syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if abi > 0:
        missing = restrictions_missing_from(abi)
        newer = f"; a newer kernel can also restrict {', '.join(missing)}" if missing else ""
        restricted = ", ".join(restrictions_of(abi))
        return passed(_AREA, "landlock", f"ABI {abi} can restrict {restricted}{newer}")
    why = "switched off" if ctypes.get_errno() == errno.EOPNOTSUPP else "not in this kernel"
    return failed(_AREA, "landlock", why, "add landlock to the lsm= boot parameter")


def _check_seccomp() -> Check:
    # Without a filter the call fails; the error says whether the kernel supports filters.
    _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    if ctypes.get_errno() == errno.EFAULT:
        return passed(_AREA, "seccomp", "filters can be set")
    why = os.strerror(ctypes.get_errno())
    return failed(_AREA, "seccomp", why, "boot a kernel with CONFIG_SECCOMP_FILTER")


def _libc() -> ctypes.CDLL:
    ctypes.set_errno(0)
    return ctypes.CDLL(None, use_errno=True)


def _check_terminals() -> Check:
    try:
        for fd in os.openpty():
            os.close(fd)
    except OSError as error:
        return failed(_AREA, "terminals", str(error), "mount -t devpts devpts /dev/pts")
    return passed(_AREA, "terminals", "can be opened")


def _check_state_folder(folder: Path) -> Check:
    """Try the folder of the log, or its nearest parent that exists."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    trial = existing / f".kakoi-doctor-{new_id()}"
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        fix = "set KAKOI_AUDIT_FILE to another file"
        return failed(_AREA, "audit log", f"{existing} cannot be written to: {error.strerror}", fix)
    return passed(_AREA, "audit log", f"can be written to {folder}")


# --- Control groups --------------------------------------------------------------------------


def _check_cgroups() -> Check:
    fix = "systemd-run --user --scope -p Delegate=yes kakoi doctor"
    try:
        folders = dict(own_cgroups(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo")))
    except OSError as error:
        return failed(_AREA, "cgroups", str(error), fix)
    limitable = [name for name in _CONTROLLERS if name in folders and _can_make(folders[name])]
    missing = [name for name in _CONTROLLERS if name not in limitable]
    if missing:
        why = f"this user cannot limit {', '.join(missing)}"
        return failed(_AREA, "cgroups", why, fix)
    return passed(_AREA, "cgroups", f"{', '.join(limitable)} can be limited")


def own_cgroups(memberships: str, mounts: str) -> Iterator[tuple[str, Path]]:
    """Controller → the directory of our own control group, in version 1 and version 2."""
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
    """Controllers (none: version 2) → the root of that hierarchy, and where it is mounted."""
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
