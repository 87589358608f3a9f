"""Where a path points: inside the workspace, outside, a device, a secret. By its text alone.

No file is looked at, so a symbolic link is not followed here: the kernel keeps that wall. What the
text shows is enough for a clear early answer.
"""

import posixpath
import re
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from kakoi.policy.words import Expands, Expansion, Literal, Word

# Everybody may write here: temporary files, and the layout of a task's container.
SCRATCH: Final = ("/tmp", "/var/tmp", "/dev/shm", "/workspace/project", "/workspace/tmp")  # noqa: S108 (judged, not used)
_HARMLESS_DEVICES: Final = frozenset(
    "/dev/null /dev/stdout /dev/stderr /dev/stdin /dev/tty /dev/zero /dev/random /dev/urandom "
    "/dev/full".split()
)
_SECRET: Final = re.compile(
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
_GIT_INTERNALS: Final = re.compile(
    r"(?:^|/)\.git(?:/(?:hooks|config(?:\.worktree)?|commondir|info|modules|worktrees|objects|refs)(?:/|$)|/?$)"
    # What holds a HEAD is a repository to git, with settings of its own.
    r"|/HEAD$"
)
# A name that bash before 5.2, and every other shell, may take for the directory above.
_CLIMBING: Final = re.compile(r"(?:^|/)(\.[^/]*[*?\[][^/]*)(?=/|$)")


_LONGEST_PATH: Final = 4096
_STAND_IN: Final = "\0"
# What a glob may stand for: `cat /etc/shado?`.
_KNOWN_SECRETS: Final = tuple(
    tuple(path.split("/"))
    for path in (
        "/etc/shadow /etc/passwd /etc/sudoers /etc/gshadow /home/*/.ssh/id_rsa "
        "/home/*/.ssh/id_ed25519 /home/*/.aws/credentials /home/*/.netrc "
        "/home/*/.git-credentials /home/*/.npmrc /proc/*/environ /proc/*/maps /root/.ssh/id_rsa"
    ).split()
)


class Location(StrEnum):
    """What stands at a path, as far as its text tells."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    UNCLEAR = "unclear"
    NETWORK = "network"
    DEVICE = "device"
    GIT = "git"


def locate(word: Word, cwd: str | None, roots: tuple[str, ...]) -> Location:
    """Where a write to `word` would land. `cwd` is None when nobody knows the directory."""
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
    """Whether what is known of the word settles where it points."""
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
    """Whether reading `word` would show a credential or another process's memory."""
    known = word.shape if word.shape is not None else _with_stand_ins(word)
    if not known or len(known) > _LONGEST_PATH:
        return False
    if word.tilde or known.startswith("~"):
        known = re.sub(r"^~[^/]*", "/home/user", known)
    elif known.startswith("$HOME"):
        known = "/home/user" + known[5:]
    # The directory of descriptors is a link, so `..` in it leads to the process.
    known = re.sub(r"^/+dev/+fd(?=/)", "/proc/self/fd", known)
    path = absolute(known, cwd or "/nowhere")
    if word.glob and _may_stand_for_secret(path):
        return True
    return bool(_SECRET.search(path.replace(_STAND_IN, "x"))) or _begins_secret(path)


def _with_stand_ins(word: Word) -> str:
    """The text of a word, with a stand-in for each part that only the run will tell."""
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
    """`/etc/sha…`: what is known of the last name begins like that of a secret."""
    begun, stand_in, rest = path.partition(_STAND_IN)
    folder, _, name = begun.rpartition("/")
    return bool(stand_in and name and not rest) and any(
        "/".join(secret[:-1]) == folder and secret[-1].startswith(name) for secret in _KNOWN_SECRETS
    )


def absolute(path: str, cwd: str) -> str:
    """The path made absolute and normal, lexically."""
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return "/" + joined.lstrip("/")


def within(path: str, root: str) -> bool:
    """Whether `path` is `root` or below it. The root of everything holds nothing for us."""
    return root not in ("", "/") and (path == root or path.startswith(root.rstrip("/") + "/"))
