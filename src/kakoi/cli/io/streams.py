"""The standard streams: always open; a failed write is one line and an exit code, no traceback."""

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

from kakoi._support.files import write_whole

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FAILED: Final = 2


class OutputClosed(Exception):
    """The reader of the output is gone."""


class OutputFailed(Exception):
    """The output cannot be written, for example because the disk is full; the text says why."""


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it, however long that takes. OutputClosed: the reader is gone."""
    try:
        write_whole(fd, data)
    except OSError as error:
        # EIO: the terminal is gone.
        if error.errno in (errno.EPIPE, errno.EIO):
            raise OutputClosed from error
        raise


def write_stderr(text: str) -> None:
    """Write to stderr without a buffer; what cannot be written is dropped, not an error."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with contextlib.suppress(OutputClosed, OSError):
        write_all(2, text.encode(encoding, "backslashreplace"))


def stderr_has_color() -> bool:
    """Is stderr a terminal that accepts colors?"""
    return os.isatty(2) and "NO_COLOR" not in os.environ


def stdout_has_color() -> bool:
    """Is stdout a terminal that accepts colors?"""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def run_and_exit(work: Callable[[], object]) -> None:
    """Run `work` on streams that report failed writes, and exit with the status it raises."""
    open_missing_streams()
    sys.stdout = _text(_RawOutput(1), sys.stdout)
    sys.stderr = _text(_RawErrors(2), sys.stderr)
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OutputClosed:
        _discard_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OutputFailed as error:
        _discard_stdout()
        print(f"kakoi: cannot write to stdout: {error}", file=sys.stderr)
        sys.exit(_FAILED)


def open_missing_streams() -> None:
    """Open /dev/null where a standard stream is closed: else the next file takes its place."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - until we exit


def _discard_stdout() -> None:
    """Buffered output is still written at exit, and must not fail again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


class _RawOutput(io.RawIOBase):
    """A descriptor that raises the errors above.

    click handles an OSError in its own way, with an exit code that means something else.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        view = memoryview(data)
        try:
            write_all(self._fd, view)
        except OSError as error:
            raise OutputFailed(error.strerror) from error
        return len(view)


class _RawErrors(_RawOutput):
    """Stderr: what cannot be written is dropped, and the exit code stays."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data)
        except (OutputClosed, OutputFailed):
            return len(memoryview(data))


def _text(raw: io.RawIOBase, like: TextIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty() or raw.fileno() == 2,
    )
