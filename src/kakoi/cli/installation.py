"""How to start this kakoi again."""

import os
import sys
from pathlib import Path


def own_argv() -> list[str]:
    """How to start this very kakoi: the PATH of other programs differs from the terminal's."""
    started = Path(sys.argv[0])
    if started.name == "kakoi" and os.access(started, os.X_OK):
        return [os.path.abspath(started)]
    found = Path(sys.executable).with_name("kakoi")
    return [str(found)] if os.access(found, os.X_OK) else [sys.executable, "-m", "kakoi"]
