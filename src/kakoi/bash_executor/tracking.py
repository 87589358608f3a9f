"""TrackedDirectory: where the next command starts. It follows `cd`, and never leaves the root.

The shell says where it ended; that is believed only as far as it leads below the root. It is no
boundary: what a command may touch on its way is the sandbox's affair.
"""

import os
import re
from typing import Final

from kakoi.errors import ConfigurationError, ExecutionError
from kakoi.sandbox.workspace import look_at, within
from kakoi.sections import shown

_MOVES: Final = re.compile(r"\b(?:cd|pushd|popd)\b")


class TrackedDirectory:
    """A directory below `root`, without links on the way."""

    def __init__(self, root: str) -> None:
        seen = look_at(root, what="root_dir")
        if not seen.is_directory:
            raise ConfigurationError(f"root_dir is {root!r}, which is not a directory")
        self.root = seen.path
        self.path = seen.path

    def check(self) -> None:
        """Refuse to start where the path leads elsewhere by now; the next one starts nearer."""
        if os.path.realpath(self.path) == self.path:
            return
        gone = self.path
        self.path = self._nearest()
        raise ExecutionError(
            f"the working directory {gone!r} is a link by now; nothing was run",
            details={"cwd": gone},
            hint=f"the next command starts in {self.path}",
        )

    def lost(self, start: str) -> None:
        """A command could not start in `start`: if that is gone, the next one starts nearer."""
        if start == self.path and not os.path.isdir(start):
            self.path = self._nearest()

    def follow(self, start: str, end: str | None, command: str = "") -> str:
        """A command went from `start` to `end` (None: it could not say). Returns what to tell."""
        if end is None:
            if not _MOVES.search(command):  # Nobody expects it to have gone anywhere.
                return ""
            return (
                "kakoi: the shell could not say where it ended;"
                f" the working directory is still {self.path!r}\n"
            )
        if end == start:  # Whoever stays does not undo what others did meanwhile.
            return ""
        try:
            real = os.path.realpath(end)
        except (OSError, ValueError):
            real = ""
        if not within(real, self.root):
            return (
                f"kakoi: {shown(end)} is outside of {self.root!r};"
                f" the working directory is still {self.path!r}\n"
            )
        self.path = real
        return ""

    def _nearest(self) -> str:
        """The closest directory above that is still there; the root, if there is none."""
        above = os.path.dirname(self.path)
        while within(above, self.root):
            if os.path.isdir(above) and os.path.realpath(above) == above:
                return above
            above = os.path.dirname(above)
        return self.root
