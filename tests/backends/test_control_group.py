"""Control groups that are removed while ours are read."""

import threading
from pathlib import Path

from kakoi.backends.host import control_group


def test_groups_that_vanish_while_they_are_read_are_passed_over(tmp_path: Path) -> None:
    """Commands make and remove groups inside ours. `Path.rglob` of Python 3.11 fails over that."""
    stop = threading.Event()

    def make_and_remove(group: Path) -> None:
        while not stop.is_set():
            (group / "inside").mkdir(parents=True)
            (group / "inside").rmdir()
            group.rmdir()

    busy = [
        threading.Thread(target=make_and_remove, args=(tmp_path / name,))
        for name in ("a", "b", "c")
    ]
    for thread in busy:
        thread.start()
    try:
        for _ in range(1000):
            assert control_group._members(tmp_path) == []
    finally:
        stop.set()
        for thread in busy:
            thread.join()
