"""The program behind forked.py. It imports all of kakoi once and forks for each call.

It has one thread and no event loop, so that a fork starts clean. It exits when its client does.
"""

import atexit
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
import threading
from importlib import import_module
from typing import Any


def preload() -> None:
    from pkgutil import walk_packages

    from kakoi.cli import commands

    for each in walk_packages(commands.__path__, f"{commands.__name__}."):
        import_module(each.name)
    for name in ("mcp.server", "mcp.http", "mcp.stdio", "mcp.from_settings"):
        import_module(f"kakoi.{name}")
    from kakoi.policy.decide import decide
    from kakoi.policy.profiles import PROFILES, load_policy

    for profile in PROFILES:
        decide(load_policy(profile), "ls -la")  # Load the tables that are read on first use.
    build_late()
    # These objects are never garbage, and the children share them.
    gc.freeze()


def build_late() -> None:
    """Build what is built on first use, once instead of in each child (`kakoi._support.late`)."""
    for name in (
        "ast",
        "difflib",
        "inspect",
        "platform",
        "ssl",
        "traceback",
        "urllib.request",
        "yaml",
    ):
        import_module(name)
    for module in [each for name, each in sys.modules.items() if name.startswith("kakoi.")]:
        for value in list(vars(module).values()):
            if "__late_fields__" in getattr(value, "__dict__", {}):
                value.__init__  # noqa: B018
            elif type(value).__name__ == "_Pattern":
                value.match, value.search, value.fullmatch, value.sub, value.finditer  # noqa: B018


def receive(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return a request and its descriptors: three streams, and one to report the exit status."""
    head, fds, _flags, _address = socket.recv_fds(line, 4, 4)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    text = b""
    while len(text) < size:
        text += line.recv(size - len(text))
    return json.loads(text), fds


def serve(line: socket.socket, door: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, on `line` or from other processes (stand_in.py) on `door`.

    Returns in each child with its request, and in the server when the line is closed.
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
    # The client may no longer be waiting.
    with report, contextlib.suppress(OSError):
        report.sendall(status.to_bytes(4, "big"))


def become(wanted: dict[str, Any], fds: list[int]) -> None:
    """Do what the kernel and the interpreter's startup do for a new program."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, 1024)
    if wanted["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environ"])
    # As Python does if the variables set no locale (PEP 538).
    if not {"LC_ALL", "LC_CTYPE", "LANG"} & set(wanted["environ"]):
        os.environ["LC_CTYPE"] = "C.UTF-8"
    sys.argv = ["kakoi", *wanted["arguments"]]
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    vars(sys).update(stdin=stdin, stdout=stdout, stderr=stderr)
    vars(sys).update(__stdin__=stdin, __stdout__=stdout, __stderr__=stderr)


def main() -> None:
    # Forks twice to be nobody's child, because tests check the children of their own process.
    if os.fork():
        os._exit(0)
    os.setsid()
    # If the tests run in the background, they and their children inherit an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    preload()
    line, door = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    if serve(line, door) is not None:
        from kakoi.cli import main as kakoi

        try:
            kakoi()
        except SystemExit as end:
            leave(end.code)
        leave(0)


def leave(code: object) -> None:
    """Do what the interpreter does at exit, but without destroying the imported modules.

    Their pages are shared with the server until a process writes to them.
    """
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
