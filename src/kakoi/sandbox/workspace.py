"""May a sandbox have this directory? What commands write there is written on this machine."""

import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kakoi.errors import ConfigurationError
from kakoi.runner.commands import check_type

# Whoever writes here writes the system, or what its services live on.
_SYSTEM = """/bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /nix /proc /run /sbin /sys /usr
    /var/cache /var/lib/dpkg /var/lib/docker /var/log /var/spool""".split()
_PROJECTS_IN_SYSTEM = ("/dev/shm", "/usr/src", "/usr/local/src")  # noqa: S108
# More than one project lives here, and more than projects.
_SHARED = "/ /home /media /mnt /opt /root /srv /tmp /var /var/lib /var/tmp".split()


@dataclass(frozen=True, slots=True)
class Seen:
    """A file or directory as it was when it was looked at; another one has another value."""

    path: str
    device: int
    inode: int
    uid: int
    gid: int
    is_directory: bool


def look_at(path: str | os.PathLike[str], *, what: str) -> Seen:
    """What is at `path`, links followed. ConfigurationError if there is nothing."""
    check_type(what, path, str, os.PathLike)
    try:
        real = os.path.realpath(path, strict=True)
        status = os.stat(real)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"{what} is {os.fspath(path)!r}: {why}", hint=f"create it first: mkdir -p {path}"
        ) from None
    is_directory = os.path.isdir(real)
    return Seen(real, status.st_dev, status.st_ino, status.st_uid, status.st_gid, is_directory)


def look_at_workspace(path: str | os.PathLike[str], *, guarded: bool = False) -> Seen:
    """What is at `path`, if commands may have it; otherwise ConfigurationError says why not.

    `guarded`: what is ours in there (`ours_within`) will be kept from them.
    """
    seen = look_at(path, what="the workspace")
    if not seen.is_directory:
        raise ConfigurationError(f"the workspace is {seen.path!r}, which is not a directory")
    homes = [home for uid in (os.getuid(), seen.uid) if (home := _home(uid))]
    ours = [place for place in _ours() if not guarded or within(seen.path, place)]
    if why := objection(seen.path, homes=homes, ours=ours):
        raise ConfigurationError(
            f"the workspace is {seen.path!r}: {why}",
            hint="give commands a directory of their own, such as one checkout",
        )
    return seen


def objection(path: str, *, homes: Sequence[str], ours: Sequence[str]) -> str:
    """Why commands may not have the directory at `path`, which holds no link; empty if they may.

    `homes`: home directories of the people concerned. `ours`: where this program is installed.
    """
    if path in _SHARED:
        return "much more than one project lives there"
    if any(within(path, system) for system in _SYSTEM) and not any(
        within(path, place) and path != place for place in _PROJECTS_IN_SYSTEM
    ):
        return "it is part of the system"
    for home in homes:
        if within(home, path):
            return f"it holds all of the home directory {home}, with its keys and start-up files"
    for place in ours:
        if within(place, path):
            return f"kakoi itself is in it ({place}), and commands could change what confines them"
    return ""


def ours_within(workspace: Seen) -> list[Seen]:
    """Where kakoi itself is in a workspace (a project's virtual environment, say)."""
    inside = [place for place in _ours() if within(place, workspace.path)]
    outermost = [
        place
        for place in inside
        if not any(within(place, other) for other in inside if other != place)
    ]
    return [look_at(place, what="a part of kakoi") for place in outermost]


def within(path: str, folder: str) -> bool:
    """Is `path` the folder, or somewhere below it?"""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _home(uid: int) -> str:
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""
    # The homes of those who have none: `/`, `/nonexistent`, `/usr/sbin`.
    return os.path.realpath(home) if home not in ("", "/") else ""


def _ours() -> list[str]:
    package = Path(__file__).parent.parent
    places = (package, sys.prefix, sys.base_prefix, Path(sys.executable).parent)
    return sorted({os.path.realpath(place) for place in places})
