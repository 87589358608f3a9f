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
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import Availability, SandboxAdapter
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.bubblewrap_launch import UNPRIVILEGED
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import DockerSettings, Program
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.examine_cluster import examine_cluster
from kakoi.sandbox.examine_host import HELD, held_check
from kakoi.sandbox.examine_limits import COMMAND_S, LIMITS, TRIAL_LIMIT_S, examine_limits, failure
from kakoi.sandbox.examine_walls import (
    COPY_ON_WRITE,
    FEW_PROGRAMS,
    PROGRAMS,
    copy_on_write_check,
    programs_check,
)
from kakoi.sandbox.host import HostAdapter
from kakoi.sandbox.machine import Check, Status, bad, examine_machine, good, tried
from kakoi.sandbox.select import AUTO_ORDER
from kakoi.sandbox.settings import CONFINED_HOST

# The only programs that a sandbox is to execute; None: any.
Programs = tuple[str, ...] | None
SANDBOXES: Final = "sandboxes"
_SANDBOX_LIMIT_S: Final = 90.0
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
    area = limits_area("host")
    checks.append(await tried(area, HELD, held_check(area), limit_s=TRIAL_LIMIT_S))
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
            result = await sandbox.run(Command(command="exit 0", timeout_s=COMMAND_S))
            if not result.ok:
                return bad(SANDBOXES, name, f"it cannot run a command: {failure(result)}")
            limits.extend(await examine_limits(area, sandbox))
        finally:
            await sandbox.cleanup()
        trial = programs_check(area, make(folder, FEW_PROGRAMS))
        limits.append(await tried(area, PROGRAMS, trial, limit_s=TRIAL_LIMIT_S))
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
        return BubblewrapAdapter(folder, limits=LIMITS, programs=programs)

    found = [*await _examine("bubblewrap", problem, make), *lending]
    if found[0].ok:
        area = limits_area("bubblewrap")
        work = copy_on_write_check(area, overlays)
        found.append(await tried(area, COPY_ON_WRITE, work, limit_s=TRIAL_LIMIT_S))
    return found


async def _examine_confined_host() -> list[Check]:
    async def problem(_folder: str) -> Check | None:
        return None

    def make(folder: str, programs: Programs) -> SandboxAdapter:
        return HostAdapter(folder, confine=True, limits=LIMITS, programs=programs)

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
            image=image, workspace=folder, inside=folder, limits=LIMITS, programs=programs
        )
        return DockerAdapter(settings, program=program, lifetime="sandbox", engine_env=engine_env)

    return await _examine(program, problem, make)


def limits_area(sandbox: str) -> str:
    """The area of the checks on what holds in a sandbox."""
    return f"inside {sandbox}"


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
