"""The program that opens the sockets of a name server in the network namespace of a sandbox.

    python3 -I -S name_sockets.py NAMESPACE

Standard library only, no import of kakoi: it is started by its path. Programs ask a name server at
port 53, and bubblewrap leaves nobody inside who could bind it. NAMESPACE is a descriptor of the
network namespace. This program enters it with the rights of its owner, binds 127.0.0.1:53 for UDP
and TCP, and sends both sockets over its stdin, a unix socket. They never enter the sandbox.

On failure it writes the reason to stderr.
"""

from __future__ import annotations

# Not `socket`: its enums would take a good part of our start-up time.
import _socket as socket
import array
import ctypes
import fcntl
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_NS_GET_USERNS = 0xB701
_ADDRESS = "127.0.0.1", 53
_BACKLOG = 16
_FAILED = 71  # EX_OSERR


def main(namespace: int) -> NoReturn:
    """Enter the namespace, and send the sockets."""
    try:
        _enter(fcntl.ioctl(namespace, _NS_GET_USERNS), _CLONE_NEWUSER)
        _enter(namespace, _CLONE_NEWNET)
        sockets = [
            socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)
        ]
        for each in sockets:
            each.bind(_ADDRESS)
        sockets[1].listen(_BACKLOG)
        rights = array.array("i", [each.fileno() for each in sockets])
        line = socket.socket(fileno=0)
        line.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(_FAILED)
    os._exit(0)


def _enter(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(int(sys.argv[1]))
