"""Makes the images that the chosen tests need, and becomes pytest: arguments are pytest's.

Images are part of the set-up: with them in place, the time that pytest prints is that of the tests.
"""

import os
import sys
import time

from tests.images.built import BUILD

# With Go and Java, and with cargo and maven: only toolchain tests need them.
_EXTENDED = ("full", "tools")


def main(arguments: list[str]) -> None:
    began = time.monotonic()
    names = ["base"] if "--tier" in arguments else []
    tier = arguments[arguments.index("--tier") + 1] if names else ""
    for name in [*names, *(_EXTENDED if tier in ("extended", "all") else ())]:
        BUILD[name]()
    print(f"test: set up in {time.monotonic() - began:.0f} s after the engine", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
