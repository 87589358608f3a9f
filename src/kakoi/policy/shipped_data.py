"""The data that kakoi ships for the policy: YAML, and a cache of it that is read much faster.

The cache is a file in the user's cache folder, named after the content of the YAML. If its owner,
its permissions or its hash are wrong, it is ignored and written anew; if the folder cannot be
written, the YAML is parsed each time. The hash detects damage but is not a signature: a process
that can write this user's files outside of a sandbox can forge the cache, as it can change kakoi
itself.
"""

import contextlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from kakoi._support.user_folders import cache_path, environment
from kakoi.errors import ConfigurationError

if TYPE_CHECKING:
    from hashlib import blake2b
else:
    from _blake2 import blake2b  # `hashlib` loads OpenSSL too, which takes longer than judging.

_HERE: Final = os.path.dirname(__file__)
# Part of the name: data that was written by another version of this module is not looked at.
_FORMAT: Final = "1"
_MOST_BYTES: Final = 16 * 1024 * 1024
_OTHERS: Final = 0o077
# Several installations share the folder; each looks at the file of its own content.
_KEPT: Final = 4


def load_data(folder: str, *, only: str = "") -> dict[str, Any]:
    """Return the data of the YAML files of a folder below `policy` (or `only` one), merged.

    Raises ConfigurationError if two files have the same key.
    """
    here = os.path.join(_HERE, folder)
    names = [f"{only}.yaml"] if only else sorted(os.listdir(here))
    texts = {name: _content(os.path.join(here, name)) for name in names if name.endswith(".yaml")}
    kind = f"{folder.replace('/', '-')}-{only}".rstrip("-")
    cached = _cache_file(kind, texts)
    found = None if cached is None else _read(cached)
    if found is None:
        found = _parse(folder, texts)
        if cached is not None:
            _write(cached, found, kind)
    return found


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parse(folder: str, texts: dict[str, bytes]) -> dict[str, Any]:
    import yaml  # Not needed if there is a cache.

    # The C loader reads the data about ten times faster; the pure one gives the same values.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    merged: dict[str, Any] = {}
    for name, text in texts.items():
        for key, value in (yaml.load(text, Loader=loader) or {}).items():  # noqa: S506
            if key in merged:
                raise ConfigurationError(f"{folder}/{name}: duplicate key {key!r}")
            merged[str(key)] = value
    return merged


def _cache_file(kind: str, texts: dict[str, bytes]) -> str | None:
    content = blake2b(_FORMAT.encode(), digest_size=16)
    for name, text in texts.items():
        content.update(f"\0{name}\0{len(text)}\0".encode())
        content.update(text)
    try:
        folder = cache_path(environment(None))
    except ConfigurationError:  # This user has no home.
        return None
    return os.path.join(folder, "policy", f"{kind}-{content.hexdigest()}.json")


def _read(path: str) -> dict[str, Any] | None:
    """Return what the file holds; None if it is missing, broken or not ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(fd)
    is_private = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS
    if not (stat.S_ISREG(status.st_mode) and is_private and status.st_nlink == 1):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        digest, _, body = file.read(_MOST_BYTES).partition(b"\n")
    if digest != _digest(body):
        return None
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=32).hexdigest().encode()


def _write(path: str, data: dict[str, Any], kind: str) -> None:
    """Put the file in its place, whole or not at all. That it cannot be written is not an error."""
    body = json.dumps(data, separators=(",", ":")).encode()
    if json.loads(body) != data:  # JSON cannot say it.
        return
    temporary = f"{path}.{os.getpid()}"
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        if not _make_folder(folder):
            return
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(_digest(body) + b"\n" + body)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _remove_old(folder, kind)


def _make_folder(folder: str) -> bool:
    """Make the folder if the one above it is the user's own: root leaves nothing in other homes."""
    missing = []
    while not os.path.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    if os.stat(folder).st_uid != os.geteuid():
        return False
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, mode=0o700)
    return True


def _remove_old(folder: str, kind: str) -> None:
    names = [name for name in os.listdir(folder) if name.startswith(f"{kind}-")]
    files = [(os.stat(path).st_mtime_ns, path) for path in (os.path.join(folder, n) for n in names)]
    for _, path in sorted(files, reverse=True)[_KEPT:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
