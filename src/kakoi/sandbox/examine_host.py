"""Does the unconfined host end what it started, though every keeper is dead? Found by trying."""

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from kakoi.runner.commands import Command
from kakoi.sandbox.host import HostAdapter
from kakoi.sandbox.machine import Check, Status, good

HELD: Final = "held processes"
_COMMAND_S: Final = 15.0
# Leaves a process in a session of its own, and kills all that stand between itself and us.
_KILL_KEEPERS: Final = """
import os, signal, sys, time
def above(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])
left = os.fork()
if left == 0:
    os.setsid()
    time.sleep(60)
    os._exit(0)
with open("left", "w") as file:
    file.write(str(left))
keepers = [os.getppid()]
while keepers[-1] not in (int(sys.argv[1]), 0, 1):
    keepers.append(above(keepers[-1]))
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in reversed(keepers[:-1]):
        os.kill(pid, number)
"""
_FIX: Final = (
    "run kakoi as root, or give it a control group (systemd-run --user --scope -p Delegate=yes …); "
    "or confine commands: kakoi run --sandbox host --confine"
)


async def held_check(area: str) -> Check:
    """Have a command on the host kill its keepers, and look for what it has started."""
    with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
        host = HostAdapter(folder, warn_on_start=False)
        argv = [sys.executable, "-I", "-c", _KILL_KEEPERS, str(os.getpid())]
        try:
            result = await host.run(Command(command=argv, timeout_s=_COMMAND_S))
            left = _left_in(Path(folder))
        finally:
            await host.cleanup()
    if left is None:
        why = f"it could not be tried: {result.error or result.reason}"
        return Check(area, HELD, Status.NOT_ENFORCED, why, _FIX)
    if not left:
        return good(
            area, HELD, "what a command started was ended, though it had killed its keepers"
        )
    why = "a command that kills its keepers leaves processes behind: no control group can be made"
    return Check(area, HELD, Status.NOT_ENFORCED, why, _FIX)


def _left_in(folder: Path) -> bool | None:
    """Does what the command has left still run? It is ended then. None: it has not come so far."""
    try:
        pid = int((folder / "left").read_text())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(FileNotFoundError):
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
            os.kill(pid, signal.SIGKILL)
            return True
    return False
