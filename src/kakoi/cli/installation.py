"""How to start this kakoi again."""

import os
import sys


def own_argv() -> list[str]:
    """How to start this very kakoi: the PATH of other programs differs from the terminal's."""
    started = sys.argv[0]
    if os.path.basename(started) == "kakoi" and os.access(started, os.X_OK):
        return [os.path.abspath(started)]
    found = os.path.join(os.path.dirname(sys.executable), "kakoi")
    return [found] if os.access(found, os.X_OK) else [sys.executable, "-m", "kakoi"]
