"""Our standard streams: always there; an output that fails is a line and a status, no traceback."""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

from kakoi.descriptors import write_whole

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FAILED: Final = 2


class OutputClosed(Exception):
    """Nobody reads any more what is written."""


class OutputFailed(Exception):
    """It cannot be written, as when the disk is full; the text says why."""


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it, however long that takes. OutputClosed: nobody is there to read it."""
    try:
        write_whole(fd, data)
    except OSError as error:
        # EIO: the terminal is gone.
        if error.errno in (errno.EPIPE, errno.EIO):
            raise OutputClosed from error
        raise


def run_to_an_exit(work: Callable[[], object]) -> None:
    """Do it on streams that tell what happens to them, and exit: by the status that it gives."""
    hold_standard_streams()
    sys.stdout = _text(_Output(1), sys.stdout)
    sys.stderr = _text(_Errors(2), sys.stderr)
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OutputClosed:
        _forget_output()
        sys.exit(128 + signal.SIGPIPE)
    except OutputFailed as error:
        _forget_output()
        print(f"kakoi: cannot write to standard output: {error}", file=sys.stderr)
        sys.exit(_FAILED)


def hold_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed: else the next file we open would be it."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - until we exit


def _forget_output() -> None:
    """What is still in a buffer is written at the exit, and must not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class _Output(io.RawIOBase):
    """A descriptor to write to, whose failures are those above: click has its own way with others,
    and a status that means something else."""

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


class _Errors(_Output):
    """What cannot be said is lost, and the status that we exit with stays."""

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
