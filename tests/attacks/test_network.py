"""Reaching what is not to be reached: the machine, its services, other sandboxes, the cloud."""

import os
import socket
import textwrap
from pathlib import Path

import pytest

from kakoi.backends.probes import machine_addresses
from kakoi.channel.api import Command
from kakoi.conformance.sandbox_commands import Reader, running
from kakoi.conformance.subjects import Subject
from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio

CONNECT = """
import socket, sys
for word in sys.argv[1:]:
    host, _, port = word.rpartition(":")
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            for family, _, _, _, address in socket.getaddrinfo(host, int(port), type=kind):
                with socket.socket(family, kind) as attempt:
                    attempt.settimeout(2)
                    attempt.connect(address)
                    attempt.send(b"x")
                    print(word, kind)
        except OSError:
            pass
"""
# Where clouds keep the keys of a machine; one of each kind of address.
METADATA = ["169.254.169.254:80", "169.254.170.2:80", "100.100.100.200:80", "fd00:ec2::254:80"]


async def test_no_service_of_the_machine_answers(place: Place) -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as server,  # noqa: S104
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        port = server.getsockname()[1]
        datagrams.bind(("0.0.0.0", port))  # noqa: S104
        addresses = [f"{address}:{port}" for address in sorted(machine_addresses())]
        await place.python(CONNECT, *addresses, f"localhost:{port}", f"::1:{port}")
        for listener in (server, datagrams):
            listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)


async def test_the_metadata_of_a_cloud_is_out_of_reach(place: Place) -> None:
    assert await place.python(CONNECT, *METADATA) == []


async def test_no_name_is_looked_up(place: Place) -> None:
    text = """
    import socket
    try:
        print(socket.getaddrinfo("data.as.a.name.example.org", 80))
    except OSError:
        pass
    """
    assert await place.python(text) == []


async def test_sockets_of_the_machine_are_out_of_reach(
    place: Place, tmp_path: Path, mark: str
) -> None:
    """By path, by link and by abstract name: agents of keys, engines, buses."""
    os.chmod(tmp_path, 0o777)  # noqa: S103 - so that modes protect nothing
    path = tmp_path / "agent"
    link = place.workspace / "agent"
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(str(path))
        path.chmod(0o777)
        abstract.bind("\0" + mark)
        for listener in (named, abstract):
            listener.listen()
        text = """
        import socket, sys
        for name in sys.argv[1:]:
            try:
                socket.socket(socket.AF_UNIX).connect(name.replace("@", chr(0)))
                print(name)
            except OSError:
                pass
        """
        wanted = [str(path), "./agent", f"@{mark}", "/run/docker.sock", "/var/run/docker.sock"]
        wanted += ["/run/containerd/containerd.sock", "/run/dbus/system_bus_socket"]
        assert await place.python(text, *wanted) == []


FAMILIES = """
import socket
for name, family, kind in (
    ("packets", 17, 3), ("vsock", 40, 1), ("netlink", 16, 3), ("raw", 2, 3), ("raw 6", 10, 3),
    ("bluetooth", 31, 1), ("can", 29, 3), ("alg", 38, 5), ("kcm", 41, 2), ("xdp", 44, 3),
    ("key", 15, 3), ("rds", 21, 5), ("tipc", 30, 1), ("smc", 43, 1),
):
    try:
        one = socket.socket(family, kind)
    except OSError:
        continue
    if name == "vsock":
        one.settimeout(2)
        try:
            one.connect((2, 1))
        except OSError:
            continue
    print(name)
"""


async def test_only_plain_sockets_can_be_made(place: Place) -> None:
    made = set(await place.python(FAMILIES))
    # Docker's own profile lets netlink be; in a network of its own there is nothing to learn.
    assert made <= {"netlink", "alg"}


async def test_two_sandboxes_do_not_reach_each_other(
    place: Place, subject: Subject, tmp_path: Path, mark: str
) -> None:
    other = subject.make(tmp_path)
    serving = """
    import socket, sys, threading
    port = 9
    try:
        tcp = socket.create_server(("0.0.0.0", 0))
        port = tcp.getsockname()[1]
        local = socket.socket(socket.AF_UNIX)
        local.bind(chr(0) + sys.argv[1])
        local.listen()
    except OSError:
        pass  # Some sandboxes have no servers either.
    print(port, flush=True)
    sys.stdin.read()
    """

    argv = ["python3", "-I", "-c", textwrap.dedent(serving), mark]
    try:
        async with running(other, Command(command=argv, stdin_open=True)) as opened:
            port = (await Reader(opened).until(rb"\d+\n")).group().decode().strip()
            text = """
            import socket, sys
            for family, address in (
                (socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))),
                (socket.AF_UNIX, chr(0) + sys.argv[2]),
            ):
                try:
                    socket.socket(family).connect(address)
                    print(address)
                except OSError:
                    pass
            """
            assert await place.python(text, port, mark) == []
    finally:
        await other.cleanup()
