"""A process that swaps two names as fast as the kernel allows, so that a directory becomes a link
to another place a moment later."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WAIT_S = 300
SECRET = "not for them"
# The kernel exchanges names atomically, so a name is never missing. If one does not exist yet, the
# process yields and tries again. This also runs inside sandboxes. A minute is enough if a tenth is
# done by then; a busy machine takes longer.
SWAPPER = """
import ctypes, os, sys, time
wanted, names = int(sys.argv[1]), [os.fsencode(name) for name in sys.argv[2:]]
pairs = list(zip(names[::2], names[1::2]))
exchange = ctypes.CDLL(None).renameat2
print("ready", flush=True)
done, began = 0, time.monotonic()
while done < wanted and time.monotonic() - began < (60 if done * 10 >= wanted else 240):
    for one, other in pairs:
        if exchange(-100, one, -100, other, 2) == 0:
            done += 1
        else:
            os.sched_yield()
print(done, flush=True)
"""
# The requirement is a million swaps. The default tier runs about a second of them.
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
    """Swap the first name with the second, the third with the fourth, …, `count` times.

    Yields a function that returns whether the swapping still runs.
    """
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
    """Create a folder with the files that the attacks look for. All can read and write them."""
    for name in ("one", "two", "sub/file"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
        path.chmod(0o666)
    for path in (folder, folder / "sub"):
        path.chmod(0o777)
    return folder
