"""Running out of memory: which process the kernel kills, and whether it has killed one.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import time

from kakoi.runner.contexts import suppress

# Where a container sees its own control group: cgroup v2, then v1.
COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
# One kill ends several commands at about the same time: each reports it.
_MOMENT_S = 1.0
_MAX_BYTES = 4096
_MUCH_BYTES = 64 * 1024 * 1024
# Added to the runner's own oom_score_adj, in thousandths of the available memory.
_OF_KEEPERS = 300
_OF_COMMANDS = 700
_MAX_SCORE = 1000


class OomCounter:
    """Reads the kernel's count of OOM kills.

    `counter`: its path, or a descriptor; by default the path in a container.
    """

    def __init__(self, counter: str | int = "") -> None:
        self._counters: tuple[str | int, ...] = COUNTERS if counter == "" else (counter,)
        self._seen = self._count()
        self._grown_at = float("-inf")

    def ran_out(self) -> bool:
        """Has there been a kill since the last call, or a moment before it?"""
        now, count = time.monotonic(), self._count()
        if count > self._seen:
            self._seen, self._grown_at = count, now
        return now - self._grown_at < _MOMENT_S

    def _count(self) -> int:
        for counter in self._counters:
            with suppress(OSError):
                return parse_count(_read(counter))
        return 0


def parse_count(text: bytes) -> int:
    """Return how many processes were killed, from the text of a counter file."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == b"oom_kill" and number.isdigit():
            return int(number)
    return 0


def _read(counter: str | int) -> bytes:
    if isinstance(counter, int):
        return os.pread(counter, _MAX_BYTES, 0)
    with open(counter, "rb") as file:
        return file.read(_MAX_BYTES)


class OomScores:
    """Makes the kernel kill commands first, then keepers, and the runner last.

    Create it before the runner hides from its commands (`become_keeper`): after that, its own
    oom_score_adj file and those of keepers belong to root.
    """

    def __init__(self) -> None:
        self._own, self._usual = -1, 0
        with suppress(OSError, ValueError):
            own = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._usual, self._own = int(os.read(own, 20)), own

    def of_keepers(self) -> _KeeperScore:
        """Processes forked in this block are killed before the runner: they inherit the score."""
        return _KeeperScore(self)

    def raise_own(self, more: int) -> None:
        """Set our own score to the usual one and this much more."""
        score = min(self._usual + more, _MAX_SCORE)
        with suppress(OSError):
            os.pwrite(self._own, b"%d" % score, 0)

    def put_first(self, command: int) -> None:
        """Make the kernel kill a command before its keeper, if /proc lets us."""
        score = min(self._usual + _OF_COMMANDS, _MAX_SCORE)
        with suppress(OSError), open(f"/proc/{command}/oom_score_adj", "w") as file:
            file.write(str(score))


class _KeeperScore:
    """The block of `OomScores.of_keepers`."""

    __slots__ = ("_scores",)

    def __init__(self, scores: OomScores) -> None:
        self._scores = scores

    def __enter__(self) -> None:
        self._scores.raise_own(_OF_KEEPERS)

    def __exit__(self, *_: object) -> None:
        self._scores.raise_own(0)


class MemoryGroups:
    """Control groups for the commands of a sandbox, so that a command that fills its memory does
    not affect the others. There may be fewer groups than commands.

    `descriptors`: for each group, its `cgroup.procs`, open for writing, its OOM counter, and its
    memory usage.
    """

    def __init__(self, descriptors: list[tuple[int, int, int]]) -> None:
        for each in descriptors:
            for descriptor in each:
                os.set_inheritable(descriptor, False)
        self._entrances = [entrance for entrance, _, _ in descriptors]
        self.memories = [OomCounter(counter) for _, counter, _ in descriptors]
        self._used = [used for _, _, used in descriptors]

    def enter(self, pid: int, taken: list[int]) -> int:
        """Put a process into a group that few others use; returns the group's number.

        `taken`: the group of each other keeper. Avoids a group that is full of memory that outlives
        its processes.
        OSError: the process cannot be moved and must not run, because nothing would limit it.
        """

        def crowded(number: int) -> tuple[int, int, int]:
            used = int(_read(self._used[number]))
            return used // _MUCH_BYTES, taken.count(number), used

        number = min(range(len(self._entrances)), key=crowded)
        os.write(self._entrances[number], b"%d" % pid)
        return number
