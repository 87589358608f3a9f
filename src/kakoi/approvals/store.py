"""The remembered approvals of one user, in one private file.

Whoever can write the file can approve commands. So it must belong to the user and be closed to
others, as must the folders above it, and it is not used if a sandbox can write to it. A file that
is damaged, or that fails one of these checks, approves nothing. Its checksum finds damage and is
no signature: programs that run as the user outside of a sandbox can forge it.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.user_folders import state_folder
from kakoi.approvals.forms import form_text, is_form
from kakoi.errors import ConfigurationError

DAY_S: Final = 86400
MOST: Final = 1000
_LONGEST: Final = 4 * 1024 * 1024
_LONGEST_PATH: Final = 4096
_VERSION: Final = 1
_LOCK_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.005
_ID: Final = pattern(r"[0-9a-f]{8}")
_SAFELY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_START_ANEW: Final = "`kakoi policy remembered --remove-all` starts a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedApproval:
    """A form that is not asked about again in one directory of one workspace.

    `created`, `expires`: in seconds since 1970.
    """

    id: str
    workspace: str
    directory: str
    form: tuple[str, ...]
    created: int
    expires: int

    @property
    def text(self) -> str:
        """The form for people: `git push origin <branch>`."""
        return form_text(self.form)

    def holds(self, now: float, days: int) -> bool:
        """Whether it is in force; `days`: the longest that the settings allow now."""
        return self.created <= now + DAY_S and now < min(self.expires, self.created + days * DAY_S)


def approvals_file(environ: Mapping[str, str]) -> Path:
    """Return the file of the user's approvals."""
    return state_folder(environ) / "approvals" / "approvals.json"


class ApprovalStore:
    """The file. Every method raises ConfigurationError if it cannot be trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[RememberedApproval, ...]:
        """Return all of them, expired ones included; none if there is no file."""
        try:
            fd = os.open(self.path, os.O_RDONLY | _SAFELY)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unusable(_why(error)) from None
        with open(fd, "rb") as file:
            self._check(os.fstat(fd))
            self._check_folders()
            data = file.read(_LONGEST + 1)
        try:
            return _decode(data)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._unusable("is damaged, or was changed by another program") from None

    def check_outside(self, folder: str) -> None:
        """Check that commands that can write to `folder` cannot write to the store."""
        place = os.path.realpath(self.path.parent)
        inside = os.path.realpath(folder).rstrip("/") + "/"
        if f"{place}/".startswith(inside):
            raise ConfigurationError(
                f"remembered approvals are not used: {self.path} is inside the workspace, where "
                "commands can write",
                hint="use a smaller workspace, or set XDG_STATE_HOME to a folder outside of it",
            )

    def change(
        self, change: Callable[[tuple[RememberedApproval, ...]], Sequence[RememberedApproval]]
    ) -> tuple[RememberedApproval, ...]:
        """Replace what is stored by `change(stored)`, while no other process can; return that."""
        with self._locked():
            after = tuple(change(self.read()))
            if len(after) > MOST:
                raise self._unusable(f"is full: it has {MOST} approvals", hint="remove some first")
            self._write(after)
        return after

    def clear(self) -> None:
        """Remove all of them, also from a file that cannot be read."""
        with self._locked():
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            for folder in (self.path.parent.parent, self.path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_folders()
            # A file of its own: the store itself is replaced by each change.
            lock = self.path.with_suffix(".lock")
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600)
        except OSError as error:
            raise self._unusable(_why(error)) from None
        try:
            self._check(os.fstat(fd))
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > deadline:
                raise self._unusable("is locked by another process", hint="try again")
            time.sleep(_PAUSE_S)

    def _write(self, approvals: Sequence[RememberedApproval]) -> None:
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600)
            with open(fd, "wb") as file:
                file.write(_encode(approvals))
                file.flush()
                os.fsync(fd)
            os.replace(temporary, self.path)
        except OSError as error:
            raise self._unusable(_why(error)) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._unusable("is not a regular file")
        if found.st_uid != os.geteuid():
            raise self._unusable(f"belongs to user {found.st_uid}")
        if found.st_mode & 0o077:
            raise self._unusable("is open to other users", hint=f"chmod 600 {self.path}")
        if found.st_nlink != 1:
            raise self._unusable("has several names")

    def _check_folders(self) -> None:
        """Only the user and root can replace the file, or a folder on the way to it."""
        own = True
        for folder in (self.path.parent, *Path(os.path.realpath(self.path.parent)).parents):
            found = os.lstat(folder) if own else os.stat(folder)
            if own and not stat.S_ISDIR(found.st_mode):
                raise self._unusable(f"is not in a folder: {folder} is a link or a file")
            owners = (os.geteuid(),) if own else (os.geteuid(), 0)
            is_shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
            if found.st_uid not in owners or is_shared:
                hint = f"it must belong to you; chmod go-w {folder}"
                raise self._unusable(f"can be replaced by others in {folder}", hint=hint)
            own = False

    def _unusable(self, why: str, hint: str = _START_ANEW) -> ConfigurationError:
        return ConfigurationError(
            f"remembered approvals are not used: {self.path} {why}", hint=hint
        )


def _encode(approvals: Sequence[RememberedApproval]) -> bytes:
    listed = [asdict(each) for each in approvals]
    content = {"version": _VERSION, "approvals": listed, "sha256": _digest(listed)}
    return json.dumps(content, indent=1).encode("ascii") + b"\n"


def _digest(listed: object) -> str:
    text = json.dumps([_VERSION, listed], sort_keys=True, separators=(",", ":"))
    import hashlib  # It loads OpenSSL, and few commands read the file.

    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _decode(data: bytes) -> tuple[RememberedApproval, ...]:
    """Raises ValueError, KeyError or TypeError unless it is exactly what `_encode` writes."""
    if len(data) > _LONGEST:
        raise ValueError
    content = json.loads(data.decode("ascii"))
    listed = content["approvals"]
    if content["version"] != _VERSION or content["sha256"] != _digest(listed):
        raise ValueError
    found = tuple(_approval(each) for each in listed)
    if _encode(found) != data or len({each.id for each in found}) != len(found):
        raise ValueError
    return found


def _approval(fields: dict[str, Any]) -> RememberedApproval:
    approval = RememberedApproval(**{**fields, "form": tuple(fields["form"])})
    paths = (approval.workspace, approval.directory)
    times = (approval.created, approval.expires)
    valid = (
        _ID.fullmatch(approval.id)
        and all(os.path.isabs(path) and len(path) <= _LONGEST_PATH for path in paths)
        and all(type(each) is int and each >= 0 for each in times)
        and all(type(word) is str for word in approval.form)
        and is_form(approval.form)
    )
    if not valid:
        raise ValueError
    return approval


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link"
    return f"cannot be used: {error.strerror or error}"
