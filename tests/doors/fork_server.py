"""The program behind forked.py: imports all of kakoi once, and forks for each call.

It has one thread and no event loop, so that a fork is a clean beginning. It ends when its client
does.
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import termios
from importlib import import_module
from typing import Any


def preload() -> None:
    from kakoi.cli.app import COMMANDS

    for name in COMMANDS:
        import_module(f"kakoi.cli.{name.replace('-', '_')}")
    for name in ("mcp_server.server", "mcp_server.http", "mcp_server.stdio", "mcp_server.serving"):
        import_module(f"kakoi.{name}")
    # What is here already is nobody's garbage, and is shared with the children.
    gc.freeze()


def receive(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A request and its descriptors: three streams, and where the end is to be reported."""
    head, fds, _flags, _address = socket.recv_fds(line, 4, 4)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    text = b""
    while len(text) < size:
        text += line.recv(size - len(text))
    return json.loads(text), fds


def serve(line: socket.socket, door: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, on the line or at the door for other processes (stand_in.py).

    Returns in each child with its request, and here when the line has ended.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready = select.select([line.fileno(), door.fileno(), *running], [], [])[0]
        for pidfd in set(ready) & set(running):
            pid, report = running.pop(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(pid, 0)
            send(report, status)
        if line.fileno() in ready:
            received = receive(line)
            if received is None:
                return None
        elif door.fileno() in ready:
            with door.accept()[0] as visitor:
                received = receive(visitor)
        else:
            continue
        if received is None:
            continue
        wanted, fds = received
        pid = os.fork()
        if pid == 0:
            for each in (line, door, *(report for _, report in running.values())):
                each.close()
            become(wanted, fds)
            return wanted
        for fd in fds[:3]:
            os.close(fd)
        report = socket.socket(fileno=fds[3])
        running[os.pidfd_open(pid)] = (pid, report)
        report.sendall(pid.to_bytes(4, "big"))


def send(report: socket.socket, status: int) -> None:
    # Perhaps nobody waits for it any more.
    with report, contextlib.suppress(OSError):
        report.sendall(status.to_bytes(4, "big"))


def become(wanted: dict[str, Any], fds: list[int]) -> None:
    """What the kernel and the start of an interpreter do for a new program."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, 1024)
    if wanted["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environ"])
    # As Python itself does where the variables name no language (PEP 538).
    if not {"LC_ALL", "LC_CTYPE", "LANG"} & set(wanted["environ"]):
        os.environ["LC_CTYPE"] = "C.UTF-8"
    sys.argv = ["kakoi", *wanted["arguments"]]
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    vars(sys).update(stdin=stdin, stdout=stdout, stderr=stderr)
    vars(sys).update(__stdin__=stdin, __stdout__=stdout, __stderr__=stderr)


def main() -> None:
    # Nobody's child: tests look at the children of their own process.
    if os.fork():
        os._exit(0)
    os.setsid()
    # Whoever starts the tests in the background makes them ignore Ctrl-C, and all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    preload()
    line, door = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    if serve(line, door) is not None:
        from kakoi.cli import main as kakoi

        kakoi()


if __name__ == "__main__":
    main()
