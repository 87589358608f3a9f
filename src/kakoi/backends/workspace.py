"""Which directories can be a workspace: what commands write there is written on this machine."""

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from kakoi._support.late import dataclass
from kakoi.channel.api import check_type
from kakoi.errors import ConfigurationError

# Writing here changes the system, or the data of its services.
_SYSTEM = """/bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /nix /proc /run /sbin /sys /usr
    /var/cache /var/lib/dpkg /var/lib/docker /var/log /var/spool""".split()
_PROJECTS_IN_SYSTEM = ("/dev/shm", "/usr/src", "/usr/local/src")  # noqa: S108
# These hold more than one project, and more than projects.
_SHARED = "/ /home /media /mnt /opt /root /srv /tmp /var /var/lib /var/tmp".split()


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file or directory as it was when it was identified; another one has another value."""

    path: str
    device: int
    inode: int
    uid: int
    gid: int
    is_directory: bool


def identify(path: str | os.PathLike[str], *, what: str) -> FileIdentity:
    """Identify what is at `path`, following links. ConfigurationError: nothing is there."""
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
    return FileIdentity(
        real, status.st_dev, status.st_ino, status.st_uid, status.st_gid, is_directory
    )


def identify_workspace(path: str | os.PathLike[str], *, guarded: bool = False) -> FileIdentity:
    """Identify the workspace at `path`. ConfigurationError: commands must not have it.

    `guarded`: kakoi's own files in there (`kakoi_paths_in`) will be protected from them.
    """
    seen = identify(path, what="the workspace")
    if not seen.is_directory:
        raise ConfigurationError(f"the workspace is {seen.path!r}, which is not a directory")
    homes = [home for uid in (os.getuid(), seen.uid) if (home := _home(uid))]
    ours = [path for path in _ours() if not guarded or is_within(seen.path, path)]
    if why := workspace_objection(seen.path, homes=homes, ours=ours):
        raise ConfigurationError(
            f"the workspace is {seen.path!r}: {why}",
            hint="use a directory for this project alone, such as one checkout",
        )
    return seen


def workspace_objection(path: str, *, homes: Sequence[str], ours: Sequence[str]) -> str:
    """Why commands must not have the directory at `path` (without links); empty if they can.

    `homes`: home directories of the users concerned. `ours`: where kakoi is installed.
    """
    if path in _SHARED:
        return "it holds much more than one project"
    if any(is_within(path, system) for system in _SYSTEM) and not any(
        is_within(path, folder) and path != folder for folder in _PROJECTS_IN_SYSTEM
    ):
        return "it is part of the system"
    for home in homes:
        if is_within(home, path):
            return f"it holds all of the home directory {home}, with its keys and start-up files"
    for own in ours:
        if is_within(own, path):
            return f"kakoi itself is in it ({own}), and commands could change what confines them"
    return ""


def kakoi_paths_in(workspace: FileIdentity) -> list[FileIdentity]:
    """Where kakoi itself is inside a workspace, such as in a project's virtual environment."""
    inside = [path for path in _ours() if is_within(path, workspace.path)]
    outermost = [
        path
        for path in inside
        if not any(is_within(path, other) for other in inside if other != path)
    ]
    return [identify(path, what="a part of kakoi") for path in outermost]


def is_within(path: str, folder: str) -> bool:
    """Whether `path` is the folder, or somewhere below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _home(uid: int) -> str:
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""
    # Users without a home have `/`, `/nonexistent` or `/usr/sbin`.
    return os.path.realpath(home) if home not in ("", "/") else ""


def _ours() -> list[str]:
    package = Path(__file__).parent.parent
    paths = (package, sys.prefix, sys.base_prefix, Path(sys.executable).parent)
    return sorted({os.path.realpath(path) for path in paths})
