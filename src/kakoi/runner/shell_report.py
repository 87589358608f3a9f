"""Makes a shell report its last directory and exports, without changing the judged text.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import fcntl
import os

from kakoi.runner.contexts import suppress
from kakoi.runner.spool import nameless_file

_MAX_CWD = 4096
# The limit for both lists of variables together. Longer lists are not reported.
_MAX_EXPORTS = 32 * 1024
_ADD_SEALS, _SEAL_SIZE = 1033, 2 | 4  # The module `fcntl` has their names since Python 3.9.

# The shell reports its directory when it exits, and its exports before the command and at exit.
# Bash reads this file before the command, whose text stays as it was judged. `sh` gets both in one
# text, because it cannot be made to read a file first. The braces hide it from `set -x`. With `||`,
# its failure does not fail the command after `set -e`.
_BASH_PRELUDE = b"""unset BASH_ENV
{ builtin export -p; builtin printf '\\0'; } >&%(exports)d
trap '{ builtin pwd -P >&%(cwd)d; { builtin export -p; builtin printf "\\0"; } >&%(exports)d; } \
2>/dev/null || builtin :' EXIT
exec %(text)d<&-
"""
_SH_PRELUDE = b"""{ export -p; printf '\\0'; } >&%(exports)d
trap '{ pwd -P >&%(cwd)d; { export -p; printf "\\0"; } >&%(exports)d; } 2>/dev/null || :' EXIT
. /proc/self/fd/%(text)d"""
# Descriptor numbers that few scripts use and that this shell can redirect.
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
    """Make the shell report its directory and variables; returns the descriptors to read.

    `held`: descriptors to close once the shell has started, or failed to.
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
        source = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)  # Not a number that a later dup2 needs.
        held.append(source)
        pairs.append((source, numbers[name]))


def _file(flags: int = 0) -> int:
    try:
        return os.memfd_create("kakoi", os.MFD_CLOEXEC | flags)
    except OSError:  # A filter forbids it: programs could be executed from it.
        return nameless_file()


def _bound(file: int) -> None:
    """Fix the size of the file, so that writing never blocks; unwritten bytes are zero."""
    os.ftruncate(file, _MAX_EXPORTS)
    with suppress(OSError):  # Without seals, other limits apply to the memory.
        fcntl.fcntl(file, _ADD_SEALS, _SEAL_SIZE)


def read_cwd(report: int) -> bytes:
    try:
        data = os.read(report, _MAX_CWD)
    except BlockingIOError:
        data = b""
    os.close(report)
    return data[:-1] if data.endswith(b"\n") and data.startswith(b"/") else b""


def read_exports(report: int) -> bytes:
    """Return two lists, each followed by NUL; empty if the shell could not report both."""
    data = os.pread(report, _MAX_EXPORTS, 0)
    os.close(report)
    lists = data.rstrip(b"\0") + b"\0"
    return lists if lists.count(b"\0") == 2 and len(lists) < len(data) else b""
