"""What bubblewrap is told: settings and a look at this machine → one argv.

Inside there is a read-only system, a private /tmp and home, and the workspace at its own path.
Nothing of the host's /etc is there but a list of harmless entries.
"""

import glob
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from kakoi.errors import ConfigurationError
from kakoi.process.stream import Launch
from kakoi.sandbox.landlock import Walls
from kakoi.sandbox.seccomp import system_call_filters
from kakoi.sandbox.workspace import Seen, look_at, within

HOME = "/home/agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Whom a sandbox of root's runs as. Not `nobody`: other programs share that one.
UNPRIVILEGED = 65533
STAGING = os.path.join(os.path.dirname(os.path.dirname(__file__)), "process", "staging.py")
# bubblewrap itself mounts here first, so it exists and everybody may enter it.
_PLACE = "/tmp"  # noqa: S108
_OWN_PLACES = ("/proc", "/dev", "/tmp", "/var/tmp", "/run", "/etc/passwd", HOME)  # noqa: S108
_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm", "/run", HOME)  # noqa: S108
# Before the names of what is handed over in descriptors. No word of an argv can hold a NUL, so
# nothing is taken for such a name by accident.
_HANDED = "\0"
# What staging.py calls the folder of an overlay's layers.
LAYERS = "layers"
_SPEC, _ARGS, _FILTER = f"{_HANDED}spec", f"{_HANDED}args", f"{_HANDED}filter"

# What cannot be entered keeps nothing: better no sandbox than one without its limits.
# For `sh`: enter control groups, up to a `--`, and become what follows.
ENTER = (
    'while [ "$1" != -- ]; do echo 0 >"$1" || '
    '{ echo "staging: cannot enter the control group $1" >&2; exit 71; }; shift; done; shift; '
    'exec "$@"'
)

# Left out because people put tokens there: environment, gitconfig, npmrc, pip.conf, wgetrc,
# maven/settings.xml, ssl/private. Left out because they tell hosts apart: hostname, machine-id.
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
class Settings:
    """What is wanted. `read_only`: files and directories to see besides the system's.

    `guarded`: what in the workspace commands may read and not change, nor put another in its place.
    `programs`: the only ones that commands may execute, by name; None: any.
    `sizes`: how many bytes a private directory may hold, by its path.
    `layers`: where to write instead of the workspace: the folder, and what is in it, upper first.
    """

    workspace: Seen
    layers: tuple[Seen, Sequence[str]] | None = None
    read_only: tuple[Seen, ...] = ()
    guarded: tuple[Seen, ...] = ()
    network: Literal["none", "host"] = "none"
    env: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What this machine has.

    `links`: links to make, such as ("usr/bin", "/bin"). `folders`: what is bound read-only.
    `files`: files of /etc and what is in them.
    `python`: the interpreter for the runner; `python_home`: where it lives, if not in `folders`.
    `uid`, `gid`: who we are.
    """

    bwrap: str
    uid: int
    gid: int
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    files: Mapping[str, bytes]
    python: str
    python_home: Seen | None


def look_at_system() -> System | None:
    """What this machine has; None without bubblewrap."""
    bwrap = shutil.which("bwrap", path=PATH)
    if bwrap is None:
        return None
    top = [f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    etc = harmless_etc()
    # Links and copies where that will do: bubblewrap takes nearly a millisecond to bind something.
    links = {path: target for path in [*top, *etc] if (target := _link_into_usr(path))}
    folders = ["/usr", "/opt", *(path for path in [*top, *etc] if path not in links)]
    python, python_home = find_python()
    return System(
        bwrap=bwrap,
        uid=os.geteuid(),
        gid=os.getegid(),
        links=tuple((target, path) for path, target in links.items()),
        folders=tuple(path for path in folders if os.path.isdir(path)),
        files={path: text for path in etc if path not in links and (text := _public_text(path))},
        python=python,
        python_home=python_home,
    )


def harmless_etc() -> list[str]:
    """What every program may see of /etc, as far as this machine has it."""
    return sorted(found for name in _ETC for found in glob.glob(f"/etc/{name}"))


def _link_into_usr(path: str) -> str:
    """Where the link at `path` points, if that is inside /usr; empty otherwise."""
    inside = os.path.islink(path) and os.path.realpath(path).startswith("/usr/")
    return os.readlink(path) if inside else ""


def _public_text(path: str) -> bytes:
    """What is in the file at `path`, if everybody on this machine may read it."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            return file.read(_MAX_ETC_BYTES) if mode & stat.S_IROTH else b""
    except OSError:
        return b""


def find_python() -> tuple[str, Seen | None]:
    """The system's own, if it can run the runner; otherwise ours and all that belongs to it."""
    usual = "/usr/bin/python3"
    real = os.path.realpath(usual)
    version = re.fullmatch(r"/usr/(?:\S+/)?python3\.(\d+)", real)
    if version and int(version[1]) >= 8 and os.access(real, os.X_OK):
        return usual, None
    home = look_at(sys.base_prefix, what="the home of Python")
    return os.path.realpath(sys.executable), None if within(home.path, "/usr") else home


def check_read_only(read_only: Sequence[Seen], workspace: Seen) -> None:
    """Refuse what would cover the sandbox's own places, or the workspace."""
    for seen in read_only:
        covered = [path for path in _OWN_PLACES if within(path, seen.path)]
        if seen.path == workspace.path or covered:
            what = covered[0] if covered else "the workspace"
            raise ConfigurationError(
                f"read_only names {seen.path!r}, which would cover {what} in the sandbox",
                hint="name what is needed in it",
            )


def build_launch(
    settings: Settings, system: System, program: Sequence[str], *, groups: Sequence[str] = ()
) -> Launch:
    """How to start `program` in a sandbox of its own, with the workspace as its directory.

    `groups`: the control groups to enter first, by their files of processes.

    The sandbox ends with the *thread* that starts it (`--die-with-parent` is a parent-death
    signal, and the kernel means threads): start it from one that stays. Whoever started it closes
    its input to end it earlier.
    """
    staged = system.uid == 0 or settings.layers is not None
    uid, gid = runs_as(settings, system)
    named = _named(settings, system)
    files = {**system.files, **_own_files(uid, gid)}
    if settings.network == "none":
        files["/etc/hosts"] = b"127.0.0.1 localhost kakoi\n::1 localhost kakoi\n"
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
        # What bubblewrap builds the rest upon would be writable.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", settings.workspace.path, "--", *program),
    ]
    # Not as arguments: everybody on this machine can read those.
    handed = {_ARGS: "".join(f"{word}\0" for word in _environment(settings.env))}
    if staged:
        argv = [sys.executable, "-I", "-S", STAGING, _SPEC, *argv]
        handed[_SPEC] = _spec(uid, gid, _staged(settings, named), groups)
    elif groups:
        argv = ["/bin/sh", "-c", ENTER, "sh", *groups, "--", *argv]
    return Launch(
        argv=argv,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        # Killed while it starts, bubblewrap leaves a child behind that waits for it.
        with_group=True,
        files={
            **({_FILTER: calls} if calls else {}),
            **{name: os.fsencode(text) for name, text in handed.items()},
            **{_HANDED + path: text for path, text in files.items()},
        },
    )


def _call_filter(settings: Settings, system: System) -> bytes | None:
    """The filter of system calls to start with; a runner that has mounts to change brings it."""
    if settings.programs is not None:
        return None
    # Where root's directory is lent, what is made there is root's: no setuid bit must be on it.
    return system_call_filters(deny_setuid=system.uid == 0).get(platform.machine())


def runs_as(settings: Settings, system: System) -> tuple[int, int]:
    """Who commands are to the kernel: we ourselves, or for root the owner of the workspace.

    Never root: what is root's own there is lent to an unprivileged user (process/staging.py).
    """
    if system.uid != 0:
        return system.uid, system.gid
    return settings.workspace.uid or UNPRIVILEGED, settings.workspace.gid or UNPRIVILEGED


def _named(settings: Settings, system: System) -> list[Seen]:
    """What is bound because somebody named it, the outer before the inner."""
    python_home = [system.python_home] if system.python_home else []
    asked = [*python_home, *settings.read_only, *settings.guarded]
    named = {seen.path: seen for seen in [*asked, *_writable(settings)]}
    return [named[path] for path in sorted(named)]


def _writable(settings: Settings) -> list[Seen]:
    """The workspace, and each directory between it and what is guarded in it.

    Mounted by itself, a directory cannot be renamed; and another one in its place would hold
    another program of ours.
    """
    between = {
        parent
        for seen in settings.guarded
        for parent in map(str, PurePath(seen.path).parents)
        if parent != settings.workspace.path and within(parent, settings.workspace.path)
    }
    return [settings.workspace, *(look_at(path, what="the way to kakoi") for path in between)]


def walls_of(settings: Settings, system: System) -> Walls:
    """What the runner inside raises: commands cannot signal it, nor reach abstract sockets.

    With a list of programs also that: nothing is executed from where commands can write.
    """
    if settings.programs is None:
        return Walls()
    writable = [seen.path for seen in _writable(settings)]
    return Walls(
        runner_filter=system_call_filters(deny_setuid=system.uid == 0),
        programs=settings.programs,
        writable=(*writable, *_SCRATCH),
        noexec=(*writable, *_SCRATCH),
        become=runs_as(settings, system),
    )


def _namespaces(network: str, *, locked: bool) -> list[str]:
    """`locked`: no more user namespaces. Otherwise the program may change mounts until it has made
    one itself, as which it goes on, and the filter that it brings refuses any further one."""
    lock = ["--disable-userns"] if locked else ["--uid", "0", "--gid", "0"]
    # The second one: without it, the kernel maps no user to root's number in here.
    for name in () if locked else ("CAP_SYS_ADMIN", "CAP_SETFCAP"):
        lock += ["--cap-add", name]
    return [
        *("--unshare-user", *lock, "--unshare-ipc", "--unshare-pid", "--unshare-uts"),
        *("--unshare-cgroup-try", *(["--unshare-net"] if network == "none" else [])),
        # Its own session: a terminal of ours cannot be typed into (TIOCSTI).
        *("--die-with-parent", "--new-session", "--hostname", "kakoi"),
        # The program itself is process 1: nobody in there can kill, stop or trace it.
        "--as-pid-1",
    ]


def _system_mounts(system: System) -> Iterator[str]:
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
    # Open to everybody, as programs expect it; bubblewrap's own directories are not.
    for path in _SCRATCH[:3]:
        yield from ("--perms", "1777", *private(path))
    yield from (*private("/run"), "--symlink", "../run", "/var/run", *private(HOME))
    if network == "host":
        yield from ("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf")


def _named_mounts(settings: Settings, named: Sequence[Seen], *, staged: bool) -> Iterator[str]:
    writable = _writable(settings)
    for number, seen in enumerate(named):
        source = f"{_PLACE}/{number}" if staged else seen.path
        if settings.layers and seen in writable and seen != settings.workspace:
            # A part of the workspace as it is in the overlay: it is written to.
            below = os.path.relpath(seen.path, settings.workspace.path)
            source = f"{_PLACE}/{named.index(settings.workspace)}/{below}"
        yield from ("--bind" if seen in writable else "--ro-bind", source, seen.path)


def _environment(env: Mapping[str, str]) -> Iterator[str]:
    own = {"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8", "TERM": "xterm", "SHELL": "/bin/bash"}
    own |= {"USER": "agent", "LOGNAME": "agent"}
    yield "--clearenv"
    for name, value in {**own, **env}.items():
        yield from ("--setenv", name, value)


def _own_files(uid: int, gid: int) -> dict[str, bytes]:
    # The first line with a number counts, should we be one of the others.
    passwd = f"""agent:x:{uid}:{gid}:agent:{HOME}:/bin/bash
root:x:0:0:root:/root:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
    group = f"agent:x:{gid}:\nroot:x:0:\nnogroup:x:65534:\n"
    return {"/etc/passwd": passwd.encode("ascii"), "/etc/group": group.encode("ascii")}


def _staged(settings: Settings, named: Sequence[Seen]) -> Iterator[tuple[Seen, str, str]]:
    """What staging.py mounts, under which name, and how it may be used."""
    writable = _writable(settings)
    for number, seen in enumerate(named):
        access = "write" if seen in writable and not settings.layers else "read"
        if settings.layers and seen == settings.workspace:
            access = " ".join(["cow", *settings.layers[1]])
        yield seen, str(number), access
    if settings.layers:
        yield settings.layers[0], LAYERS, "write"


def _spec(
    uid: int, gid: int, staged: Iterable[tuple[Seen, str, str]], groups: Sequence[str]
) -> str:
    """What staging.py is to do; it says there what the fields mean."""
    fields = [str(uid), str(gid), _PLACE]
    for seen, name, access in staged:
        known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
        fields += [seen.path, known, name, access]
    return "\0".join([*fields, *(["\n".join(groups)] if groups else [])])
