"""Container settings → arguments for `docker` (or `podman`). Pure: nothing runs here."""

import csv
import io
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

from kakoi._support.fields import TEXT, described, read_section
from kakoi._support.late import dataclass, pattern
from kakoi._support.redact import is_secret_name
from kakoi.backends.adapter import GIB, NETWORK, PROXIED, Limits, Network, timeout_field
from kakoi.backends.docker.disk import TEMPORARY, DiskPlan, volume_path
from kakoi.backends.docker.users import check_user
from kakoi.backends.resolv_conf import resolv_conf_of
from kakoi.backends.workspace import FileIdentity
from kakoi.channel.api import MIB, check_type, new_id
from kakoi.errors import ConfigurationError
from kakoi.runner.frames import changes_the_shell
from kakoi.runner.outlet import NAME_PORT

if TYPE_CHECKING:
    from kakoi.backends.docker.mounts import CopyMount

Program = Literal["docker", "podman"]
Lifetime = Literal["command", "sandbox", "client"]

# The process that keeps a container running has a different user: commands can't kill it.
WAITING_USER = "65530:65530"
HOME = "/home/agent"
OUTLET_FOLDER = "/run/kakoi"
RESOLV_CONF_PATH = "/etc/resolv.conf"
_FOREVER = 2**31 - 1
_HOLD = "while read -r line; do echo up; done"
_HOLD_FOR = f'{{ sleep "$0"; kill -9 $$; }} </dev/null >/dev/null 2>&1 & {_HOLD}'
# Bytes per inode in memory: the same ratio as ext4 on disk.
_INODE_BYTES = 16 * 1024

IMAGE = pattern(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")
_CONTROL = pattern(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Settings for containers. Invalid values raise ConfigurationError here, not later.

    The network None leaves the choice to the engine, whose default is a bridge.

    `workspace`: a directory of this machine, mounted at `inside`; without it, `inside` is an empty
        directory. Commands start in `inside`.
    `env`: environment variables of every command. The engine shows them to anyone who can query
        it: pass secrets with a command (`Command.env`).
    `user`: `uid`, `uid:gid` or a name in the image, never root. None: the owner of the workspace,
        else the user of the image, else an unprivileged uid that no system uses.
    `directories`: more directories inside that the user can write to.
    `programs`: the only programs that commands can execute, by name; None: any.
    `git_settings`: written to ~/.gitconfig in a container that lasts, unless its image has one.
    `is_shared`: others enter the container too. Its own process then has the user of commands, so
        that `docker exec` without a user gets that one; and a command can end the container.
    """

    image: str = described("node:20-alpine", TEXT, "The image for containers.")
    network: Network | None = described("none", NETWORK, "What containers can reach.")
    timeout_s: float = timeout_field()
    limits: Limits = field(default_factory=Limits)
    workspace: str | None = None
    inside: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    directories: Sequence[str] = ()
    programs: Sequence[str] | None = None
    git_settings: bytes = b""
    is_shared: bool = False

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
            # They can only be mounted with the short form, where both are separators.
            if re.search(r"[:,]", path) and (self.workspace is None or path != self.inside):
                raise ConfigurationError(
                    f"a directory inside is `{path}`; it must not contain `:` or `,`"
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


def docker_settings(given: DockerSettings | Mapping[str, object]) -> DockerSettings:
    """Return settings as they are, and read a section of a file.

    The containers of a section show the current directory at its own path.
    """
    if isinstance(given, Mapping):
        directory = os.path.realpath(".")
        settings = read_section(DockerSettings, given, origin="docker")
        return replace(settings, workspace=directory, inside=directory)
    check_type("config", given, DockerSettings)
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """How to find a container later: by its labels, and by its name if one was given.

    `owner`: who owns it; only the owner's kakoi attaches to it or sweeps it.
    `max_age_s`: how long it is meant to live. The label `kakoi.expires` says so to people who clean
    up; kakoi itself removes only the containers of tasks.
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
                raise ConfigurationError(f"{name} contains a control character")

    def labels(self, *, now_s: float | None) -> dict[str, str]:
        """Return the labels of a container created at `now_s`; None: without dates."""
        labels = {"kakoi.owner": self.owner, "kakoi.task": self.task}
        if now_s is not None:
            labels["kakoi.created"] = _moment(now_s)
            labels["kakoi.expires"] = _moment(now_s + self.max_age_s)
        return labels


def new_name() -> str:
    """Return a container name that nobody can guess."""
    return f"kakoi-{new_id()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """Every detail of one container.

    `uid`, `gid`: the ids of `user`, which can be a name that only the image knows.
    `source`: mounted at `settings.inside`; the workspace, or a view of it. `lent`: the directory
        that needs a view. `copied`: the copy to mount there instead of the workspace.
    `guarded`: paths relative to `source` that commands can read but not change.
    `own_home`: the user is not the image's, so the image has no home directory for it.
    `cpus`: how many the machine has; an engine refuses a higher limit.
    `outlet_folder`: the directory through which the outlet's socket is handed over (outlet.py),
        mounted at OUTLET_FOLDER.
    `disk`: where the container can write, if that is limited.
    `is_held`: it runs only while we hold it by its stdin. `ends_after_s`: it ends after this time,
        whatever we do. The engine removes both kinds when they end.
    """

    settings: DockerSettings
    name: str
    labels: Mapping[str, str]
    user: str
    uid: int
    gid: int
    source: str | None = None
    lent: FileIdentity | None = None
    copied: "CopyMount | None" = None
    guarded: Sequence[str] = ()
    own_home: bool = True
    cpus: float | None = None
    program: Program = "docker"
    rootless: bool = False
    outlet_folder: str = ""
    disk: DiskPlan | None = None
    is_held: bool = False
    ends_after_s: int | None = None

    @property
    def view_of(self) -> str:
        """The path of the directory that is lent; empty if there is none."""
        return "" if self.lent is None else self.lent.path

    @property
    def directories(self) -> list[str]:
        """The directories that must exist inside for the user, parents first."""
        made = [HOME] if self.own_home else []
        if self.settings.programs is not None:
            made += ["/tmp", "/var/tmp", "/run/lock"]  # noqa: S108 - open to all in images
        if self.source is None:
            made.append(self.settings.inside)
        return [*made, *(each for each in self.settings.directories if each not in made)]

    @property
    def unmade(self) -> list[str]:
        """Those of `directories` that must be created, because nothing is mounted there."""
        return [] if self.disk and self.disk.is_kept else self.directories

    @property
    def first_argv(self) -> list[str]:
        """The program that keeps the container running.

        No command can kill it: it has another user, unless the container is shared. One that is
        held answers every line of its stdin, and exits when that closes, which it does when we
        exit.
        """
        if not self.is_held:
            return ["sleep", str(self.ends_after_s or _FOREVER)]
        if self.ends_after_s is None:
            return ["sh", "-c", _HOLD]
        return ["sh", "-c", _HOLD_FOR, str(self.ends_after_s)]

    @property
    def disk_label(self) -> str:
        """The label that identifies a disk: the name it was made for, and its paths inside."""
        tops = self.disk.tops if self.disk else ()
        return ":".join([self.name, *tops]) if tops else ""


def run_args(plan: ContainerPlan, argv: Sequence[str], *, in_memory: bool = True) -> list[str]:
    """`run`: a container that runs `argv` and is removed with it. Commands come in by `exec`.

    `in_memory`: its directories are in memory, and need not be made after the start.
    """
    scratch = _scratch(plan) if in_memory else []
    start = ["run", "--rm", "-i", *_common(plan), *scratch, "--user", WAITING_USER]
    return [*start, "--entrypoint", argv[0], plan.settings.image, *argv[1:]]


def _scratch(plan: ContainerPlan) -> list[str]:
    """Arguments for the directories in memory; a parent must be mounted before its child."""
    return [word for path in sorted(plan.unmade) for word in _in_memory(plan, path)]


def _in_memory(plan: ContainerPlan, path: str, size: int | None = None) -> list[str]:
    programs = "exec" if plan.settings.programs is None else "noexec"
    # Podman cannot set an owner here, and runc prefers the mode of a directory in the image.
    is_open = plan.program == "podman" or path in TEMPORARY
    owned = "mode=1777" if is_open else f"uid={plan.uid},gid={plan.gid},mode=0755"
    limit = "" if size is None else f",size={size}"
    if size is not None and plan.program == "docker":  # Podman refuses to limit inodes.
        limit += f",nr_inodes={max(size // _INODE_BYTES, 1024)}"
    return ["--tmpfs", f"{path}:rw,{programs},nosuid,nodev,{owned}{limit}"]


def _disk(plan: ContainerPlan) -> Iterator[str]:
    """Arguments that make everything read-only except directories of limited size."""
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
            # A volume, not a bind mount: the engine copies the image's files at `path` into it.
            options = f"volume-opt=type=none,volume-opt=o=bind,volume-opt=device={source}"
            yield from ("--mount", f"type=volume,dst={path},{options}")
        else:
            yield from mount_args(source, path, plan.program, must_exist=True)


def create_args(plan: ContainerPlan) -> list[str]:
    """`create`: a container that only waits. Commands come in by `exec`."""
    # On disk, unless no program may be executed there: only a tmpfs can be mounted noexec.
    scratch = [] if plan.settings.programs is None else _scratch(plan)
    goes = [] if plan.ends_after_s is None and not plan.is_held else ["--rm"]
    held = ["-i"] if plan.is_held else []
    user = plan.user if plan.settings.is_shared else WAITING_USER
    start = ["create", *goes, *held, *_common(plan), *scratch, "--user", user]
    program, *rest = plan.first_argv
    return [*start, "--entrypoint", program, plan.settings.image, *rest]


def exec_args(
    name: str,
    user: str,
    argv: Sequence[str],
    *,
    variables: Iterable[str] = (),
    terminal: bool = False,
) -> list[str]:
    """`exec`: `argv` in a running container.

    `variables`: names; their values come from the environment of the engine's program.
    """
    given = [word for variable in variables for word in ("-e", variable)]
    return ["exec", "-i", *(["-t"] if terminal else []), "--user", user, *given, name, *argv]


def _common(plan: ContainerPlan) -> list[str]:
    settings = plan.settings
    env = {"HOME": HOME, **settings.env} if plan.own_home else dict(settings.env)
    return [
        *("--name", plan.name),
        *("--pull", "never"),
        "--init",
        "--no-healthcheck",
        *("--security-opt", "no-new-privileges"),
        *("--cap-drop", "ALL"),
        # The runner talks over stdout: the engine must not write a copy of that to disk.
        *("--log-driver", "none"),
        *_limits(settings.limits, plan.cpus),
        *(("--network", settings.network) if settings.network not in (None, *PROXIED) else ()),
        *_outlet(plan),
        *(("--userns", "keep-id") if plan.rootless and plan.source else ()),
        *_mounts(plan),
        *_disk(plan),
        # A workspace can be mounted at its own path; in an image only root can enter /root.
        *(_in_memory(plan, "/root", MIB) if _within_root(settings) else ()),
        *("-w", settings.inside),
        *_pairs("-e", env),
        # Always set all of them: containers inherit the labels of their image.
        *_pairs("--label", _labels(plan)),
    ]


def _outlet(plan: ContainerPlan) -> Iterator[str]:
    """Arguments for a network that we serve: none of its own, and our name server at port 53."""
    if plan.settings.network in PROXIED:
        yield from ("--network", "none")
        yield from ("--sysctl", f"net.ipv4.ip_unprivileged_port_start={NAME_PORT}")
    if plan.outlet_folder:
        resolv_conf = resolv_conf_of(plan.outlet_folder)
        for source, target in (
            (plan.outlet_folder, OUTLET_FOLDER),
            (resolv_conf, RESOLV_CONF_PATH),
        ):
            yield from mount_args(source, target, plan.program, read_only=True, must_exist=True)


def _labels(plan: ContainerPlan) -> dict[str, str]:
    ours = {"kakoi.user": plan.user, "kakoi.view": plan.view_of, "kakoi.disk": plan.disk_label}
    inside = plan.settings.inside
    return {**plan.labels, **ours, "kakoi.way": plan.outlet_folder, "kakoi.inside": inside}


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


def _mounts(plan: ContainerPlan) -> list[str]:
    """Mount the workspace, each guarded path, and each directory between the two.

    A directory that is a mount of its own cannot be renamed and replaced by another.
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
            must_exist=plan.lent is not None or plan.copied is not None,
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
    """Arguments for a bind mount. A colon in a path needs the long form.

    With the short form, an engine creates a missing directory; `must_exist` prevents that.
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
        raise ConfigurationError(f"{what} is {path!r}; it contains a control character")


def check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        check_type("a name in env", name, str)
        check_type(f"env[{name!r}]", value, str)
        if not name or "=" in name or _CONTROL.search(name) or "\0" in value:
            raise ConfigurationError(f"env contains {name!r}; it must map names to text")
        if changes_the_shell(name):
            raise ConfigurationError(
                f"env sets {name}, which would change what the shell does with a command"
            )
        if is_secret_name(name):
            raise ConfigurationError(
                f"env sets {name}, and the engine would show its value to anyone who asks",
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
