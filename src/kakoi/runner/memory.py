"""Memory runs out: which process the kernel kills, and whether it has killed one.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Cgroup v2, and v1: where a container sees its own group.
COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
# One kill ends several commands at about the same time: each reports it.
_MOMENT_S = 1.0
_MAX_BYTES = 4096
_MUCH_BYTES = 64 * 1024 * 1024
# Above the runner's own oom_score_adj, which is in thousandths of the memory there is.
_OF_KEEPERS = 300
_OF_COMMANDS = 700
_MAX_SCORE = 1000


class OutOfMemory:
    """Watches the kernel's count of such kills.

    `counter`: its path, or a descriptor that reads it; by default where a container has it.
    """

    def __init__(self, counter: str | int = "") -> None:
        self._places: tuple[str | int, ...] = COUNTERS if counter == "" else (counter,)
        self._seen = self._count()
        self._grown_at = float("-inf")

    def ran_out(self) -> bool:
        """Has there been one since the last call, or a moment before that?"""
        now, count = time.monotonic(), self._count()
        if count > self._seen:
            self._seen, self._grown_at = count, now
        return now - self._grown_at < _MOMENT_S

    def _count(self) -> int:
        for place in self._places:
            with contextlib.suppress(OSError):
                return parse_count(_read(place))
        return 0


def parse_count(text: bytes) -> int:
    """How many processes were killed, from the text of such a file."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == b"oom_kill" and number.isdigit():
            return int(number)
    return 0


def _read(place: str | int) -> bytes:
    if isinstance(place, int):
        return os.pread(place, _MAX_BYTES, 0)
    with open(place, "rb") as file:
        return file.read(_MAX_BYTES)


class Scores:
    """Out of memory, the kernel is to kill commands first, then keepers, and the runner last.

    To be made before the runner hides from its commands (`become_keeper`): from then on this file
    of its own belongs to root, and those of keepers as well.
    """

    def __init__(self) -> None:
        self._own, self._usual = -1, 0
        with contextlib.suppress(OSError, ValueError):
            own = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._usual, self._own = int(os.read(own, 20)), own

    @contextlib.contextmanager
    def of_keepers(self) -> Iterator[None]:
        """What is forked meanwhile is killed before us: it inherits what we are now."""
        self._set(min(self._usual + _OF_KEEPERS, _MAX_SCORE))
        try:
            yield
        finally:
            self._set(self._usual)

    def _set(self, score: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._own, b"%d" % score, 0)

    def put_first(self, command: int) -> None:
        """Have a command killed before its keeper. Where /proc is closed to us, it stays equal."""
        score = min(self._usual + _OF_COMMANDS, _MAX_SCORE)
        with contextlib.suppress(OSError), open(f"/proc/{command}/oom_score_adj", "w") as file:
            file.write(str(score))


class JobGroups:
    """Control groups that were made for the commands of a sandbox, so that one which fills its
    memory costs the others nothing. There may be fewer of them than commands.

    `descriptors`: for each its `cgroup.procs`, open for writing, its counter, and what it uses.
    """

    def __init__(self, descriptors: list[tuple[int, int, int]]) -> None:
        for each in descriptors:
            for descriptor in each:
                os.set_inheritable(descriptor, False)
        self._entrances = [entrance for entrance, _, _ in descriptors]
        self.memories = [OutOfMemory(counter) for _, counter, _ in descriptors]
        self._used = [used for _, _, used in descriptors]

    def enter(self, pid: int, taken: list[int]) -> int:
        """Put a process into a group that few have `taken`; returns its number.

        Not into one that somebody has filled with what outlives a process.
        OSError: it cannot be moved, and must not run: nothing would limit it.
        """

        def crowded(number: int) -> tuple[int, int, int]:
            used = int(_read(self._used[number]))
            return used // _MUCH_BYTES, taken.count(number), used

        number = min(range(len(self._entrances)), key=crowded)
        os.write(self._entrances[number], b"%d" % pid)
        return number
