"""Looks at a sandbox from outside and inside: processes, mounts, descriptors, memory and so on."""

import gc
import os
import subprocess
from pathlib import Path

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.probes import proc_text, processes_inside, processes_outside
from kakoi.conformance.sandbox_commands import TIMEOUT_S


async def alive_inside(sandbox: SandboxAdapter, mark: str) -> list[str]:
    """Return the processes in the sandbox with `mark` in their arguments or environment."""
    return await processes_inside((await sandbox.channel()).run, mark, timeout_s=TIMEOUT_S)


async def alive(sandbox: SandboxAdapter, mark: str) -> list[str]:
    """Return the marked processes that are alive now, outside and inside the sandbox."""
    return processes_outside(mark) + await alive_inside(sandbox, mark)


def processes_using(workspace: Path) -> list[str]:
    """Return the other processes with `workspace` in their arguments, mounts or current folder."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or process.name == str(os.getpid()):
            continue
        signs = proc_text(process, "cmdline") + proc_text(process, "mountinfo") + _cwd(process)
        if str(workspace) in signs:
            found.append(f"{process.name} {proc_text(process, 'cmdline')}")
    return found


def _cwd(process: Path) -> str:
    try:
        return str((process / "cwd").readlink())
    except OSError:
        return ""


def containers_of(engine: str | None, workspace: Path) -> list[str]:
    """Return the names of the containers, running or not, that use `workspace`."""
    if engine is None:
        return []
    shown = "{{.Names}} {{.Labels}} {{.Mounts}}"
    argv = [engine, "ps", "--all", "--no-trunc", "--format", shown]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if str(workspace) in line]


def mounts_of(workspace: Path) -> list[str]:
    """Return the mounts of this machine that mention `workspace`."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if str(workspace) in line]


def descriptors() -> dict[str, str]:
    """Return the open descriptors of our own process and their targets."""
    gc.collect()
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except FileNotFoundError:  # The descriptor used to list the folder.
            continue
    return found


def children() -> set[str]:
    """Return the children of our own process, including zombies."""
    threads = Path("/proc/self/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}


def reset_peak_memory() -> int:
    """Reset the peak; returns how many bytes of memory our process uses now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def peak_memory() -> int:
    """Return the peak memory of our process in bytes since `reset_peak_memory`."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
