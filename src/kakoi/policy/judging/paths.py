"""Where a path points, from its text alone: inside the workspace, outside, a device, a secret.

No file is examined, so symbolic links are not followed here: the sandbox enforces that boundary.
The text is enough for a clear early answer.
"""

import posixpath
import re
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.parsing.words import Expands, Expansion, Literal, Word

# Always writable: temporary files, and the folders of a task's container.
SCRATCH: Final = ("/tmp", "/var/tmp", "/dev/shm", "/workspace/project", "/workspace/tmp")  # noqa: S108 (judged, not used)
_HARMLESS_DEVICES: Final = frozenset(
    "/dev/null /dev/stdout /dev/stderr /dev/stdin /dev/tty /dev/zero /dev/random /dev/urandom "
    "/dev/full".split()
)
_SECRET: Final = pattern(
    r"(?:^|/)(?:\.ssh|\.gnupg|\.aws|\.azure|\.kube|\.config/(?:gcloud|gh|op))(?:/|$)"
    r"|(?:^|/)\.(?:netrc|git-credentials|pgpass|my\.cnf|pypirc|vault-token)$"
    r"|(?:^|/)\.docker/config\.json$|(?:^|/)id_(?:rsa|ed25519|ecdsa|dsa)$"
    r"|^/etc/(?:shadow|gshadow|sudoers|passwd|master\.passwd|ssh|krb5\.keytab)[^/]*(?:$|/)"
    r"|^(?:/home/[^/]+|/root)/(?:\.npmrc|\.cargo/credentials[^/]*|\.gem/credentials|\.m2/settings\.xml)$"
    r"|docker\.sock$|containerd\.sock$"
    r"|^/proc/(?:[^/]+/(?:task/[^/]+/)?(?:environ|mem|maps|fd|root|cwd|cmdline)|kcore|kmem)(?:/|$)"
    r"|^/(?:run|var/run)/secrets|^/dev/(?:mem|kmem|port|sd|nvme|vd|xvd|hd|disk|mapper|loop|dm-)"
    r"|\.bash_history$|\.zsh_history$"
    r"|(?:^|/)\.(?:terraform\.d/credentials|claude/\.credentials|codex/auth|local/share/keyrings|password-store)"
    r"|^/etc/(?:kubernetes/[^/]*\.conf|ssl/private|rancher)(?:$|/)"
)
_GIT_INTERNALS: Final = pattern(
    r"(?:^|/)\.git(?:/(?:hooks|config(?:\.worktree)?|commondir|info|modules|worktrees|objects|refs)(?:/|$)|/?$)"
    # git takes a directory with a HEAD for a repository with settings of its own.
    r"|/HEAD$"
)
# A pattern that bash before 5.2 and every other shell can expand to the parent directory.
_CLIMBING: Final = pattern(r"(?:^|/)(\.[^/]*[*?\[][^/]*)(?=/|$)")


_LONGEST_PATH: Final = 4096
_STAND_IN: Final = "\0"
# What a glob can stand for: `cat /etc/shado?`.
_KNOWN_SECRETS: Final = tuple(
    tuple(path.split("/"))
    for path in (
        "/etc/shadow /etc/passwd /etc/sudoers /etc/gshadow /home/*/.ssh/id_rsa "
        "/home/*/.ssh/id_ed25519 /home/*/.aws/credentials /home/*/.netrc "
        "/home/*/.git-credentials /home/*/.npmrc /proc/*/environ /proc/*/maps /root/.ssh/id_rsa"
    ).split()
)


class Location(StrEnum):
    """What a path points to, as far as its text shows."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    UNCLEAR = "unclear"
    NETWORK = "network"
    DEVICE = "device"
    GIT = "git"


def locate(word: Word, cwd: str | None, roots: tuple[str, ...]) -> Location:
    """Return where a write to `word` would go. `cwd` is None if the directory is unknown."""
    known = word.shape if word.shape is not None else word.prefix
    if word.tilde:
        return Location.OUTSIDE
    if re.match(r"/dev/(?:tcp|udp)(?:/|$)", known) or (word.shape is None and known == "/dev/"):
        return Location.NETWORK
    if not known:
        return Location.UNCLEAR if word.shape is None else Location.INSIDE
    if cwd is None and not known.startswith("/"):
        return Location.UNCLEAR
    if word.glob and any(fnmatchcase("..", name) for name in _CLIMBING.findall(known)):
        return Location.UNCLEAR
    path = absolute(known, cwd or "/")
    if within(path, "/dev") and not within(path, "/dev/shm"):  # noqa: S108
        return _device(path)
    if not _settled(word, path, roots):
        return Location.UNCLEAR
    if not any(within(path, root) for root in (*roots, *SCRATCH)):
        return Location.OUTSIDE
    return Location.GIT if _GIT_INTERNALS.search(path) else Location.INSIDE


def _settled(word: Word, path: str, roots: tuple[str, ...]) -> bool:
    """Whether the known part of the word is enough to say where it points."""
    if word.shape is not None:
        return True
    first = word.parts[0]
    begins_unknown = isinstance(first, Expansion) and first.kind is not Expands.SHAPE
    literals = "".join(part.text for part in word.parts if isinstance(part, Literal))
    if begins_unknown or ".." in literals:
        return False
    # `/` or `/t` could still go anywhere; a whole first directory cannot.
    return "/" in word.prefix.lstrip("/") or any(within(path, root) for root in roots)


def _device(path: str) -> Location:
    if path in _HARMLESS_DEVICES or re.fullmatch(r"/dev/fd/\d+", path):
        return Location.INSIDE
    return Location.DEVICE


def is_secret(word: Word, cwd: str | None) -> bool:
    """Whether reading `word` would reveal a credential or another process's memory."""
    known = word.shape if word.shape is not None else _with_stand_ins(word)
    if not known or len(known) > _LONGEST_PATH:
        return False
    if word.tilde or known.startswith("~"):
        known = re.sub(r"^~[^/]*", "/home/user", known)
    elif known.startswith("$HOME"):
        known = "/home/user" + known[5:]
    # The directory of descriptors is a link, so `..` in it is the directory of the process.
    known = re.sub(r"^/+dev/+fd(?=/)", "/proc/self/fd", known)
    path = absolute(known, cwd or "/nowhere")
    if word.glob and _may_stand_for_secret(path):
        return True
    return bool(_SECRET.search(path.replace(_STAND_IN, "x"))) or _begins_secret(path)


def _with_stand_ins(word: Word) -> str:
    """Return the text of a word, with a stand-in for each part that is known only at run time."""
    if not word.prefix and not any(type(part) is Literal for part in word.parts):
        return ""
    return "".join(
        part.text
        if isinstance(part, Literal)
        else (part.name if part.kind is Expands.SHAPE else "$HOME" if _is_home(part) else _STAND_IN)
        for part in word.parts
    )


def _is_home(part: Expansion) -> bool:
    return part.name == "HOME" and not part.operator


def _may_stand_for_secret(path: str) -> bool:
    pieces = path.split("/")
    return any(
        len(secret) == len(pieces)
        and all(
            known == "*" or fnmatchcase(known, piece)
            for known, piece in zip(secret, pieces, strict=True)
        )
        for secret in _KNOWN_SECRETS
    )


def _begins_secret(path: str) -> bool:
    """`/etc/sha…`: the known part of the last name is the beginning of a secret's name."""
    begun, stand_in, rest = path.partition(_STAND_IN)
    folder, _, name = begun.rpartition("/")
    return bool(stand_in and name and not rest) and any(
        "/".join(secret[:-1]) == folder and secret[-1].startswith(name) for secret in _KNOWN_SECRETS
    )


def absolute(path: str, cwd: str) -> str:
    """Return the path, absolute and normalized, from its text alone."""
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return "/" + joined.lstrip("/")


def within(path: str, root: str) -> bool:
    """Whether `path` is `root` or below it. Always False if `root` is `/` or empty."""
    return root not in ("", "/") and (path == root or path.startswith(root.rstrip("/") + "/"))
