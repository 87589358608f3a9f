"""How a shell is asked where it ended and what it exported, while its text stays as it was judged.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from kakoi.runner.spool import nameless_file

_MAX_CWD = 4096
# Both lists of variables; what is longer is not told.
_MAX_EXPORTS = 32 * 1024
_ADD_SEALS, _SEAL_SIZE = 1033, 2 | 4  # The module `fcntl` has their names since Python 3.9.

# The shell says where it is when it exits, and what it exports, then and before the command. Bash
# reads this before the command, which stays as it was judged; `sh` is given both in one, because
# nothing makes it read a file first. In braces, so that `set -x` shows nothing of it; and with a
# `||`, so that after `set -e` its failure is not the command's.
_BASH_PRELUDE = b"""unset BASH_ENV
{ builtin export -p; builtin printf '\\0'; } >&%(exports)d
trap '{ builtin pwd -P >&%(cwd)d; { builtin export -p; builtin printf "\\0"; } >&%(exports)d; } \
2>/dev/null || builtin :' EXIT
exec %(text)d<&-
"""
_SH_PRELUDE = b"""{ export -p; printf '\\0'; } >&%(exports)d
trap '{ pwd -P >&%(cwd)d; { export -p; printf "\\0"; } >&%(exports)d; } 2>/dev/null || :' EXIT
. /proc/self/fd/%(text)d"""
# Numbers that few scripts use, and that this shell can name.
_REPORT_NUMBERS = {
    "bash": {b"cwd": 200, b"text": 201, b"exports": 202},
    "sh": {b"cwd": 9, b"text": 8, b"exports": 7},
}


def ask(
    argv: list[bytes],
    env: dict[bytes, bytes],
    shell: str,
    held: list[int],
    pairs: list[tuple[int, int]],
) -> list[int]:
    """Make the shell tell its directory and its variables; returns where to read them.

    `held`: what is to be closed once it is started, or was not.
    """
    reports: list[int] = []
    try:
        _ask(argv, env, shell, held, pairs, reports)
    except OSError:
        for report in reports:
            os.close(report)
        raise
    return reports


def _ask(
    argv: list[bytes],
    env: dict[bytes, bytes],
    shell: str,
    held: list[int],
    pairs: list[tuple[int, int]],
    reports: list[int],
) -> None:
    text = _file()
    held.append(text)
    cwd, cwd_end = os.pipe()
    reports.append(cwd)
    held.append(cwd_end)
    os.set_blocking(cwd, False)
    exports = _file(os.MFD_ALLOW_SEALING)
    reports.append(exports)
    _bound(exports)
    numbers = _REPORT_NUMBERS[shell]
    if shell == "bash":
        content = _BASH_PRELUDE % numbers
        env[b"BASH_ENV"] = b"/proc/self/fd/%d" % numbers[b"text"]
    else:
        content = argv[-1]
        argv[-1] = _SH_PRELUDE % numbers
    os.write(text, content)
    os.lseek(text, 0, os.SEEK_SET)
    for fd, name in ((cwd_end, b"cwd"), (text, b"text"), (exports, b"exports")):
        source = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)  # Not a number that is still needed.
        held.append(source)
        pairs.append((source, numbers[name]))


def _file(flags: int = 0) -> int:
    try:
        return os.memfd_create("kakoi", os.MFD_CLOEXEC | flags)
    except OSError:  # A filter forbids it, because programs can be executed from there.
        return nameless_file()


def _bound(file: int) -> None:
    """Have it never block its writer, and never grow: zeros where nothing was written."""
    os.ftruncate(file, _MAX_EXPORTS)
    with contextlib.suppress(OSError):  # Where there are no seals, memory is limited otherwise.
        fcntl.fcntl(file, _ADD_SEALS, _SEAL_SIZE)


def read_cwd(report: int) -> bytes:
    try:
        said = os.read(report, _MAX_CWD)
    except BlockingIOError:
        said = b""
    os.close(report)
    return said[:-1] if said.endswith(b"\n") and said.startswith(b"/") else b""


def read_exports(report: int) -> bytes:
    """Two lists with a zero after each; none if the shell could not tell all of both."""
    said = os.pread(report, _MAX_EXPORTS, 0)
    os.close(report)
    told = said.rstrip(b"\0") + b"\0"
    return told if told.count(b"\0") == 2 and len(told) < len(said) else b""
