"""The processes that a test has started and left."""

import contextlib
from pathlib import Path

# Of a sandbox that tests of the same worker share, for example.
_EARLIER: set[str] = set()


def remember_children() -> None:
    """From now on only those count that are started later."""
    _EARLIER.clear()
    _EARLIER.update(_children())


def children_of_ours() -> list[str]:
    """The children of our process that this test has started, zombies included."""
    return [pid for pid in _children() if pid not in _EARLIER]


def _children() -> list[str]:
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
            found += (thread / "children").read_text().split()
    return found
