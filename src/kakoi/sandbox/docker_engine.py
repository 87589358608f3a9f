"""The container engine, by its command line: one short call at a time, each with a time limit.

Commands of an agent never come this way; they go over a channel.
"""

import asyncio
import io
import json
import logging
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    ImagePullError,
    SandboxError,
)
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner.commands import new_id
from kakoi.sandbox.docker_advice import explain, not_pulled
from kakoi.sandbox.docker_cli import Program
from kakoi.sandbox.docker_users import find_home, find_user, mountable_path
from kakoi.waiting import finish

_CALL_S = 60.0
_PULL_S = 1800.0
_TRIES = 3
_PAUSE_S = 0.3
_SOCKET: Final = "/var/run/docker.sock"
_OLDEST = (20, 10)
_FACTS = {
    "docker": "{{.NCPU}} {{.ServerVersion}} {{json .SecurityOptions}}",
    "podman": "{{.Host.CPUs}} {{.Version.Version}} {{if .Host.Security.Rootless}}rootless{{end}}",
}
_IMAGE = "{{.Id}} {{.Config.User}}{{range $path, $_ := .Config.Volumes}}\n{{$path}}{{end}}"
_GONE = re.compile(r"no such container|no container with name|no such object", re.IGNORECASE)
# How the names of containers begin that are there for a moment, to look into an image.
HELPER: Final = "kakoi-look-"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says about itself. `remapped`: uids inside are others outside."""

    cpus: float | None = None
    rootless: bool = False
    remapped: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is here. `user` is the one it was made for; empty is root.

    `volumes`: the directories for which it wants volumes of their own.
    """

    id: str
    user: str
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What a container is doing, in the engine's words."""

    status: str
    exit_code: int = 0
    out_of_memory: bool = False
    labels: Mapping[str, str] | None = None

    @property
    def running(self) -> bool:
        """Can commands run in it?"""
        return self.status == "running"

    def __str__(self) -> str:
        if self.status != "exited":
            return self.status
        memory = ", out of memory" if self.out_of_memory else ""
        return f"exited with status {self.exit_code}{memory}"


class Engine:
    """`docker` or `podman`. Every failure is a SandboxError that says what to do.

    `owner`: whose the containers are that it makes itself.
    """

    def __init__(
        self,
        executor: ProcessExecutor,
        *,
        program: Program,
        env: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> None:
        self.program = program
        self._owner = owner
        self._executor = executor
        self._env = dict(env or {})
        self._facts: Facts | None = None
        self._users: dict[str, str] = {}

    async def call(
        self,
        args: Sequence[str],
        *,
        doing: str,
        stdin: bytes | None = None,
        timeout_s: float = _CALL_S,
    ) -> ProcessResult:
        """Run `docker args`; whatever its exit status is."""
        options = SpawnOptions(env=self._env, stdin=stdin, timeout=timeout_s * 1000)
        try:
            return await self._executor.spawn(self.program, args, options)
        except ExecutionTimeoutError as error:
            raise self._too_slow(doing, timeout_s) from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                f"{self.program} cannot be started: {error}",
                details={"environmentType": self.program},
                hint=f"install {self.program}: sudo apt-get install "
                + ("docker.io" if self.program == "docker" else self.program),
            ) from error

    def _too_slow(self, doing: str, timeout_s: float) -> SandboxError:
        return SandboxError(
            f"{self.program} was not done with {doing} after {timeout_s:g} s",
            details={"program": self.program, "doing": doing},
            hint=f"does `{self.program} info` answer? If not, restart the engine",
        )

    async def must(
        self, args: Sequence[str], *, doing: str, about: str = "", stdin: bytes | None = None
    ) -> str:
        """Run `docker args` and give its output; a failure is explained."""
        result = await self.call(args, doing=doing, stdin=stdin)
        if result.exit_code != 0:
            raise explain(result.stderr, program=self.program, doing=doing, about=about)
        return result.stdout

    @property
    def is_local(self) -> bool:
        """Does it run on this machine, as far as its address says?"""
        return self._env.get("DOCKER_HOST", "unix://").startswith("unix://")

    @property
    def socket(self) -> str:
        """Where an engine of this machine listens."""
        return self._env.get("DOCKER_HOST", "").removeprefix("unix://") or _SOCKET

    # --- The engine itself -------------------------------------------------------------------

    async def version(self) -> str:
        """The version of the engine that answers; one that is too old is an error."""
        format_ = "{{.Server.Version}}" if self.program == "docker" else "{{.Client.Version}}"
        text = (
            await self.must(["version", "--format", format_], doing="saying its version")
        ).strip()
        self._refuse_old(text)
        return text

    def _refuse_old(self, version: str) -> None:
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if self.program == "docker" and numbers and tuple(map(int, numbers.groups())) < _OLDEST:
            raise EnvironmentUnavailableError(
                f"the docker engine is version {version}; it must be 20.10 or newer",
                details={"environmentType": self.program},
                hint="install a newer engine: https://docs.docker.com/engine/install/",
            )

    async def facts(self) -> Facts:
        """What the engine can do; asked once. One that is too old is an error."""
        if self._facts is None:
            args = ["info", "--format", _FACTS[self.program]]
            said = (await self.must(args, doing="describing itself")).strip()
            cpus, version, rest = (*said.split(" ", 2), "", "")[:3]
            self._refuse_old(version)
            self._facts = Facts(
                cpus=float(cpus) if cpus.isdigit() and int(cpus) else None,
                rootless="rootless" in rest,
                remapped="name=userns" in rest,
            )
        return self._facts

    # --- Images ------------------------------------------------------------------------------

    async def find_image(self, image: str) -> Image | None:
        """The image, if it is here."""
        args = ["image", "inspect", "--format", _IMAGE, image]
        result = await self.call(args, doing="looking for the image")
        if result.exit_code == 0:
            identity, _, rest = result.stdout.strip().partition(" ")
            user, *volumes = rest.split("\n")
            return Image(identity, user.strip(), tuple(filter(None, map(mountable_path, volumes))))
        error = explain(
            result.stderr, program=self.program, doing="looking for the image", about=image
        )
        if isinstance(error, ImagePullError):
            return None
        raise error

    async def get_image(self, image: str) -> Image:
        """The image; pulled, if it is not here."""
        found = await self.find_image(image)
        if found is None:
            result = await self.call(
                ["pull", "--quiet", image], doing="pulling the image", timeout_s=_PULL_S
            )
            if result.exit_code != 0:
                error = not_pulled(image, result.stderr, program=self.program)
                _LOG.error("%s", error)
                raise error
            found = await self.find_image(image)
        if found is None:
            raise not_pulled(image, "it was pulled and is not there", program=self.program)
        return found

    # --- Containers --------------------------------------------------------------------------

    async def state(self, name: str) -> State:
        """What became of a container; `gone` if there is none of that name."""
        args = ["container", "inspect", "--format", "{{json .State}} {{json .Config.Labels}}", name]
        result = await self.call(args, doing="looking at a container")
        if result.exit_code != 0:
            if _GONE.search(result.stderr):
                return State("gone")
            raise explain(
                result.stderr, program=self.program, doing="looking at a container", about=name
            )
        return parse_state(result.stdout)

    async def host_config(self, name: str) -> str:
        """The engine's own account of a container's limits, as JSON."""
        args = ["container", "inspect", "--format", "{{json .HostConfig}}", name]
        return await self.must(args, doing="looking at a container", about=name)

    async def pid(self, name: str) -> int:
        """A process of a container, by the engine's own count; 0 if it does not run."""
        args = ["container", "inspect", "--format", "{{.State.Pid}}", name]
        said = await self.must(args, doing="looking at a container", about=name)
        return int(said) if said.strip().isdigit() else 0

    async def start(self, name: str) -> None:
        """Start a container that has been created."""
        await self._start(["start", name], doing="starting a container", about=name)

    async def restart(self, name: str) -> None:
        """End everything in a container, at once, and start it again."""
        await self._start(["restart", "-t", "0", name], doing="restarting a container", about=name)

    async def _start(self, args: Sequence[str], *, doing: str, about: str) -> None:
        if self.program == "docker":
            await self.must(args, doing=doing, about=about)
            return
        # Podman has no daemon: what watches over a container is its child. An executor would end
        # that with it, so it is started by hand.
        env = {**default_environment(), **self._env}
        stream = ProcessStream(Launch(argv=[self.program, *args], env=env))
        try:
            async with asyncio.timeout(_CALL_S):
                status = await stream.wait()
        except TimeoutError:
            raise self._too_slow(doing, _CALL_S) from None
        finally:
            await stream.end(grace_s=0)
        if status != 0:
            raise explain(stream.stderr, program=self.program, doing=doing, about=about)

    async def make_directories(
        self, name: str, paths: Sequence[str], *, uid: int, gid: int
    ) -> None:
        """Put empty directories of that owner into a container, running or not."""
        archive = directories_archive(paths, uid=uid, gid=gid)
        # Podman would give them to the container's own user.
        keep = ["--archive=false"] if self.program == "podman" else []
        args = ["cp", *keep, "-", f"{name}:/"]
        await self.must(args, doing="making directories", about=name, stdin=archive)

    async def numbers_of(self, user: str, image: Image) -> tuple[int, int]:
        """The uid and gid of a user, which may be a name that only the image knows. Never root."""
        uid, _, gid = user.partition(":")
        if uid.isdigit() and gid.isdigit():
            return int(uid), int(gid)
        found = find_user(await self._users_of(image), user)
        if found is None or found[0] == 0:
            raise SandboxError(
                f"the image's user `{user}` "
                + ("is root" if found else "is not in its /etc/passwd"),
                hint="give `user` as `uid:gid`",
            )
        return found

    async def home_of(self, user: str, image: Image) -> str:
        """The home of a user of the image; empty if it has none of its own."""
        return find_home(await self._users_of(image), user)

    async def _users_of(self, image: Image) -> str:
        """The file of users in an image; empty if there is none."""
        if image.id not in self._users:
            self._users[image.id] = await self._read_users(image)
        return self._users[image.id]

    async def _read_users(self, image: Image) -> str:
        # Never started: only a container lets us look into an image.
        name = f"{HELPER}{new_id()}"
        args = ["create", "--name", name, "--label", f"kakoi.owner={self._owner}"]
        args += ["--pull", "never", "--network", "none", "--entrypoint", "sh", image.id]
        doing = "reading the users of an image"
        try:
            await self.must(args, doing=doing, about=image.id)
            result = await self.call(["cp", f"{name}:/etc/passwd", "-"], doing=doing)
        finally:
            await finish(self.remove(name))
        # A tar file with one member: a head of 512 bytes, then the text, then zeros.
        return result.stdout[512:].partition("\0")[0] if result.exit_code == 0 else ""

    async def had_oom(self, name: str) -> bool:
        """Did the kernel kill something in a container that is gone by now?"""
        args = ["events", "--since", "1h", "--until", "0s", "--filter", f"container={name}"]
        args += ["--filter", "event=oom", "--format", "{{.Action}}"]
        if self.program == "podman":
            return False  # It has no such event.
        try:
            return "oom" in (await self.call(args, doing="looking for its events")).stdout
        except SandboxError:
            return False

    async def remove(self, name: str) -> None:
        """Take a container and its own volumes away. It is gone when this returns."""
        error: SandboxError | None = None
        # Podman would ask it to stop, and wait for that.
        at_once = ["-t", "0"] if self.program == "podman" else []
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S * attempt)
            try:
                args = ["rm", "-f", "-v", *at_once, name]
                result = await self.call(args, doing="removing a container")
            except SandboxError as failure:
                error = failure
                continue
            if result.exit_code == 0 or _GONE.search(result.stderr):
                return
            if "already in progress" in result.stderr and await self._is_gone_soon(name):
                return
            error = explain(
                result.stderr, program=self.program, doing="removing a container", about=name
            )
        raise error or SandboxError(f"the container `{name}` could not be removed")

    async def _is_gone_soon(self, name: str) -> bool:
        for _ in range(20):
            if (await self.state(name)).status == "gone":
                return True
            await asyncio.sleep(_PAUSE_S)
        return False


def parse_state(text: str) -> State:
    """`{{json .State}} {{json .Config.Labels}}` as a value."""
    try:
        state, end = json.JSONDecoder().raw_decode(text)
        labels = json.loads(text[end:])
        return State(
            status=str(state["Status"]),
            exit_code=int(state.get("ExitCode") or 0),
            out_of_memory=bool(state.get("OOMKilled")),
            labels={str(name): str(value) for name, value in (labels or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SandboxError(
            "the engine's description of a container can't be read", details={"text": text[:500]}
        ) from error


def directories_archive(paths: Sequence[str], *, uid: int, gid: int) -> bytes:
    """A tar file of empty directories, parents first."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(paths):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.uid, entry.gid = uid, gid
            archive.addfile(entry)
    return data.getvalue()
