"""The names of containers that wait for a task: they say which process made them, and for what.

No task can have such a name: none begins with an underscore.
"""

import os
import re
from pathlib import Path

from kakoi.runner.commands import new_id
from kakoi.tasks.task import PREFIX

_POOLED = re.compile(re.escape(PREFIX) + r"_pool-(\d+)-(\d+)-[0-9a-f]+-[0-9a-f]+")


def pool_name(key: str) -> str:
    """A new name for a container of the configuration `key`, made by this process."""
    pid = os.getpid()
    return f"{PREFIX}_pool-{pid}-{_beginning(pid)}-{key[:12]}-{new_id()}"


def is_pooled(name: str) -> bool:
    """Does it wait for a task?"""
    return _POOLED.fullmatch(name) is not None


def is_orphan(name: str) -> bool:
    """Has the process that made it ended? A number that is used again has another beginning."""
    found = _POOLED.fullmatch(name)
    return found is not None and _beginning(int(found[1])) != found[2]


def _beginning(pid: int) -> str:
    """When a process began, in the kernel's own count; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
