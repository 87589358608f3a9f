"""What can be seen of a sandbox from outside and from inside: processes, memory, descriptors."""

import gc
import os
import subprocess
from pathlib import Path

from kakoi.conformance.asking import PATIENCE_S, seen
from kakoi.sandbox.adapter import SandboxAdapter

# The mark comes on stdin, so that the one who looks does not find itself. All in one first: to
# start a program for each process would take a second.
_LOOK = r"""
IFS= read -r mark
all=$(head -c 300000 /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\0' ' ')
case $all in
*"$mark"*)
    echo "seen:"
    for process in /proc/[0-9]*; do
        words=$(cat "$process/cmdline" "$process/environ" | tr '\0' ' ')
        case $words in *"$mark"*) echo "${process#/proc/} $words" ;; esac
    done 2>/dev/null
    ;;
esac
"""


async def alive_inside(sandbox: SandboxAdapter, mark: str) -> list[str]:
    """The processes in the sandbox with `mark` in their arguments or environment."""
    return (await seen(sandbox, _LOOK, mark.encode() + b"\n")).splitlines()


def alive_outside(mark: str) -> list[str]:
    """The same on this machine, where the processes of a sandbox with our kernel are seen too."""
    return [
        f"{process.name} {words}"
        for process in _processes()
        if mark in (words := _words(process, "cmdline") + " " + _words(process, "environ"))
    ]


async def alive(sandbox: SandboxAdapter, mark: str) -> list[str]:
    """Both, at this moment."""
    return alive_outside(mark) + await alive_inside(sandbox, mark)


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _words(process: Path, file: str) -> str:
    try:
        return (process / file).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:  # It has ended, or belongs to somebody else.
        return ""


def users_of(workspace: Path) -> list[str]:
    """The other processes on this machine that name, mount or stand in `workspace`."""
    found = []
    for process in _processes():
        if process.name == str(os.getpid()):
            continue
        signs = _words(process, "cmdline") + _words(process, "mountinfo") + _cwd(process)
        if str(workspace) in signs:
            found.append(f"{process.name} {_words(process, 'cmdline')}")
    return found


def _cwd(process: Path) -> str:
    try:
        return str((process / "cwd").readlink())
    except OSError:
        return ""


def containers_of(engine: str | None, workspace: Path) -> list[str]:
    """The names of the containers, running or not, that were given `workspace`."""
    if engine is None:
        return []
    shown = "{{.Names}} {{.Labels}} {{.Mounts}}"
    argv = [engine, "ps", "--all", "--no-trunc", "--format", shown]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if str(workspace) in line]


def mounts_of(workspace: Path) -> list[str]:
    """The mounts of this machine that have to do with `workspace`."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if str(workspace) in line]


def descriptors() -> dict[str, str]:
    """The open descriptors of our own process, and what each leads to."""
    gc.collect()
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except FileNotFoundError:  # The one that lists the folder.
            continue
    return found


def children() -> set[str]:
    """The children of our own process, zombies included."""
    threads = Path("/proc/self/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}


def reset_peak_memory() -> int:
    """Forget the peak; returns how many bytes of memory our process takes now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def peak_memory() -> int:
    """The most bytes of memory our process took since `reset_peak_memory`."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
