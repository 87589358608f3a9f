"""Starts a keeper's command: by posix_spawn, or by fork if it gets a terminal.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import fcntl
import os
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SIGNALS = sorted(set(range(1, signal.NSIG)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33})


def start(
    program: bytes,
    argv: list[bytes],
    env: dict[bytes, bytes],
    streams: list[tuple[int, int]],
    *,
    on_terminal: bool,
) -> int:
    """Start the command in its own session, and return its pid.

    `streams`: pairs of our descriptor and its number in the command.
    """
    if on_terminal:
        return _start_on_terminal(program, argv, env, streams)
    return os.posix_spawn(
        program,
        argv,
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, *pair) for pair in streams],
        setsid=True,
        setsigmask=[],
        setsigdef=_SIGNALS,
    )


def _start_on_terminal(
    program: bytes, argv: list[bytes], env: dict[bytes, bytes], streams: list[tuple[int, int]]
) -> int:
    """Start the command with its first stream as its terminal.

    The terminal is passed as a descriptor and never opened by its path: where the same user has
    other terminals, commands are not allowed to open any.
    """
    failure, failed = os.pipe()
    try:
        command = os.fork()
    except OSError:
        os.close(failure)
        os.close(failed)
        raise
    if command == 0:
        os.close(failure)
        _become(program, argv, env, streams, failed)
    os.close(failed)
    with open(failure, "rb") as file:
        number = file.read()
    if number:
        os.waitpid(command, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return command


def _become(
    program: bytes,
    argv: list[bytes],
    env: dict[bytes, bytes],
    streams: list[tuple[int, int]],
    failed: int,
) -> NoReturn:
    try:
        failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, 220)
        os.setsid()
        fcntl.ioctl(streams[0][0], termios.TIOCSCTTY, 0)
        for ours, number in streams:
            os.dup2(ours, number)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(program, argv, env)  # noqa: S606 - no shell is what we want
    except OSError as error:
        os.write(failed, b"%d" % (error.errno or 5))
    finally:
        os._exit(127)
