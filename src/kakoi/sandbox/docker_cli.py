"""Settings of a container → the arguments of `docker` (or `podman`). Pure: nothing is run here."""

import csv
import io
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Literal, get_args

from kakoi.errors import ConfigurationError
from kakoi.redact import is_secret_name
from kakoi.runner.commands import MIB, check_type, new_id
from kakoi.runner.shells import changes_the_shell
from kakoi.sandbox.adapter import DEFAULT_TIMEOUT_S, GIB, PROXIED, Limits, Network
from kakoi.sandbox.disk import TEMPORARY, Disk, volume_path
from kakoi.sandbox.docker_users import check_user
from kakoi.sandbox.workspace import Seen

Program = Literal["docker", "podman"]
Lifetime = Literal["command", "sandbox"]

# The process that keeps a container open has another user: commands can't kill it.
WAITER = "65530:65530"
HOME = "/home/agent"
WAY = "/run/kakoi"
_FOREVER = "2147483647"
# One inode for so many bytes in memory, as ext4 has it on a disk.
_INODE_BYTES = 16 * 1024

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """What containers are like. Wrong values raise ConfigurationError here, not later.

    `network`: None leaves the choice to the engine, whose own default is a bridge.
    `timeout_s`: how long a command may take that names no time itself.
    `workspace`: a directory of this machine that is seen inside at `inside`; without it there is
        an empty directory. `inside` is where commands start.
    `env`: variables of every command. The engine shows them to whoever may ask it: what is secret
        goes with a command (`Command.env`).
    `user`: `uid`, `uid:gid` or a name in the image, never root. None: who owns the workspace, else
        the user of the image, else nobody in particular.
    `directories`: more directories inside that the user may write to.
    `programs`: the only ones that commands may execute, by name; None: any.
    """

    image: str = "node:20-alpine"
    network: Network | None = "none"
    timeout_s: float = DEFAULT_TIMEOUT_S
    limits: Limits = field(default_factory=Limits)
    workspace: str | None = None
    inside: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    directories: Sequence[str] = ()
    programs: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if not IMAGE.fullmatch(self.image):
            raise ConfigurationError(f"image is {self.image!r}; it must be the name of an image")
        if self.network not in (*get_args(Network), None):
            wanted = ", ".join(get_args(Network))
            raise ConfigurationError(f"network is {self.network!r}; it must be one of {wanted}")
        if not self.timeout_s > 0:
            raise ConfigurationError(f"timeout_s is {self.timeout_s}; it must be above zero")
        for path in (self.inside, *self.directories):
            check_inside(path)
            # In the short form of a mount, which is all there is for these.
            if re.search(r"[:,]", path) and (self.workspace is None or path != self.inside):
                raise ConfigurationError(
                    f"a directory inside is `{path}`; it can't hold `:` or `,`"
                )
        if self.user is not None:
            check_user(self.user)
        check_env(self.env)

    def _check_types(self) -> None:
        check_type("image", self.image, str)
        check_type("timeout_s", self.timeout_s, int, float)
        check_type("limits", self.limits, Limits)
        check_type("env", self.env, Mapping)
        check_type("user", self.user, str, type(None))
        check_type("directories", self.directories, list, tuple)
        for path in (self.inside, *self.directories):
            check_type("a directory inside", path, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """How a container is found again: by its labels, and by its name if that was given.

    `owner`: whose it is; only the owner's kakoi attaches to it or sweeps it.
    `max_age_s`: after that it may be swept, whoever made it.
    """

    owner: str = ""
    task: str = ""
    name: str = ""
    max_age_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"name is {self.name!r}; the engine takes letters and digits")
        for name in ("owner", "task"):
            if _CONTROL.search(getattr(self, name)):
                raise ConfigurationError(f"{name} holds a control character")

    def labels(self, *, now_s: float | None) -> dict[str, str]:
        """The labels of a container that is made now; without a clock it has no dates."""
        labels = {"kakoi.owner": self.owner, "kakoi.task": self.task}
        if now_s is not None:
            labels["kakoi.created"] = _moment(now_s)
            labels["kakoi.expires"] = _moment(now_s + self.max_age_s)
        return labels


def new_name() -> str:
    """A container's name that nobody can guess."""
    return f"kakoi-{new_id()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One container, decided in every detail.

    `uid`, `gid`: the numbers of `user`, which may be a name that only the image knows.
    `source`: what is mounted at `settings.inside`: the workspace, or a view of it. `lent`: what
        there has to be a view of.
    `guarded`: what in there, by its path from `source`, commands may read and not change.
    `own_home`: the user is not the image's, so the image has no home for it.
    `cpus`: the machine's; an engine refuses a limit above that.
    `way`: the directory by which the way out is handed over (outlet.py); seen inside at WAY.
    `disk`: where it can write, if that is limited.
    """

    settings: DockerSettings
    name: str
    labels: Mapping[str, str]
    user: str
    uid: int
    gid: int
    source: str | None = None
    lent: Seen | None = None
    guarded: Sequence[str] = ()
    own_home: bool = True
    cpus: float | None = None
    program: Program = "docker"
    rootless: bool = False
    way: str = ""
    disk: Disk | None = None

    @property
    def view_of(self) -> str:
        """The path of what is lent; empty if nothing is."""
        return "" if self.lent is None else self.lent.path

    @property
    def directories(self) -> list[str]:
        """What has to be there inside for the user, parents first."""
        made = [HOME] if self.own_home else []
        if self.settings.programs is not None:
            made += ["/tmp", "/var/tmp", "/run/lock"]  # noqa: S108 - open to all in images
        if self.source is None:
            made.append(self.settings.inside)
        return [*made, *(each for each in self.settings.directories if each not in made)]

    @property
    def unmade(self) -> list[str]:
        """Those of them that nothing is mounted at, so that they have to be made."""
        return [] if self.disk and self.disk.is_kept else self.directories

    @property
    def disk_label(self) -> str:
        """By which a disk is found again: the name it was made for, and where it is inside."""
        tops = self.disk.tops if self.disk else ()
        return ":".join([self.name, *tops]) if tops else ""


def run_args(plan: Plan, argv: Sequence[str]) -> list[str]:
    """`run`: a container for `argv`, attached to it, and gone with it. Commands come by `exec`."""
    # In memory, since nothing could put a directory with the right owner there before the start.
    start = ["run", "--rm", "-i", *_common(plan), *_scratch(plan), "--user", WAITER]
    return [*start, "--entrypoint", argv[0], plan.settings.image, *argv[1:]]


def _scratch(plan: Plan) -> list[str]:
    """The directories in memory; a parent must be mounted before its child."""
    return [word for path in sorted(plan.unmade) for word in _in_memory(plan, path)]


def _in_memory(plan: Plan, path: str, size: int | None = None) -> list[str]:
    programs = "exec" if plan.settings.programs is None else "noexec"
    # Podman knows no owner here; and runc prefers the mode of a directory that is in the image.
    is_open = plan.program == "podman" or path in TEMPORARY
    owned = "mode=1777" if is_open else f"uid={plan.uid},gid={plan.gid},mode=0755"
    limit = "" if size is None else f",size={size}"
    if size is not None and plan.program == "docker":  # Podman refuses to limit their number.
        limit += f",nr_inodes={max(size // _INODE_BYTES, 1024)}"
    return ["--tmpfs", f"{path}:rw,{programs},nosuid,nodev,{owned}{limit}"]


def _disk(plan: Plan) -> Iterator[str]:
    """Nothing can be written but to places of limited size."""
    disk = plan.disk
    if disk is None or not disk.is_kept:
        return
    yield "--read-only"
    if plan.program == "podman":
        yield "--read-only-tmpfs=false"
    for path, size in disk.sizes.items():
        yield from _in_memory(plan, path, size)
    for number, path in enumerate(disk.tops):
        source = volume_path(plan.name, number)
        if path in disk.copied:
            # A volume, and not a bind mount: the engine copies into it what the image has there.
            options = f"volume-opt=type=none,volume-opt=o=bind,volume-opt=device={source}"
            yield from ("--mount", f"type=volume,dst={path},{options}")
        else:
            yield from mount_args(source, path, plan.program, must_exist=True)


def create_args(plan: Plan) -> list[str]:
    """`create`: a container that only waits; commands come in by `exec`."""
    # On the disk; but only in memory can be forbidden that programs are executed there.
    scratch = [] if plan.settings.programs is None else _scratch(plan)
    start = ["create", *_common(plan), *scratch, "--user", WAITER]
    return [*start, "--entrypoint", "sleep", plan.settings.image, _FOREVER]


def exec_args(
    name: str,
    user: str,
    argv: Sequence[str],
    *,
    variables: Iterable[str] = (),
    terminal: bool = False,
) -> list[str]:
    """`exec`: `argv` in a container that runs; `variables` are taken from the engine's program."""
    given = [word for variable in variables for word in ("-e", variable)]
    return ["exec", "-i", *(["-t"] if terminal else []), "--user", user, *given, name, *argv]


def _common(plan: Plan) -> list[str]:
    settings = plan.settings
    env = {"HOME": HOME, **settings.env} if plan.own_home else dict(settings.env)
    return [
        *("--name", plan.name),
        *("--pull", "never"),
        "--init",
        "--no-healthcheck",
        *("--security-opt", "no-new-privileges"),
        *("--cap-drop", "ALL"),
        # The runner talks on stdout: the engine must not keep a copy of that on disk.
        *("--log-driver", "none"),
        *_limits(settings.limits, plan.cpus),
        *(("--network", settings.network) if settings.network not in (None, *PROXIED) else ()),
        *(("--network", "none") if settings.network in PROXIED else ()),
        *(
            mount_args(plan.way, WAY, plan.program, read_only=True, must_exist=True)
            if plan.way
            else ()
        ),
        *(("--userns", "keep-id") if plan.rootless and plan.source else ()),
        *_mounts(plan),
        *_disk(plan),
        # A workspace may be seen at its own path, and in an image nobody else gets past this one.
        *(_in_memory(plan, "/root", MIB) if _within_root(settings) else ()),
        *("-w", settings.inside),
        *_pairs("-e", env),
        # Each of them, always: an image has labels as well, and containers inherit them.
        *_pairs("--label", _labels(plan)),
    ]


def _labels(plan: Plan) -> dict[str, str]:
    ours = {"kakoi.user": plan.user, "kakoi.view": plan.view_of, "kakoi.disk": plan.disk_label}
    return {**plan.labels, **ours, "kakoi.way": plan.way}


def _within_root(settings: DockerSettings) -> bool:
    return any(path.startswith("/root/") for path in (settings.inside, *settings.directories))


def _limits(limits: Limits, cpus: float | None) -> list[str]:
    words = []
    if limits.processes is not None:
        words += ["--pids-limit", str(limits.processes)]
    if limits.memory_bytes is not None:
        size = _size(limits.memory_bytes)
        words += ["--memory", size, "--memory-swap", size]
    if limits.cpus is not None:
        words += ["--cpus", f"{min(limits.cpus, cpus or limits.cpus):g}"]
    return words


def _mounts(plan: Plan) -> list[str]:
    """The workspace; and each directory in it that holds something guarded, down to that.

    Mounted by itself, a directory cannot be renamed to put another one in its place.
    """
    if plan.source is None:
        return []
    between = {
        str(parent)
        for path in plan.guarded
        for parent in PurePosixPath(path).parents
        if parent.name
    }
    words = []
    for path in ["", *sorted(between | set(plan.guarded))]:
        words += mount_args(
            posixpath.join(plan.source, path).rstrip("/"),
            posixpath.join(plan.settings.inside, path).rstrip("/"),
            plan.program,
            read_only=path in plan.guarded,
            must_exist=plan.lent is not None,
        )
    return words


def mount_args(
    source: str,
    target: str,
    program: Program,
    *,
    read_only: bool = False,
    must_exist: bool = False,
) -> list[str]:
    """A bind mount. A colon in the path needs the long form.

    In the short form an engine makes a directory where it finds none; not if it `must_exist`.
    """
    _check_path("the workspace", source)
    if ":" not in source + target and not must_exist:
        return ["-v", f"{source}:{target}" + (":ro" if read_only else "")]
    if program == "podman" and re.search(r'[,"]', source + target):
        raise ConfigurationError(
            f"podman cannot mount `{source}` at `{target}`: there is a comma or quote in the path",
            hint="rename the directory",
        )
    text = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}"]
    csv.writer(text, lineterminator="").writerow(fields + ["readonly"] * read_only)
    return ["--mount", text.getvalue()]


def check_inside(path: str) -> None:
    _check_path("a directory inside", path)
    if path == "/" or f"{path}/".startswith(("/dev/", "/proc/", "/sys/")):
        raise ConfigurationError(f"`{path}` inside belongs to the container itself")


def _check_path(what: str, path: str) -> None:
    if not path.startswith("/") or posixpath.normpath(path) != path or path.startswith("//"):
        raise ConfigurationError(f"{what} is {path!r}; it must be a full path, without `..`")
    if _CONTROL.search(path):
        raise ConfigurationError(f"{what} is {path!r}; it holds a control character")


def check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        check_type("a name in env", name, str)
        check_type(f"env[{name!r}]", value, str)
        if not name or "=" in name or _CONTROL.search(name) or "\0" in value:
            raise ConfigurationError(f"env holds {name!r}; it must map names to text")
        if changes_the_shell(name):
            raise ConfigurationError(
                f"env sets {name}, which would change what the shell does with a command"
            )
        if is_secret_name(name):
            raise ConfigurationError(
                f"env sets {name}, and the engine would show its value to whoever asks",
                hint="give it to the command that needs it: it then goes over the channel",
            )


def _pairs(flag: str, pairs: Mapping[str, str]) -> list[str]:
    return [word for name, value in pairs.items() for word in (flag, f"{name}={value}")]


def _size(size_bytes: int) -> str:
    for unit, letter in ((GIB, "g"), (MIB, "m")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{letter}"
    return f"{size_bytes}b"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
