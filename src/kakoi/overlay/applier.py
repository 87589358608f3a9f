"""Apply changes to the project, by descriptors, so that no link leads anywhere else.

Files are created under a temporary name and renamed; a directory is created in place and gets its
final permissions last. So an apply that is killed can be repeated: what is done already is no
longer a change, and the journal tells where a partial file can be.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence

from kakoi.overlay.changes import ApplyResult, ChangeKind, FoundChange, permissions
from kakoi.overlay.directories import attributes, copy_bytes, file, folder, split, status_at
from kakoi.overlay.journal import Journal
from kakoi.overlay.layers import ComparedPath, Stack

_REASONS = {
    errno.ELOOP: "a link is in the way",
    errno.ENOTDIR: "something that is not a directory is in the way",
    errno.ENOENT: "its parent directory does not exist",
    errno.ENOTEMPTY: "it still contains files that were not deleted",
    errno.EEXIST: "something else is in its place",
    errno.EISDIR: "a directory is in its place",
}


class Applier:
    """Applies changes one by one. `links`: hard links inside (see `hard_links`)."""

    def __init__(
        self, stack: Stack, journal: Journal, links: Mapping[bytes, Sequence[ComparedPath]]
    ):
        self._stack = stack
        self._journal = journal
        self._links = links
        self._made: dict[tuple[int, int], bytes] = {}
        self._done: set[str] = set()
        self._refused: list[tuple[str, str]] = []

    def apply(self, wanted: Iterable[FoundChange], *, force: bool) -> ApplyResult:
        """Apply all changes that can be applied; each of the others is refused on its own."""
        found = [each for each in wanted if not self._is_refused(each, force=force)]
        replaced = tuple(each.pair.path + b"/" for each in found if _replaces_folder(each))
        there = [each for each in found if each.change.kind is not ChangeKind.DELETED]
        # Deletions that make room come first, all others last: a renamed file is never lost.
        before: list[FoundChange] = []
        after: list[FoundChange] = []
        for each in reversed(found):
            if each.change.kind is ChangeKind.DELETED:
                (before if each.pair.path.startswith(replaced) else after).append(each)
        opened = _WritableDirectories(self._stack.project)
        for each in before:
            self._try(each, self._delete, opened)
        for each in there:
            self._try(each, self._put, opened)
        for each in after:
            self._try(each, self._delete, opened)
        folders = [e for e in there if e.change.type == "directory" and e.change.path in self._done]
        opened.restore(keep={each.pair.path for each in folders})
        for each in reversed(folders):
            self._try(each, self._finish_folder, opened, again=True)
        _sync(self._stack.project)
        return ApplyResult(tuple(sorted(self._done)), tuple(sorted(self._refused)))

    def _is_refused(self, found: FoundChange, *, force: bool) -> bool:
        change = found.change
        why = change.never_applied or ("" if force else change.conflict)
        if why:
            self._refused.append((change.path, why))
        return bool(why)

    def _try(
        self,
        found: FoundChange,
        work: Callable[[ComparedPath, "_WritableDirectories"], None],
        opened: "_WritableDirectories",
        *,
        again: bool = False,
    ) -> None:
        path = found.change.path
        try:
            work(found.pair, opened)
        except OSError as error:
            why = _REASONS.get(error.errno or 0) or error.strerror or str(error)
            self._refused.append((path, why))
            if again:
                self._done.remove(path)
        else:
            if not again:
                self._done.add(path)

    # --- One path ----------------------------------------------------------------------------

    def _delete(self, pair: ComparedPath, opened: "_WritableDirectories") -> None:
        above, name = split(pair.path)
        with folder(self._stack.project, above) as parent:
            opened.make_writable(parent, above)
            now = status_at(parent, name)
            if now is None:
                return
            if pair.outside is None or not _is_still(pair.outside, now):
                raise OSError(errno.EEXIST, "")
            self._journal.enter(above)
            if stat.S_ISDIR(now.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                self._unlink(parent, name, now)

    def _put(self, pair: ComparedPath, opened: "_WritableDirectories") -> None:
        inside = pair.inside
        assert inside is not None  # noqa: S101 - it is not deleted
        above, name = split(pair.path)
        if not pair.path:
            return  # The project itself exists; its permissions come last.
        with folder(self._stack.project, above) as parent:
            opened.make_writable(parent, above)
            now = status_at(parent, name)
            if now is not None and (pair.outside is None or not _is_still(pair.outside, now)):
                raise OSError(errno.EEXIST, "")
            self._journal.enter(above)
            if stat.S_ISDIR(inside.st_mode):
                self._make_folder(parent, name, now)
            else:
                self._replace(pair, inside, parent, name, now)

    def _make_folder(self, parent: int, name: bytes, now: os.stat_result | None) -> None:
        if now is not None and not stat.S_ISDIR(now.st_mode):
            self._unlink(parent, name, now)
            now = None
        if now is None:
            os.mkdir(name, 0o700, dir_fd=parent)

    def _unlink(self, parent: int, name: bytes, now: os.stat_result) -> None:
        self._journal.touch(now)
        os.unlink(name, dir_fd=parent)

    def _replace(
        self,
        pair: ComparedPath,
        inside: os.stat_result,
        parent: int,
        name: bytes,
        now: os.stat_result | None,
    ) -> None:
        half = self._journal.name
        try:
            self._make(pair, inside, parent, half)
            made = os.stat(half, dir_fd=parent, follow_symlinks=False)
            self._journal.record(pair.path, made)
            if now is not None and stat.S_ISDIR(now.st_mode):
                os.rmdir(name, dir_fd=parent)
            elif now is not None:
                self._journal.touch(now)
            os.rename(half, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            # It exists if anything failed. It also exists if both names were hard links to one
            # file: then a rename does nothing, by definition.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half, dir_fd=parent)
        if stat.S_ISREG(inside.st_mode):
            self._made.setdefault((inside.st_dev, inside.st_ino), pair.path)

    def _make(self, pair: ComparedPath, inside: os.stat_result, parent: int, half: bytes) -> None:
        above, name = split(pair.path)
        if pair.path in self._links and self._link(inside, parent, half):
            return
        with folder(self._stack.layers[pair.layer], above, force_open=True) as layer:
            if stat.S_ISLNK(inside.st_mode):
                os.symlink(os.readlink(name, dir_fd=layer), half, dir_fd=parent)
            elif stat.S_ISFIFO(inside.st_mode):
                os.mkfifo(half, permissions(inside.st_mode), dir_fd=parent)
            else:
                with file(layer, name, force_open=True) as source:
                    _copy(source, inside, parent, half)
        if os.geteuid() == 0:
            ids = {"dir_fd": parent, "follow_symlinks": False}
            os.chown(half, inside.st_uid, inside.st_gid, **ids)  # type: ignore[arg-type] # both fit
        times = (inside.st_atime_ns, inside.st_mtime_ns)
        os.utime(half, ns=times, dir_fd=parent, follow_symlinks=False)

    def _link(self, inside: os.stat_result, parent: int, half: bytes) -> bool:
        """Link to a file that was created already; return False if it was not."""
        first = self._made.get((inside.st_dev, inside.st_ino))
        if first is None:
            return False
        above, name = split(first)
        with folder(self._stack.project, above) as other:
            flags = {"src_dir_fd": other, "dst_dir_fd": parent, "follow_symlinks": False}
            os.link(name, half, **flags)  # type: ignore[arg-type] # each of them fits
        return True

    def _finish_folder(self, pair: ComparedPath, opened: "_WritableDirectories") -> None:
        inside = pair.inside
        assert inside is not None  # noqa: S101 - it is a directory
        with (
            folder(self._stack.layers[pair.layer], pair.path, force_open=True) as source,
            folder(self._stack.project, pair.path) as target,
        ):
            if os.geteuid() == 0:
                os.fchown(target, inside.st_uid, inside.st_gid)
            _set_attributes(source, target)
            os.fchmod(target, permissions(inside.st_mode))


def remove_half(project: int, journal: Journal) -> None:
    """Remove the partial file that a killed apply has left in the project."""
    last = journal.last_folder()
    if last is not None:
        with contextlib.suppress(OSError), folder(project, last) as parent:
            os.unlink(journal.name, dir_fd=parent)


class _WritableDirectories:
    """Directories of the project that had to be made writable for a while."""

    def __init__(self, project: int) -> None:
        self._project = project
        self._modes: dict[bytes, int] = {}

    def make_writable(self, fd: int, path: bytes) -> None:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o300 != 0o300 and os.geteuid() != 0:
            self._modes.setdefault(path, mode)
            os.fchmod(fd, mode | 0o700)

    def restore(self, *, keep: set[bytes]) -> None:
        """Restore the permissions of all but those to `keep`, which get others."""
        for path, mode in sorted(self._modes.items(), reverse=True):
            if path not in keep:
                with contextlib.suppress(OSError), folder(self._project, path) as fd:
                    os.fchmod(fd, mode)


def _replaces_folder(found: FoundChange) -> bool:
    change = found.change
    return change.kind is ChangeKind.MODIFIED and change.was == "directory" != change.type


def _is_still(before: os.stat_result, now: os.stat_result) -> bool:
    """Tell if a path is unchanged. A directory changes with its entries, so its inode counts."""
    if stat.S_ISDIR(before.st_mode):
        return stat.S_ISDIR(now.st_mode) and before.st_ino == now.st_ino
    # Not the ctime: it changes when another hard link of the file is removed.
    names = ("st_ino", "st_mode", "st_size", "st_mtime_ns")
    return all(getattr(before, name) == getattr(now, name) for name in names)


def _copy(source: int, inside: os.stat_result, parent: int, half: bytes) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(half, flags, 0o600, dir_fd=parent)
    try:
        copy_bytes(source, target)
        if os.geteuid() == 0:
            os.fchown(target, inside.st_uid, inside.st_gid)
        _set_attributes(source, target)
        os.fchmod(target, permissions(inside.st_mode))
    finally:
        os.close(target)


def _set_attributes(source: int, target: int) -> None:
    wanted, there = attributes(source), attributes(target)
    for name in there.keys() - wanted.keys():
        os.removexattr(target, name)
    for name, value in wanted.items():
        if there.get(name) != value:
            os.setxattr(target, name, value)


def _sync(fd: int) -> None:
    """Flush to disk what was applied, before the overlay is removed."""
    ctypes.CDLL(None).syncfs(fd)
