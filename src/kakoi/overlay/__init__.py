"""WHAT WOULD CHANGE?  A project that commands write to in a copy only: look, take it or leave it.

`Overlay` is all there is to call; the other names are what it gives. Sandboxes with
`SandboxConfig(copy_on_write=True)` write into it.
"""

from kakoi.overlay.overlay import Overlay
from kakoi.overlay.values import Applied, Change, Kind, Mounts

__all__ = ["Applied", "Change", "Kind", "Mounts", "Overlay"]
