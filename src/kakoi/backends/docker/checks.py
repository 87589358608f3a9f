"""Checks that a container is confined and limited as requested, before any command runs.

An engine can silently ignore a limit (rootless podman on cgroup v1 does). So we read the limits
from the kernel, inside the container, and trust the engine only where the kernel does not say.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kakoi._support.late import dataclass, pattern
from kakoi.backends.adapter import LimitReport, Limits
from kakoi.backends.docker.arguments import ContainerPlan
from kakoi.backends.docker.disk import DiskPlan
from kakoi.errors import SandboxError

if TYPE_CHECKING:
    from kakoi.channel.api import Channel

_STATUS = "/proc/self/status"
_MOUNTS = "/proc/self/mountinfo"
# Version 2 first: its file is missing on version 1, and vice versa.
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
_PAGE = 64 * 1024
_SECTOR = 512
_UNESCAPED = pattern(r"\\([0-7]{3})")
_MAX_BYTES = 256 * 1024


async def check_confinement(channel: "Channel") -> None:
    """Raise SandboxError if commands run as root, have capabilities, or could gain any."""
    status = await read_text(channel, _STATUS)
    if status is None:
        raise SandboxError("the container does not show its own state in /proc")
    faults = confinement_faults(status)
    if faults:
        raise SandboxError(
            f"the container is not confined: {', '.join(faults)}",
            hint="set `user` to a number that is not 0, and use the engine's default runtime",
        )


async def kernel_limits(channel: "Channel") -> dict[str, float | None]:
    """Return the limits that the kernel enforces in this container; None: it does not say."""
    period = await read_text(channel, _PERIOD)
    found: dict[str, float | None] = {}
    for name, paths in _FILES.items():
        texts = [text for path in paths if (text := await read_text(channel, path)) is not None]
        found[name] = parse_limit(name, texts[0], period) if texts else None
    return found


async def sees_view(channel: "Channel", inside: str) -> bool:
    """Return whether the mount at `inside` maps owners (is idmapped)."""
    return any(
        fields[4] == inside and "idmapped" in fields[5].split(",")
        for line in (await read_text(channel, _MOUNTS) or "").splitlines()
        if len(fields := line.split()) > 5
    )


async def disk_faults(channel: "Channel", disk: DiskPlan) -> list[str]:
    """Describe each directory that should have a limited size and does not."""
    if not disk.is_kept:
        return []
    mounts = parse_mounts(await read_text(channel, _MOUNTS) or "")
    faults = [
        f"disk: {path} (in force: {found or 'nothing'})"
        for path, size in disk.sizes.items()
        if not 0 < (found := mounts.get(path, MountInfo()).tmpfs_bytes) <= size + _PAGE
    ]
    for path in disk.tops:
        device = mounts.get(path, MountInfo()).loop
        sectors = await read_text(channel, f"/sys/block/{device}/size") if device else None
        if not sectors or int(sectors) * _SECTOR > disk.volume_bytes:
            faults.append(f"disk: {path} is not on the disk that was made for it")
    if not mounts.get("/", MountInfo()).read_only:
        faults.append("disk: / can be written")
    return faults


@dataclass(frozen=True, slots=True)
class MountInfo:
    """One mount: the size of a tmpfs, or the name of a loop device."""

    tmpfs_bytes: int = 0
    loop: str = ""
    read_only: bool = False


def parse_mounts(text: str) -> dict[str, MountInfo]:
    """Parse a mountinfo into mounts by path; if two are at one path, the upper one."""
    found = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        target, options = before.split(" ")[4:6]
        kind, source, more = after.split(" ")[:3]
        size = re.search(r"(?:^|,)size=(\d+)k(?:,|$)", more) if kind == "tmpfs" else None
        loop = re.fullmatch(r"/dev/(loop\d+)", source) if kind == "ext4" else None
        found[_UNESCAPED.sub(lambda match: chr(int(match[1], 8)), target)] = MountInfo(
            tmpfs_bytes=int(size[1]) * 1024 if size else 0,
            loop=loop[1] if loop else "",
            read_only="ro" in options.split(","),
        )
    return found


def planned_limit_report(plan: ContainerPlan) -> LimitReport:
    """Which limits a container of the plan enforces; the engine's are read back later."""
    limits, disk = plan.settings.limits, plan.disk
    by = dict.fromkeys(_FILES, f"{plan.program}: a control group")
    by |= {"open_files": "rlimit: of each process", "file_bytes": "rlimit: of each file"}
    why = {}
    if disk is not None and disk.is_kept:
        rest = "; not the workspace, which is a directory of this machine" if plan.source else ""
        by["disk_bytes"] = f"{disk.by}{rest}"
    elif disk is not None:
        why["disk_bytes"] = disk.why
    kept = {name: words for name, words in by.items() if getattr(limits, name) is not None}
    return LimitReport(kept, why)


async def read_limit_report(channel: "Channel", limits: Limits) -> LimitReport:
    """Which control group limits an existing container enforces; other limits are left out."""
    kernel = await kernel_limits(channel)
    asked = {name: getattr(limits, name) for name in _FILES}
    faults = {
        name: f"in force: {_number(kernel[name])}"
        for name, wanted in asked.items()
        if wanted is not None and not _is_held(wanted, kernel[name])
    }
    kept = [name for name, wanted in asked.items() if wanted is not None and name not in faults]
    return LimitReport(dict.fromkeys(kept, "a control group"), faults)


def confinement_faults(status: str) -> list[str]:
    """Describe how a process is not confined, from its /proc/…/status."""
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
    """Parse a limit from a kernel file, in our units; infinite if unlimited, None if unknown."""
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
    """Return the limits that the engine reports, from `inspect --format {{json .HostConfig}}`."""
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
    """Describe each limit that was requested and is not enforced."""
    faults = []
    for name in _FILES:
        wanted: float | None = getattr(limits, name)
        found = kernel.get(name)
        held = engine.get(name) if found is None else found
        if wanted is not None and not _is_held(wanted, held):
            faults.append(f"{name} {wanted:.12g} (in force: {_number(held)})")
    return faults


def _is_held(wanted: float, found: float | None) -> bool:
    return found is not None and found <= wanted * _SLACK


def _number(found: float | None) -> str:
    return "nothing" if found is None or found == float("inf") else f"{found:.12g}"


def limits_error(faults: list[str], *, program: str) -> SandboxError:
    """The error for limits that an engine ignored."""
    return SandboxError(
        f"{program} did not set these limits: {', '.join(faults)}",
        details={"ignored": faults},
        hint=f"`{program} info` warns about missing controllers; rootless engines need cgroup v2 "
        "with delegation; a limit of None asks for none",
    )


async def read_text(channel: "Channel", path: str) -> str | None:
    """Return the text of a file in a container; None if it cannot be read."""
    try:
        return (await channel.read_file(path, limit=_MAX_BYTES)).decode("utf-8", "replace")
    except OSError:
        return None
