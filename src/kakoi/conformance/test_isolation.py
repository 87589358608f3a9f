"""What a command cannot see, write or reach. Only for sandboxes that claim to be walls."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.conformance.asking import PATIENCE_S, Reader, running, said
from kakoi.conformance.conftest import Opener
from kakoi.conformance.subjects import Subject
from kakoi.conformance.watching import alive_inside, alive_outside
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import SandboxAdapter

pytestmark = pytest.mark.anyio

# --- Processes -------------------------------------------------------------------------------


@pytest.fixture
def neighbour(mark: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this machine that has nothing to do with the sandbox."""
    # It speaks first: until a program is on its way, its arguments are not seen.
    argv = ["sh", "-c", "echo up; read -r _", mark]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


@pytest.mark.needs("isolates_processes")
async def test_a_process_of_the_machine_is_not_seen(
    sandbox: SandboxAdapter, mark: str, neighbour: "subprocess.Popen[bytes]"
) -> None:
    assert alive_outside(mark) != []
    assert await alive_inside(sandbox, mark) == []


@pytest.mark.needs("signals_nobody")
async def test_a_process_of_the_machine_cannot_be_signalled(
    fresh: Opener, neighbour: "subprocess.Popen[bytes]"
) -> None:
    async with fresh() as sandbox:
        await sandbox.run(Command(command=f"kill -9 {neighbour.pid}", timeout_s=PATIENCE_S))
        assert await said(sandbox, "echo hi") == "hi\n"
    assert neighbour.poll() is None


@pytest.mark.needs("isolates_processes")
async def test_no_process_in_sight_holds_our_secrets(
    fresh: Opener, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAKOI_CONFORMANCE_TOKEN", mark)
    async with fresh() as sandbox:
        assert await alive_inside(sandbox, mark) == []


@pytest.mark.needs("isolates_processes")
async def test_two_sandboxes_do_not_see_each_others_processes(
    subject: Subject, fresh: Opener, mark: str, tmp_path: Path
) -> None:
    other = subject.make(tmp_path)
    try:
        async with fresh() as sandbox:
            command = Command(command=["sh", "-c", "echo up; sleep $0", mark])
            async with running(sandbox, command) as opened:
                await Reader(opened).until(b"up\n")
                assert await alive_inside(other, mark) == []
    finally:
        await other.cleanup()


# --- Files -----------------------------------------------------------------------------------


@pytest.mark.needs("shares_workspace")
async def test_what_is_written_in_the_workspace_is_written_on_this_machine(
    fresh: Opener, workspace: Path
) -> None:
    (workspace / "ours").write_text("from us\n", encoding="ascii")
    async with fresh() as sandbox:
        assert await said(sandbox, "cat ours; echo from a command >theirs") == "from us\n"
    assert (workspace / "theirs").read_text(encoding="ascii") == "from a command\n"
    assert (workspace / "theirs").stat().st_uid == os.getuid()


FOLDERS = """/ /bin /boot /dev /dev/shm /etc /home /lib /mnt /opt /root /run /srv /sys /tmp /usr/bin
    /usr/lib /usr/local/bin /var /var/lib /var/tmp""".split()


@pytest.mark.needs("isolates_files")
async def test_nothing_is_written_outside_of_the_workspace(
    fresh: Opener, workspace: Path, mark: str, tmp_path: Path
) -> None:
    """Whether the attempt fails or ends in a folder of the sandbox's own is up to the sandbox."""
    folders = [*FOLDERS, str(Path.home()), str(workspace.parent), str(tmp_path)]
    ways = [*folders, *(f"/proc/1/root{folder}" for folder in folders), "..", "../.."]
    text = "".join(
        f"echo x >'{way}/kakoi-{mark}'; mkdir -p '{way}/kakoi-d-{mark}'\n" for way in ways
    )
    async with fresh() as sandbox:
        await sandbox.run(Command(command=text, timeout_s=PATIENCE_S))
        assert [path for folder in folders for path in take_away(folder, mark)] == []


def take_away(folder: str, mark: str) -> list[str]:
    """What has come into the folder; a sandbox that fails must not cost the machine its order."""
    paths = [os.path.join(folder, name) for name in os.listdir(folder) if mark in name]
    for path in paths:
        (os.rmdir if os.path.isdir(path) else os.unlink)(path)
    return paths


def everybodys_file(folder: Path, content: str) -> Path:
    """Whose mode does not protect it."""
    folder.chmod(0o777)
    file = folder / "secret"
    file.write_text(content, encoding="ascii")
    file.chmod(0o666)
    return file


@pytest.mark.needs("isolates_files")
async def test_a_file_outside_of_the_workspace_is_neither_read_nor_changed(
    fresh: Opener, workspace: Path, tmp_path: Path, mark: str
) -> None:
    secret = everybodys_file(tmp_path, mark)
    (workspace / "link").symlink_to(secret)
    paths = [str(secret), f"/proc/1/root{secret}", "link"]
    text = "".join(f"cat '{p}'; echo x >'{p}'; rm -rf '{p}'\n" for p in paths)
    async with fresh() as sandbox:
        result = await sandbox.run(Command(command=text, timeout_s=PATIENCE_S))
    assert mark not in result.stdout
    assert secret.read_text(encoding="ascii") == mark


@pytest.mark.needs("isolates_files")
async def test_the_switches_of_the_kernel_cannot_be_opened(sandbox: SandboxAdapter) -> None:
    """Opened, not written: should one open, nothing has happened yet."""
    paths = """/proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper
        /sys/fs/cgroup/*/release_agent /dev/mem /dev/kmem /dev/kmsg /dev/[svh]d[a-z] /dev/nvme*
        /proc/kcore /dev/kvm /proc/1/mem"""
    listed = " ".join(paths.split())
    text = f"for path in {listed}; do test -e $path && (: >>$path) && echo $path; done"
    result = await sandbox.run(Command(command=text, timeout_s=PATIENCE_S))
    assert result.stdout == ""


@pytest.mark.needs("isolates_files")
async def test_the_engines_of_this_machine_are_not_at_hand(sandbox: SandboxAdapter) -> None:
    """A socket that is seen, and that nothing in there can connect to, is not at hand either."""
    names = "docker.sock containerd/containerd.sock podman/podman.sock dbus/system_bus_socket"
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    text = f"""
for path in $(for name in {names}; do ls /run/$name /var/run/$name; done 2>/dev/null); do
    command -v python3 >/dev/null && ! python3 -c '{connect}' $path 2>/dev/null || echo $path
done"""
    assert await said(sandbox, text) == ""


@pytest.mark.needs("isolates_files")
async def test_a_command_can_gain_no_privileges(sandbox: SandboxAdapter) -> None:
    text = "grep -E '^(NoNewPrivs|CapEff|CapBnd):' /proc/self/status"
    found = dict(line.split() for line in (await said(sandbox, text)).splitlines())
    assert found["NoNewPrivs:"] == "1"
    assert int(found["CapEff:"], 16) == 0


# --- Network ---------------------------------------------------------------------------------

# Whatever the sandbox has to open a connection with.
CONNECT = """
for address in $ADDRESSES; do
    if command -v nc; then echo x | nc -w 2 $address $PORT; fi
    if command -v bash; then bash -c "echo x >/dev/tcp/$address/$PORT"; fi
    if command -v python3; then
        python3 -c "import socket; socket.create_connection(('$address', $PORT), 2)"
    fi
done >/dev/null 2>&1
if command -v python3 >/dev/null; then
    python3 -c "import socket; socket.socket(socket.AF_UNIX).connect('\\0$ABSTRACT')" 2>/dev/null
fi
:
"""


# Tunnels that some kernels put into every new network, switched off.
KERNELS_OWN = set("tunl0 gre0 gretap0 erspan0 ip_vti0 ip6_vti0 sit0 ip6tnl0 ip6gre0".split())


def our_addresses() -> set[str]:
    """Under which the machine can be reached, as far as it knows."""
    found = set()
    with contextlib.suppress(OSError):  # Not every machine knows its own name.
        found |= {
            info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        }
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Nothing is sent.
            found.add(probe.getsockname()[0])
        except OSError:  # There is no network here either.
            pass
    return {str(address) for address in found} | {"127.0.0.1", "172.17.0.1"}


@pytest.mark.needs("reaches_nobody")
async def test_nothing_on_the_machine_can_be_reached(sandbox: SandboxAdapter, mark: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:  # noqa: S104
        abstract.bind("\0" + mark)
        abstract.listen()
        env = {
            "ADDRESSES": " ".join(sorted(our_addresses())),
            "PORT": str(server.getsockname()[1]),
            "ABSTRACT": mark,
        }
        result = await sandbox.run(Command(command=CONNECT, env=env, timeout_s=PATIENCE_S))
        assert result.exit_code == 0
        for listener in (server, abstract):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


@pytest.mark.needs("isolates_network")
async def test_there_is_no_interface_and_no_route(sandbox: SandboxAdapter) -> None:
    interfaces = await said(sandbox, "cat /proc/net/dev")
    names = {line.partition(":")[0].strip() for line in interfaces.splitlines()[2:]}
    assert names - KERNELS_OWN == {"lo"}
    routes = (await said(sandbox, "cat /proc/net/route")).splitlines()[1:]
    assert routes == []


@pytest.mark.needs("isolates_network")
async def test_a_command_may_talk_to_itself(sandbox: SandboxAdapter) -> None:
    """Test servers on 127.0.0.1 are everyday work."""
    text = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), 10)
server.accept()[0].sendall(b"hello")
print(client.recv(5).decode())
"""
    command = Command(
        command='command -v python3 >/dev/null || exit 77; exec python3 -c "$TEXT"',
        env={"TEXT": text},
        timeout_s=PATIENCE_S,
    )
    result = await sandbox.run(command)
    if result.exit_code == 77:
        pytest.skip("no python3 in this sandbox to open a socket with")
    assert result.stdout == "hello\n"
