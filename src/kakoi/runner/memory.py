"""Has the kernel killed something of ours for want of memory?

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

# Cgroup v2, and v1: where a container sees its own group.
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class OutOfMemory:
    """Watches the kernel's count of such kills; `counter` is where that is, if not where usual."""

    def __init__(self, counter: str = "") -> None:
        self._places = (counter,) if counter else _COUNTERS
        self._seen = _count(self._places)

    def ran_out(self) -> bool:
        """Has there been one since the last call?"""
        before, self._seen = self._seen, _count(self._places)
        return self._seen > before


def _count(places: tuple[str, ...]) -> int:
    for path in places:
        try:
            with open(path, "rb") as file:
                for line in file:
                    name, _, number = line.partition(b" ")
                    if name == b"oom_kill":
                        return int(number)
        except (OSError, ValueError):
            continue
    return 0
