"""Where an overlay is kept: one directory for each project, and who is in it.

    KEY/lock          held by whoever changes anything in here
    KEY/state.json    which layers there are, which checkpoints, and when it began
    KEY/layers/1 2 …  the layers; `work` is the kernel's
    KEY/open          there while a sandbox has the overlay mounted
    KEY/journal       what was taken over (journal.py)
    KEY/trash         what is to be removed

Every step is one rename, and what a killed process has left in between is removed by the next one.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.homes import environment, state_folder
from kakoi.overlay.trees import FOLDER, held_folder
from kakoi.removing import empty

_VERSION = 1
_PATIENCE_S = 5.0
# The kernel's own bound is 500; a page of options holds so many with ease.
MOST_CHECKPOINTS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One overlay. `layers`: the lowest first; the last one is written to.

    `since_ns`: what changed in the project later than that, changed meanwhile.
    `checkpoints`: a name → the last of the layers that it keeps.
    `token`: part of a name that nobody inside can know.
    """

    project: str
    device: int
    inode: int
    since_ns: int
    token: str
    layers: tuple[int, ...] = (1,)
    next: int = 2
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    version: int = _VERSION


def overlays_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where overlays are if no settings say otherwise; without `environ`, by our own variables."""
    given = environment(environ)
    named = given.get("KAKOI_OVERLAYS")
    return Path(named) if named else state_folder(given) / "overlays"


def check_name(name: object) -> str:
    """The name of a checkpoint, if it is one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a checkpoint cannot be called {str(name)[:80]!r}",
            hint="letters, digits, `.`, `_` and `-`; at most 64 of them",
        )
    return name


class Store:
    """The directory of one project's overlay. It need not be there."""

    def __init__(self, folder: Path, project: str) -> None:
        key = hashlib.sha256(os.fsencode(project)).hexdigest()[:32]
        self.project = project
        self.path = folder / key
        self.layers = self.path / "layers"
        self.journal = self.path / "journal"
        self._state = self.path / "state.json"
        self._open = self.path / "open"
        self._trash = self.path / "trash"

    # --- State -------------------------------------------------------------------------------

    def read(self) -> State | None:
        """What there is; None: nothing was ever written, or all of it is settled."""
        try:
            told: dict[str, Any] = json.loads(self._state.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SandboxError(
                f"{self._state} is damaged: {error}", hint=f"remove {self.path}"
            ) from None
        if told.get("version") != _VERSION:
            raise SandboxError(
                f"{self.path} was made by another version of kakoi",
                hint=f"use that one, or remove {self.path}",
            )
        return State(**{**told, "layers": tuple(told["layers"])})

    def write(self, state: State) -> State:
        """Make it the state, whole or not at all."""
        half = self._state.with_suffix(".half")
        with half.open("w", encoding="ascii") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        half.replace(self._state)
        return state

    def make(self, token: str) -> State:
        """Begin an overlay of the project as it is."""
        status = os.stat(self.project)
        self.layers.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.layers / "work", self.layers / "1"):
            folder.mkdir(mode=0o700, exist_ok=True)
        _check_attributes(self.layers)
        _lend(self.layers, status, 0o700)
        _lend(self.layers / "work", status, 0o700)
        _lend(self.layers / "1", status, stat.S_IMODE(status.st_mode))
        return self.write(
            State(
                project=self.project,
                device=status.st_dev,
                inode=status.st_ino,
                since_ns=self.now_ns(),
                token=token,
            )
        )

    def add_layer(self, state: State) -> State:
        """The state with an empty layer on top. What is written goes there from now on."""
        path = self.layers / str(state.next)
        top = os.stat(self.layers / str(state.layers[-1]))
        path.mkdir(mode=0o700, exist_ok=True)
        _lend(path, top, stat.S_IMODE(top.st_mode))
        return replace(state, layers=(*state.layers, state.next), next=state.next + 1)

    def set_aside(self) -> None:
        """Have only layers of the state where layers are: one rename for each of the others."""
        state = self.read()
        kept = {"work", *map(str, state.layers)} if state else set()
        self._trash.mkdir(mode=0o700, exist_ok=True)
        names = sorted(self.layers.iterdir()) if self.layers.is_dir() else []
        taken = max((int(each.name) for each in self._trash.iterdir()), default=0)
        for number, path in enumerate((each for each in names if each.name not in kept), taken + 1):
            with contextlib.suppress(NotADirectoryError), held_folder(path) as folder:
                os.chmod(folder, 0o700)  # One that is shut cannot be moved.
            path.rename(self._trash / str(number))

    def clear(self) -> None:
        """Remove what was set aside; and all, if there is no state. It takes time for each file."""
        self.set_aside()
        fd = os.open(self._trash, FOLDER)
        try:
            empty(fd)
        finally:
            os.close(fd)
        if self.read() is None:
            self._remove()

    def forget(self) -> None:
        """Throw all of it away."""
        self._state.unlink(missing_ok=True)
        self.clear()

    def _remove(self) -> None:
        for path in (self.journal, self._open, self._state.with_suffix(".half")):
            path.unlink(missing_ok=True)
        for path in (self._trash, self.layers):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()

    # --- Who is in it ------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, *, make: bool = False) -> Iterator[bool]:
        """Be alone with it, and find it tidy. False: there is none, and none was to be made."""
        if not make and not self.path.is_dir():
            yield False
            return
        with contextlib.closing(self.lock()):
            yield True

    def lock(self) -> "Lock":
        """Be alone with it until the lock is closed. Nobody waits for that: it is an error."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            status = os.stat(self.path, follow_symlinks=False)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise SandboxError(
                    f"others may write to {self.path}, where the overlay is to be",
                    hint=f"remove it, or chmod 700 {self.path}",
                )
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxError(
                f"cannot keep an overlay in {self.path}: {error.strerror}",
                hint="set KAKOI_OVERLAYS to a directory of your own",
            ) from error
        lock = Lock(fd)
        try:
            self._take(fd)
            self._wait_for_the_dead()
            if self.read() is None:
                self.clear()
            else:  # Whoever wants to start has not to wait for what others have left.
                self.set_aside()
        except BaseException:
            lock.close()
            raise
        return lock

    def _take(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            raise SandboxError(
                f"process {who or '?'} is using the overlay of {self.project}",
                details={"project": self.project, "pid": who},
                hint="wait until it has ended, or end it",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode("ascii"), 0)

    def opened(self) -> None:
        """Say that the overlay is about to be mounted."""
        self._open.touch(mode=0o600)

    def closed(self) -> None:
        """Say that nobody has it mounted, if that is so; otherwise the next one has to wait.
        Now is the time to remove what was set aside: the work is done."""
        if not _who_has(self.layers):
            self._open.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The next one tries again.
            self.clear()

    def _wait_for_the_dead(self) -> None:
        """Who was killed may have left a sandbox that is about to end, and writes until it does."""
        if not self._open.exists():
            return
        deadline = time.monotonic() + _PATIENCE_S
        while pid := _who_has(self.layers):
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"process {pid} still has the overlay of {self.project}",
                    hint=f"end it: kill {pid}",
                )
            time.sleep(0.01)
        self._open.unlink(missing_ok=True)

    def now_ns(self) -> int:
        """The time that files are given now; later changes get a later one."""
        path = self.path / "now"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        now = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns <= now:  # The clock of files is a coarse one.
            time.sleep(0.001)
            path.unlink()
            path.touch(mode=0o600)
        path.unlink()
        return now


@dataclass(slots=True)
class Lock:
    """Held until it is closed, or its process is dead."""

    fd: int

    def close(self) -> None:
        """Let others in."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _check_attributes(folder: Path) -> None:
    """Refuse a file system without attributes: the kernel takes it, and then fails now and then."""
    try:
        os.setxattr(folder, "user.kakoi", b"")
        os.removexattr(folder, "user.kakoi")
    except OSError as error:
        raise SandboxError(
            f"no copy-on-write here: {folder} has no extended attributes ({error.strerror})",
            hint="set KAKOI_OVERLAYS to a directory on ext4, xfs or btrfs of this machine",
        ) from None


def _lend(path: Path, like: os.stat_result, mode: int) -> None:
    """Give it the owner of something else: who may write there may write here."""
    with held_folder(path) as folder:
        if os.geteuid() == 0:
            os.chown(folder, like.st_uid, like.st_gid)
        os.chmod(folder, mode)


def _who_has(layers: Path) -> str:
    """A process in whose namespace an overlay of these layers is mounted; empty if there is none.

    staging.py has named the mount after them.
    """
    try:
        status = layers.stat()
    except FileNotFoundError:
        return ""
    name = f" overlay kakoi:{status.st_dev}:{status.st_ino} ".encode("ascii")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if name in Path("/proc", pid, "mountinfo").read_bytes():
                return pid
    return ""
