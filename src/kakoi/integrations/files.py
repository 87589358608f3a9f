"""Files as frameworks mean them: written through links, and never over a read-only file."""

import errno
import os

from kakoi.errors import FileError, MissingFileError
from kakoi.sandbox.sandbox import Sandbox


async def real_path(box: Sandbox, path: str) -> str:
    """Return the path without links, as the sandbox sees it. The last parts may be missing."""
    result = await box.run(["realpath", "-m", "--", path])
    if not result.ok:
        raise FileError(result.stderr.strip() or result.error, number=errno.ELOOP, path=path)
    return result.stdout.removesuffix("\n")


async def write_plainly(box: Sandbox, path: str, data: str | bytes) -> None:
    """Write a file as `open(path, "w")` would. `Files.write` replaces links and read-only files."""
    try:
        found = await box.files.stat(path)
        if found.kind == "link":
            path = await real_path(box, path)
            found = await box.files.stat(path)
    except MissingFileError:
        pass
    else:
        if found.kind == "file" and not found.mode & 0o222:
            raise FileError(f"{path}: Permission denied", number=errno.EACCES, path=path)
    await box.files.write(path, data)


def builtin_error(error: FileError) -> OSError:
    """Return the error of the class that belongs to the number, such as IsADirectoryError."""
    number = error.errno or errno.EIO
    return OSError(number, os.strerror(number), error.filename)
