"""The user that commands run as in a container, and what an image knows about that user."""

import posixpath
import re

from kakoi._support.late import dataclass, pattern
from kakoi.backends.workspace import FileIdentity
from kakoi.errors import ConfigurationError

# A uid that no system uses, so it shares no files, limits or keys with any user of the host.
OUR_ID = 65533
_OURS = f"{OUR_ID}:{OUR_ID}"
_USER = pattern(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


def is_root(user: str) -> bool:
    """Whether a user of an image or a setting (`name`, `uid`, `uid:gid`) is root; empty is root."""
    name = user.partition(":")[0]
    return name in ("", "root") or (name.isdigit() and int(name) == 0)


@dataclass(frozen=True, slots=True)
class UserChoice:
    """The user that commands run as.

    `own_home`: we provide the home directory. `lend`: root's workspace must appear as that user's.
    """

    user: str
    own_home: bool = True
    lend: bool = False


def choose_user(
    wanted: str | None,
    *,
    image_user: str,
    workspace: FileIdentity | None,
    caller: tuple[int, int],
) -> UserChoice:
    """Choose the user that commands run as, never root.

    `wanted` takes precedence. Otherwise, without a workspace, it is the image's user, or OUR_ID if
    that is root. With a workspace it is the workspace's owner, so that files keep their owner. A
    caller who is not root stays the same user, with exactly the rights they have outside.
    """
    if wanted is not None and wanted.isdigit():
        wanted = f"{wanted}:{wanted}"  # Otherwise the engine uses root's group.
    if workspace is None:
        user = wanted or ("" if is_root(image_user) else image_user)
        return (
            UserChoice(user, own_home=False)
            if user == image_user != ""
            else UserChoice(user or _OURS)
        )
    if caller[0]:
        return UserChoice(wanted or f"{caller[0]}:{caller[1]}")
    lend = 0 in (workspace.uid, workspace.gid)
    if lend and wanted is not None and not re.fullmatch(r"\d+:\d+", wanted):
        raise ConfigurationError(
            f"user is {wanted!r}; to lend root's workspace to it, its uid and gid must be known",
            hint="give it as `uid:gid`",
        )
    owner = f"{workspace.uid or OUR_ID}:{workspace.gid or OUR_ID}"
    return UserChoice(wanted or owner, lend=lend)


def check_user(user: str) -> None:
    """Raise ConfigurationError for an invalid user, and for root."""
    if not _USER.fullmatch(user):
        raise ConfigurationError(f"user is {user!r}; it must be `uid`, `uid:gid` or a name")
    if is_root(user):
        raise ConfigurationError(
            f"user is {user!r}; commands never run as root",
            hint="leave it out, or name another user",
        )


# --- In an image -----------------------------------------------------------------------------


def find_home(users: str, user: str) -> str:
    """Find the home of `name` or `uid` in the text of /etc/passwd; empty if it has no real one."""
    name = user.partition(":")[0]
    for line in users.splitlines():
        fields = line.split(":")
        if len(fields) > 5 and name in fields[:1] + fields[2:3]:
            home = mountable_path(fields[5])
            return "" if home in ("/", "/nonexistent", "/root") else home
    return ""


def mountable_path(path: str) -> str:
    """Normalize an absolute path for mounting; empty if it cannot be mounted."""
    usable = path.startswith("/") and not re.search(r"[:,\x00-\x1f]", path)
    return posixpath.normpath(path) if usable else ""


def find_user(users: str, user: str) -> tuple[int, int] | None:
    """Find uid and gid of `name`, `uid` or either with `:gid` in the text of /etc/passwd."""
    name, _, group = user.partition(":")
    for line in users.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in fields[:1] + fields[2:3] and fields[2].isdigit():
            gid = group if group.isdigit() else fields[3]
            return (int(fields[2]), int(gid)) if gid.isdigit() else None
    if name.isdigit():
        return int(name), int(group) if group.isdigit() else 0
    return None
