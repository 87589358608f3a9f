"""As whom commands run in a container, and what an image knows of that user."""

import posixpath
import re
from dataclasses import dataclass

from kakoi.errors import ConfigurationError
from kakoi.sandbox.workspace import Seen

# A user that no system has: nobody's files, limits or keys on the host are shared with it.
OUR_ID = 65533
_OURS = f"{OUR_ID}:{OUR_ID}"
_USER = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


def is_root(user: str) -> bool:
    """Does an image's or a setting's user (`name`, `uid`, `uid:gid`) mean root? Empty does."""
    name = user.partition(":")[0]
    return name in ("", "root") or (name.isdigit() and int(name) == 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """As whom commands run; `lend`: root's workspace must be shown as that user's own."""

    user: str
    own_home: bool = True
    lend: bool = False


def choose_user(
    wanted: str | None,
    *,
    image_user: str,
    workspace: Seen | None,
    caller: tuple[int, int],
) -> Choice:
    """Never root. In a workspace whoever owns its files, so that they stay theirs.

    A caller who is not root sees in the container exactly what they may do outside.
    """
    if wanted is not None and wanted.isdigit():
        wanted = f"{wanted}:{wanted}"  # The engine would choose root's group.
    if workspace is None:
        user = wanted or ("" if is_root(image_user) else image_user)
        return Choice(user, own_home=False) if user == image_user != "" else Choice(user or _OURS)
    if caller[0]:
        return Choice(wanted or f"{caller[0]}:{caller[1]}")
    lend = 0 in (workspace.uid, workspace.gid)
    if lend and wanted is not None and not re.fullmatch(r"\d+:\d+", wanted):
        raise ConfigurationError(
            f"user is {wanted!r}; to lend root's workspace to it, its numbers must be known",
            hint="give it as `uid:gid`",
        )
    owner = f"{workspace.uid or OUR_ID}:{workspace.gid or OUR_ID}"
    return Choice(wanted or owner, lend=lend)


def check_user(user: str) -> None:
    """Refuse what is no user, and root."""
    if not _USER.fullmatch(user):
        raise ConfigurationError(f"user is {user!r}; it must be `uid`, `uid:gid` or a name")
    if is_root(user):
        raise ConfigurationError(
            f"user is {user!r}; commands never run as root",
            hint="leave it out, or name another user",
        )


# --- In an image -----------------------------------------------------------------------------


def find_home(users: str, user: str) -> str:
    """The home of `name` or `uid`, by the text of a file of users; empty if it has no real one."""
    name = user.partition(":")[0]
    for line in users.splitlines():
        fields = line.split(":")
        if len(fields) > 5 and name in fields[:1] + fields[2:3]:
            home = mountable_path(fields[5])
            return "" if home in ("/", "/nonexistent", "/root") else home
    return ""


def mountable_path(path: str) -> str:
    """A full path as it is mounted; empty if it cannot be."""
    usable = path.startswith("/") and not re.search(r"[:,\x00-\x1f]", path)
    return posixpath.normpath(path) if usable else ""


def find_user(users: str, user: str) -> tuple[int, int] | None:
    """The numbers of `name`, `uid` or either with `:gid`, by the text of a file of users."""
    name, _, group = user.partition(":")
    for line in users.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in fields[:1] + fields[2:3] and fields[2].isdigit():
            gid = group if group.isdigit() else fields[3]
            return (int(fields[2]), int(gid)) if gid.isdigit() else None
    if name.isdigit():
        return int(name), int(group) if group.isdigit() else 0
    return None
