"""What commands in bubblewrap see and may do, as root's sandbox and as a user's. Tried for real."""

import contextlib
import ctypes
import os
import pty
import select
import shutil
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kakoi.backends.bubblewrap.arguments import inspect_system
from kakoi.backends.workspace import identify
from tests.backends.boxes import (
    AS_USER,
    IS_ROOT,
    KINDS,
    WAIT_S,
    Box,
    Said,
    a_box,
    line_from,
    needs_root,
    outcome,
    require_bubblewrap,
    run,
    started,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def bubblewrap() -> None:
    require_bubblewrap()


@pytest.fixture(params=KINDS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with a_box(request.param) as box:
        yield box


@pytest.fixture
def outside(box: Box) -> Path:
    """A directory beside the workspace that everybody on this machine may write to."""
    folder = box.workspace.parent / "outside"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


# --- Files -----------------------------------------------------------------------------------


def test_commands_start_in_the_workspace_at_its_own_path(box: Box) -> None:
    (box.workspace / "here").write_text("seen")
    said = box.bash("pwd -P; cat here")
    assert said.lines == [str(box.workspace), "seen"]


def test_what_they_make_in_the_workspace_belongs_to_its_owner(box: Box) -> None:
    owner = box.workspace.stat()
    said = box.bash("mkdir a; echo hello > a/b; chmod 600 a/b; ln -s a/b link")
    assert said == Said(0, "", "")
    for made in ("a", "a/b", "link"):
        status = (box.workspace / made).lstat()
        assert (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid)
    assert (box.workspace / "a/b").read_text() == "hello\n"


def test_they_may_change_and_remove_what_its_owner_made(box: Box) -> None:
    owner = box.workspace.stat()
    secret = box.workspace / "mine"
    secret.write_text("old")
    secret.chmod(0o600)
    if IS_ROOT:
        os.chown(secret, owner.st_uid, owner.st_gid)
    said = box.bash("cat mine; echo new > mine; chmod 644 mine; stat -c %U:%G mine; rm mine")
    assert said.stdout == "oldagent:agent\n"
    assert not secret.exists()


PLACES = """/ /bin /boot /dev /etc /etc/ssl /home /lib /media /mnt /opt /proc /proc/sys/kernel /root
    /sbin /srv /sys /usr /usr/bin /usr/local /usr/local/bin /usr/lib /var /var/lib /var/log""".split()


def test_they_write_nowhere_but_there_and_in_private_places(box: Box, outside: Path) -> None:
    name = f"kakoi-{uuid.uuid4()}"
    script = 'for d in "$@"; do mkdir -p "$d" && touch "$d/%s" && echo "$d"; done 2>/dev/null'
    said = box.bash(script % name, *PLACES)
    assert said.stdout == ""
    # These two are below /tmp, where everything is private.
    beside = [str(outside), str(box.workspace.parent)]
    box.bash(script % name, *beside)
    assert [place for place in [*PLACES, *beside] if os.path.exists(f"{place}/{name}")] == []


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/run", "/dev/shm", "/home/agent"])
def test_a_private_place_is_empty_writable_and_nobody_elses(box: Box, place: str) -> None:
    name = f"kakoi-{uuid.uuid4()}"
    with contextlib.ExitStack() as stack:
        if place in ("/tmp", "/var/tmp", "/dev/shm"):
            host = Path(place, f"{name}-of-the-host")
            host.write_text("host")
            stack.callback(host.unlink)
        said = box.bash('ls -A "$1"; echo made > "$1/$2" && cat "$1/$2"', place, name)
        above = Path(*box.workspace.parts[:3]).name if place == "/tmp" else ""
        assert said.lines == [*([above] if above else []), "made"]
        assert not Path(place, name).exists()
    again = box.bash('test -e "$1/$2"', place, name)
    assert again.status == 1


def test_links_in_the_workspace_lead_nowhere_outside(box: Box, outside: Path) -> None:
    (outside / "secret").write_text("the secret")
    (box.workspace / "absolute").symlink_to(outside)
    (box.workspace / "relative").symlink_to("../outside")
    (box.workspace / "file").symlink_to(outside / "secret")
    (box.workspace / "root").symlink_to("/proc/1/root")
    script = """
        cat absolute/secret relative/secret file root/"$1"/secret
        for link in absolute relative root/"$1"; do echo bad > $link/made; done
        echo bad > file; cd ..; cat outside/secret; ls -A .
    """
    said = box.bash(script, str(outside))
    assert said.lines == ["workspace"]
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == "the secret"


def test_files_of_root_are_out_of_reach(box: Box, outside: Path) -> None:
    (outside / "secret").write_text("the secret")
    (outside / "secret").chmod(0o600)
    roads = ("", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../../..", "/oldroot")
    paths = [f"{road}{path}" for road in roads for path in (f"{outside}/secret", "/etc/shadow")]
    said = box.bash('for path in "$@"; do cat "$path"; done', *paths)
    assert said.stdout == ""


@needs_root
def test_root_has_nothing_to_say_even_about_what_is_shown(box: Box, outside: Path) -> None:
    """Not hidden, only root's: the kernel takes commands for somebody else."""
    (outside / "secret").write_text("the secret")
    (outside / "secret").chmod(0o600)
    (outside / "public").write_text("for all")
    said = box.bash('cat "$1/public" "$1/secret"', str(outside), read_only=[outside])
    assert said.stdout == "for all"
    assert "Permission denied" in said.stderr


def test_read_only_is_read_only_also_within_the_workspace(box: Box, outside: Path) -> None:
    (outside / "data").write_text("data")
    inner = box.workspace / ".git"
    inner.mkdir(mode=0o777)
    script = 'cat "$1/data"; echo bad > "$1/data"; rm -f "$1/data"; touch .git/hook; mv .git gone'
    said = box.bash(script, str(outside), read_only=[outside, inner])
    assert said.stdout == "data"
    assert (outside / "data").read_text() == "data"
    assert list(inner.iterdir()) == []


def test_a_handle_of_a_file_opens_nothing(box: Box, outside: Path) -> None:
    """The way out of early containers: open_by_handle_at asks for a file by its inode."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.memmove(handle, (128).to_bytes(4, sys.byteorder), 4)
    (outside / "secret").write_text("the secret")
    got = ctypes.c_int()
    name = os.fsencode(outside / "secret")
    assert libc.name_to_handle_at(-100, name, handle, ctypes.byref(got), 0) == 0
    said = box.python(
        """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for folder in (".", "/usr", "/etc/passwd"):
    fd = os.open(folder, os.O_RDONLY)
    assert libc.open_by_handle_at(fd, bytes.fromhex(sys.argv[1]), 0) == -1
    print(ctypes.get_errno())
""",
        handle.raw.hex(),
    )
    assert said.lines == ["1", "1", "1"], said.stderr


@needs_root
def test_devices_in_the_workspace_do_not_open(box: Box) -> None:
    device = box.workspace / "zero"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    device.chmod(0o666)
    said = box.bash("head -c 1 zero")
    assert "Permission denied" in said.stderr


def test_no_devices_but_the_harmless_ones(box: Box) -> None:
    said = box.bash("ls /dev; mknod null c 1 3; mknod /tmp/null c 1 3; ls /tmp/null null")
    harmless = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert said.stdout.split() == harmless.split()
    assert said.stderr.count("Operation not permitted") == 2


# --- Processes -------------------------------------------------------------------------------


def test_no_process_of_the_host_is_seen_or_signalled(box: Box) -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(["bash", "-c", "read line", mark], stdin=subprocess.PIPE) as ours:
        said = box.bash("cat /proc/[0-9]*/cmdline; kill -9 $1", str(ours.pid))
        assert ours.poll() is None
        assert ours.stdin is not None
        ours.stdin.close()
    assert said.status == 1
    assert mark not in said.stdout


def test_the_program_is_process_1_and_cannot_be_killed_from_within(box: Box) -> None:
    said = box.bash("echo $$; hostname; bash -c 'kill -9 1; kill -STOP 1; echo alive'")
    assert said.lines == ["1", "kakoi", "alive"]


async def test_to_the_kernel_they_are_nobody_in_particular(box: Box) -> None:
    """Seen from outside: not a root that is only called otherwise inside."""
    async with started(box.launch("bash", "-c", "echo ready; read line; true")) as stream:
        assert await line_from(stream) == "ready"
        seen = _with_all_below(stream.pid)
        assert len(seen) > 1
        for pid in seen:
            fields = _status_of(pid)
            assert fields["Uid"].split() == [str(box.uid)] * 4
            assert fields["Gid"].split() == [str(box.gid)] * 4
            assert fields["NoNewPrivs"] == "1" or pid == stream.pid
            if IS_ROOT:
                assert fields["Groups"] == ""


def test_they_have_no_capability_and_get_none(box: Box) -> None:
    said = box.bash("cat /proc/self/status; id")
    fields = _status(said.stdout)
    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert f"uid={box.uid}(agent) gid={box.gid}(agent)" in said.stdout


def _status_of(pid: int) -> dict[str, str]:
    return _status(Path(f"/proc/{pid}/status").read_text())


def _status(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


@needs_root
def test_setuid_programs_give_nothing(box: Box, outside: Path) -> None:
    for folder in (box.workspace, outside):
        shutil.copy("/usr/bin/id", folder / "id")
        (folder / "id").chmod(0o6755)
    said = box.bash('./id -u; "$1/id" -u; su -c "id -u" root', str(outside), read_only=[outside])
    assert said.lines == [str(box.uid)] * 2


ESCAPES = {
    "user namespace": "unshare -U true",
    "user namespace as root": "unshare -r true",
    "mount namespace": "unshare -m true",
    "network namespace": "unshare -n true",
    "pid namespace": "unshare -pf true",
    "mount": "mount -t tmpfs none /tmp",
    "bind": "mount --bind / /tmp",
    "remount": "mount -o remount,rw,bind /usr",
    "remount root": "mount -o remount,rw /",
    "umount of the workspace": 'umount "$PWD"',
    "umount of proc": "umount -l /proc",
    "chroot": "chroot / true",
    "namespaces of process 1": "nsenter -t 1 -a true",
    "another sandbox": "bwrap --ro-bind / / true",
    "a setting of the kernel": ": >> /proc/sys/kernel/core_pattern",
    "magic keys": "echo h > /proc/sysrq-trigger",
    "memory of the kernel": "head -c 1 /proc/kcore",
    "another user": "setpriv --reuid=0 true || false",
    "another group": "setpriv --clear-groups true || false",
    "a better limit": "prlimit --nproc=unlimited --pid $$ --nofile=10000000 true",
    "somebody else's file": "chown 0 ~",
    "the network": "ip link add dummy0 type dummy",
}


@pytest.mark.parametrize("what", ESCAPES)
def test_an_attempt_to_get_more_fails(box: Box, what: str) -> None:
    said = box.bash(ESCAPES[what])
    assert said.status not in (0, 127), said
    assert said.stdout == ""


def test_system_calls_that_ask_for_power_are_refused(box: Box) -> None:
    """The same without the tools, which may look before they ask."""
    said = box.python(
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *arguments):
    print(name, getattr(libc, name)(*arguments) == -1 and ctypes.get_errno() in (1, 13, 22, 28))
for flag in (0x10000000, 0x20000, 0x40000000, 0x02000000, 0x10000000 | 0x20000):
    refused("unshare", flag)
refused("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0)
refused("setns", os.open("/proc/self/ns/user", os.O_RDONLY), 0)
refused("mount", b"none", b"/tmp", b"tmpfs", 0, None)
refused("umount2", b"/proc", 2)
refused("pivot_root", b"/tmp", b"/tmp")
refused("chroot", b"/")
refused("setuid", 0)
refused("swapon", b"/tmp", 0)
refused("reboot", 0)
refused("syscall", 428, -100, b"/", 1)
""",
    )
    assert said.status == 0, said.stderr
    assert len(said.lines) == 15
    assert [line for line in said.lines if not line.endswith(" True")] == []


def test_what_is_open_is_the_stream_and_nothing_else(box: Box) -> None:
    said = box.python(
        "import os\n"
        "for fd in range(1024):\n"
        "    if os.path.exists(f'/proc/self/fd/{fd}'): print(fd, os.readlink(f'/proc/self/fd/{fd}'))"
    )
    names = [line.split(":")[0] for line in said.lines]
    assert names == ["0 socket", "1 socket", "2 pipe"]


def test_what_they_leave_ends_with_the_program(box: Box) -> None:
    mark = uuid.uuid4().hex
    said = box.bash("(setsid bash -c 'while :; do sleep 1; done' $1 &) ; echo left", mark)
    assert said.lines == ["left"]
    assert mark not in _all_commands()


def _all_commands() -> str:
    found = ""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += process.read_text(errors="replace")
    return found


def test_nothing_is_left_when_we_are_killed(box: Box) -> None:
    launch = box.launch("bash", "-c", "trap '' TERM HUP INT; echo up; while :; do sleep 1; done")
    parent = f"""
import asyncio, sys
from kakoi.process.stream import Launch, ProcessStream
async def main():
    stream = ProcessStream({launch!r})
    await asyncio.get_running_loop().sock_recv(stream.socket, 3)
    print(stream.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-"], stdin=pipe, stdout=pipe) as ours:
        assert ours.stdin is not None
        assert ours.stdout is not None
        ours.stdin.write(parent.encode())
        ours.stdin.close()
        fds = [os.pidfd_open(pid) for pid in _with_all_below(int(ours.stdout.readline()))]
        ours.kill()
    assert len(fds) > 1
    for fd in fds:
        assert select.select([fd], [], [], WAIT_S)[0]
        os.close(fd)


def _with_all_below(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


@needs_root
async def test_nothing_is_left_on_the_host(box: Box) -> None:
    def mounts() -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if "kakoi-test" in line or line.split()[4] == "/tmp"]

    before = mounts()
    known = set(os.listdir("/tmp"))
    async with started(box.launch("bash", "-c", "echo ready; read line")) as stream:
        assert await line_from(stream) == "ready"
        assert mounts() == before
    assert mounts() == before
    new = set(os.listdir("/tmp")) - known
    assert [name for name in new if name.isdigit() or "newroot" in name] == []


# --- Talking to the host ---------------------------------------------------------------------


@contextlib.contextmanager
def listening(family: int, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        server.settimeout(WAIT_S)
        yield server


CONNECT = """
import socket, sys
address = sys.argv[1]
try:
    if address.isdigit():
        socket.create_connection(("127.0.0.1", int(address)), 5)
    else:
        socket.socket(socket.AF_UNIX).connect("\\0" + address if address[0] != "/" else address)
    print("connected")
except OSError as error:
    print(error.strerror)
"""


def test_without_a_network_there_is_only_their_own_loopback(box: Box) -> None:
    said = box.bash("tail -n +3 /proc/net/dev | cut -d: -f1; cat /etc/resolv.conf")
    assert said.stdout.split() == ["lo", "nameserver", "127.0.0.1"]
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as server:
        said = box.python(CONNECT, str(server.getsockname()[1]))
    assert said.lines == ["Connection refused"]


def test_sockets_of_the_host_are_out_of_reach(box: Box, outside: Path) -> None:
    name = f"kakoi-{uuid.uuid4()}"
    with listening(socket.AF_UNIX, "\0" + name), listening(socket.AF_UNIX, str(outside / "s")):
        (outside / "s").chmod(0o777)
        assert box.python(CONNECT, name).lines == ["Connection refused"]
        said = box.python(CONNECT, str(outside / "s"))
        assert said.lines == ["No such file or directory"]


def test_with_the_network_of_the_host_they_reach_it(box: Box) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as server:
        said = box.python(CONNECT, str(server.getsockname()[1]), network="host")
    assert said.lines == ["connected"]
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        if os.path.exists(name):
            assert box.bash(f"cat {name}", network="host").stdout == Path(name).read_text()


def test_there_is_no_way_to_the_machine_around_a_virtual_machine(box: Box) -> None:
    said = box.python("import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)")
    assert said.status != 0


def test_memory_segments_and_queues_are_their_own(box: Box) -> None:
    said = box.bash("ipcmk -M 4096 >/dev/null && ipcs -m | grep -c 0x; ipcs -q | grep -c 0x")
    assert said.lines == ["1", "0"]
    ours = box.bash("ipcs -m | grep -c 0x")
    assert ours.lines == ["0"]


def test_a_terminal_of_ours_cannot_be_typed_into(box: Box) -> None:
    launch = box.launch(
        *("/usr/bin/python3", "-I", "-c"),
        "import fcntl, os, termios\n"
        "for name in (0, '/dev/tty'):\n"
        "    try:\n"
        "        fd = name if name == 0 else os.open(name, os.O_RDWR)\n"
        "        fcntl.ioctl(fd, termios.TIOCSTI, b'x')\n"
        "        print('typed')\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n",
    )
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as stack:
        for fd in (ours, theirs):
            stack.callback(os.close, fd)
        fds = {}
        for name, data in launch.files.items():
            fds[name] = os.memfd_create("test", 0)
            stack.callback(os.close, fds[name])
            os.pwrite(fds[name], data, 0)
        words = [str(fds.get(word, word)) for word in launch.argv]
        # In a session that has the terminal for its own, as a user's shell would start it.
        done = subprocess.run(
            ["setsid", "--ctty", "--wait", *words],
            stdin=theirs,
            capture_output=True,
            text=True,
            pass_fds=list(fds.values()),
            env=dict(launch.env),
            timeout=WAIT_S,
        )
    assert done.stdout.splitlines() == ["Operation not permitted", "No such device or address"]


KEYS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
add_key, request_key, keyctl = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[os.uname().machine]
SESSION, USER, JOIN, LINK, SEARCH, READ = -3, -4, 1, 8, 10, 11
def call(*words):
    return libc.syscall(*(ctypes.c_long(word) if isinstance(word, int) else word for word in words))
"""
KEEP_A_KEY = """
call(keyctl, JOIN, None)
where = {"session": SESSION, "user": USER}[sys.argv[1]]
assert call(add_key, b"user", sys.argv[2].encode(), b"the secret", 10, where) > 0
os.execvp(sys.argv[3], sys.argv[3:])
"""
LOOK_FOR_A_KEY = """
call(keyctl, JOIN, None) if sys.argv[2] == "join" else None
for line in open("/proc/keys"):
    call(keyctl, LINK, int(line.split()[0], 16), SESSION)
key = call(keyctl, SEARCH, SESSION, b"user", sys.argv[1].encode(), 0)
data = ctypes.create_string_buffer(64)
print(call(keyctl, READ, key, data, 64) > 0 and data.value)
"""


@pytest.mark.parametrize("ring", ["session", "user"])
def test_keys_of_our_session_stay_ours(box: Box, ring: str) -> None:
    name = f"kakoi-{uuid.uuid4()}"
    launch = box.launch("/usr/bin/python3", "-I", "-c", KEYS + LOOK_FOR_A_KEY, name, "")
    outer = ["/usr/bin/python3", "-I", "-c", KEYS + KEEP_A_KEY, ring, name]
    who = len(AS_USER) if box.kind == "a user" else 0
    words = [*launch.argv[:who], *outer, *launch.argv[who:]]
    said = run(replace(launch, argv=words))
    assert said.lines == ["False"], said.stderr


@needs_root
@pytest.mark.parametrize("kind", ["root's workspace"])
def test_no_setuid_file_of_root_is_made_in_the_workspace(kind: str) -> None:
    with a_box("root's workspace") as box:
        box.bash("cp /usr/bin/id id; chmod u+s id")
        assert not (box.workspace / "id").stat().st_mode & stat.S_ISUID


# --- What they are told ----------------------------------------------------------------------


async def test_their_environment_is_clean_and_what_is_given_is_not_shown_on_the_host(
    box: Box,
) -> None:
    secret = uuid.uuid4().hex
    launch = box.launch("bash", "-c", "env -0; echo; read line", env={"TOKEN": secret, "LANG": "C"})
    async with started(launch) as stream:
        text = await line_from(stream)
        assert secret not in _all_commands()
    found = dict(entry.split("=", 1) for entry in text.strip("\0").split("\0"))
    assert found.pop("TOKEN") == secret
    assert found.pop("LANG") == "C"
    own = {"HOME": "/home/agent", "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash"}
    assert own.items() <= found.items()
    assert found.keys() - own.keys() == {"PATH", "TERM", "PWD", "SHLVL", "_"}


def test_the_system_works(box: Box) -> None:
    script = """
        set -e
        getent passwd agent; getent hosts localhost >/dev/null; getent group agent
        cd ~; git init -q .; git -C "$1" status 2>&1 | grep -c fatal || true
        python3 -c 'import ssl, multiprocessing; multiprocessing.Lock(); print(bool(ssl.create_default_context().cert_store_stats()["x509"]))'
        printf 'int main(){return 0;}' | cc -x c - -o /tmp/x 2>/dev/null && /tmp/x
        awk 'BEGIN { print "awk" }'; test -e /etc/localtime; perl -e 'print "perl\\n"'
    """
    said = box.bash(script, str(box.workspace))
    assert said.status == 0, said
    assert f"agent:x:{box.uid}:{box.gid}:agent:/home/agent:/bin/bash" in said.lines
    assert said.lines[-3:] == ["True", "awk", "perl"]


def test_a_python_of_ours_will_do_where_the_system_has_none(box: Box) -> None:
    home = identify(sys.base_prefix, what="it")
    if box.kind == "a user" and not _reachable(Path(home.path)):
        pytest.skip("a user cannot reach this Python")
    system = inspect_system()
    assert system is not None
    ours = replace(system, python=os.path.realpath(sys.executable), python_home=home)
    launch = box.launch(ours.python, "-I", "-c", "import json; print('runs')", system=ours)
    assert run(launch).lines == ["runs"]


def _reachable(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


NAMES = [
    "a b",
    "--bind",
    "quo'te\"s",
    "$(touch x)",
    "new\nline",
    "日本",
    os.fsdecode(b"\xff\xfe"),
    "*",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_workspace_may_have_any_name(box: Box, name: str) -> None:
    folder = box.workspace / name
    folder.mkdir()
    os.chown(folder, *[box.workspace.stat().st_uid, box.workspace.stat().st_gid])
    inner = Box(folder, box.kind, box.uid, box.gid)
    said = inner.bash("touch made")
    assert said.status == 0, said.stderr
    assert os.listdir(folder) == ["made"]
    assert os.listdir(box.workspace) == [name]


async def test_two_sandboxes_do_not_meet(box: Box) -> None:
    with a_box(box.kind) as second:
        async with started(box.launch("bash", "-c", "echo x > /tmp/x; echo up; read l")) as stream:
            assert await line_from(stream) == "up"
            look = 'ls /tmp/x "$1"; ls -d /proc/[0-9]*'
            said = await outcome(second.launch("bash", "-c", look, "", str(box.workspace)))
    assert "/tmp/x" not in said.lines
    assert str(box.workspace) not in said.stdout
    assert all(int(Path(line).name) < 100 for line in said.lines)
