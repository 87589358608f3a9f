"""Overlay: the changes that commands made to a copy of a project."""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.overlay.applier import Applier, remove_half
from kakoi.overlay.changes import ApplyResult, Change, FoundChange, Mounts, find_changes, hard_links
from kakoi.overlay.diffs import Difference, differences
from kakoi.overlay.directories import FOLDER, open_layer, split
from kakoi.overlay.journal import Journal
from kakoi.overlay.layers import ComparedPath, Stack
from kakoi.overlay.store import (
    MOST_CHECKPOINTS,
    MOST_LAYERS,
    Lock,
    OverlayState,
    Store,
    check_checkpoint_name,
    overlays_folder,
    remove_abandoned,
)

_IN_USE = "the overlay is already open in this process"


class Overlay:
    """The overlay of one project: commands in a sandbox write to it, and the project is unchanged.

    `project`: the directory. `folder`: where overlays are kept, on a file system that supports them
    (ext4, xfs, btrfs, a recent tmpfs); by default where the command line keeps them:
    $KAKOI_OVERLAYS, or kakoi/overlays in $XDG_STATE_HOME or ~/.local/state.

    `apply`, `discard`, `checkpoint`, `rollback` and `fork` need exclusive access and raise
    SandboxError while a sandbox uses the overlay; `changes` and `diff` always work.
    """

    def __init__(self, project: str | Path, folder: str | Path | None = None) -> None:
        self._project = os.path.realpath(project)
        self._store = Store.of_project(Path(folder) if folder else overlays_folder(), self._project)
        self._lock: Lock | None = None
        self._is_mounted = False

    @classmethod
    def of_private(cls, workspace: str | Path) -> "Overlay":
        """Return an overlay that starts with the files of a directory that only we use.

        The files become its lowest layer, and an empty directory replaces `workspace`. No sandbox
        must have it mounted. The overlay and its forks are private to this process: `close` removes
        them, and with the last one the files.
        """
        _refuse_mounts_below(os.path.realpath(workspace))
        return cls._of_fork(*Store.private(os.path.realpath(workspace)))

    @classmethod
    def _of_fork(cls, store: Store, lock: Lock) -> "Overlay":
        fork = cls(store.project, store.path)
        fork._store, fork._lock = store, lock
        return fork

    # --- For a sandbox -----------------------------------------------------------------------

    def open(self) -> Mounts:
        """Lock the overlay for a sandbox; create it if it does not exist. `close` unlocks it."""
        if self._is_mounted:
            raise SandboxError(_IN_USE, details={"project": self._project})
        _refuse_mounts_below(self._project)
        lock = self._lock or self._store.lock()
        try:
            state = self._begun()
            self._store.opened()
        except BaseException:
            if self._lock is None:
                lock.close()
            raise
        self._lock, self._is_mounted = lock, True
        stack = tuple(map(str, reversed(state.layers)))
        return Mounts(str(self._store.layers), stack, self._store.work, self._project)

    def unmounted(self) -> None:
        """Record that the sandbox has ended. The overlay stays locked, and can be opened again."""
        self._is_mounted = False

    def close(self) -> None:
        """Unlock the overlay, and remove it if it is a fork. The sandbox must be gone by now."""
        lock, self._lock, self._is_mounted = self._lock, None, False
        if lock is not None:
            if self._store.is_fork:
                lock.close()
            with contextlib.closing(lock):
                self._store.closed()
            if not self._store.is_fork:
                remove_abandoned()

    def _begun(self) -> OverlayState:
        state = self._store.read()
        if state is not None and not state.checkpoints and not self._store.has_entries(state):
            self._store.forget()  # It is empty, so start a new one with today's project.
            state = None
        if state is None:
            return self._store.make()
        self._check_project(state)
        return state

    def _check_project(self, state: OverlayState) -> None:
        status = os.stat(self._project)
        if (status.st_dev, status.st_ino) != (state.device, state.inode):
            raise SandboxError(
                f"{self._project} is not the directory that the overlay was created for",
                hint="`kakoi copy discard` discards the changes in the overlay",
            )

    # --- Reading -----------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """Return what is different inside, by path."""
        with self._looking() as seen:
            return [] if seen is None else [found.change for found in seen[0]]

    def diff(self, paths: Sequence[str] = ()) -> Iterator[Difference]:
        """Yield the changes with their diffs; all of them, or those at or below `paths`."""
        with self._looking() as seen:
            if seen is not None:
                wanted = self._selected(seen[0], paths)
                with self._as_sandbox_error():
                    yield from differences(seen[1], wanted)

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints, the oldest first."""
        state = self._store.read()
        return [] if state is None else sorted(state.checkpoints, key=state.checkpoints.__getitem__)

    # --- Changing ----------------------------------------------------------------------------

    def check_paths(self, paths: Sequence[str]) -> None:
        """Raise ConfigurationError if nothing was changed at one of them. Nothing is applied."""
        with self._looking() as seen:
            self._selected([] if seen is None else seen[0], paths)

    def apply(self, paths: Sequence[str] = (), *, force: bool = False) -> ApplyResult:
        """Apply the changes to the project; all of them, or those at or below `paths`.

        A path that changed in the project meanwhile is refused unless `force` is set. Once all
        changes are applied, there is nothing left to roll back to. An apply that is killed can be
        repeated.
        """
        with self._alone() as there, self._looking(tidy=there) as seen:
            if seen is None:
                self._selected([], paths)
                return ApplyResult()
            found, stack, journal = seen
            wanted = self._selected(found, paths)
            links = hard_links([each.pair for each in wanted])
            applied = Applier(stack, journal, links).apply(wanted, force=force)
            stays = {path for path, _ in applied.refused}
            never = {each.change.path for each in found if each.change.never_applied}
            if len(applied.done) + len(never) == len(found) and stays <= never:
                self._store.forget()
            return applied

    def discard(self) -> list[Change]:
        """Discard all changes and checkpoints. Returns the discarded changes."""
        with self._alone() as there:
            if not there:
                return []
            # Changes that cannot be read because the project is another one are discarded as well.
            gone: list[Change] = []
            with contextlib.suppress(SandboxError), self._looking(tidy=True) as seen:
                gone = [] if seen is None else [found.change for found in seen[0]]
            self._store.forget()
            return gone

    def checkpoint(self, name: str) -> None:
        """Save the current state inside under a name. Nothing is copied."""
        self.check_new_checkpoint(name)
        with self._alone(make=True):
            state = self._begun() if self._store.read() is None else self._existing()
            self._check_depth(state)
            marked = {**state.checkpoints, name: state.layers[-1]}
            self._store.push(replace(state, checkpoints=marked))

    def check_new_checkpoint(self, name: str) -> None:
        """Raise the error that `checkpoint` would raise for this name."""
        check_checkpoint_name(name)
        known = self.checkpoints()
        if name in known:
            raise ConfigurationError(
                f"checkpoint `{name}` already exists", hint="choose another name"
            )
        if len(known) >= MOST_CHECKPOINTS:
            raise SandboxError(
                f"there are already {MOST_CHECKPOINTS} checkpoints, which is the maximum",
                hint="`kakoi copy apply` or `kakoi copy discard` remove all, "
                "`kakoi copy rollback` some",
            )

    def rollback(self, name: str) -> None:
        """Return to a checkpoint, which is kept; later checkpoints are removed.

        Nothing is copied. Their disk space is freed when the next sandbox has ended.
        """
        with self._alone():
            state = self._existing()
            self.check_checkpoint(name)
            last = state.checkpoints[name]
            kept = tuple(layer for layer in state.layers if layer <= last)
            marked = {each: layer for each, layer in state.checkpoints.items() if layer <= last}
            below = replace(state, layers=kept, checkpoints=marked)
            self._store.push(below)
            self._store.set_aside()

    def check_checkpoint(self, name: str) -> None:
        """Raise the error that `rollback` would raise for this name."""
        known = self.checkpoints()
        if name not in known:
            raise ConfigurationError(
                f"checkpoint {str(name)[:80]!r} not found",
                hint=f"known checkpoints: {', '.join(known) or 'none'}",
            )

    def fork(self, count: int) -> "list[Overlay]":
        """Return overlays that start with what this one contains now. Nothing is copied.

        None of them sees later changes of another, or of this one. They are compared with the same
        project and applied to it. They exist only in this process: `close` removes them.
        """
        if self._is_mounted and not self.has_unshared_changes():
            return self._forks(self._existing(), count)
        with self._alone(make=True):
            state = self._begun() if self._store.read() is None else self._existing()
            if not self._store.is_unwritten(state):
                self._check_depth(state)
                state = self._store.push(state)
            return self._forks(state, count)

    def _forks(self, state: OverlayState, count: int) -> "list[Overlay]":
        return [Overlay._of_fork(*made) for made in self._store.fork(state, count)]

    def has_unshared_changes(self) -> bool:
        """Tell if a fork now would share what was written since the last one.

        If not, `fork` leaves the overlay as it is, and works while a sandbox has it mounted.
        """
        state = self._store.read()
        return state is not None and not self._store.is_unwritten(state)

    def _check_depth(self, state: OverlayState) -> None:
        if len(state.layers) >= MOST_LAYERS:
            raise SandboxError(
                f"the copy already has {MOST_LAYERS} layers, from forks and checkpoints, which is "
                "the maximum",
                hint="roll back to an earlier checkpoint, or apply the changes",
            )

    def _existing(self) -> OverlayState:
        state = self._store.read()
        if state is None:
            raise ConfigurationError(
                f"{self._project} has no overlay", hint="`kakoi run --cow` creates one"
            )
        self._check_project(state)
        return state

    @contextlib.contextmanager
    def _alone(self, *, make: bool = False) -> Iterator[bool]:
        if self._is_mounted:
            raise SandboxError(
                "a sandbox is using the overlay, so it can change at any moment",
                details={"project": self._project},
                hint="close the sandbox first",
            )
        if self._lock is not None:
            yield True
            return
        with self._store.locked(make=make) as there:
            yield there

    @contextlib.contextmanager
    def _looking(
        self, *, tidy: bool = False
    ) -> Iterator[tuple[list[FoundChange], Stack, Journal] | None]:
        """Yield the changes; None if there is no overlay.

        `tidy`: remove what a killed `apply` has left in the project first.
        """
        state = self._store.read()
        if state is None:
            yield None
            return
        self._check_project(state)
        name = state.temporary_name
        journal = Journal.read(self._store.journal, name)
        with contextlib.ExitStack() as opened:
            layers = []
            for layer in reversed(state.layers):
                layers.append(open_layer(self._store.layers / str(layer)))
                opened.callback(os.close, layers[-1])
            project = os.open(self._project, FOLDER)
            opened.callback(os.close, project)
            stack = Stack(layers, project)
            if tidy:
                remove_half(project, journal)
            conflicts = _Conflicts(stack, state.since_ns, journal)
            with self._as_sandbox_error():
                found = find_changes(stack, conflicts)
            ours = [each for each in found if split(each.pair.path)[1] != name]
            yield ours, stack, journal

    @contextlib.contextmanager
    def _as_sandbox_error(self) -> Iterator[None]:
        """Raise an OSError as a SandboxError with a hint."""
        try:
            yield
        except OSError as error:
            raise SandboxError(
                f"cannot compare {self._project} with its overlay: {error}",
                details={"project": self._project, "errno": error.errno},
                hint="chmod u+rwx, also for the parent directories"
                if isinstance(error, PermissionError)
                else "is something changing it right now? Try again",
            ) from error

    def _selected(self, found: Sequence[FoundChange], paths: Sequence[str]) -> list[FoundChange]:
        """Return the changes at or below `paths`, with the directories that they need."""
        if not paths:
            return list(found)
        wanted: set[bytes] = set()
        for path in paths:
            at = os.path.normpath(os.path.join(self._project, path))
            if at == self._project:
                return list(found)
            below = os.fsencode(os.path.relpath(at, self._project))
            hits = {e.pair.path for e in found if (e.pair.path + b"/").startswith(below + b"/")}
            if not hits:
                raise ConfigurationError(
                    f"nothing was changed at {path!r}",
                    hint="`kakoi copy changes` lists the changes",
                )
            wanted |= hits
        above = {
            path[:at] for path in wanted for at in range(len(path)) if path[at : at + 1] == b"/"
        }
        return [
            each
            for each in found
            if each.pair.path in wanted
            or (each.pair.path in above and each.change.was != "directory")
        ]


class _Conflicts:
    """Returns what happened to a path in the project since the overlay was created."""

    def __init__(self, stack: Stack, since_ns: int, journal: Journal) -> None:
        self._stack = stack
        self._since_ns = since_ns
        self._journal = journal

    def __call__(self, pair: ComparedPath, came_from_project: bool) -> str:
        outside = pair.outside
        if outside is None:
            if came_from_project and self._is_changed_above(pair.path):
                return "it was deleted in the project meanwhile"
            return ""
        # A directory changes with its entries, which are reported on their own.
        if stat.S_ISDIR(outside.st_mode) or outside.st_ctime_ns <= self._since_ns:
            return ""
        return "" if self._journal.is_ours(pair.path, outside) else _CHANGED

    def _is_changed_above(self, path: bytes) -> bool:
        above, _ = split(path)
        if self._journal.was_in(above):
            return False
        try:
            status = os.stat(above or b".", dir_fd=self._stack.project, follow_symlinks=False)
        except OSError:
            return True
        return status.st_ctime_ns > self._since_ns


_CHANGED = "it was changed in the project meanwhile"


def _refuse_mounts_below(project: str) -> None:
    """Raise SandboxError for mounts in the project: an overlay would not show what is mounted."""
    below = os.fsencode(project) + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            at = line.split()[4].decode("unicode_escape").encode("latin-1")
            if at.startswith(below):
                raise SandboxError(
                    f"{os.fsdecode(at)} is mounted in the project; an overlay cannot include it",
                    hint="unmount it, or turn copy-on-write off",
                )
