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
    r"|^/proc/(?:[^/]+/(?:environ|mem|maps|fd|root|cwd|cmdline)|kcore|kmem)(?:/|$)"
    r"|^/(?:run|var/run)/secrets|^/dev/(?:mem|kmem|port|sd|nvme|vd|xvd|hd|disk|mapper|loop|dm-)"
    r"|\.bash_history$|\.zsh_history$"
)
_GIT_INTERNALS: Final = re.compile(
    r"(?:^|/)\.git(?:/(?:hooks|config|info|modules|objects|refs|HEAD)(?:/|$)|/?$)"
)


_LONGEST_PATH: Final = 4096
# What a glob may stand for: `cat /etc/shado?`.
_KNOWN_SECRETS: Final = tuple(
    "/etc/shadow /etc/passwd /etc/sudoers /etc/gshadow /home/user/.ssh/id_rsa "
    "/home/user/.ssh/id_ed25519 "
    "/home/user/.aws/credentials /home/user/.netrc /home/user/.git-credentials /home/user/.npmrc "
    "/proc/self/environ /root/.ssh/id_rsa".split()
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
    known = word.shape if word.shape is not None else word.prefix
    if not known or len(known) > _LONGEST_PATH:
        return False
    if word.tilde or known.startswith("~"):
        known = re.sub(r"^~[^/]*", "/home/user", known)
    elif known.startswith("$HOME"):
        known = "/home/user" + known[5:]
    path = absolute(known, cwd or "/nowhere")
    if word.glob and any(fnmatchcase(secret, path) for secret in _KNOWN_SECRETS):
        return True
    return bool(_SECRET.search(path))


def absolute(path: str, cwd: str) -> str:
    """The path made absolute and normal, lexically."""
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return "/" + joined.lstrip("/")


def within(path: str, root: str) -> bool:
    """Whether `path` is `root` or below it. The root of everything holds nothing for us."""
    return root not in ("", "/") and (path == root or path.startswith(root.rstrip("/") + "/"))
