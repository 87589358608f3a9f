"""What a command cannot see, write or reach, for sandboxes that claim isolation."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.probes import (
    files_written_outside,
    probe_file,
    probe_interfaces,
    probe_services,
    processes_outside,
)
from kakoi.channel.api import Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive_inside
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, output_of, running
from kakoi.conformance.subjects import Subject

pytestmark = pytest.mark.anyio

# --- Processes -------------------------------------------------------------------------------


@pytest.fixture
def neighbour(mark: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process on this machine that is unrelated to the sandbox."""
    # Wait for its output: until the program has started, its arguments are not visible.
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
    assert processes_outside(mark) != []
    assert await alive_inside(sandbox, mark) == []


@pytest.mark.needs("signals_nobody")
async def test_a_process_of_the_machine_cannot_be_signalled(
    fresh: Opener, neighbour: "subprocess.Popen[bytes]"
) -> None:
    async with fresh() as sandbox:
        await sandbox.run(Command(command=f"kill -9 {neighbour.pid}", timeout_s=TIMEOUT_S))
        assert await output_of(sandbox, "echo hi") == "hi\n"
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
        assert await output_of(sandbox, "cat ours; echo from a command >theirs") == "from us\n"
    assert (workspace / "theirs").read_text(encoding="ascii") == "from a command\n"
    assert (workspace / "theirs").stat().st_uid == os.getuid()


FOLDERS = """/ /bin /boot /dev /dev/shm /etc /home /lib /mnt /opt /root /run /srv /sys /tmp /usr/bin
    /usr/lib /usr/local/bin /var /var/lib /var/tmp""".split()


@pytest.mark.needs("isolates_files")
async def test_nothing_is_written_outside_of_the_workspace(
    fresh: Opener, workspace: Path, mark: str, tmp_path: Path
) -> None:
    folders = [*FOLDERS, str(Path.home()), str(workspace.parent), str(tmp_path)]
    async with fresh() as sandbox:
        found = await files_written_outside(
            sandbox.run, folders, mark, relative=("..", "../.."), timeout_s=TIMEOUT_S
        )
    assert found == []


@pytest.mark.needs("isolates_files")
async def test_a_file_outside_of_the_workspace_is_neither_read_nor_changed(
    fresh: Opener, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "link").symlink_to(tmp_path / "secret")
    async with fresh() as sandbox:
        result = await probe_file(sandbox.run, tmp_path, links=["link"], timeout_s=TIMEOUT_S)
    assert result.holds, result.detail


@pytest.mark.needs("isolates_files")
async def test_the_switches_of_the_kernel_cannot_be_opened(sandbox: SandboxAdapter) -> None:
    """Opens the files without writing, so a success does no harm."""
    paths = """/proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper
        /sys/fs/cgroup/*/release_agent /dev/mem /dev/kmem /dev/kmsg /dev/[svh]d[a-z] /dev/nvme*
        /proc/kcore /dev/kvm /proc/1/mem"""
    listed = " ".join(paths.split())
    text = f"for path in {listed}; do test -e $path && (: >>$path) && echo $path; done"
    result = await sandbox.run(Command(command=text, timeout_s=TIMEOUT_S))
    assert result.stdout == ""


@pytest.mark.needs("isolates_files")
async def test_the_engines_of_this_machine_are_not_at_hand(sandbox: SandboxAdapter) -> None:
    """A visible socket is allowed as long as no command can connect to it."""
    names = "docker.sock containerd/containerd.sock podman/podman.sock dbus/system_bus_socket"
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    text = f"""
for path in $(for name in {names}; do ls /run/$name /var/run/$name; done 2>/dev/null); do
    command -v python3 >/dev/null && ! python3 -c '{connect}' $path 2>/dev/null || echo $path
done"""
    assert await output_of(sandbox, text) == ""


@pytest.mark.needs("isolates_files")
async def test_a_command_can_gain_no_privileges(sandbox: SandboxAdapter) -> None:
    text = "grep -E '^(NoNewPrivs|CapEff|CapBnd):' /proc/self/status"
    found = dict(line.split() for line in (await output_of(sandbox, text)).splitlines())
    assert found["NoNewPrivs:"] == "1"
    assert int(found["CapEff:"], 16) == 0


# --- Network ---------------------------------------------------------------------------------


@pytest.mark.needs("reaches_nobody")
async def test_nothing_on_the_machine_can_be_reached(sandbox: SandboxAdapter) -> None:
    result = await probe_services(sandbox.run, timeout_s=TIMEOUT_S)
    assert result.holds, result.detail


@pytest.mark.needs("isolates_network")
async def test_there_is_no_interface_and_no_route(sandbox: SandboxAdapter) -> None:
    result = await probe_interfaces(sandbox.run, timeout_s=TIMEOUT_S)
    assert result.holds, result.detail


@pytest.mark.needs("isolates_network")
async def test_a_command_may_talk_to_itself(sandbox: SandboxAdapter) -> None:
    """Test servers on 127.0.0.1 are common."""
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
        timeout_s=TIMEOUT_S,
    )
    result = await sandbox.run(command)
    if result.exit_code == 77:
        pytest.skip("no python3 in this sandbox to open a socket with")
    assert result.stdout == "hello\n"
