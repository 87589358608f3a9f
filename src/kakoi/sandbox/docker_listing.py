"""Which containers of ours there are, what they use, and which are old."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kakoi.errors import SandboxError
from kakoi.sandbox.docker_engine import Engine


@dataclass(frozen=True, slots=True)
class Listed:
    """A container that somebody's kakoi has made."""

    name: str
    status: str
    owner: str
    task: str
    image: str
    created: datetime


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container uses at this moment."""

    cpu_percent: float
    memory_bytes: int
    processes: int


async def list_containers(engine: Engine, *, owner: str) -> list[Listed]:
    """Every container of `owner`, running or not."""
    args = ["ps", "-a", "-q", "--no-trunc", "--filter", f"label=kakoi.owner={owner}"]
    names = (await engine.must(args, doing="listing containers")).split()
    if not names:
        return []
    form = '{"name":{{json .Name}},"status":{{json .State.Status}},"image":{{json .Config.Image}},'
    form += '"labels":{{json .Config.Labels}},"created":{{json .Created}}}'
    result = await engine.call(
        ["container", "inspect", "--format", form, *names], doing="looking at containers"
    )
    # One that went meanwhile is told on stderr; the others are there.
    return list(_parse(result.stdout))


def _parse(text: str) -> Iterator[Listed]:
    for line in text.splitlines():
        try:
            found: dict[str, Any] = json.loads(line)
            labels = found["labels"] or {}
            yield Listed(
                name=str(found["name"]).removeprefix("/"),
                status=str(found["status"]),
                owner=str(labels.get("kakoi.owner", "")),
                task=str(labels.get("kakoi.task", "")),
                image=str(found["image"]),
                created=_moment(str(found["created"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                "the engine's list of containers can't be read", details={"line": line[:500]}
            ) from error


def _moment(text: str) -> datetime:
    """`2026-11-16T05:24:27.123456789Z`: with more digits than Python reads."""
    day, _, rest = text.partition("T")
    moment = datetime.fromisoformat(f"{day}T{rest[:8]}").replace(tzinfo=UTC)
    zone = rest[-6:]
    if zone[:1] in "+-" and zone[3:4] == ":":
        away = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
        moment -= away if zone[0] == "+" else -away
    return moment


async def usage_of(engine: Engine, names: Iterable[str]) -> dict[str, Usage]:
    """What running containers use, by name; those that do not run are not in the answer."""
    given = list(names)
    if not given:
        return {}
    args = ["stats", "--no-stream", "--format", "{{json .}}", *given]
    result = await engine.call(args, doing="measuring containers")
    found = {}
    for line in result.stdout.splitlines():
        try:
            each = json.loads(line)
            found[str(each["Name"])] = Usage(
                cpu_percent=float(str(each["CPUPerc"]).rstrip("%") or 0),
                memory_bytes=_bytes(str(each["MemUsage"]).partition("/")[0].strip()),
                processes=int(each["PIDs"]),
            )
        except (ValueError, KeyError, TypeError):
            continue  # `--` of one that has just ended.
    return found


_UNITS = {"B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def _bytes(text: str) -> int:
    number = text.rstrip("BKMGTkib")
    return int(float(number) * _UNITS[text[len(number) :].strip()])


async def disk_of(engine: Engine, names: Iterable[str]) -> dict[str, int]:
    """How many bytes containers have written to their own layers and disks, by name.

    Only root of the engine's machine sees their disks.
    """
    given = list(names)
    if not given:
        return {}
    disk = '{{index .Config.Labels "kakoi.disk"}}'
    form = f"{{{{json .Name}}}} {{{{json .SizeRw}}}} {{{{.State.Pid}}}} {disk}"
    args = ["container", "inspect", "--size", "--format", form, *given]
    result = await engine.call(args, doing="measuring containers")
    found = {}
    for line in result.stdout.splitlines():
        name, size, pid, *rest = line.split(" ", 3)
        if size.isdigit():
            _, _, places = (rest or [""])[0].partition(":")
            place = f"/proc/{pid}/root{places.partition(':')[0]}" if places else ""
            found[name.strip('"').removeprefix("/")] = int(size) + _used_on(place)
    return found


def _used_on(place: str) -> int:
    """How much of the disk at a place is in use; 0 where that is not to be seen."""
    if not place:
        return 0
    try:
        disk = os.statvfs(place)
    except OSError:
        return 0
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize
