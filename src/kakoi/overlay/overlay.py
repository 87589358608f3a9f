"""Overlay: what commands would change in a project, and what becomes of it."""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.overlay.applying import Applier, remove_half
from kakoi.overlay.comparing import Found, find_changes, hard_links
from kakoi.overlay.diffing import Difference, differences
from kakoi.overlay.journal import Journal
from kakoi.overlay.store import MOST_CHECKPOINTS, Lock, State, Store, check_name, overlays_folder
from kakoi.overlay.trees import FOLDER, held_folder, split
from kakoi.overlay.values import Applied, Change, Mounts
from kakoi.overlay.walking import Pair, Stack

_IN_USE = "the overlay is open here already"


class Overlay:
    """The overlay of one project: commands of a sandbox write there, and the project stays.

    `project`: the directory. `folder`: where overlays are kept, on a file system that can hold one
    (ext4, xfs, btrfs, a recent tmpfs); without it, where the command line keeps them, too:
    $KAKOI_OVERLAYS, else kakoi/overlays in $XDG_STATE_HOME or ~/.local/state.

    What changes something (`apply`, `discard`, `checkpoint`, `rollback`) needs it for itself, and
    is an error while a sandbox has it; `changes` and `diff` can always be asked for.
    """

    def __init__(self, project: str | Path, folder: str | Path | None = None) -> None:
        self._project = os.path.realpath(project)
        self._store = Store(Path(folder) if folder else overlays_folder(), self._project)
        self._lock: Lock | None = None

    # --- For a sandbox -----------------------------------------------------------------------

    def open(self) -> Mounts:
        """Take it for a sandbox; begin one if there is none. `close` gives it back."""
        if self._lock is not None:
            raise SandboxError(_IN_USE, details={"project": self._project})
        _refuse_mounts_below(self._project)
        lock = self._store.lock()
        try:
            state = self._begun()
            self._store.opened()
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        return Mounts(str(self._store.layers), tuple(map(str, reversed(state.layers))))

    def close(self) -> None:
        """Give it back. The sandbox is gone by now."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.closing(lock):
                self._store.closed()

    def _begun(self) -> State:
        state = self._store.read()
        if state is not None and not state.checkpoints and not self._has_entries(state):
            self._store.forget()  # Nothing is in it, so that it can as well begin today.
            state = None
        if state is None:
            return self._store.make(token_hex(8))
        self._check_project(state)
        return state

    def _has_entries(self, state: State) -> bool:
        return any(os.listdir(self._store.layers / str(layer)) for layer in state.layers)

    def _check_project(self, state: State) -> None:
        status = os.stat(self._project)
        if (status.st_dev, status.st_ino) != (state.device, state.inode):
            raise SandboxError(
                f"{self._project} is another directory than the one that was changed in an overlay",
                hint="`kakoi discard` throws those changes away",
            )

    # --- Looking -----------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """What is different inside, by path."""
        with self._looking() as seen:
            return [] if seen is None else [found.change for found in seen[0]]

    def diff(self, paths: Sequence[str] = ()) -> Iterator[Difference]:
        """The same, with the lines that differ; of all, or of these paths and what is below."""
        with self._looking() as seen:
            if seen is not None:
                wanted = self._selected(seen[0], paths)
                with self._as_sandbox_error():
                    yield from differences(seen[1], wanted)

    def checkpoints(self) -> list[str]:
        """Their names, the oldest first."""
        state = self._store.read()
        return [] if state is None else sorted(state.checkpoints, key=state.checkpoints.__getitem__)

    # --- Changing ----------------------------------------------------------------------------

    def apply(self, paths: Sequence[str] = (), *, force: bool = False) -> Applied:
        """Do to the project what was done inside; all of it, or these paths and what is below.

        What changed in the project meanwhile is refused, path by path, unless `force`. Once all
        is taken over, nothing is left to roll back to. Killed in the middle, it can be repeated.
        """
        with self._alone() as there, self._looking(tidy=there) as seen:
            if seen is None:
                self._selected([], paths)
                return Applied()
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
        """Throw everything away, checkpoints too. Returns what it was."""
        with self._alone() as there:
            if not there:
                return []
            # What cannot be read, as the project is another one, can be thrown away as well.
            gone: list[Change] = []
            with contextlib.suppress(SandboxError), self._looking(tidy=True) as seen:
                gone = [] if seen is None else [found.change for found in seen[0]]
            self._store.forget()
            return gone

    def checkpoint(self, name: str) -> None:
        """Remember how it is inside. Nothing is copied."""
        check_name(name)
        with self._alone(make=True):
            state = self._begun() if self._store.read() is None else self._existing()
            if name in state.checkpoints:
                raise ConfigurationError(
                    f"there is a checkpoint `{name}` already", hint="take another name"
                )
            if len(state.layers) > MOST_CHECKPOINTS:
                raise SandboxError(
                    f"there are {MOST_CHECKPOINTS} checkpoints, and no more can be kept",
                    hint="`kakoi apply` or `kakoi discard` begin anew; `kakoi rollback` drops some",
                )
            marked = {**state.checkpoints, name: state.layers[-1]}
            self._store.write(replace(self._store.add_layer(state), checkpoints=marked))

    def rollback(self, name: str) -> None:
        """Have it inside as it was at the checkpoint, which stays; those after it are gone.

        Nothing is copied. The room that they took is free when the next sandbox has ended.
        """
        with self._alone():
            state = self._existing()
            last = state.checkpoints.get(name)
            if last is None:
                known = ", ".join(self.checkpoints()) or "none"
                raise ConfigurationError(
                    f"there is no checkpoint {name[:80]!r}", hint=f"there are: {known}"
                )
            kept = tuple(layer for layer in state.layers if layer <= last)
            marked = {each: layer for each, layer in state.checkpoints.items() if layer <= last}
            below = replace(state, layers=kept, checkpoints=marked)
            self._store.write(self._store.add_layer(below))
            self._store.set_aside()

    def _existing(self) -> State:
        state = self._store.read()
        if state is None:
            raise ConfigurationError(
                f"there is no overlay of {self._project}", hint="`kakoi run --cow` makes one"
            )
        self._check_project(state)
        return state

    @contextlib.contextmanager
    def _alone(self, *, make: bool = False) -> Iterator[bool]:
        if self._lock is not None:
            raise SandboxError(
                "a sandbox has the overlay; what is inside may change at any moment",
                details={"project": self._project},
                hint="end the sandbox first",
            )
        with self._store.locked(make=make) as there:
            yield there

    @contextlib.contextmanager
    def _looking(
        self, *, tidy: bool = False
    ) -> Iterator[tuple[list[Found], Stack, Journal] | None]:
        """What there is to see. `tidy`: without what a killed `apply` has left in the project."""
        state = self._store.read()
        if state is None:
            yield None
            return
        self._check_project(state)
        name = f".kakoi-{state.token}".encode("ascii")
        journal = Journal.read(self._store.journal, name)
        with contextlib.ExitStack() as opened:
            layers = []
            for layer in reversed(state.layers):
                layers.append(_open_layer(self._store.layers / str(layer)))
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
        """What goes wrong in there, told with the way out."""
        try:
            yield
        except OSError as error:
            raise SandboxError(
                f"cannot compare {self._project} with its overlay: {error}",
                details={"project": self._project, "errno": error.errno},
                hint="chmod u+rwx, of the directories that it is in as well"
                if isinstance(error, PermissionError)
                else "is somebody changing it right now? try again",
            ) from error

    def _selected(self, found: Sequence[Found], paths: Sequence[str]) -> list[Found]:
        """What is at these paths or below, with the directories that have to be made for it."""
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
                    f"nothing was changed at {path!r}", hint="`kakoi changes` lists what was"
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
    """Says what happened to a path in the project since the overlay was begun."""

    def __init__(self, stack: Stack, since_ns: int, journal: Journal) -> None:
        self._stack = stack
        self._since_ns = since_ns
        self._journal = journal

    def __call__(self, pair: Pair, came_from_project: bool) -> str:
        outside = pair.outside
        if outside is None:
            if came_from_project and self._is_changed_above(pair.path):
                return "it was deleted in the project meanwhile"
            return ""
        # A directory changes with what is in it, and that is told by itself.
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


def _open_layer(path: Path) -> int:
    """A layer's own directory, which the commands inside can have shut."""
    try:
        return os.open(path, FOLDER)
    except PermissionError:
        with held_folder(path) as held:
            mode = stat.S_IMODE(os.stat(held).st_mode)
            os.chmod(held, 0o700)
            try:
                return os.open(path, FOLDER)
            finally:
                os.chmod(held, mode)


def _refuse_mounts_below(project: str) -> None:
    """An overlay shows what is below a mount point, and not what is mounted there."""
    below = os.fsencode(project) + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            at = line.split()[4].decode("unicode_escape").encode("latin-1")
            if at.startswith(below):
                raise SandboxError(
                    f"{os.fsdecode(at)} is mounted in the project, where no overlay reaches",
                    hint="unmount it, or do without copy-on-write",
                )
