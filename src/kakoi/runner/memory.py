"""Has the kernel killed something of ours for want of memory?

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

# Cgroup v2, and v1: where a container sees its own group.
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class OutOfMemory:
    """Watches the kernel's count of such kills."""

    def __init__(self) -> None:
        self._seen = _count()

    def ran_out(self) -> bool:
        """Has there been one since the last call?"""
        before, self._seen = self._seen, _count()
        return self._seen > before


def _count() -> int:
    for path in _COUNTERS:
        try:
            with open(path, "rb") as file:
                for line in file:
                    name, _, number = line.partition(b" ")
                    if name == b"oom_kill":
                        return int(number)
        except (OSError, ValueError):
            continue
    return 0
