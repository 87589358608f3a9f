"""Builds the images that the chosen tests need, then runs pytest with the given arguments.

Images are part of the setup, so the time that pytest prints is that of the tests alone.
"""

import os
import sys
import time

from tests.images.built import BUILD

# Only tests of toolchains need Go and Java, cargo and maven. Without a tier, the first test that
# needs an image builds it.
_NEEDED = {"default": ["kakoi-test:base"], "extended": list(BUILD), "all": list(BUILD)}


def main(arguments: list[str]) -> None:
    began = time.monotonic()
    tier = arguments[arguments.index("--tier") + 1] if "--tier" in arguments else ""
    for image in _NEEDED.get(tier, ()):
        BUILD[image]()
    print(f"test: set up in {time.monotonic() - began:.0f} s after the engine", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
