"""Containers that wait for commands: how they are made, found, made good again and removed."""

import contextlib
import dataclasses
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TypedDict

from kakoi.errors import SandboxError
from kakoi.process.stream import Launch
from kakoi.sandbox.disk import plan_disk, volume_path
from kakoi.sandbox.docker_advice import is_conflict
from kakoi.sandbox.docker_cli import (
    DockerSettings,
    Plan,
    Tag,
    create_args,
    exec_args,
    new_name,
)
from kakoi.sandbox.docker_engine import Engine, Facts, Image, State
from kakoi.sandbox.docker_users import Choice, choose_user, is_root
from kakoi.sandbox.engine_mounts import why_not_seen
from kakoi.sandbox.views import lent, view_path
from kakoi.sandbox.volumes import held, mounted, why_not_made
from kakoi.sandbox.workspace import look_at_workspace, ours_within
from kakoi.waiting import finish

# A runner waits for later clients at a socket (runner/lingering.py). Without Python there is none,
# and what runs there has shells above it that see to it (runner/posix.py).
_HAS_PYTHON = 'python3 -I -S -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
_HAS_RUNNER = "grep -q ' 00010000 .*/runner$' /proc/net/unix"
IN_USE = 10
KEY_LABEL = "kakoi.runner_key"
# In one step for all of the user's processes but the shell itself, and for nobody else's: a command
# can't become another user. It says so if there are none.
_KILL = "kill -9 -1 2>/dev/null; exit 0"
_KILL_S = 15.0


def ending_script(*, unless_in_use: bool) -> str:
    """Ends every process of its user in a container, for `sh -c`.

    `unless_in_use`: not if something in there waits for a new client; it then exits with IN_USE.
    """
    look = f"{_HAS_PYTHON} || exit {IN_USE}; {_HAS_RUNNER} && exit {IN_USE}; "
    return look + _KILL if unless_in_use else _KILL


def default_owner() -> str:
    """Who we are to an engine that others use, too: this user on this machine, at any boot."""
    try:
        machine = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine = b""
    digest = hashlib.sha256(b"kakoi " + machine).hexdigest()[:12]
    return f"uid-{os.getuid()}@{digest if machine else 'unknown'}"


async def plan_container(
    engine: Engine, settings: DockerSettings, tag: Tag, *, now_s: float | None
) -> Plan:
    """Decide on everything: gets the image, looks at the engine and at the workspace."""
    image = await engine.get_image(settings.image)
    facts = await engine.facts()
    workspace, guarded = None, []
    if settings.workspace is not None:
        _check_reach(facts, engine)
        workspace = look_at_workspace(settings.workspace, guarded=True)
        ours = ours_within(workspace)
        guarded = [str(PurePath(seen.path).relative_to(workspace.path)) for seen in ours]
    choice = choose_user(
        settings.user,
        image_user=image.user,
        workspace=workspace,
        caller=(os.getuid(), os.getgid()),
    )
    uid, gid = await engine.numbers_of(choice.user, image)
    name = tag.name or new_name()
    source = None if workspace is None else workspace.path
    plan = Plan(
        settings=settings,
        name=name,
        labels={**tag.labels(now_s=now_s), KEY_LABEL: secrets.token_hex(16)},
        user=choice.user,
        uid=uid,
        gid=gid,
        source=view_path(name) if choice.lend else source,
        lent=workspace if choice.lend else None,
        guarded=guarded,
        own_home=choice.own_home,
        cpus=facts.cpus,
        program=engine.program,
        rootless=facts.rootless,
    )
    disk = plan_disk(
        settings.limits,
        plan.directories,
        main=None if source else settings.inside,
        home=await _home(engine, choice, image) if settings.limits.disk_bytes else "",
        volumes=image.volumes,
        why_no_volume=_why_no_volume(facts, engine),
    )
    return dataclasses.replace(plan, disk=disk)


async def _home(engine: Engine, choice: Choice, image: Image) -> str:
    """The home that the image has for its user; empty if the user gets one of ours."""
    return "" if choice.own_home else await engine.home_of(choice.user, image)


def _why_no_volume(facts: Facts, engine: Engine) -> str:
    """Why no disk of limited size can be made for containers; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make a disk of limited size"
    if engine.program != "docker" or facts.remapped or facts.rootless or not engine.is_local:
        return "no disk of limited size can be made for this engine"
    why = why_not_made() or why_not_seen(engine.socket, volume_path(""))
    return f"no disk of limited size can be made: {why}" if why else ""


def _check_reach(facts: Facts, engine: Engine) -> None:
    """A workspace must belong to the same user inside and outside."""
    if facts.remapped or (facts.rootless and engine.program == "docker"):
        kind = "runs rootless" if facts.rootless else "gives users other numbers (userns-remap)"
        raise SandboxError(
            f"the docker engine {kind}: no user but root could write to the workspace, and "
            "commands never run as root",
            hint="use rootless podman, which can map users; or an engine without the mapping; "
            "or no workspace",
        )


class _Who(TypedDict):
    """For whom something is mounted, while a container is started."""

    name: str
    uid: int
    gid: int
    data_only: bool


@contextlib.asynccontextmanager
async def mountable(plan: Plan) -> AsyncIterator[None]:
    """While this holds, a container of the plan can be started."""
    data_only = plan.settings.programs is not None
    who: _Who = {"name": plan.name, "uid": plan.uid, "gid": plan.gid, "data_only": data_only}
    async with contextlib.AsyncExitStack() as stack:
        if plan.lent is not None:
            await stack.enter_async_context(lent(plan.lent, **who))
        if plan.disk is not None and plan.disk.volume_bytes:
            await stack.enter_async_context(mounted(plan.disk, **who))
        yield


class Inside:
    """How programs are started in a container that runs; a `Launcher` of runner/posix.py."""

    def __init__(self, program: str, name: str, user: str, env: Mapping[str, str]) -> None:
        self._program = program
        self._name = name
        self._user = user
        self._env = dict(env)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> Launch:
        given = env or {}
        words = exec_args(self._name, self._user, argv, variables=given, terminal=terminal)
        return Launch(argv=[self._program, *words], env={**self._env, **given})


class Container:
    """A container that only waits. Its commands have a user of their own."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        user: str,
        *,
        view_of: str = "",
        disk: str = "",
        way: str = "",
    ) -> None:
        self.name = name
        self.user = user
        self.id = ""  # Known once it was made here.
        self.way = way  # See `Plan.way`.
        self.key = ""  # By which its runners know each other. Nobody inside sees labels.
        self.data_only = False  # No program is executed from its workspace.
        self._engine = engine
        self._view_of = view_of
        self._disk = disk

    @classmethod
    async def make(cls, engine: Engine, plan: Plan) -> "Container":
        """Create and start it. If that fails, nothing is left of it."""
        container = cls(
            engine,
            plan.name,
            plan.user,
            view_of=plan.view_of,
            disk=plan.disk_label,
            way=plan.way,
        )
        container.data_only = plan.settings.programs is not None
        container.key = plan.labels.get(KEY_LABEL, "")
        # From the beginning: an engine looks for it already when it creates a container.
        async with mountable(plan):
            try:
                words = create_args(plan)
                made = await engine.must(words, doing="creating a container", about=plan.name)
                container.id = made.strip()
                if plan.unmade and plan.settings.programs is None:
                    await engine.make_directories(
                        plan.name, plan.unmade, uid=plan.uid, gid=plan.gid
                    )
                await engine.start(plan.name)
            except BaseException as error:
                if not is_conflict(error):
                    with contextlib.suppress(SandboxError):
                        await finish(container.remove())
                raise
        return container

    @classmethod
    async def find(cls, engine: Engine, name: str, *, owner: str) -> "Container":
        """A container that was made before, by whoever; SandboxError if it is not the owner's."""
        state = await engine.state(name)
        labels = state.labels or {}
        if state.status == "gone":
            raise SandboxError(
                f"there is no container `{name}`", hint=f"{engine.program} ps -a lists them"
            )
        if labels.get("kakoi.owner") != owner or is_root(labels.get("kakoi.user", "")):
            raise SandboxError(
                f"the container `{name}` is not one of ours",
                details={"owner": labels.get("kakoi.owner", "")},
                hint="attach only to a container that this user's kakoi made and kept",
            )
        view, disk = labels.get("kakoi.view", ""), labels.get("kakoi.disk", "")
        way = labels.get("kakoi.way", "")
        found = cls(engine, name, labels["kakoi.user"], view_of=view, disk=disk, way=way)
        found.key = labels.get(KEY_LABEL, "")
        return found

    async def state(self) -> State:
        """What it is doing."""
        return await self._engine.state(self.name)

    async def check(self) -> None:
        """SandboxError if it does not run any more; the state is named."""
        state = await self.state()
        if state.running:
            return
        raise SandboxError(
            f"the container `{self.name}` does not run any more: {state}",
            details={"container": self.name, "state": state.status, "exit_code": state.exit_code},
            hint="its files are gone; make a new sandbox"
            if state.status == "gone" or self._disk
            else f"{self._engine.program} start {self.name} brings it back with its files; "
            "cleanup removes it",
        )

    async def end_everything(self, *, unless_in_use: bool) -> bool:
        """End every process of its commands, for certain, and give True.

        `unless_in_use`: not if something in there waits for a new client; that gives False.
        """
        script = ending_script(unless_in_use=unless_in_use)
        args = exec_args(self.name, self.user, ["sh", "-c", script])
        result = await self._engine.call(args, doing="ending what is left", timeout_s=_KILL_S)
        if result.exit_code == IN_USE:
            return False
        if result.exit_code != 0:  # There may be no room for one more process.
            await self.restart()
        return True

    async def restart(self) -> None:
        """End everything in it, for certain; its files stay."""
        async with contextlib.AsyncExitStack() as stack:
            if self._view_of:
                uid, gid = (int(number) for number in self.user.split(":"))
                seen = look_at_workspace(self._view_of, guarded=True)
                view = lent(seen, name=self.name, uid=uid, gid=gid, data_only=self.data_only)
                await stack.enter_async_context(view)
            if self._disk:
                made_for, *paths = self._disk.split(":")
                pid = await self._engine.pid(self.name)
                await stack.enter_async_context(held(paths, name=made_for, pid=pid))
            await self._engine.restart(self.name)

    async def remove(self) -> None:
        """Take it away; SandboxError if it stays."""
        await self._engine.remove(self.name)
