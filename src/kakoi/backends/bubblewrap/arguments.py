"""Builds the argv of bubblewrap from the settings and from what this machine has.

Inside there is a read-only system, a private /tmp and home, and the workspace at its own path.
Of the host's /etc, only a list of harmless entries is visible.
"""

import glob
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePath
from typing import Literal

from kakoi._support.late import dataclass
from kakoi.backends.landlock import Restrictions
from kakoi.backends.resolv_conf import RESOLV_CONF
from kakoi.backends.seccomp import system_call_filter, system_call_filters
from kakoi.backends.workspace import FileIdentity, identify, is_within
from kakoi.errors import ConfigurationError
from kakoi.process.keeper_client import program_argv
from kakoi.process.stream import Launch

HOME = "/home/agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The uid of sandboxes that root starts. Not `nobody`: other programs share that one.
UNPRIVILEGED = 65533
STAGING = str(Path(__file__).parents[2] / "process" / "mount_stage.py")
# bubblewrap itself mounts here first, so it exists and everybody can enter it.
_MOUNT_POINT = "/tmp"  # noqa: S108
_OWN_PATHS = ("/proc", "/dev", "/tmp", "/var/tmp", "/run", "/etc/passwd", HOME)  # noqa: S108
_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm", "/run", HOME)  # noqa: S108
# Prefix for the names of data passed in descriptors. No word of an argv can contain a NUL, so no
# other argument is mistaken for such a name.
_HANDED = "\0"
# The name in mount_stage.py for the folder of an overlay's layers.
LAYERS = "layers"
_SPEC, _ARGS, _FILTER = f"{_HANDED}spec", f"{_HANDED}args", f"{_HANDED}filter"

# For `sh`: enter the control groups before `--`, and exec the rest. A group that cannot be entered
# enforces nothing, so this fails: better no sandbox than one without its limits.
ENTER = (
    'while [ "$1" != -- ]; do echo 0 >"$1" || '
    '{ echo "staging: cannot enter the control group $1" >&2; exit 71; }; shift; done; shift; '
    'exec "$@"'
)

# Left out because people put tokens there: environment, gitconfig, npmrc, pip.conf, wgetrc,
# maven/settings.xml, ssl/private. Left out because they identify the host: hostname, machine-id.
_ETC = """
    alternatives ca-certificates.conf crypto-policies debian_version fedora-release fonts gai.conf
    host.conf hosts ImageMagick-* inputrc java java-* ld.so.cache locale.alias locale.conf localtime
    lsb-release magic magic.mime manpath.config maven/logging/*.properties maven/m2.conf mime.types
    netconfig networks nsswitch.conf os-release papersize perl/Net/*.cfg pki/ca-trust pki/java
    pki/tls/cert.pem pki/tls/certs pki/tls/openssl.cnf protocols python3*/*.py python3/*_config R
    redhat-release rpc services shells ssl/cert.pem ssl/certs ssl/openssl.cnf texmf timezone
    xattr.conf xml/catalog
""".split()
_MAX_ETC_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLayers:
    """What is mounted at the path of the workspace: an overlay of directories in `folder`.

    `names`: of these directories: first the kernel's own, then the one that is written to.
    `base`: the directory below all of them: the workspace, or what takes its place.
    """

    base: FileIdentity
    folder: FileIdentity
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblewrapSettings:
    """Settings for a sandbox. `read_only`: files and directories visible besides the system's.

    `guarded`: files in the workspace that commands can read, but neither change nor replace.
    `programs`: the only programs that commands can execute, by name; None: any.
    `sizes`: the maximum size of private directories in bytes, by path.
    `git_settings`: the content of /etc/gitconfig.
    `layers`: where writes go instead of the workspace.
    """

    workspace: FileIdentity
    layers: WorkspaceLayers | None = None
    read_only: tuple[FileIdentity, ...] = ()
    guarded: tuple[FileIdentity, ...] = ()
    network: Literal["none", "host"] = "none"
    env: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    git_settings: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSystem:
    """What this machine has.

    `links`: symbolic links to make, such as ("usr/bin", "/bin"). `folders`: directories to bind
        read-only.
    `files`: files of /etc with their contents.
    `python`: the interpreter for the runner; `python_home`: its directory, if not in `folders`.
    `uid`, `gid`: our own.
    """

    bwrap: str
    uid: int
    gid: int
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    files: Mapping[str, bytes]
    python: str
    python_home: FileIdentity | None


def inspect_system() -> HostSystem | None:
    """Inspect this machine; None without bubblewrap."""
    bwrap = _find_bwrap()
    if bwrap is None:
        return None
    top = [f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    etc = harmless_etc()
    # Links and copies where possible: bubblewrap takes nearly a millisecond for each bind mount.
    links = {path: target for path in [*top, *etc] if (target := _link_into_usr(path))}
    folders = ["/usr", "/opt", *(path for path in [*top, *etc] if path not in links)]
    python, python_home = find_python()
    return HostSystem(
        bwrap=bwrap,
        uid=os.geteuid(),
        gid=os.getegid(),
        links=tuple((target, path) for path, target in links.items()),
        folders=tuple(path for path in folders if os.path.isdir(path)),
        files={path: text for path in etc if path not in links and (text := _public_text(path))},
        python=python,
        python_home=python_home,
    )


def _find_bwrap() -> str | None:
    """The program's path; `shutil.which` would load three libraries for archives too."""
    paths = [f"{folder}/bwrap" for folder in PATH.split(":")]
    return next((each for each in paths if os.path.isfile(each) and os.access(each, os.X_OK)), None)


def harmless_etc() -> list[str]:
    """The paths in /etc that every program may see, if this machine has them."""
    names = os.listdir("/etc")  # Once: `glob` would list it for each pattern.
    found: list[str] = []
    for pattern in _ETC:
        first, _, rest = pattern.partition("/")
        is_prefix = first.endswith("*")
        for name in [n for n in names if n.startswith(first[:-1])] if is_prefix else [first]:
            path = os.path.join("/etc", name, *([rest] if rest else []))
            if "*" in rest:
                found += glob.glob(path)
            elif os.path.lexists(path):
                found.append(path)
    return sorted(found)


def _link_into_usr(path: str) -> str:
    """The target of the link at `path`, if it leads into /usr; empty otherwise."""
    inside = os.path.islink(path) and os.path.realpath(path).startswith("/usr/")
    return os.readlink(path) if inside else ""


def _public_text(path: str) -> bytes:
    """The contents of the file at `path`, if everybody on this machine can read it."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            return file.read(_MAX_ETC_BYTES) if mode & stat.S_IROTH else b""
    except OSError:
        return b""


def find_python() -> tuple[str, FileIdentity | None]:
    """The system's Python if it can run the runner; otherwise ours, with its directory."""
    usual = "/usr/bin/python3"
    real = os.path.realpath(usual)
    version = re.fullmatch(r"/usr/(?:\S+/)?python3\.(\d+)", real)
    if version and int(version[1]) >= 8 and os.access(real, os.X_OK):
        return usual, None
    home = identify(sys.base_prefix, what="the home of Python")
    return os.path.realpath(sys.executable), None if is_within(home.path, "/usr") else home


def check_read_only(read_only: Sequence[FileIdentity], workspace: FileIdentity) -> None:
    """Refuse paths that would cover the sandbox's own directories, or the workspace."""
    for seen in read_only:
        covered = [path for path in _OWN_PATHS if is_within(path, seen.path)]
        if seen.path == workspace.path or covered:
            what = covered[0] if covered else "the workspace"
            raise ConfigurationError(
                f"read_only names {seen.path!r}, which would cover {what} in the sandbox",
                hint="name what is needed in it",
            )


def build_launch(
    settings: BubblewrapSettings,
    system: HostSystem,
    program: Sequence[str],
    *,
    groups: Sequence[str] = (),
) -> Launch:
    """How to start `program` in a new sandbox, with the workspace as its working directory.

    `groups`: the `cgroup.procs` files of the control groups to enter first.
    The sandbox ends with the *thread* that starts it (`--die-with-parent` is a parent-death
    signal, which the kernel ties to threads), so start it from a long-lived thread. Close its
    stdin to end it earlier.
    """
    staged = system.uid == 0 or settings.layers is not None
    uid, gid = runs_as(settings, system)
    named = _named(settings, system)
    files = {**system.files, **_own_files(uid, gid, settings)}
    calls = _call_filter(settings, system)
    argv = [
        system.bwrap,
        *("--args", _ARGS),
        *(("--seccomp", _FILTER) if calls else ()),
        *_namespaces(settings.network, locked=settings.programs is None),
        *_system_mounts(system),
        *_private_mounts(settings.network, settings.sizes),
        *_file_arguments(files),
        *_named_mounts(settings, named, staged=staged),
        # Otherwise the tmpfs that bubblewrap builds everything on stays writable.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", settings.workspace.path, "--", *program),
    ]
    # Not in the argv: everybody on this machine can read that.
    handed = {_ARGS: "".join(f"{word}\0" for word in _environment(settings.env))}
    if staged:
        argv = program_argv(STAGING, _SPEC, *argv)
        handed[_SPEC] = _spec(uid, gid, _staged(settings, named), groups)
    elif groups:
        argv = ["/bin/sh", "-c", ENTER, "sh", *groups, "--", *argv]
    return Launch(
        argv=argv,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        # If killed while it starts, bubblewrap leaves behind a child that waits for it.
        with_group=True,
        files={
            **({_FILTER: calls} if calls else {}),
            **{name: os.fsencode(text) for name, text in handed.items()},
            **{_HANDED + path: text for path, text in files.items()},
        },
    )


def _call_filter(settings: BubblewrapSettings, system: HostSystem) -> bytes | None:
    """The system call filter to start with; None if the runner must first change mounts.

    Then the runner applies the filter itself.
    """
    if settings.programs is not None:
        return None
    # Files created in a directory that root lends belong to root: they must not be setuid.
    return system_call_filter(platform.machine(), deny_setuid=system.uid == 0)


def runs_as(settings: BubblewrapSettings, system: HostSystem) -> tuple[int, int]:
    """The uid and gid of commands: our own, or the workspace owner's if we are root.

    Never root: a workspace that belongs to root is lent to an unprivileged user
    (process/mount_stage.py).
    """
    if system.uid != 0:
        return system.uid, system.gid
    return settings.workspace.uid or UNPRIVILEGED, settings.workspace.gid or UNPRIVILEGED


def _named(settings: BubblewrapSettings, system: HostSystem) -> list[FileIdentity]:
    """Everything bound because the settings name it, parents before children."""
    python_home = [system.python_home] if system.python_home else []
    asked = [*python_home, *settings.read_only, *settings.guarded]
    named = {seen.path: seen for seen in [*asked, *_writable(settings)]}
    return [named[path] for path in sorted(named)]


def _writable(settings: BubblewrapSettings) -> list[FileIdentity]:
    """The workspace, and each directory between it and a guarded path in it.

    A directory that is a mount of its own cannot be renamed. If it could, commands could replace it
    with one that contains a different version of our program.
    """
    between = {
        parent
        for seen in settings.guarded
        for parent in map(str, PurePath(seen.path).parents)
        if parent != settings.workspace.path and is_within(parent, settings.workspace.path)
    }
    return [settings.workspace, *(identify(path, what="the way to kakoi") for path in between)]


def build_restrictions(settings: BubblewrapSettings, system: HostSystem) -> Restrictions:
    """Restrictions that the runner applies: commands cannot signal it or reach abstract sockets.

    With a list of programs, only those can be executed, and none from where commands can write.
    """
    if settings.programs is None:
        return Restrictions()
    writable = [seen.path for seen in _writable(settings)]
    return Restrictions(
        runner_filter=system_call_filters(deny_setuid=system.uid == 0),
        programs=settings.programs,
        writable=(*writable, *_SCRATCH),
        noexec=(*writable, *_SCRATCH),
        become=runs_as(settings, system),
    )


def _namespaces(network: str, *, locked: bool) -> list[str]:
    """Arguments for the namespaces. `locked`: no more user namespaces can be made.

    Otherwise the program can change mounts until it moves into a user namespace of its own. The
    filter that it then applies refuses further ones.
    """
    lock = ["--disable-userns"] if locked else ["--uid", "0", "--gid", "0"]
    # CAP_SETFCAP: without it, the kernel does not map any user to uid 0 in here.
    for name in () if locked else ("CAP_SYS_ADMIN", "CAP_SETFCAP"):
        lock += ["--cap-add", name]
    return [
        *("--unshare-user", *lock, "--unshare-ipc", "--unshare-pid", "--unshare-uts"),
        *("--unshare-cgroup-try", *(["--unshare-net"] if network == "none" else [])),
        # Its own session: commands cannot type into our terminal (TIOCSTI).
        *("--die-with-parent", "--new-session", "--hostname", "kakoi"),
        # The program itself is process 1: nothing inside can kill, stop or trace it.
        "--as-pid-1",
    ]


def _system_mounts(system: HostSystem) -> Iterator[str]:
    yield from ("--dir", "/etc")
    for path in system.folders:
        yield from ("--ro-bind", path, path)
    for target, path in system.links:
        yield from ("--symlink", target, path)


def _file_arguments(files: Iterable[str]) -> Iterator[str]:
    for path in files:
        yield from ("--perms", "0444", "--file", _HANDED + path, path)


def _private_mounts(network: str, sizes: Mapping[str, int]) -> Iterator[str]:
    def private(path: str) -> tuple[str, ...]:
        size = ("--size", str(sizes[path])) if path in sizes else ()
        return (*size, "--tmpfs", path)

    yield from ("--proc", "/proc", "--dev", "/dev")
    # Writable by everybody, as programs expect. By default, bubblewrap's directories are not.
    for path in _SCRATCH[:3]:
        yield from ("--perms", "1777", *private(path))
    yield from (*private("/run"), "--symlink", "../run", "/var/run", *private(HOME))
    if network == "host":
        yield from ("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf")


def _named_mounts(
    settings: BubblewrapSettings, named: Sequence[FileIdentity], *, staged: bool
) -> Iterator[str]:
    writable = _writable(settings)
    for number, seen in enumerate(named):
        source = f"{_MOUNT_POINT}/{number}" if staged else seen.path
        if settings.layers and seen in writable and seen != settings.workspace:
            # Writable, so it is taken from the overlay, not from the workspace below it.
            below = os.path.relpath(seen.path, settings.workspace.path)
            source = f"{_MOUNT_POINT}/{named.index(settings.workspace)}/{below}"
        yield from ("--bind" if seen in writable else "--ro-bind", source, seen.path)


def _environment(env: Mapping[str, str]) -> Iterator[str]:
    own = {"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8", "TERM": "xterm", "SHELL": "/bin/bash"}
    own |= {"USER": "agent", "LOGNAME": "agent"}
    yield "--clearenv"
    for name, value in {**own, **env}.items():
        yield from ("--setenv", name, value)


def _own_files(uid: int, gid: int, settings: BubblewrapSettings) -> dict[str, bytes]:
    # For each uid the first line counts, in case ours equals one of the others.
    passwd = f"""agent:x:{uid}:{gid}:agent:{HOME}:/bin/bash
root:x:0:0:root:/root:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
    group = f"agent:x:{gid}:\nroot:x:0:\nnogroup:x:65534:\n"
    files = {"/etc/passwd": passwd.encode("ascii"), "/etc/group": group.encode("ascii")}
    if settings.git_settings:
        files["/etc/gitconfig"] = settings.git_settings
    if settings.network == "none":
        files["/etc/hosts"] = b"127.0.0.1 localhost kakoi\n::1 localhost kakoi\n"
        files["/etc/resolv.conf"] = RESOLV_CONF
    return files


def _staged(
    settings: BubblewrapSettings, named: Sequence[FileIdentity]
) -> Iterator[tuple[FileIdentity, str, str]]:
    """What mount_stage.py mounts, under which name, and with which access."""
    writable = _writable(settings)
    for number, seen in enumerate(named):
        access = "write" if seen in writable and not settings.layers else "read"
        if settings.layers and seen == settings.workspace:
            seen, access = settings.layers.base, " ".join(["cow", *settings.layers.names])
        yield seen, str(number), access
    if settings.layers:
        yield settings.layers.folder, LAYERS, "write"


def _spec(
    uid: int, gid: int, staged: Iterable[tuple[FileIdentity, str, str]], groups: Sequence[str]
) -> str:
    """The order for mount_stage.py, which documents the fields."""
    fields = [str(uid), str(gid), _MOUNT_POINT]
    for seen, name, access in staged:
        known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
        fields += [seen.path, known, name, access]
    return "\0".join([*fields, *(["\n".join(groups)] if groups else [])])
