"""The child processes that a test has started and left running."""

import contextlib
from pathlib import Path

# For example, those of a sandbox that tests of the same worker share.
_EARLIER: set[str] = set()


def remember_children() -> None:
    """Ignore the current children from now on."""
    _EARLIER.clear()
    _EARLIER.update(_children())


def children_of_ours() -> list[str]:
    """Return the children of this process that the test has started, including zombies."""
    return [pid for pid in _children() if pid not in _EARLIER]


def _children() -> list[str]:
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The thread has exited.
            found += (thread / "children").read_text().split()
    return found
