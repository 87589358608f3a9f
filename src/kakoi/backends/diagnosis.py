"""Which sandboxes and limits work on this machine. Each is created, used and removed.

`kakoi doctor` shows it as checks. What they try inside a sandbox is in probes.py.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.adapter import Availability, SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.bubblewrap.arguments import UNPRIVILEGED
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Program
from kakoi.backends.docker.engine import Engine
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.kubernetes.adapter import KubernetesAdapter
from kakoi.backends.landlock import SCOPES_ABI
from kakoi.backends.machine_checks import (
    Check,
    CheckStatus,
    check_machine,
    failed,
    passed,
    run_check,
)
from kakoi.backends.probes import (
    COMMAND_S,
    LIMITS,
    ProbeResult,
    Run,
    failure,
    files_written_outside,
    new_mark,
    probe_disk,
    probe_file,
    probe_file_size,
    probe_interfaces,
    probe_memory,
    probe_open_files,
    probe_process_limit,
    probe_services,
    probe_terminal,
    probe_timeout,
)
from kakoi.backends.select import AUTO_ORDER
from kakoi.backends.settings import CONFINED_HOST
from kakoi.channel.api import Channel, Command
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import KakoiError
from kakoi.overlay import Overlay
from kakoi.process import ProcessExecutor

COPY_ON_WRITE: Final = "copy-on-write"
PROGRAMS: Final = "programs"
HELD: Final = "held processes"
FEW_PROGRAMS: Final = ("cat",)
CHECK_LIMIT_S: Final = 30.0
# Check → the limit that it is about.
_LIMITS: Final = {
    "processes": "processes",
    "open files": "open_files",
    "file size": "file_bytes",
    "disk": "disk_bytes",
    "memory": "memory_bytes",
}


async def check_limits(area: str, sandbox: SandboxAdapter) -> list[Check]:
    """Checks on everything that the sandbox should enforce, in the order that people read them."""
    channel = await sandbox.channel()
    run = channel.run
    report = sandbox.limit_report
    probe_network = probe_services if sandbox.name == CONFINED_HOST else probe_interfaces
    probes: dict[str, Callable[[], Awaitable[ProbeResult]]] = {
        "files": lambda: _probe_files(run),
        "network": lambda: probe_network(run),
        "time": lambda: probe_timeout(run),
        "terminal": lambda: probe_terminal(run),
        "processes": lambda: probe_process_limit(channel),
        "open files": lambda: probe_open_files(run),
        "file size": lambda: probe_file_size(run),
        "disk": lambda: probe_disk(run),
        "memory": lambda: probe_memory(run),  # Last: it can take the runner with it.
    }

    async def check(name: str, probe: Callable[[], Awaitable[ProbeResult]]) -> Check:
        result = await probe()
        broken = CheckStatus.NOT_OK if name == "terminal" else CheckStatus.NOT_ENFORCED
        by = report.enforced.get(_LIMITS.get(name, ""), "")
        detail = f"{result.detail}; {by}" if result.holds and by else result.detail
        return Check(area, name, CheckStatus.OK if result.holds else broken, detail)

    checks = [
        await run_check(area, name, check(name, probe), limit_s=CHECK_LIMIT_S)
        for name, probe in probes.items()
    ]
    cpu = report.enforced.get("cpus")
    status = CheckStatus.OK if cpu else CheckStatus.NOT_ENFORCED
    cpus = Check(area, "cpu", status, cpu or report.unenforced.get("cpus", ""))
    return [_check_runner(area, channel), *checks, cpus]


async def _probe_files(run: Run) -> ProbeResult:
    """In a folder of this machine that is open to everyone: only the sandbox protects it."""
    with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as name:
        os.chmod(name, 0o777)  # noqa: S103 - root's commands run as another user
        if await files_written_outside(run, [name], new_mark()):
            return ProbeResult(False, "files outside the workspace can be written")
        if not (result := await probe_file(run, Path(name))).holds:
            return result
    text = "touch inside && ! touch /usr/kakoi-was-here && ! touch /etc/kakoi-was-here"
    written = await run(Command(command=text, timeout_s=COMMAND_S))
    if not written.ok:
        return ProbeResult(False, failure(written))
    return ProbeResult(True, "only the workspace can be written")


def _check_runner(area: str, channel: Channel) -> Check:
    """Can commands signal the runner?"""
    abi = channel.hello.landlock if isinstance(channel, RunnerChannel) else 0
    if abi >= SCOPES_ABI:
        return passed(area, "runner", "commands cannot signal it")
    return Check(area, "runner", CheckStatus.NOT_ENFORCED, "commands can signal it")


async def check_programs(area: str, sandbox: SandboxAdapter) -> Check:
    """Start a program that is on the sandbox's list (FEW_PROGRAMS), and one that is not."""
    try:
        listed = await sandbox.run(Command(command=["cat", "/dev/null"], timeout_s=COMMAND_S))
        other = await sandbox.run(Command(command=["wc", "/dev/null"], timeout_s=COMMAND_S))
    except KakoiError as error:
        return Check(area, PROGRAMS, CheckStatus.NOT_ENFORCED, error.message, error.hint)
    finally:
        await sandbox.cleanup()
    if not listed.ok:
        why = f"with a list of programs (kernel_allowlist) none runs: {failure(listed)}"
        return failed(area, PROGRAMS, why)
    if other.ok:
        why = "a program that is not on the list (kernel_allowlist) was executed"
        return Check(area, PROGRAMS, CheckStatus.NOT_ENFORCED, why)
    return passed(area, PROGRAMS, "a program that is not on the list (kernel_allowlist) is refused")


async def check_copy_on_write(area: str, overlays: Path) -> Check:
    """Write to a copy of a workspace, stored on the disk of `overlays`, and look at both."""
    there = next(each for each in (overlays, *overlays.parents) if each.is_dir())
    with (
        tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as workspace,
        tempfile.TemporaryDirectory(prefix="kakoi-doctor-", dir=there) as folder,
    ):
        overlay = Overlay(workspace, folder)
        sandbox = BubblewrapAdapter(workspace, overlay=overlay)
        try:
            result = await sandbox.run(Command(command="echo x > made", timeout_s=COMMAND_S))
        finally:
            await sandbox.cleanup()
        changed = [each.path for each in await asyncio.to_thread(overlay.discard)]
        holds = result.ok and changed == ["made"] and not os.listdir(workspace)
    user = "as root" if os.geteuid() == 0 else "as a normal user"
    if not holds:
        return failed(area, COPY_ON_WRITE, f"--cow does not work {user}: {failure(result)}")
    return passed(area, COPY_ON_WRITE, f"--cow works {user}: only a copy was written to")


# --- The unconfined host ---------------------------------------------------------------------

# Leaves a process in a session of its own, and kills every process between itself and us.
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
_HELD_FIX: Final = (
    "run kakoi as root, or give it a control group (systemd-run --user --scope -p Delegate=yes …); "
    "or confine commands: kakoi run --sandbox host --confine"
)


async def check_held(area: str) -> Check:
    """Have a command on the host kill its keepers, and look for the process that it started."""
    with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
        host = HostAdapter(folder, warn_on_start=False)
        argv = [sys.executable, "-I", "-c", _KILL_KEEPERS, str(os.getpid())]
        try:
            result = await host.run(Command(command=argv, timeout_s=COMMAND_S))
            is_left = _end_left_process(Path(folder))
        finally:
            await host.cleanup()
    if is_left is None:
        why = f"could not be tried: {result.error or result.reason}"
        return Check(area, HELD, CheckStatus.NOT_ENFORCED, why, _HELD_FIX)
    if not is_left:
        return passed(area, HELD, "a process was ended although its command killed the keepers")
    why = "a command that kills its keepers leaves processes behind: no control group can be made"
    return Check(area, HELD, CheckStatus.NOT_ENFORCED, why, _HELD_FIX)


def _end_left_process(folder: Path) -> bool | None:
    """Was the process still running? It is ended then. None: it was never started."""
    try:
        pid = int((folder / "left").read_text())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(FileNotFoundError):
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
            os.kill(pid, signal.SIGKILL)
            return True
    return False


_NAME: Final = "kubernetes"


async def examine_cluster(area: str, env: Mapping[str, str], *, limit_s: float) -> list[Check]:
    """Check the cluster that kubectl finds with `env`."""
    return [await run_check(area, _NAME, _check(area, env), limit_s=limit_s)]


async def _check(area: str, env: Mapping[str, str]) -> Check:
    found = await KubernetesAdapter(cluster_env=env).would_be_taken()
    if not found:
        return failed(area, _NAME, found.reason, found.fix)
    return passed(area, _NAME, f"{found.reason}; never chosen automatically")


# The only programs that a sandbox can execute; None: any.
Programs = tuple[str, ...] | None
SANDBOXES: Final = "sandboxes"
_SANDBOX_LIMIT_S: Final = 90.0
# A sandbox that does not enforce these is not usable.
_WALLS: Final = ("files", "network", "time")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found. `choice`: what `auto` would choose. `because`: why none of the others."""

    checks: tuple[Check, ...]
    choice: str | None
    because: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether any isolating sandbox works."""
        return any(self.works(name) for name in (*AUTO_ORDER, "podman"))

    def works(self, sandbox: str) -> bool:
        """Whether the sandbox ran a command."""
        return any(
            each.ok for each in self.checks if (each.area, each.name) == (SANDBOXES, sandbox)
        )


async def diagnose(
    *,
    image: str | None,
    engine_env: Mapping[str, str],
    cluster_env: Mapping[str, str],
    state_folder: Path,
    overlays: Path,
) -> Diagnosis:
    """Try everything, each with its own timeout; a failure does not hide the rest.

    `state_folder`: of the audit log; `overlays`: where copies of workspaces are stored.
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
    host = passed(
        SANDBOXES, "host", "always available, and confines nothing; never chosen automatically"
    )
    checks = [*(each[0] for each in found), host]
    checks += [check for each in found for check in each[1:]]
    area = area_inside("host")
    checks.append(await run_check(area, HELD, check_held(area), limit_s=CHECK_LIMIT_S))
    checks += await check_machine(state_folder)
    checks = with_alternatives(checks)
    return Diagnosis(tuple(checks), *auto_choice(checks))


# --- One sandbox -----------------------------------------------------------------------------


async def _examine(
    name: str,
    problem: Callable[[str], Awaitable[Check | None]],
    make: Callable[[str, Programs], SandboxAdapter],
) -> list[Check]:
    """Check whether it works at all; only then what it enforces."""
    limits: list[Check] = []
    area = area_inside(name)

    async def work(folder: str) -> Check:
        if found := await problem(folder):
            return found
        sandbox = make(folder, None)
        try:
            result = await sandbox.run(Command(command="exit 0", timeout_s=COMMAND_S))
            if not result.ok:
                return failed(SANDBOXES, name, f"cannot run a command: {failure(result)}")
            limits.extend(await check_limits(area, sandbox))
        finally:
            await sandbox.cleanup()
        trial = check_programs(area, make(folder, FEW_PROGRAMS))
        limits.append(await run_check(area, PROGRAMS, trial, limit_s=CHECK_LIMIT_S))
        open_ = [each.name for each in limits if each.name in _WALLS and not each.ok]
        if open_:
            return failed(
                SANDBOXES, name, f"runs commands, but does not enforce: {', '.join(open_)}"
            )
        return passed(SANDBOXES, name, "ran commands and confined them")

    with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
        first = await run_check(SANDBOXES, name, work(folder), limit_s=_SANDBOX_LIMIT_S)
    return [first, *limits]


async def _examine_bubblewrap(overlays: Path) -> list[Check]:
    lending: list[Check] = []

    async def problem(folder: str) -> Check | None:
        found = await BubblewrapAdapter(folder).availability()
        if found:
            return None
        others = await _availability_to_others(folder) if os.geteuid() == 0 else None
        if others:
            why, fix = found.reason, "give the workspace to a normal user: chown -R USER WORKSPACE"
            lending.append(failed(area_inside("bubblewrap"), "root's workspace", why, fix))
            return None
        deeper = found if others is None else others
        fix = deeper.fix.replace(folder, "WORKSPACE")
        return failed(SANDBOXES, "bubblewrap", deeper.reason, fix)

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        return BubblewrapAdapter(folder, limits=LIMITS, programs=programs)

    found = [*await _examine("bubblewrap", problem, make), *lending]
    if found[0].ok:
        area = area_inside("bubblewrap")
        work = check_copy_on_write(area, overlays)
        found.append(await run_check(area, COPY_ON_WRITE, work, limit_s=CHECK_LIMIT_S))
    return found


async def _examine_confined_host() -> list[Check]:
    async def problem(_folder: str) -> Check | None:
        return None

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        return HostAdapter(folder, confine=True, limits=LIMITS, programs=programs)

    return await _examine(CONFINED_HOST, problem, make)


async def _availability_to_others(folder: str) -> Availability | None:
    """Root has to lend its workspace, which not every kernel can. Is that the only problem?"""
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
        why = f"{program} {version} answers, but does not have the image `{image}`: not tried"
        return failed(SANDBOXES, program, why, f"{program} pull {image}")

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        settings = DockerSettings(
            image=image, workspace=folder, inside=folder, limits=LIMITS, programs=programs
        )
        return DockerAdapter(settings, program=program, lifetime="client", engine_env=engine_env)

    return await _examine(program, problem, make)


def area_inside(sandbox: str) -> str:
    """The area of the checks on what a sandbox enforces."""
    return f"inside {sandbox}"


# --- What `auto` would do --------------------------------------------------------------------


def with_alternatives(checks: Sequence[Check]) -> list[Check]:
    """Where a sandbox does not enforce a limit, name another one that does."""
    return [
        replace(check, fix=f"kakoi run --sandbox {_option(keepers[0])}")
        if check.status is CheckStatus.NOT_ENFORCED and (keepers := _keepers(check.name, checks))
        else check
        for check in checks
    ]


def _keepers(limit: str, checks: Sequence[Check]) -> list[str]:
    working = [each.name for each in checks if each.area == SANDBOXES and each.ok]
    kept = {each.area for each in checks if each.name == limit and each.ok}
    return [name for name in working if area_inside(name) in kept]


def _option(sandbox: str) -> str:
    """The option that selects it."""
    return "host --confine" if sandbox == CONFINED_HOST else sandbox


def auto_choice(checks: Sequence[Check]) -> tuple[str | None, tuple[str, ...]]:
    """What `auto` chooses, and why none of the others."""
    sandboxes = {each.name: each for each in checks if each.area == SANDBOXES}
    choice = next((name for name in AUTO_ORDER if sandboxes[name].ok), None)
    because = [
        _why_not(sandboxes[name], choice, checks)
        for name in (*AUTO_ORDER, "podman")
        if name != choice
    ]
    stronger = "a sandbox with its own kernel would be stronger: kakoi has none yet"
    return choice, (*because, stronger)


def _why_not(sandbox: Check, choice: str | None, checks: Sequence[Check]) -> str:
    name = sandbox.name
    if not sandbox.ok:
        return f"not {name}: {sandbox.detail}"
    if choice is None:
        return f"not {name}: `auto` does not try it; --sandbox {_option(name)} does"
    if name == CONFINED_HOST:
        return f"not {name}: it enforces less; --sandbox {_option(name)} selects it"
    kept, ours = (
        {each.name for each in checks if each.area == area_inside(place) and each.ok}
        for place in (name, choice)
    )
    more = f"also enforces {', '.join(sorted(kept - ours))}, but " if kept - ours else ""
    return f"not {name}: it {more}starts slower and needs an engine; --sandbox {name} selects it"
