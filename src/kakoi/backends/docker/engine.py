"""The container engine's command line: one short call at a time, each with a timeout.

The most frequent requests go to the engine's socket on this machine, if there is one (ADR 24).
An agent's commands never take this path; they go over a channel.
"""

import asyncio
import io
import json
import logging
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kakoi._support.asyncio import finish
from kakoi._support.fields import SECONDS
from kakoi._support.late import dataclass, pattern
from kakoi.backends.docker.arguments import Program
from kakoi.backends.docker.engine_socket import (
    SOCKET,
    EngineRequest,
    container_path,
    find_engine_socket,
    image_path,
    send_request,
)
from kakoi.backends.docker.errors import explain, pull_error
from kakoi.backends.docker.users import find_home, find_user, mountable_path
from kakoi.channel.api import new_id
from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    ImagePullError,
    SandboxError,
    UnsupportedError,
)
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch, ProcessStream

# The variable that other clients of Docker read for this, with the same default.
CALL_LIMIT: Final = "DOCKER_CLIENT_TIMEOUT"
_CALL_S = 60.0
_PULL_S = 1800.0
_REMOVE_TRIES = 3
_PAUSE_S = 0.3
_OLDEST = (20, 10)
_FACTS = {
    # Docker 20.10 exits with 0 if no engine answers, and puts the reason into its output.
    "docker": (
        "{{if .Info}}{{.NCPU}} {{.ServerVersion}} {{json .SecurityOptions}}"
        '{{else}}{{join .ServerErrors " "}}{{end}}'
    ),
    "podman": "{{.Host.CPUs}} {{.Version.Version}} {{if .Host.Security.Rootless}}rootless{{end}}",
}
_IMAGE = "{{.Id}} {{.Config.User}}{{range $path, $_ := .Config.Volumes}}\n{{$path}}{{end}}"
_GONE = pattern(r"no such container|no container with name|no such object", re.IGNORECASE)
# Name prefix of the short-lived containers that we create to look into an image.
HELPER: Final = "kakoi-look-"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine reports about itself. `remapped`: uids differ inside and outside."""

    cpus: float | None = None
    rootless: bool = False
    remapped: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is present. `user`: the image's default user; empty is root.

    `volumes`: the directories that the image declares as volumes.
    """

    id: str
    user: str
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of a container, in the engine's words."""

    status: str
    exit_code: int = 0
    out_of_memory: bool = False
    labels: Mapping[str, str] | None = None

    @property
    def running(self) -> bool:
        """Whether commands can run in it."""
        return self.status == "running"

    def __str__(self) -> str:
        if self.status != "exited":
            return self.status
        memory = ", out of memory" if self.out_of_memory else ""
        return f"exited with status {self.exit_code}{memory}"


def call_limit_s(env: Mapping[str, str]) -> float:
    """Return how long a call of the engine can take, in seconds: a minute, or what `env` says."""
    said = env.get(CALL_LIMIT)
    return float(SECONDS.read_text(said, CALL_LIMIT)) if said else _CALL_S


class Engine:
    """`docker` or `podman`. Every failure raises SandboxError with a hint.

    `owner`: owner of the containers that this class creates itself. `by_socket`: short requests
    can go to the engine's socket, because `executor` need not see every call.
    """

    def __init__(
        self,
        executor: ProcessExecutor,
        *,
        program: Program,
        env: Mapping[str, str] | None = None,
        owner: str = "",
        by_socket: bool = False,
    ) -> None:
        self.program = program
        self._owner = owner
        self._executor = executor
        self._env = dict(env or {})
        self._call_s = call_limit_s(self._env)
        self._socket: str | None = None
        if by_socket and program == "docker":
            self._socket = find_engine_socket({**default_environment(), **self._env})
        self._facts: EngineFacts | None = None
        self._users: dict[str, str] = {}

    async def call(
        self,
        args: Sequence[str],
        *,
        doing: str,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        or_request: EngineRequest | None = None,
    ) -> ProcessResult:
        """Run `docker args` and return the result, whatever its exit code.

        `timeout_s`: None means the limit of `call_limit_s`.
        `or_request`: the same request for the engine's socket.
        """
        timeout_s = self._call_s if timeout_s is None else timeout_s
        if or_request is not None and self._socket is not None:
            result = await self._ask(self._socket, or_request, doing, timeout_s)
            if result is not None:
                return result
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

    async def _ask(
        self, socket: str, request: EngineRequest, doing: str, timeout_s: float
    ) -> ProcessResult | None:
        try:
            async with asyncio.timeout(timeout_s):
                reply = await send_request(socket, request)
        except TimeoutError as error:
            raise self._too_slow(doing, timeout_s) from error
        if reply is None:
            return None
        if reply.is_ok:
            return ProcessResult(stdout=reply.text, stderr="", exit_code=0)
        return ProcessResult(stdout="", stderr=reply.text, exit_code=1)

    def _too_slow(self, doing: str, timeout_s: float) -> SandboxError:
        return SandboxError(
            f"{self.program} did not finish {doing} after {timeout_s:g} s",
            details={"program": self.program, "doing": doing},
            hint=f"does `{self.program} info` answer? If not, restart the engine; "
            f"{CALL_LIMIT}=SECONDS waits longer",
        )

    async def must(
        self,
        args: Sequence[str],
        *,
        doing: str,
        about: str = "",
        stdin: bytes | None = None,
        or_request: EngineRequest | None = None,
    ) -> str:
        """Run `docker args` and return its output; a non-zero exit code raises SandboxError."""
        result = await self.call(args, doing=doing, stdin=stdin, or_request=or_request)
        if result.exit_code != 0:
            raise explain(result.stderr, program=self.program, doing=doing, about=about)
        return result.stdout

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, judging by its address."""
        return self._env.get("DOCKER_HOST", "unix://").startswith("unix://")

    @property
    def socket(self) -> str:
        """The path of the socket of an engine on this machine."""
        return self._env.get("DOCKER_HOST", "").removeprefix("unix://") or SOCKET

    # --- The engine itself -------------------------------------------------------------------

    async def version(self) -> str:
        """Return the engine's version; raises EnvironmentUnavailableError if it is too old."""
        format_ = "{{.Server.Version}}" if self.program == "docker" else "{{.Client.Version}}"
        # Asked by the program, not at the socket: without the program, nothing can run.
        args = ["version", "--format", format_]
        text = (await self.must(args, doing="reading its version")).strip()
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

    async def facts(self) -> EngineFacts:
        """Return what the engine reports about itself; asked once.

        Raises EnvironmentUnavailableError if the engine is too old.
        """
        if self._facts is None:
            args = ["info", "--format", _FACTS[self.program]]
            request = EngineRequest("GET", "/info", _facts_text)
            answer = (
                await self.must(args, doing="reading its description", or_request=request)
            ).strip()
            cpus, version, rest = (*answer.split(" ", 2), "", "")[:3]
            if answer and not cpus.isdigit():
                raise explain(answer, program=self.program, doing="reading its description")
            self._refuse_old(version)
            self._facts = EngineFacts(
                cpus=float(cpus) if cpus.isdigit() and int(cpus) else None,
                rootless="rootless" in rest,
                remapped="name=userns" in rest,
            )
        return self._facts

    # --- Images ------------------------------------------------------------------------------

    async def find_image(self, image: str) -> Image | None:
        """Return the image if it is present; otherwise None."""
        args = ["image", "inspect", "--format", _IMAGE, image]
        request = EngineRequest("GET", image_path(image), _image_text)
        result = await self.call(args, doing="looking for the image", or_request=request)
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
        """Return the image; pull it if it is not present."""
        found = await self.find_image(image)
        if found is None:
            result = await self.call(
                ["pull", "--quiet", image], doing="pulling the image", timeout_s=_PULL_S
            )
            if result.exit_code != 0:
                error = pull_error(image, result.stderr, program=self.program)
                _LOG.error("%s", error)
                raise error
            found = await self.find_image(image)
        if found is None:
            raise pull_error(image, "it was pulled, but is still missing", program=self.program)
        return found

    # --- Containers --------------------------------------------------------------------------

    async def state(self, name: str) -> ContainerState:
        """Return the state of a container; `gone` if there is none with that name."""
        args = ["container", "inspect", "--format", "{{json .State}} {{json .Config.Labels}}", name]
        request = _about(name, lambda it: f"{_json(it['State'])} {_json(it['Config']['Labels'])}")
        result = await self.call(args, doing="looking at a container", or_request=request)
        if result.exit_code != 0:
            if _GONE.search(result.stderr):
                return ContainerState("gone")
            raise explain(
                result.stderr, program=self.program, doing="looking at a container", about=name
            )
        return parse_state(result.stdout)

    async def host_config(self, name: str) -> str:
        """Return the limits of a container as the engine reports them, as JSON."""
        args = ["container", "inspect", "--format", "{{json .HostConfig}}", name]
        request = _about(name, lambda it: _json(it["HostConfig"]))
        return await self.must(args, doing="looking at a container", about=name, or_request=request)

    async def id_of(self, name: str) -> str:
        """Return the engine's id of a container."""
        args = ["container", "inspect", "--format", "{{.Id}}", name]
        request = _about(name, lambda it: str(it["Id"]))
        doing = "looking at a container"
        return (await self.must(args, doing=doing, about=name, or_request=request)).strip()

    async def pid(self, name: str) -> int:
        """Return the pid of a container's main process, as the engine sees it; 0 if not running."""
        args = ["container", "inspect", "--format", "{{.State.Pid}}", name]
        request = _about(name, lambda it: str(it["State"]["Pid"]))
        doing = "looking at a container"
        answer = await self.must(args, doing=doing, about=name, or_request=request)
        return int(answer) if answer.strip().isdigit() else 0

    async def id(self, name: str) -> str:
        """Return the engine's id of a container."""
        args = ["container", "inspect", "--format", "{{.Id}}", name]
        request = _about(name, lambda it: str(it["Id"]))
        doing = "looking at a container"
        return (await self.must(args, doing=doing, about=name, or_request=request)).strip()

    async def pause(self, name: str) -> None:
        """Freeze every process in a container."""
        request = EngineRequest("POST", container_path(name, "/pause"))
        doing = "pausing a container"
        result = await self.call(["pause", name], doing=doing, or_request=request)
        if "pause containers on rootless" in result.stderr:
            raise UnsupportedError(
                f"{self.program} cannot pause containers of a normal user on this machine",
                hint="use a machine with cgroup v2, or run as root",
            )
        if result.exit_code != 0:
            raise explain(result.stderr, program=self.program, doing=doing, about=name)

    async def unpause(self, name: str) -> None:
        """Let the processes in a container continue, if it still exists and is paused."""
        request = EngineRequest("POST", container_path(name, "/unpause"))
        doing = "continuing a container"
        result = await self.call(["unpause", name], doing=doing, or_request=request)
        if result.exit_code != 0 and (await self.state(name)).status == "paused":
            raise explain(result.stderr, program=self.program, doing=doing, about=name)

    async def rename(self, name: str, new: str) -> None:
        """Give a container another name, which no other one may have."""
        request = EngineRequest("POST", container_path(name, f"/rename?name={new}"))
        doing = "renaming a container"
        await self.must(["rename", name, new], doing=doing, about=name, or_request=request)

    async def start(self, name: str) -> None:
        """Start a created container."""
        await self._start(["start", name], doing="starting a container", about=name)

    async def restart(self, name: str) -> None:
        """Kill everything in a container at once, and start it again."""
        await self._start(["restart", "-t", "0", name], doing="restarting a container", about=name)

    async def _start(self, args: Sequence[str], *, doing: str, about: str) -> None:
        if self.program == "docker":
            verb = {"start": "start", "restart": "restart?t=0"}[args[0]]
            request = EngineRequest("POST", container_path(about, f"/{verb}"))
            await self.must(args, doing=doing, about=about, or_request=request)
            return
        # Podman has no daemon: the process that supervises a container is podman's child. An
        # executor would end that child with podman, so we start podman directly.
        env = {**default_environment(), **self._env}
        stream = ProcessStream(Launch(argv=[self.program, *args], env=env))
        try:
            async with asyncio.timeout(self._call_s):
                status = await stream.wait()
        except TimeoutError:
            raise self._too_slow(doing, self._call_s) from None
        finally:
            await stream.end(grace_s=0)
        if status != 0:
            raise explain(stream.stderr, program=self.program, doing=doing, about=about)

    async def make_directories(
        self, name: str, paths: Sequence[str], *, uid: int, gid: int
    ) -> None:
        """Create empty directories with that owner in a container, running or not."""
        archive = directories_archive(paths, uid=uid, gid=gid)
        # Otherwise podman makes the container's own user their owner.
        keep = ["--archive=false"] if self.program == "podman" else []
        args = ["cp", *keep, "-", f"{name}:/"]
        request = EngineRequest("PUT", container_path(name, "/archive?path=/"), body=archive)
        doing = "making directories"
        await self.must(args, doing=doing, about=name, stdin=archive, or_request=request)

    async def numbers_of(self, user: str, image: Image) -> tuple[int, int]:
        """Return the uid and gid of a user, which can be a name only the image knows.

        Raises SandboxError if the name is unknown or means root.
        """
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
        """Return the home directory of a user of the image; empty if it has none of its own."""
        return find_home(await self._users_of(image), user)

    async def _users_of(self, image: Image) -> str:
        """Return the text of /etc/passwd in an image; empty if there is none."""
        if image.id not in self._users:
            self._users[image.id] = await self._read_users(image)
        return self._users[image.id]

    async def _read_users(self, image: Image) -> str:
        # Only a container lets us read an image's files. This one is never started.
        name = f"{HELPER}{new_id()}"
        args = ["create", "--name", name, "--label", f"kakoi.owner={self._owner}"]
        args += ["--pull", "never", "--network", "none", "--entrypoint", "sh", image.id]
        doing = "reading the users of an image"
        try:
            await self.must(args, doing=doing, about=image.id)
            result = await self.call(["cp", f"{name}:/etc/passwd", "-"], doing=doing)
        finally:
            await finish(self.remove(name))
        # A tar file with one member: a header of 512 bytes, the text, then zeros.
        return result.stdout[512:].partition("\0")[0] if result.exit_code == 0 else ""

    async def stop(self, name: str, grace_s: int) -> None:
        """Stop a container: ask it to exit, and kill it after `grace_s` seconds."""
        args = ["stop", "-t", str(grace_s), name]
        request = EngineRequest("POST", container_path(name, f"/stop?t={grace_s}"))
        await self.call(args, doing="stopping a container", or_request=request)

    async def had_oom(self, name: str) -> bool:
        """Return whether the kernel killed something for memory in a container gone by now."""
        args = ["events", "--since", "1h", "--until", "0s", "--filter", f"container={name}"]
        args += ["--filter", "event=oom", "--format", "{{.Action}}"]
        if self.program == "podman":
            return False  # It has no such event.
        try:
            return "oom" in (await self.call(args, doing="looking for its events")).stdout
        except SandboxError:
            return False

    async def remove(self, name: str) -> None:
        """Remove a container and its anonymous volumes. It is gone when this returns."""
        error: SandboxError | None = None
        # Otherwise podman asks it to stop, and waits.
        at_once = ["-t", "0"] if self.program == "podman" else []
        for attempt in range(_REMOVE_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S * attempt)
            try:
                args = ["rm", "-f", "-v", *at_once, name]
                request = EngineRequest("DELETE", container_path(name, "?force=1&v=1"))
                result = await self.call(args, doing="removing a container", or_request=request)
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


def _json(value: object) -> str:
    return json.dumps(value)


def _about(container: str, text: Callable[[Any], str]) -> EngineRequest:
    return EngineRequest("GET", container_path(container, "/json"), text)


def _facts_text(it: Any) -> str:
    return f"{it['NCPU']} {it['ServerVersion']} {_json(it['SecurityOptions'])}"


def _image_text(it: Any) -> str:
    config = it["Config"]
    volumes = "".join(f"\n{path}" for path in sorted(config.get("Volumes") or ()))
    return f"{it['Id']} {config.get('User') or ''}{volumes}\n"


def parse_state(text: str) -> ContainerState:
    """Parse the output of the format `{{json .State}} {{json .Config.Labels}}`."""
    try:
        state, end = json.JSONDecoder().raw_decode(text)
        labels = json.loads(text[end:])
        return ContainerState(
            status=str(state["Status"]),
            exit_code=int(state.get("ExitCode") or 0),
            out_of_memory=bool(state.get("OOMKilled")),
            labels={str(name): str(value) for name, value in (labels or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SandboxError(
            "the engine's description of a container cannot be read", details={"text": text[:500]}
        ) from error


def directories_archive(paths: Sequence[str], *, uid: int, gid: int) -> bytes:
    """Return a tar file of empty directories, parents first."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(paths):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.uid, entry.gid = uid, gid
            archive.addfile(entry)
    return data.getvalue()
