"""What does a sandbox that is examined keep? Each limit is gone beyond, and each wall run against.

A trial must be able to fail: on the host as it is, where nothing is kept, each says so.
"""

import os
import shlex
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Channel, Command, TerminalSize
from kakoi.sandbox.adapter import Limits, SandboxAdapter
from kakoi.sandbox.examine_walls import signals_check, try_sockets
from kakoi.sandbox.machine import Check, Status, tried
from kakoi.sandbox.settings import CONFINED_HOST

TRIAL_LIMIT_S: Final = 30.0
COMMAND_S: Final = 15.0
# Low, so that going beyond them is quick. What holds these holds the real ones.
# None of them is asked for: what is not kept is to be found out, and not refused.
LIMITS: Final = Limits(
    memory_bytes=64 * MIB,
    cpus=0.5,
    processes=64,
    open_files=256,
    file_bytes=4 * MIB,
    disk_bytes=16 * MIB,
    asked=frozenset(),
)
_CROWD: Final = 150
_CROWD_S: Final = 10.0
_HEAP_BYTES: Final = 160 * 1000 * 1000
_FIELDS: Final = {
    "processes": "processes",
    "open files": "open_files",
    "file size": "file_bytes",
    "disk": "disk_bytes",
    "memory": "memory_bytes",
}
Found = tuple[bool, str]


async def examine_limits(area: str, sandbox: SandboxAdapter) -> list[Check]:
    """Checks on everything that the sandbox is to keep, in the order that people read them."""
    channel = await sandbox.channel()
    try_network = try_sockets if sandbox.name == CONFINED_HOST else _try_network
    holding = sandbox.holding
    trials: dict[str, Callable[[Channel], Awaitable[Found]]] = {
        "files": _try_files,
        "network": try_network,
        "time": _try_time,
        "terminal": _try_terminal,
        "processes": _try_processes,
        "open files": _try_open_files,
        "file size": _try_file_size,
        "disk": _try_disk,
        "memory": _try_memory,  # Last: it may take the runner with it.
    }

    async def check(name: str, trial: Callable[[Channel], Awaitable[Found]]) -> Check:
        holds, detail = await trial(channel)
        broken = Status.NOT_OK if name == "terminal" else Status.NOT_ENFORCED
        by = holding.kept.get(_FIELDS.get(name, ""), "")
        told = f"{detail}; {by}" if holds and by else detail
        return Check(area, name, Status.OK if holds else broken, told)

    found = [
        await tried(area, name, check(name, trial), limit_s=TRIAL_LIMIT_S)
        for name, trial in trials.items()
    ]
    cpu = holding.kept.get("cpus")
    not_kept = holding.not_kept.get("cpus", "")
    found = [signals_check(area, channel), *found]
    return [*found, Check(area, "cpu", Status.OK if cpu else Status.NOT_ENFORCED, cpu or not_kept)]


def failure(result: ExecutionResult) -> str:
    """Why a command of a trial did not do what it was to do."""
    return result.error or f"{result.reason}, status {result.exit_code}"


async def _run(channel: Channel, command: str, **options: object) -> ExecutionResult:
    return await channel.run(Command(command=command, **{"timeout_s": COMMAND_S, **options}))  # type: ignore[arg-type]


async def _try_files(channel: Channel) -> Found:
    """In a folder of this machine that is open to everybody, so that only a wall is in the way."""
    with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
        os.chmod(folder, 0o777)  # noqa: S103 - root's commands run as somebody else
        beside = Path(folder)
        (beside / "theirs").write_text("not for commands")
        there = shlex.quote(folder)
        inside = await _run(channel, f"touch inside; echo x > {there}/ours; cat {there}/theirs")
        if (beside / "ours").exists():
            return False, "what is outside of the workspace can be written"
        if "not for commands" in inside.stdout:
            return False, "what is outside of the workspace can be read"
    system = "touch /usr/kakoi-was-here /etc/kakoi-was-here 2>/dev/null"
    result = await _run(channel, f"test -e inside && ! {{ {system}; }}")
    return result.ok, "only the workspace can be written" if result.ok else failure(result)


async def _try_network(channel: Channel) -> Found:
    result = await _run(channel, "cat /proc/net/dev")
    devices = {line.split(":")[0].strip() for line in result.stdout.splitlines() if ":" in line}
    others = sorted(devices - {"lo"})
    if result.ok and not others:
        return True, "nothing can be reached"
    return False, f"it has {', '.join(others)}" if others else failure(result)


async def _try_time(channel: Channel) -> Found:
    """The one in the background has left the group of the command, and would be missed by it."""
    result = await _run(channel, "setsid sleep 60 & echo $!; sleep 60", timeout_s=1.0)
    started = result.stdout.strip()
    if result.reason is not Reason.TIMED_OUT or not started.isdecimal():
        return False, f"it could not be tried: {failure(result)}"
    lives = (await _run(channel, f"kill -0 {started}")).ok
    if lives:
        return False, "what a command had started lived on after its time"
    return True, "a command and all that it started was ended"


async def _try_terminal(channel: Channel) -> Found:
    result = await _run(channel, "test -t 0 && test -t 1", terminal=TerminalSize())
    return result.ok, "a command can have one" if result.ok else failure(result)


async def _try_processes(channel: Channel) -> Found:
    """Start more than may be: the shell counts what it got, and complains of what it did not.

    It is ended at its first complaint: bash would try again for many seconds.
    """
    crowd = f"i=0; while [ $i -lt {_CROWD} ]; do sleep 60 & i=$((i+1)); echo $i; done"
    seen = {"stdout": b"", "stderr": b""}
    async with channel.open(Command(command=crowd, timeout_s=_CROWD_S)) as running:
        async for stream, data in running.output():
            seen[stream] += data
            if b"fork" in seen["stderr"]:
                return True, f"stopped at {LIMITS.processes}"
        result = await running.result()
    started = len(seen["stdout"].split())
    return False, f"{started} were started" if started else failure(result)


async def _try_open_files(channel: Channel) -> Found:
    result = await _run(channel, f"exec {LIMITS.open_files}</dev/null")
    limit = (await _run(channel, "ulimit -n")).stdout.strip()
    held = not result.ok and limit == str(LIMITS.open_files)
    return held, f"a process can have {limit}"


async def _try_file_size(channel: Channel) -> Found:
    """In the workspace: a limit of the disk must not be what stops it."""
    twice = 2 * (LIMITS.file_bytes or 0)
    result = await _run(channel, f"head -c {twice} /dev/zero > large; wc -c < large; rm large")
    size = result.stdout.strip()
    return size == str(LIMITS.file_bytes), f"a file was cut at {size} bytes"


async def _try_disk(channel: Channel) -> Found:
    """In pieces, so that the limit of one file is not what stops it; the first must fit."""
    pieces, size = 8, LIMITS.file_bytes or 0
    folder = '"${TMPDIR:-/tmp}"'
    piece = f"head -c {size} /dev/zero > {folder}/fill"
    fill = f"{piece}1 || exit 4; for i in $(seq 2 {pieces}); do {piece}$i || exit 3; done"
    result = await _run(channel, fill)
    await _run(channel, f"rm -f {folder}/fill*")
    if result.exit_code == 3:
        return True, "what was too much was refused"
    return False, "there is no limit" if result.ok else f"it could not be tried: {failure(result)}"


async def _try_memory(channel: Channel) -> Found:
    """One line without an end has to be held in memory: a short one can be, a long one can't."""
    line = "head -c {0} /dev/zero | tail -n 1 | wc -c"
    short = await _run(channel, line.format(MIB))
    if short.stdout.strip() != str(MIB):
        return False, f"it could not be tried: {failure(short)}"
    result = await _run(channel, line.format(_HEAP_BYTES))
    if result.stdout.strip() == str(_HEAP_BYTES):
        return False, "nothing limits it here"
    held = result.reason is not Reason.TIMED_OUT
    return held, "what took too much was ended" if held else "it took too long to try"
