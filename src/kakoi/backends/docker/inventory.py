"""Lists kakoi's containers and the resources they use."""

import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi.backends.docker.engine import Engine
from kakoi.backends.docker.fork import FORK_LABEL
from kakoi.errors import SandboxError

# The length of the ids that container engines show.
_SHORT_ID: Final = 12


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container that kakoi created, for any user."""

    name: str
    status: str
    owner: str
    task: str
    image: str
    created: datetime
    id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """The current resource usage of a container."""

    cpu_percent: float
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image that was made for forks, for any user."""

    id: str
    created: datetime


def is_container(text: str, *, name: str | None, id: str) -> bool:
    """Does `text` name this container: by its name, or by its id, which may be cut as shown?"""
    return bool(text) and (text == name or (len(text) >= _SHORT_ID and id.startswith(text)))


async def list_fork_images(engine: Engine, *, owner: str) -> list[ListedImage]:
    """List the images that `owner` made for forks and that no container uses."""
    labels = ["--filter", f"label=kakoi.owner={owner}", "--filter", f"label={FORK_LABEL}"]
    doing = "listing images"
    args = ["image", "ls", "-a", "-q", "--no-trunc", *labels]
    found = []
    for id in sorted(set((await engine.must(args, doing=doing)).split())):
        users = ["ps", "-a", "-q", "--filter", f"ancestor={id}"]
        if (await engine.must(users, doing=doing)).strip():
            continue
        inspect = ["image", "inspect", "--format", "{{.Created}}", id]
        result = await engine.call(inspect, doing=doing)
        if result.exit_code == 0:  # Otherwise it was removed meanwhile.
            found.append(ListedImage(id, _moment(result.stdout.strip())))
    return found


async def list_containers(engine: Engine, *, owner: str) -> list[ListedContainer]:
    """List all containers of `owner`, running or not."""
    args = ["ps", "-a", "-q", "--no-trunc", "--filter", f"label=kakoi.owner={owner}"]
    names = (await engine.must(args, doing="listing containers")).split()
    if not names:
        return []
    form = '{"id":{{json .Id}},"name":{{json .Name}},'
    form += '"status":{{json .State.Status}},"image":{{json .Config.Image}},'
    form += '"labels":{{json .Config.Labels}},"created":{{json .Created}}}'
    result = await engine.call(
        ["container", "inspect", "--format", form, *names], doing="looking at containers"
    )
    # A container that was removed meanwhile causes an error on stderr; the others are listed.
    return list(_parse(result.stdout))


def _parse(text: str) -> Iterator[ListedContainer]:
    for line in text.splitlines():
        try:
            found: dict[str, Any] = json.loads(line)
            labels = found["labels"] or {}
            yield ListedContainer(
                name=str(found["name"]).removeprefix("/"),
                status=str(found["status"]),
                owner=str(labels.get("kakoi.owner", "")),
                task=str(labels.get("kakoi.task", "")),
                image=str(found["image"]),
                created=_moment(str(found["created"])),
                id=str(found["id"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                "the engine's list of containers cannot be read", details={"line": line[:500]}
            ) from error


def _moment(text: str) -> datetime:
    """Parse `2026-11-16T05:24:27.123456789Z`, which has more digits than Python accepts."""
    day, _, rest = text.partition("T")
    moment = datetime.fromisoformat(f"{day}T{rest[:8]}").replace(tzinfo=UTC)
    zone = rest[-6:]
    if zone[:1] in "+-" and zone[3:4] == ":":
        away = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
        moment -= away if zone[0] == "+" else -away
    return moment


async def read_usage(engine: Engine, names: Iterable[str]) -> dict[str, ContainerUsage]:
    """Return the usage of running containers by name; others are left out."""
    given = list(names)
    if not given:
        return {}
    args = ["stats", "--no-stream", "--format", "{{json .}}", *given]
    result = await engine.call(args, doing="measuring containers")
    found = {}
    for line in result.stdout.splitlines():
        try:
            each = json.loads(line)
            found[str(each["Name"])] = ContainerUsage(
                cpu_percent=float(str(each["CPUPerc"]).rstrip("%") or 0),
                memory_bytes=_bytes(str(each["MemUsage"]).partition("/")[0].strip()),
                processes=int(each["PIDs"]),
            )
        except (ValueError, KeyError, TypeError):
            continue  # `--`: the container has just ended.
    return found


_UNITS = {"B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def _bytes(text: str) -> int:
    number = text.rstrip("BKMGTkib")
    return int(float(number) * _UNITS[text[len(number) :].strip()])


async def read_disk_usage(engine: Engine, names: Iterable[str]) -> dict[str, int]:
    """Return how many bytes containers wrote to their own layers and disks, by name.

    Only root on the engine's machine can see their disks.
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
            _, _, mounts = (rest or [""])[0].partition(":")
            path = f"/proc/{pid}/root{mounts.partition(':')[0]}" if mounts else ""
            found[name.strip('"').removeprefix("/")] = int(size) + _used_on(path)
    return found


def _used_on(path: str) -> int:
    """Bytes in use on the disk at `path`; 0 if we cannot see it."""
    if not path:
        return 0
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize
