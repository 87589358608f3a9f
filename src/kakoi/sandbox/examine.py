"""Which sandboxes and limits really hold on this machine? Each is made, used and taken away."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kakoi.process import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Channel, Command, TerminalSize
from kakoi.sandbox.adapter import Availability, Limits, SandboxAdapter
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.bubblewrap_launch import UNPRIVILEGED
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import DockerSettings, Program
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.examine_cluster import examine_cluster
from kakoi.sandbox.examine_walls import (
    COPY_ON_WRITE,
    FEW_PROGRAMS,
    PROGRAMS,
    copy_on_write_check,
    programs_check,
    signals_check,
    try_sockets,
)
from kakoi.sandbox.host import HostAdapter
from kakoi.sandbox.machine import Check, Status, bad, examine_machine, good, tried
from kakoi.sandbox.select import AUTO_ORDER
from kakoi.sandbox.settings import CONFINED_HOST

# The only programs that a sandbox is to execute; None: any.
Programs = tuple[str, ...] | None
SANDBOXES: Final = "sandboxes"
_SANDBOX_LIMIT_S: Final = 90.0
_TRIAL_LIMIT_S: Final = 30.0
_COMMAND_S: Final = 15.0
# Low, so that going beyond them is quick. What holds these holds the real ones.
# None of them is asked for: what is not kept is to be found out, and not refused.
_LIMITS: Final = Limits(
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
# What does not hold these is no sandbox.
_WALLS: Final = ("files", "network", "time")


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found. `choice` is what `auto` would take, and `because` why that and no other."""

    checks: tuple[Check, ...]
    choice: str | None
    because: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Does anything that isolates work?"""
        return any(self.works(name) for name in (*AUTO_ORDER, "podman"))

    def works(self, sandbox: str) -> bool:
        """Has the sandbox run a command?"""
        return any(
            each.ok for each in self.checks if (each.area, each.name) == (SANDBOXES, sandbox)
        )


async def examine(
    *,
    image: str | None,
    engine_env: Mapping[str, str],
    cluster_env: Mapping[str, str],
    state_folder: Path,
    overlays: Path,
) -> Examination:
    """Try everything, each with a time limit of its own; what fails does not hide the rest.

    `state_folder`: of the audit log; `overlays`: where copies of workspaces are kept.
    """

    def containers(program: Program) -> Awaitable[list[Check]]:
        return _examine_containers(program, image or DockerSettings().image, engine_env)

    found = await asyncio.gather(
        _examine_bubblewrap(overlays),
        containers("docker"),
        containers("podman"),
        _examine_confined_host(),
        examine_cluster(SANDBOXES, cluster_env, limit_s=_SANDBOX_LIMIT_S),
    )
    host = good(SANDBOXES, "host", "always there, and confines nothing; never taken unasked")
    checks = [*(each[0] for each in found), host]
    checks += [check for each in found for check in each[1:]]
    checks += await examine_machine(state_folder)
    checks = with_ways_out(checks)
    return Examination(tuple(checks), *choice_of_auto(checks))


# --- One sandbox -----------------------------------------------------------------------------


async def _examine(
    name: str,
    problem: Callable[[str], Awaitable[Check | None]],
    make: Callable[[str, Programs], SandboxAdapter],
) -> list[Check]:
    """First whether it works at all; only then what it keeps."""
    limits: list[Check] = []
    area = limits_area(name)

    async def work(folder: str) -> Check:
        if found := await problem(folder):
            return found
        sandbox = make(folder, None)
        try:
            result = await sandbox.run(Command(command="exit 0", timeout_s=_COMMAND_S))
            if not result.ok:
                return bad(SANDBOXES, name, f"it cannot run a command: {_why(result)}")
            limits.extend(await _examine_limits(area, sandbox))
        finally:
            await sandbox.cleanup()
        trial = programs_check(area, make(folder, FEW_PROGRAMS))
        limits.append(await tried(area, PROGRAMS, trial, limit_s=_TRIAL_LIMIT_S))
        open_ = [each.name for each in limits if each.name in _WALLS and not each.ok]
        if open_:
            return bad(SANDBOXES, name, f"it runs commands, but does not hold: {', '.join(open_)}")
        return good(SANDBOXES, name, "has run commands, and held them")

    with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
        first = await tried(SANDBOXES, name, work(folder), limit_s=_SANDBOX_LIMIT_S)
    return [first, *limits]


async def _examine_bubblewrap(overlays: Path) -> list[Check]:
    lending: list[Check] = []

    async def problem(folder: str) -> Check | None:
        found = await BubblewrapAdapter(folder).availability()
        if found:
            return None
        others = await _availability_to_others(folder) if os.geteuid() == 0 else None
        if others:
            why, fix = found.reason, "give it to a normal user: chown -R USER WORKSPACE"
            lending.append(bad(limits_area("bubblewrap"), "root's workspace", why, fix))
            return None
        deeper = found if others is None else others
        fix = deeper.fix.replace(folder, "WORKSPACE")
        return bad(SANDBOXES, "bubblewrap", deeper.reason, fix)

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        return BubblewrapAdapter(folder, limits=_LIMITS, programs=programs)

    found = [*await _examine("bubblewrap", problem, make), *lending]
    if found[0].ok:
        area = limits_area("bubblewrap")
        work = copy_on_write_check(area, overlays)
        found.append(await tried(area, COPY_ON_WRITE, work, limit_s=_TRIAL_LIMIT_S))
    return found


async def _examine_confined_host() -> list[Check]:
    async def problem(_folder: str) -> Check | None:
        return None

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        return HostAdapter(folder, confine=True, limits=_LIMITS, programs=programs)

    return await _examine(CONFINED_HOST, problem, make)


async def _availability_to_others(folder: str) -> Availability | None:
    """Root has to lend its workspace, and not every kernel can. Is it only that?"""
    with contextlib.suppress(OSError):
        os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        return await BubblewrapAdapter(folder).availability()
    return None


async def _examine_containers(
    program: Program, image: str, engine_env: Mapping[str, str]
) -> list[Check]:
    async def problem(_folder: str) -> Check | None:
        engine = Engine(ProcessExecutor(), program=program, env=engine_env)
        version = await engine.version()
        if await engine.find_image(image) is not None:
            return None
        why = f"{program} {version} answers, but the image `{image}` is not here: nothing was tried"
        return bad(SANDBOXES, program, why, f"{program} pull {image}")

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        settings = DockerSettings(
            image=image, workspace=folder, inside=folder, limits=_LIMITS, programs=programs
        )
        return DockerAdapter(settings, program=program, lifetime="sandbox", engine_env=engine_env)

    return await _examine(program, problem, make)


def _why(result: ExecutionResult) -> str:
    return result.error or f"{result.reason}, status {result.exit_code}"


def limits_area(sandbox: str) -> str:
    """The area of the checks on what holds in a sandbox."""
    return f"inside {sandbox}"


# --- Its limits ------------------------------------------------------------------------------


async def _examine_limits(area: str, sandbox: SandboxAdapter) -> list[Check]:
    channel = await sandbox.channel()
    try_network = try_sockets if sandbox.name == CONFINED_HOST else _try_network
    holding = sandbox.holding
    trials: dict[str, Callable[[], Awaitable[tuple[bool, str]]]] = {
        "files": lambda: _try_files(channel),
        "network": lambda: try_network(channel),
        "time": lambda: _try_time(channel),
        "terminal": lambda: _try_terminal(channel),
        "processes": lambda: _try_processes(channel),
        "open files": lambda: _try_open_files(channel),
        "file size": lambda: _try_file_size(channel),
        "disk": lambda: _try_disk(channel),
        "memory": lambda: _try_memory(channel),  # Last: it may take the runner with it.
    }

    async def check(name: str, trial: Callable[[], Awaitable[tuple[bool, str]]]) -> Check:
        holds, detail = await trial()
        broken = Status.NOT_OK if name == "terminal" else Status.NOT_ENFORCED
        by = holding.kept.get(_FIELDS.get(name, ""), "")
        told = f"{detail}; {by}" if holds and by else detail
        return Check(area, name, Status.OK if holds else broken, told)

    found = [
        await tried(area, name, check(name, trial), limit_s=_TRIAL_LIMIT_S)
        for name, trial in trials.items()
    ]
    cpu = holding.kept.get("cpus")
    why = holding.not_kept.get("cpus", "")
    found = [signals_check(area, channel), *found]
    return [*found, Check(area, "cpu", Status.OK if cpu else Status.NOT_ENFORCED, cpu or why)]


async def _run(channel: Channel, command: str, **options: object) -> ExecutionResult:
    return await channel.run(Command(command=command, **{"timeout_s": _COMMAND_S, **options}))  # type: ignore[arg-type]


async def _try_files(channel: Channel) -> tuple[bool, str]:
    outside = "touch /usr/kakoi-was-here /etc/kakoi-was-here 2>/dev/null"
    result = await _run(channel, f"touch inside && ! {{ {outside}; }}")
    return result.ok, "only the workspace can be written" if result.ok else _why(result)


async def _try_network(channel: Channel) -> tuple[bool, str]:
    result = await _run(channel, "cat /proc/net/dev")
    devices = {line.split(":")[0].strip() for line in result.stdout.splitlines() if ":" in line}
    others = sorted(devices - {"lo"})
    if result.ok and not others:
        return True, "nothing can be reached"
    return False, f"it has {', '.join(others)}" if others else _why(result)


async def _try_time(channel: Channel) -> tuple[bool, str]:
    result = await _run(channel, "sleep 60 & sleep 60", timeout_s=0.2)
    held = result.reason is Reason.TIMED_OUT
    return held, "a command and all that it started was ended" if held else _why(result)


async def _try_terminal(channel: Channel) -> tuple[bool, str]:
    result = await _run(channel, "test -t 0 && test -t 1", terminal=TerminalSize())
    return result.ok, "a command can have one" if result.ok else _why(result)


async def _try_processes(channel: Channel) -> tuple[bool, str]:
    """Start more than may be: the shell counts what it got, and complains of what it did not."""
    crowd = f"i=0; while [ $i -lt {_CROWD} ]; do sleep 60 & i=$((i+1)); echo $i; done"
    result = await _run(channel, crowd, timeout_s=_CROWD_S)
    started = len(result.stdout.split())
    if started < _CROWD and "fork" in result.stderr:
        return True, f"stopped at {_LIMITS.processes}"
    return False, f"{started} were started" if started else _why(result)


async def _try_open_files(channel: Channel) -> tuple[bool, str]:
    result = await _run(channel, f"exec {_LIMITS.open_files}</dev/null")
    limit = (await _run(channel, "ulimit -n")).stdout.strip()
    held = not result.ok and limit == str(_LIMITS.open_files)
    return held, f"a process can have {limit}"


async def _try_file_size(channel: Channel) -> tuple[bool, str]:
    """In the workspace: a limit of the disk must not be what stops it."""
    twice = 2 * (_LIMITS.file_bytes or 0)
    result = await _run(channel, f"head -c {twice} /dev/zero > large; wc -c < large; rm large")
    size = result.stdout.strip()
    return size == str(_LIMITS.file_bytes), f"a file was cut at {size} bytes"


async def _try_disk(channel: Channel) -> tuple[bool, str]:
    """In pieces, so that the limit of one file is not what stops it."""
    count, size = 8, _LIMITS.file_bytes or 0
    fill = f"for i in $(seq {count}); do head -c {size} /dev/zero > /tmp/fill$i || exit 3; done"
    result = await _run(channel, fill)
    await _run(channel, "rm -f /tmp/fill*")
    held = result.exit_code == 3
    return held, "what was too much was refused" if held else "there is no limit"


async def _try_memory(channel: Channel) -> tuple[bool, str]:
    """One line without an end has to be held in memory: a short one can be, a long one can't."""
    line = "head -c {0} /dev/zero | tail -n 1 | wc -c"
    short = await _run(channel, line.format(MIB))
    if short.stdout.strip() != str(MIB):
        return False, f"it could not be tried: {_why(short)}"
    result = await _run(channel, line.format(_HEAP_BYTES))
    if result.stdout.strip() == str(_HEAP_BYTES):
        return False, "nothing limits it here"
    held = result.reason is not Reason.TIMED_OUT
    return held, "what took too much was ended" if held else "it took too long to try"


# --- What `auto` would do --------------------------------------------------------------------


def with_ways_out(checks: Sequence[Check]) -> list[Check]:
    """Where a limit does not hold in one sandbox, name another one that keeps it."""
    return [
        replace(check, fix=f"kakoi run --sandbox {_option(keepers[0])}")
        if check.status is Status.NOT_ENFORCED and (keepers := _keepers(check.name, checks))
        else check
        for check in checks
    ]


def _keepers(limit: str, checks: Sequence[Check]) -> list[str]:
    working = [each.name for each in checks if each.area == SANDBOXES and each.ok]
    kept = {each.area for each in checks if each.name == limit and each.ok}
    return [name for name in working if limits_area(name) in kept]


def _option(sandbox: str) -> str:
    """How one asks for it."""
    return "host --confine" if sandbox == CONFINED_HOST else sandbox


def choice_of_auto(checks: Sequence[Check]) -> tuple[str | None, tuple[str, ...]]:
    """What `auto` takes, and why not another."""
    sandboxes = {each.name: each for each in checks if each.area == SANDBOXES}
    choice = next((name for name in AUTO_ORDER if sandboxes[name].ok), None)
    because = [
        _why_not(sandboxes[name], choice, checks)
        for name in (*AUTO_ORDER, "podman")
        if name != choice
    ]
    stronger = "stronger than these would be a kernel of its own: kakoi has no such sandbox yet"
    return choice, (*because, stronger)


def _why_not(sandbox: Check, choice: str | None, checks: Sequence[Check]) -> str:
    name = sandbox.name
    if not sandbox.ok:
        return f"not {name}: {sandbox.detail}"
    if choice is None:
        return f"not {name}: `auto` does not know it, --sandbox {_option(name)} does"
    if name == CONFINED_HOST:
        return f"not {name}: it keeps less; --sandbox {_option(name)} takes it"
    kept, ours = (
        {each.name for each in checks if each.area == limits_area(place) and each.ok}
        for place in (name, choice)
    )
    more = f"keeps {', '.join(sorted(kept - ours))} besides, but " if kept - ours else ""
    return f"not {name}: it {more}starts slower and needs an engine; --sandbox {name} takes it"
