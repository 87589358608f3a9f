"""Directory trees over the channel: listed and removed in slices, between which the loop serves
everything else.

Links are never followed below the root of a tree, not even those swapped in meanwhile. Standard
library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import heapq
import os
import time

from kakoi.runner import frames, plain_json
from kakoi.runner.files import AccountNames, describe, failure
from kakoi.runner.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any

    from kakoi.runner.files import Requester
    from kakoi.runner.loop import Loop, Timer

    # An item to send, a descriptor to wait for, or None: a moment for everything else.
    Step = list[Any] | int | None
    Work = Generator[Step, None, None]

_SLICE_S = 0.002
_BATCH_BYTES = 48 * 1024
_LONGEST_PATH = 4096
_RUN_OF_NAMES = 4096
_NAMES_IN_A_STEP = 128
_OPEN_LEVELS = 32
# How many subdirectories of a directory are remembered while they are removed; few in the deep.
_DOOMED, _DOOMED_IN_THE_DEEP = 256, 4
_PASSES = 10
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SlicedWork:
    """Advances a generator for some milliseconds at a time, and sends the items that it yields.

    Items are sent as JSON lists, as far as the client has granted credit; an empty list says that
    it begins to wait for a descriptor. The answer follows the last of them.
    """

    def __init__(self, loop: Loop, request: Requester, work: Work) -> None:
        self._loop = loop
        self._request = request
        self._work: Work | None = work
        self._items: list[bytes] = []
        self._size = 0
        self._awaited = -1
        self._is_silent = True
        self._is_over = False
        self._timer: Timer | None = None

    def has_room(self) -> None:
        if self._timer is None:
            self.advance()

    def advance(self) -> None:
        """Work for one slice, or until the client has no room."""
        self._timer = None
        try:
            self._work_on(time.monotonic() + _SLICE_S)
        except OSError as error:
            self._end(failure(error))
        except Exception as error:  # Whatever breaks here, other requests must still be served.
            self._end(failure(OSError(errno.EIO, type(error).__name__)))

    def _work_on(self, until: float) -> None:
        while self._work is not None:
            must_send = self._is_over or self._awaited >= 0 or self._size >= _BATCH_BYTES
            if must_send and not self._flush():
                return
            if self._is_over:
                return self._end({})
            if self._awaited >= 0:
                return self._loop.watch(self._awaited, READ, self._on_ready)
            if time.monotonic() >= until:
                self._timer = self._loop.after(0, self.advance)
                return None
            self._step(self._work)

    def _step(self, work: Work) -> None:
        try:
            step = next(work)
        except StopIteration:
            self._is_over = True
            return
        if isinstance(step, int):
            self._awaited = step
        elif step is not None:
            self._items.append(plain_json.dumps(step))
            self._size += len(self._items[-1]) + 2

    def _flush(self) -> bool:
        """Send what there is; False if the client has no room for it."""
        if self._items or (self._is_silent and self._awaited >= 0):
            body = b"[" + b", ".join(self._items) + b"]"
            if self._request.room() < len(body):
                return False
            self._items.clear()
            self._size = 0
            self._is_silent = False
            self._request.send(frames.STDOUT, body)
        return self._work is not None

    def _on_ready(self, _events: int) -> None:
        self._stop_waiting()
        self.advance()

    def _stop_waiting(self) -> None:
        if self._awaited >= 0:
            self._loop.forget(self._awaited)
            self._awaited = -1

    def _end(self, answer: dict[str, Any]) -> None:
        if self._work is not None:
            self.close()
            self._request.answer(answer)

    def close(self) -> None:
        """Give up."""
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
        work, self._work = self._work, None
        if work is not None:
            work.close()


class DirectoryStack:
    """The directories from the root of a tree to the current one, entered without following links.

    Only the nearest are open, however deep it goes: the others are reopened as the parent of the
    one below, if it is still the same directory.
    """

    def __init__(self, root: int) -> None:
        self._fds = [root]
        self._identities = [_identity(root)]

    @property
    def fd(self) -> int:
        return self._fds[-1]

    def enter(self, name: str) -> None:
        fd = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        self._fds.append(fd)
        self._identities.append(_identity(fd))
        far = len(self._fds) - 1 - _OPEN_LEVELS
        if far > 0:  # The root stays open: it may be unreadable.
            os.close(self._fds[far])
            self._fds[far] = -1

    def leave(self) -> None:
        below = self._fds.pop()
        self._identities.pop()
        try:
            if self._fds[-1] < 0:
                self._fds[-1] = os.open("..", DIRECTORY, dir_fd=below)
                if _identity(self._fds[-1]) != self._identities[-1]:
                    raise OSError(errno.ESTALE, "a directory was moved in the meantime")
        finally:
            os.close(below)

    def close(self) -> None:
        for fd in self._fds:
            if fd >= 0:
                os.close(fd)
        self._fds.clear()


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


# --- Listing ---------------------------------------------------------------------------------


def listing(path: str, depth: int, limit: int) -> Work:
    """Yield each entry of a directory and `depth - 1` levels below it: its level, its name, and
    what `describe` says. By name, each directory before its content."""
    accounts = AccountNames()
    tree = DirectoryStack(os.open(path, DIRECTORY))
    left = limit
    try:
        names, left = yield from _sorted_names(tree.fd, limit, left)
        levels, sizes = [names], [0]
        while levels:
            name = next(levels[-1], None)
            if name is None:
                levels.pop()
                sizes.pop()
                if levels:
                    tree.leave()
                continue
            try:
                found = describe(name, os.lstat(name, dir_fd=tree.fd), tree.fd, accounts)
            except FileNotFoundError:
                continue
            size = sizes[-1] + len(os.fsencode(name)) + 1
            if size > _LONGEST_PATH:
                raise OSError(errno.ENAMETOOLONG, "the tree is deeper than the longest path")
            yield [len(levels) - 1, *found.values()]
            if found["kind"] == "directory" and len(levels) < depth and _enter(tree, name):
                names, left = yield from _sorted_names(tree.fd, limit, left)
                levels.append(names)
                sizes.append(size)
    finally:
        tree.close()


def _enter(tree: DirectoryStack, name: str) -> bool:
    """Enter a directory, unless it cannot be read, or is no longer one."""
    try:
        tree.enter(name)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    return True


def _sorted_names(
    fd: int, limit: int, left: int
) -> Generator[Step, None, tuple[Iterator[str], int]]:
    """Return the names in a directory, and how many more there may be in the whole listing."""
    runs: list[list[str]] = [[]]
    with os.scandir(fd) as entries:
        for entry in entries:
            left -= 1
            if left < 0:
                raise OSError(errno.EOVERFLOW, f"more than {limit} files")
            runs[-1].append(entry.name)
            if left % _NAMES_IN_A_STEP == 0:
                yield None
            if len(runs[-1]) == _RUN_OF_NAMES:
                runs[-1].sort()
                runs.append([])
    runs[-1].sort()
    # Merged as they are taken: sorting a million names at once would take a second.
    return (heapq.merge(*runs) if len(runs) > 1 else iter(runs[0])), left


# --- Removing --------------------------------------------------------------------------------


def removal(path: str, *, recursive: bool) -> Work:
    """Remove a file or a link, or with `recursive` a directory and everything below it."""
    above, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "a directory cannot be removed by this name")
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    tree = DirectoryStack(os.open(above or ".", flags))
    try:
        try:
            os.unlink(name, dir_fd=tree.fd)
        except IsADirectoryError:
            if not recursive:
                raise
            yield from _TreeRemoval(tree).remove(name)
    finally:
        tree.close()


class _Doomed:
    """A directory that is being removed.

    `is_cut`: there was more in it than one pass takes. `passes`: how many took all of it.
    """

    __slots__ = ("failed", "is_cut", "is_scanned", "name", "passes", "progressed", "subdirectories")

    def __init__(self, name: str, passes: int) -> None:
        self.name = name
        self.passes = passes
        self.subdirectories: list[str] = []
        self.is_scanned = False
        self.is_cut = False
        self.progressed = False
        self.failed = False


class _TreeRemoval:
    """Removes a tree as `rm -r` does: what cannot be removed does not stop it, but is reported."""

    def __init__(self, tree: DirectoryStack) -> None:
        self._tree = tree
        self._levels: list[_Doomed] = []
        self._error: OSError | None = None

    def remove(self, name: str) -> Work:
        self._enter(name, 0)
        while self._levels:
            level = self._levels[-1]
            if not level.is_scanned:
                yield from self._scan(level)
            elif level.subdirectories:
                self._enter(level.subdirectories.pop(), 0)
            else:
                self._leave()
            yield None
        if self._error is not None:
            raise self._error

    def _enter(self, name: str, passes: int) -> None:
        try:
            self._tree.enter(name)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):  # No longer a directory.
                self._unlink(name)
            else:  # It cannot be read, but may be empty.
                self._remove_directory(name, error)
        else:
            self._levels.append(_Doomed(name, passes))

    def _scan(self, level: _Doomed) -> Work:
        """Remove the files of a directory, and remember its subdirectories, as many as it may."""
        most = _DOOMED if len(self._levels) <= _OPEN_LEVELS else _DOOMED_IN_THE_DEEP
        level.is_scanned = True
        with os.scandir(self._tree.fd) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    self._unlink(entry.name)
                elif len(level.subdirectories) < most:
                    level.subdirectories.append(entry.name)
                else:
                    level.is_cut = True
                    return
                yield None

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._tree.fd)
            self._progress()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail(error, name)

    def _remove_directory(self, name: str, unreadable: OSError | None = None) -> None:
        try:
            os.rmdir(name, dir_fd=self._tree.fd)
            self._progress()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail(unreadable or error, name)

    def _leave(self) -> None:
        level = self._levels.pop()
        self._tree.leave()
        try:
            os.rmdir(level.name, dir_fd=self._tree.fd)
            self._progress()
        except FileNotFoundError:
            pass
        except OSError as error:
            is_filled_anew = not level.failed and level.passes < _PASSES
            again = level.is_cut or is_filled_anew
            if error.errno == errno.ENOTEMPTY and level.progressed and again:
                self._enter(level.name, level.passes + (not level.is_cut))
            else:
                self._fail(error, level.name)

    def _progress(self) -> None:
        if self._levels:
            self._levels[-1].progressed = True

    def _fail(self, error: OSError, name: str) -> None:
        """Remember the first error."""
        if self._levels:
            self._levels[-1].failed = True
        if self._error is None:
            code = error.errno or errno.EIO
            inside = "/".join([*(level.name for level in self._levels), name][1:])
            words = f"{os.strerror(code)}: {inside[-200:]}" if inside else os.strerror(code)
            self._error = OSError(code, words)
