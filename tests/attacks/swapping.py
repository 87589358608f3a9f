"""A process that swaps two names as fast as the kernel lets it: what is a directory now is a link
to somewhere else a moment later."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WAIT_S = 300
SECRET = "not for them"
# Exchanges are one step of the kernel: at no moment is a name missing. What is not there is tried
# again, and does not count. Runs inside of sandboxes as well.
SWAPPER = """
import ctypes, os, sys
wanted, names = int(sys.argv[1]), [os.fsencode(name) for name in sys.argv[2:]]
pairs = list(zip(names[::2], names[1::2]))
exchange = ctypes.CDLL(None).renameat2
print("ready", flush=True)
done = tries = 0
while done < wanted and tries < 20 * wanted:
    for one, other in pairs:
        done += exchange(-100, one, -100, other, 2) == 0
        tries += 1
print(done, flush=True)
"""
# The second of these is all that was asked for; the first is a second of it.
swaps = pytest.mark.parametrize(
    "count",
    [
        50_000,
        pytest.param(
            1_000_000,
            marks=[
                pytest.mark.extended("repetition: a million swaps"),
                pytest.mark.slow("a million swaps"),
            ],
        ),
    ],
)


@contextlib.contextmanager
def swapping(count: int, *names: Path) -> Iterator[Callable[[], bool]]:
    """Swaps the first name with the second, the third with the fourth, …, so many times; says
    whether it still does."""
    argv = [sys.executable, "-I", "-c", SWAPPER, str(count), *map(str, names)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield lambda: process.poll() is None
            assert process.wait(WAIT_S) == 0
            done = int(process.stdout.readline())
        finally:
            process.kill()
    assert done >= count // 10, "it did not get to swap"


def a_secret_place(folder: Path) -> Path:
    """A folder with the names that are looked for, whose modes protect nothing."""
    for name in ("one", "two", "sub/file"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
        path.chmod(0o666)
    for path in (folder, folder / "sub"):
        path.chmod(0o777)
    return folder
