"""Where an overlay is kept: one directory per project, with a lock.

    KEY/lock          held by the process that uses or changes the overlay
    KEY/state.json    the layers, the checkpoints, and when the overlay was created
    KEY/open          exists while a sandbox has the overlay mounted
    KEY/journal       what was applied (journal.py)
    KEY/forks/TOKEN/  the same four files for each fork, whose lock is held as long as it exists
    KEY/layers/1 2 …  the layers of all of them; `work` and `work-TOKEN` are the kernel's
    KEY/trash         what is to be removed

A layer exists as long as the overlay or a fork names it. The directory KEY itself is locked for the
moments in which layers are added or removed. Every step is one rename, and the next process removes
what a killed one has left in between.

The overlay of a private workspace (`Store.private`) has no state of its own, only forks, and is
removed with the last one.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from kakoi._support.files import empty, remove_tree
from kakoi._support.late import dataclass, pattern
from kakoi._support.text import short_repr
from kakoi._support.user_folders import environment, state_folder
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.overlay.applier import remove_half
from kakoi.overlay.directories import FOLDER, attributes, held_folder, open_layer
from kakoi.overlay.journal import Journal

_VERSION = 1
_PATIENCE_S = 5.0
MOST_CHECKPOINTS = 64
# Those of checkpoints and forks. The kernel's own limit is 500; this many fit into a page of mount
# options.
MOST_LAYERS = 240
_PRIVATE = "kakoi-private-"
_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayState:
    """The state of one overlay. `layers`: the lowest first; the last one is writable.

    `since_ns`: a later change in the project is a conflict.
    `checkpoints`: maps a name to the last layer that it keeps.
    `token`: part of a file name that commands inside cannot know.
    """

    project: str
    device: int
    inode: int
    since_ns: int
    token: str
    layers: tuple[int, ...] = ()
    next: int = 1
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    version: int = _VERSION

    @property
    def temporary_name(self) -> bytes:
        """The name of a file in the project until it is complete."""
        return f".kakoi-{self.token}".encode("ascii")


def overlays_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the default folder for overlays; without `environ`, from our own environment."""
    variables = environment(environ)
    named = variables.get("KAKOI_OVERLAYS")
    return Path(named) if named else state_folder(variables) / "overlays"


def check_checkpoint_name(name: object) -> str:
    """Check the name of a checkpoint."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"name is {short_repr(name)}, which is not a valid checkpoint name",
            hint="use letters, digits, `.`, `_` and `-`; at most 64 characters",
        )
    return name


class Store:
    """The directory of one project's overlay, or of a fork of it. It does not have to exist.

    `path`: the directory of the overlay, which forks share. `fork`: the token of a fork.
    """

    def __init__(self, path: Path, project: str, *, fork: str = "") -> None:
        self.project = project
        self.is_fork = bool(fork)
        self.path = path / "forks" / fork if fork else path
        self.layers = path / "layers"
        self.work = f"work-{fork}" if fork else "work"
        self.journal = self.path / "journal"
        self._shared = path
        self._forks = path / "forks"
        self._trash = path / "trash"
        self._state = self.path / "state.json"
        self._open = self.path / "open"

    @classmethod
    def of_project(cls, folder: Path, project: str) -> "Store":
        """Return the one store of a project's overlay among those in `folder`."""
        key = hashlib.sha256(os.fsencode(project)).hexdigest()[:32]
        return cls(folder / key, project)

    # --- State -------------------------------------------------------------------------------

    def read(self) -> OverlayState | None:
        """Return the state; None if nothing was ever written, or everything was applied."""
        try:
            state: dict[str, Any] = json.loads(self._state.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SandboxError(
                f"{self._state} is damaged: {error}", hint=f"remove {self.path}"
            ) from None
        if state.get("version") != _VERSION:
            raise SandboxError(
                f"{self.path} was created by another version of kakoi",
                hint=f"use that version, or remove {self.path}",
            )
        return OverlayState(**{**state, "layers": tuple(state["layers"])})

    def make(self) -> OverlayState:
        """Create an overlay of the project as it is now."""
        with self._settling():
            status = os.stat(self.project)
            self._make_folders()
            new = OverlayState(
                project=self.project,
                device=status.st_dev,
                inode=status.st_ino,
                since_ns=self.now_ns(),
                token=token_hex(8),
            )
            return self._write(self._with_layer(new))

    def push(self, state: OverlayState) -> OverlayState:
        """Write the state with a new, empty top layer, which is written to from now on."""
        with self._settling():
            return self._write(self._with_layer(state))

    def _make_folders(self) -> None:
        self.layers.mkdir(mode=0o700, exist_ok=True)
        _check_attributes(self.layers)
        work = self.layers / self.work
        work.mkdir(mode=0o700, exist_ok=True)
        owner = os.stat(self.project)
        for folder in (self.layers, work):
            _lend(folder, owner, 0o700)

    def _with_layer(self, state: OverlayState) -> OverlayState:
        """Return the state with a new layer, which looks like what is below it."""
        number = state.next
        while True:
            path = self.layers / str(number)
            with contextlib.suppress(FileExistsError):  # A fork has taken this number.
                path.mkdir(mode=0o700)
                break
            number += 1
        below = self.layers / str(state.layers[-1]) if state.layers else Path(self.project)
        status, marks = _appearance(below)
        with held_folder(path) as folder:
            for name, value in marks.items():
                with contextlib.suppress(OSError):  # Not every file system has access lists.
                    os.setxattr(folder, name, value)
        _lend(path, status, stat.S_IMODE(status.st_mode))
        return replace(state, layers=(*state.layers, number), next=number + 1)

    def _write(self, state: OverlayState) -> OverlayState:
        """Write the state atomically."""
        half = self._state.with_suffix(".half")
        with half.open("w", encoding="ascii") as file:
            json.dump(asdict(state), file)
            file.flush()
            if not self.is_fork:  # A fork ends with its process.
                os.fsync(file.fileno())
        half.replace(self._state)
        return state

    def has_entries(self, state: OverlayState) -> bool:
        """Tell if a layer contains anything."""
        return any(_has_entries(self.layers / str(layer)) for layer in state.layers)

    def is_unwritten(self, state: OverlayState) -> bool:
        """Tell if nothing was written to the top layer, so that there is nothing in it to share."""
        *below, top = (self.layers / str(layer) for layer in state.layers)
        if _has_entries(top):
            return False
        status, marks = _appearance(top)
        other, their_marks = _appearance(below[-1] if below else Path(self.project))
        same = ("st_mode", "st_uid", "st_gid")
        return marks == their_marks and all(
            getattr(status, name) == getattr(other, name) for name in same
        )

    # --- Forks -------------------------------------------------------------------------------

    def fork(self, state: OverlayState, count: int) -> list[tuple["Store", "Lock"]]:
        """Make forks whose lower layers are all but the top one, which nobody shares."""
        made: list[tuple[Store, Lock]] = []
        with self._settling():
            try:
                for _ in range(count):
                    made.append(self._new_fork(replace(state, layers=state.layers[:-1])))
            except BaseException:
                for _store, lock in made:
                    lock.close()
                raise
        return made

    def _new_fork(self, state: OverlayState) -> tuple["Store", "Lock"]:
        store = Store(self._shared, self.project, fork=token_hex(6))
        self._forks.mkdir(mode=0o700, exist_ok=True)
        store.path.mkdir(mode=0o700)
        lock = Lock(os.open(store.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            store._take(lock.fd)
            store._make_folders()
            store._write(store._with_layer(replace(state, token=token_hex(8))))
        except BaseException:
            lock.close()
            raise
        return store, lock

    @classmethod
    def private(cls, workspace: str) -> tuple["Store", "Lock"]:
        """Make the first fork of a private workspace, whose files become the lowest layer.

        An empty directory replaces the workspace. The overlay has to be on the same file system,
        because a rename moves the files.
        """
        remove_abandoned()
        for folder in _private_folders():
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Another process can take a directory that is not locked yet for abandoned.
            while folder.is_dir() and os.stat(folder).st_dev == os.stat(workspace).st_dev:
                with contextlib.suppress(FileNotFoundError):
                    return cls._adopt(Path(workspace), folder)
        raise SandboxError(
            f"{workspace} cannot be forked: it is not on the file system of the user's state "
            "directory or of the system's temporary directory",
            hint="set KAKOI_OVERLAYS to a directory on its file system",
        )

    @classmethod
    def _adopt(cls, workspace: Path, folder: Path) -> tuple["Store", "Lock"]:
        family = cls(Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=folder)), "")
        family.project = str(family.path / "project")
        with family._settling():
            status = os.stat(workspace)
            os.mkdir(family.project, 0o700)
            _lend(Path(family.project), status, stat.S_IMODE(status.st_mode))
            family._make_folders()
            _move(workspace, family.layers / "1")
            project = os.stat(family.project)
            begun = OverlayState(
                project=family.project,
                device=project.st_dev,
                inode=project.st_ino,
                since_ns=family.now_ns(),
                token="",
                layers=(1,),
                next=2,
            )
            return family._new_fork(begun)

    # --- Removing ----------------------------------------------------------------------------

    def set_aside(self) -> None:
        """Move layers that nobody needs to the trash, with one rename each."""
        with self._settling():
            self._set_aside()

    def _set_aside(self) -> None:
        kept = self._needed()
        self._trash.mkdir(mode=0o700, exist_ok=True)
        names = sorted(self.layers.iterdir()) if self.layers.is_dir() else []
        taken = max((int(each.name) for each in self._trash.iterdir()), default=0)
        for number, path in enumerate((each for each in names if each.name not in kept), taken + 1):
            with contextlib.suppress(NotADirectoryError), held_folder(path) as folder:
                os.chmod(folder, 0o700)  # Without permissions it cannot be moved.
            path.rename(self._trash / str(number))

    def _needed(self) -> set[str]:
        """Return the names in `layers` that are still needed; remove forks that have ended."""
        needed: set[str] = set()
        for store in (Store(self._shared, self.project), *self._each_fork()):
            state = None if store.is_fork and store._is_over() else store.read()
            if state is not None:
                needed |= {store.work, *map(str, state.layers)}
        return needed

    def _each_fork(self) -> Iterator["Store"]:
        if self._forks.is_dir():
            for path in sorted(self._forks.iterdir()):
                yield Store(self._shared, self.project, fork=path.name)

    def _is_over(self) -> bool:
        """Tell if the process of this fork has ended. If so, only its layers are still there."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.closing(Lock(fd)):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self._open.exists() and _who_has(self.layers / self.work):
                return False  # Its sandbox has not quite ended.
            if (state := self.read()) is not None:
                self._undo_half(state)
            remove_tree(self.path)
        return True

    def _undo_half(self, state: OverlayState) -> None:
        """Remove the partial file that an apply of a killed fork has left in the project."""
        if not self.journal.exists():
            return
        with contextlib.suppress(OSError):
            project = os.open(self.project, FOLDER)
            try:
                remove_half(project, Journal.read(self.journal, state.temporary_name))
            finally:
                os.close(project)

    def clear(self) -> None:
        """Empty the trash, and remove what has no state. Takes time for each file."""
        with self._settling():
            self._set_aside()
            fd = os.open(self._trash, FOLDER)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # Two that empty it would be in each other's way.
            empty(fd)
        finally:
            os.close(fd)
        with self._settling():
            self._remove_unused()

    def forget(self) -> None:
        """Remove the overlay."""
        self._state.unlink(missing_ok=True)
        self.clear()

    def _remove_unused(self) -> None:
        if self.read() is None and self.path.is_dir():
            for path in (self.journal, self._open, self._state.with_suffix(".half")):
                path.unlink(missing_ok=True)
        if any(self._each_fork()):
            return
        if self._shared.name.startswith(_PRIVATE):
            remove_tree(self._shared)
        elif Store(self._shared, self.project).read() is None:
            for path in (self._trash, self.layers, self._forks):
                with contextlib.suppress(OSError):  # Another process can have put something there.
                    path.rmdir()

    # --- Locking -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _settling(self) -> Iterator[None]:
        """Lock the shared directory, for the moment in which layers are added or removed."""
        fd = os.open(self._shared, FOLDER)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def locked(self, *, make: bool = False) -> Iterator[bool]:
        """Lock the overlay and tidy it. Yields False if it does not exist and `make` is not set."""
        if not make and not self.path.is_dir():
            yield False
            return
        with contextlib.closing(self.lock()):
            yield True

    def lock(self) -> "Lock":
        """Lock the overlay until the lock is closed. Does not wait: a held lock is an error."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            status = os.stat(self.path, follow_symlinks=False)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise SandboxError(
                    f"other users can write to {self.path}, the directory of the overlay",
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
            self._wait_for_unmount()
            if self.read() is None:
                self.clear()
            else:  # Do not make the caller wait until leftovers are removed.
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
                hint="wait until it has ended, or stop it",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode("ascii"), 0)

    def opened(self) -> None:
        """Record that the overlay is about to be mounted."""
        self._open.touch(mode=0o600)

    def closed(self) -> None:
        """Record that the overlay is no longer mounted; if it still is, the next process waits.

        The work is done, so this is the time to empty the trash. A fork, whose lock is no longer
        held, is removed.
        """
        if not _who_has(self.layers / self.work):
            self._open.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The next process tries again.
            self.clear()

    def _wait_for_unmount(self) -> None:
        """Wait for the sandbox of a killed process, which writes until it has ended."""
        if not self._open.exists():
            return
        deadline = time.monotonic() + _PATIENCE_S
        while pid := _who_has(self.layers / self.work):
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"process {pid} still uses the overlay of {self.project}",
                    hint=f"stop it: kill {pid}",
                )
            time.sleep(0.01)
        self._open.unlink(missing_ok=True)

    def now_ns(self) -> int:
        """Return the file system's current time; later changes get a later one."""
        path = self.path / "now"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        now = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns <= now:  # The file system's clock is coarse.
            time.sleep(0.001)
            path.unlink()
            path.touch(mode=0o600)
        path.unlink()
        return now


def _private_folders() -> list[Path]:
    folders = [Path(tempfile.gettempdir())]
    with contextlib.suppress(ConfigurationError):  # Not every user has a home directory.
        folders.insert(0, overlays_folder())
    return folders


def remove_abandoned() -> None:
    """Remove the overlays of private workspaces that killed processes have left."""
    for path in (each for folder in _private_folders() for each in folder.glob(f"{_PRIVATE}*")):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and not status.st_mode & 0o077:
                Store(path, str(path / "project")).clear()


@dataclass(slots=True)
class Lock:
    """A lock that is held until it is closed or its process has died."""

    fd: int

    def close(self) -> None:
        """Release the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _check_attributes(folder: Path) -> None:
    """Refuse a file system without extended attributes: the kernel accepts it, but then fails."""
    try:
        os.setxattr(folder, "user.kakoi", b"")
        os.removexattr(folder, "user.kakoi")
    except OSError as error:
        raise SandboxError(
            f"copy-on-write is unavailable: {folder} has no extended attributes ({error.strerror})",
            hint="set KAKOI_OVERLAYS to a directory on ext4, xfs or btrfs of this machine",
        ) from None


def _appearance(path: Path) -> tuple[os.stat_result, dict[str, bytes]]:
    """Return the status of a directory, and the attributes that users can set."""
    fd = open_layer(path)
    try:
        return os.fstat(fd), attributes(fd)
    finally:
        os.close(fd)


def _has_entries(path: Path) -> bool:
    fd = open_layer(path)
    try:
        return bool(os.listdir(fd))
    finally:
        os.close(fd)


def _lend(path: Path, like: os.stat_result, mode: int) -> None:
    """Set the owner to that of `like`, so that the same user can write to both."""
    with held_folder(path) as folder:
        if os.geteuid() == 0:
            os.chown(folder, like.st_uid, like.st_gid)
        os.chmod(folder, mode)


def _move(workspace: Path, layer: Path) -> None:
    """Move a directory, and put an empty one that looks the same in its place."""
    status = os.stat(workspace)
    mode = stat.S_IMODE(status.st_mode)
    with held_folder(workspace) as held:
        os.chmod(held, 0o700)  # Without permissions it cannot be moved.
        try:
            workspace.rename(layer)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SandboxError(
                f"{workspace} cannot be forked, because it cannot be moved: {error.strerror}",
                hint="put it into a directory of your own that contains no other mounts",
            ) from error
        finally:
            os.chmod(held, mode)
    workspace.mkdir(mode=0o700)
    _lend(workspace, status, mode)


def _who_has(work: Path) -> str:
    """Return the pid of a process that has the overlay with this work directory mounted, or "".

    The mount is named after it.
    """
    try:
        status = work.stat()
    except FileNotFoundError:
        return ""
    name = f" overlay kakoi:{status.st_dev}:{status.st_ino} ".encode("ascii")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if name in Path("/proc", pid, "mountinfo").read_bytes():
                return pid
    return ""
