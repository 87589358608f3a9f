"""WHAT WOULD CHANGE?  Commands write to a copy of a project; review the changes, apply or discard.

Use `Overlay`; the other names are what it returns. Sandboxes with
`SandboxConfig(copy_on_write=True)` write to it.
"""

from kakoi.overlay.changes import ApplyResult, Change, ChangeKind, Mounts
from kakoi.overlay.diffs import Difference
from kakoi.overlay.overlay import Overlay

__all__ = ["ApplyResult", "Change", "ChangeKind", "Difference", "Mounts", "Overlay"]
