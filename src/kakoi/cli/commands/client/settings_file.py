"""The settings file of a client: read, backed up and replaced as a whole.

Commands can write to a project, and swap a link in at any time. So the directory is opened first,
it must then be in the project, and everything else happens in what is open.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.workspace import is_within
from kakoi.errors import ConfigurationError

# Claude Code keeps the history of its sessions in the same file, so it can be large.
_LONGEST: Final = 64 * 1024 * 1024
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file of a user, whose links are followed, or of a `project`, which it must be in."""

    path: Path
    project: Path | None = None

    def read(self) -> str | None:
        """Return the whole text with its line endings; None if the file does not exist."""
        real = self._real_path()
        with contextlib.suppress(FileNotFoundError), self._folder(real) as folder:
            return self._read(real.name, folder)
        return None

    def replace(self, before: str | None, after: str, *, mode: int) -> Path | None:
        """Write all of the new text or nothing, and return the backup. `mode`: of a new file."""
        real = self._real_path()
        try:
            real.parent.mkdir(parents=True, exist_ok=True)
            with self._folder(real) as folder:
                backup = None
                if before is not None:
                    mode = stat.S_IMODE(os.stat(real.name, dir_fd=folder).st_mode)
                    backup = self._backup(real.name, folder, before, mode)
                self._write(real.name, folder, before, after, mode)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        return None if backup is None else real.with_name(backup)

    def _real_path(self) -> Path:
        try:
            return self.path.resolve()
        except OSError as error:  # It became a link, or something else, while it was looked at.
            raise self._unusable(error.strerror or str(error)) from None

    @contextlib.contextmanager
    def _folder(self, real: Path) -> Iterator[int]:
        folder = os.open(real.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            where = os.readlink(f"/proc/self/fd/{folder}")
            if self.project and not is_within(where, os.path.realpath(self.project)):
                raise ConfigurationError(
                    f"{self.path} is a link to a file outside the project", hint="remove the link"
                )
            yield folder
        finally:
            os.close(folder)

    def _read(self, name: str, folder: int) -> str | None:
        try:
            # Not blocking: do not wait for the other end of a pipe.
            with open(os.open(name, _READ, dir_fd=folder), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise self._unusable("it is not a regular file")
                data = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        if len(data) > _LONGEST:
            raise self._unusable(f"it is larger than {_LONGEST} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._unusable(f"it is not UTF-8 text (byte {error.start})") from None

    def _write(self, name: str, folder: int, before: str | None, after: str, mode: int) -> None:
        temporary = f"{name}.{secrets.token_hex(8)}"
        _create(temporary, folder, after, mode)
        try:
            if self._read(name, folder) != before:
                raise self._unusable("another program has just changed it; try again")
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise

    def _backup(self, name: str, folder: int, before: str, mode: int) -> str:
        """Copy the text under an unused name, and return that name."""
        for number in range(1, 1000):
            backup = f"{name}.before-kakoi" + (f"-{number}" if number > 1 else "")
            with contextlib.suppress(FileExistsError):
                _create(backup, folder, before, mode)
                return backup
        raise self._unusable(f"there are 999 backups beside it, the last is {backup}")

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.path} was not changed: {why}", hint="kakoi client install CLIENT --dry-run"
        )


def _create(name: str, folder: int, text: str, mode: int) -> None:
    """Create a file; if it cannot be written, none is left."""
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
