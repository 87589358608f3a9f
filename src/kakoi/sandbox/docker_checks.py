"""Is a container what was asked for? The kernel is asked from inside, before any command runs.

An engine may ignore a limit without a word (rootless podman on cgroup v1 does). What the kernel
says counts; what the engine says, only where the kernel is silent.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kakoi.errors import SandboxError
from kakoi.sandbox.adapter import Limits

if TYPE_CHECKING:
    from kakoi.runner.commands import Channel

_STATUS = "/proc/self/status"
_MOUNTS = "/proc/self/mountinfo"
# Version 2 first: its file is missing on version 1, and the other way round.
_FILES = {
    "memory_bytes": (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ),
    "processes": ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
    "cpus": ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
}
_PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"
_SLACK = 1.01
_MAX_BYTES = 256 * 1024


async def check_confinement(channel: "Channel") -> None:
    """Not root, without capabilities, without a way to get any; otherwise SandboxError."""
    status = await _read(channel, _STATUS)
    if status is None:
        raise SandboxError("the container does not show its own state in /proc")
    faults = confinement_faults(status)
    if faults:
        raise SandboxError(
            f"the container is not confined: {', '.join(faults)}",
            hint="set `user` to a number that is not 0, and use the engine's default runtime",
        )


async def kernel_limits(channel: "Channel") -> dict[str, float | None]:
    """The limits that the kernel keeps in this container; None: it does not say."""
    period = await _read(channel, _PERIOD)
    found: dict[str, float | None] = {}
    for name, paths in _FILES.items():
        texts = [text for path in paths if (text := await _read(channel, path)) is not None]
        found[name] = parse_limit(name, texts[0], period) if texts else None
    return found


async def sees_view(channel: "Channel", inside: str) -> bool:
    """Is the mount at `inside` one that shows other owners?"""
    return any(
        fields[4] == inside and "idmapped" in fields[5].split(",")
        for line in (await _read(channel, _MOUNTS) or "").splitlines()
        if len(fields := line.split()) > 5
    )


def confinement_faults(status: str) -> list[str]:
    """What is wrong with a process, from its /proc/…/status."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    faults = []
    if any(uid == "0" for uid in fields.get("Uid", "0").split()):
        faults.append("commands would run as root")
    if any(int(fields.get(name, "1"), 16) for name in ("CapEff", "CapPrm", "CapBnd")):
        faults.append("they would have capabilities")
    if fields.get("NoNewPrivs", "0").strip() != "1":
        faults.append("they could gain privileges")
    return faults


def parse_limit(name: str, text: str, period: str | None) -> float | None:
    """A limit in our units, from the kernel's file; infinite if there is none."""
    words = text.split()
    try:
        if not words or words[0] == "max" or float(words[0]) < 0:
            return float("inf") if words else None
        if name != "cpus":
            return float(words[0])
        return float(words[0]) / float(words[1] if len(words) > 1 else period or "")
    except (ValueError, ZeroDivisionError):
        return None


def engine_limits(inspected: str) -> dict[str, float | None]:
    """The limits that the engine says it has set, from `inspect --format {{json .HostConfig}}`."""
    try:
        host = json.loads(inspected)
        numbers = {
            "memory_bytes": float(host.get("Memory") or 0),
            "processes": float(host.get("PidsLimit") or 0),
            "cpus": float(host.get("NanoCpus") or 0) / 1e9,
        }
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: number if number > 0 else float("inf") for name, number in numbers.items()}


def ignored_limits(
    limits: Limits, kernel: Mapping[str, float | None], engine: Mapping[str, float | None]
) -> list[str]:
    """The limits that were asked for and do not hold, each in words."""
    faults = []
    for name in _FILES:
        wanted: float | None = getattr(limits, name)
        found = kernel.get(name)
        held = engine.get(name) if found is None else found
        if wanted is not None and (held is None or held > wanted * _SLACK):
            shown = "nothing" if held is None or held == float("inf") else f"{held:.12g}"
            faults.append(f"{name} {wanted:.12g} (in force: {shown})")
    return faults


def limits_error(faults: list[str], *, program: str) -> SandboxError:
    """The error for limits that an engine has ignored."""
    return SandboxError(
        f"{program} did not set these limits: {', '.join(faults)}",
        details={"ignored": faults},
        hint=f"`{program} info` warns about missing controllers; rootless engines need cgroup v2 "
        "with delegation; a limit of None asks for none",
    )


async def _read(channel: "Channel", path: str) -> str | None:
    try:
        return (await channel.read_file(path, limit=_MAX_BYTES)).decode("utf-8", "replace")
    except OSError:
        return None
