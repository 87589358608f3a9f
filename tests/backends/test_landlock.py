"""Walls by Landlock: each is attacked, in each place, as root and as a normal user."""

import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.landlock import (
    LandlockRules,
    Restrictions,
    helpers_of,
    restrictions_missing_from,
    restrictions_of,
    unavailable_error,
)
from kakoi.channel.api import Command, TerminalSize
from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.channel.runner_channel import open_channel
from kakoi.errors import ConfigurationError, EnvironmentUnavailableError, SandboxError
from kakoi.process.stream import Launch
from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER
from tests.backends.walled import CONFINED, ENV, PLACES, WAIT_S, Place, Walled, a_workspace, walled

pytestmark = pytest.mark.anyio

# Each tries something on its own line, and says what came of it.
TRY = """
import ctypes, errno, os, shutil, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, action):
    try:
        print(name, "done", action())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    except subprocess.CalledProcessError as error:
        print(name, "failed", error.returncode)
def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def ran(*words):
    subprocess.run(words, check=True, capture_output=True)
"""


def outcomes(lines: list[str]) -> dict[str, str]:
    return {name: came for name, _, came in (line.partition(" ") for line in lines)}


@pytest.fixture(params=PLACES)
async def box(request: pytest.FixtureRequest) -> AsyncIterator[Walled]:
    async with walled(request.param) as opened:
        yield opened


@pytest.fixture(params=CONFINED)
async def confined(request: pytest.FixtureRequest) -> AsyncIterator[Walled]:
    async with walled(request.param) as opened:
        yield opened


def content(path: Path) -> str:
    return path.read_text(encoding="ascii")


# --- The runner ------------------------------------------------------------------------------

RUNNER = "read -r _ _ _ runner _ </proc/$PPID/stat"


async def test_a_command_cannot_signal_the_runner(box: Walled) -> None:
    if box.landlock < 6:
        pytest.skip("this kernel does not keep signals")
    said = await box.sh(f"{RUNNER}; for s in 0 STOP KILL; do kill -$s $runner; done")
    assert said.count("not permitted") == 3
    assert await box.sh("echo alive") == "alive\n"


async def test_a_command_can_signal_another_one(box: Walled) -> None:
    """A server that was started as a job is stopped by a later command: everyday work."""
    job = await box.channel.start(Command(command="echo $$ >pid; exec sleep 300"))
    said = await box.sh("while ! test -s pid; do :; done; kill $(cat pid) && echo sent")
    assert said == "sent\n"
    result = await box.channel.wait_job(job, wait_s=30)
    assert result is not None
    assert result.signal == 15


async def test_what_is_lost_with_the_nursery_is_made_again(box: Walled) -> None:
    """All that a command can reach is its own kind: keepers, and where they come from."""
    text = """
for stat in /proc/[0-9]*/stat; do
    read -r pid _ _ parent _ <$stat
    [ "$parent" = "$runner" ] && [ $pid != $PPID ] && kill -9 $pid
done 2>/dev/null; echo done"""
    assert await box.sh(f"{RUNNER}; {text}") == "done\n"
    jobs = [await box.channel.start(Command(command="sleep 300")) for _ in range(3)]
    assert await box.sh("echo alive") == "alive\n"
    for job in jobs:
        await box.channel.stop_job(job)


async def test_a_terminal_is_the_commands_own(box: Walled) -> None:
    command = Command(
        command="test -t 0 && stty size && echo hello >/dev/tty && ps -o tty= -p $$ >&2; cd /",
        terminal=TerminalSize(rows=33, columns=44),
        report_shell=True,
    )
    result = await box.channel.run(command)
    assert result.stdout.split()[:3] == ["33", "44", "hello"]
    assert result.cwd == "/"


# --- The confined host -----------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file outside that the user of the commands owns; nothing but the wall is in between."""
    with a_workspace("confined host, a user") as folder:
        file = folder / "secret"
        file.write_text("secret\n", encoding="ascii")
        if IS_ROOT:
            os.chown(file, USER, GROUP)
        folder.chmod(0o777)
        file.chmod(0o666)
        yield file


async def test_files_outside_are_neither_read_nor_changed(confined: Walled, secret: Path) -> None:
    text = f"""{TRY}
path, folder = os.environ["SECRET"], os.path.dirname(os.environ["SECRET"])
os.symlink(path, "link")
open("mine", "w").close()
tried("read", lambda: open(path).read())
tried("link", lambda: open("link").read())
tried("root", lambda: open(f"/proc/self/root{{path}}").read())
tried("cwd", lambda: (os.chdir(folder), open("secret").read()))
tried("write", lambda: open(path, "w"))
tried("truncate", lambda: os.truncate(path, 0))
tried("remove", lambda: os.unlink(path))
tried("make", lambda: open(folder + "/new", "w"))
tried("mkdir", lambda: os.mkdir(folder + "/d"))
tried("fifo", lambda: os.mkfifo(folder + "/f"))
tried("list", lambda: os.listdir(folder))
os.chdir(os.environ["WORK"])
tried("hard link in", lambda: os.link(path, "hard"))
tried("hard link out", lambda: os.link("mine", folder + "/hard"))
tried("move in", lambda: os.rename(path, "moved"))
tried("move out", lambda: os.rename("mine", folder + "/moved"))
tried("device", lambda: os.mknod("device", 0o20600, os.makedev(1, 3)))
tried("shadow", lambda: open("/etc/shadow").read())
tried("home", lambda: os.listdir("/root"))
tried("tmp", lambda: os.listdir("/tmp"))
tried("kernel", lambda: open("/proc/sys/kernel/core_pattern", "w"))
tried("execute", lambda: ran(path))
"""
    lines = await confined.python(text, SECRET=str(secret), WORK=str(confined.workspace))
    assert [line for line in lines if " done" in line] == []
    assert len(lines) == 21
    assert content(secret) == "secret\n"
    assert os.listdir(secret.parent) == ["secret"]


async def test_changes_in_directories_outside_are_not_reported(
    confined: Walled, secret: Path
) -> None:
    """A watch needs no right that Landlock knows, and it tells names of files."""
    text = f"""{TRY}
folder = os.path.dirname(os.environ["SECRET"]).encode()
def watched(number):
    fd = called(libc.inotify_init1(0) if number else libc.inotify_init())
    return called(libc.inotify_add_watch(fd, folder, 0xfff))
tried("old", lambda: watched(0))
tried("new", lambda: watched(1))
tried("fanotify", lambda: called(libc.fanotify_init(0, 0)))
tried("dnotify", lambda: os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
"""
    assert outcomes(await confined.python(text, SECRET=str(secret))) == {
        "old": "ENOSYS",
        "new": "ENOSYS",
        "fanotify": "EPERM",
        "dnotify": "EACCES",
    }
    # What waits for a file to grow looks again and again then.
    follow = (
        "echo one >f; (sleep 0.2; echo two >>f) & timeout 20 tail -n +1 -f f 2>/dev/null | head -2"
    )
    assert await confined.sh(follow) == "one\ntwo\n"


async def test_the_workspace_is_worked_in_as_usual(confined: Walled) -> None:
    text = """
set -e
mkdir -p a/b c; echo x >a/b/f; mv a/b/f c/; ln c/f c/g; ln -s f c/h; chmod +x c/f; rm -r a
printf '#!/bin/sh\\necho ran\\n' >s; chmod +x s; ./s
echo t >$TMPDIR/t; mv $TMPDIR/t .; cat t; cd ~; touch x; cd $OLDPWD
git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm m && git log --format=%s
python3 -c 'import tempfile, subprocess; tempfile.TemporaryFile(); subprocess.run(["true"])'
echo end"""
    assert await confined.sh(text) == "ran\nt\nm\nend\n"


@pytest.fixture
def neighbour() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the same user, outside; in a group of its own, which can be named from anywhere:
    for one whose leader is beyond a PID namespace there is only 0, and that is one's own."""
    argv = [*AS_USER, "sleep", "300"]
    env = {"PATH": ENV["PATH"], "TOKEN": "of-the-neighbour"}
    with subprocess.Popen(argv, env=env, start_new_session=True) as process:
        yield process
        process.kill()


async def test_other_processes_of_the_user_are_left_alone(
    confined: Walled, neighbour: "subprocess.Popen[bytes]"
) -> None:
    text = f"""{TRY}
import resource
pid = int(os.environ["NEIGHBOUR"])
tried("signal", lambda: os.kill(pid, 0))
tried("kill", lambda: os.kill(pid, 9))
tried("group", lambda: os.killpg(os.getpgid(pid), 9))
tried("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9))
tried("queue", lambda: called(libc.sigqueue(pid, 9, None)))
tried("limits", lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)))
tried("trace", lambda: called(libc.ptrace(16, pid, None, None)))
tried("environ", lambda: open(f"/proc/{{pid}}/environ").read())
tried("memory", lambda: open(f"/proc/{{pid}}/mem", "rb").read(1))
tried("cwd", lambda: os.readlink(f"/proc/{{pid}}/cwd"))
tried("descriptors", lambda: os.readlink(f"/proc/{{pid}}/fd/0"))
tried("shared memory", lambda: called(libc.shmget(0, 4096, 0o1600)))
tried("semaphores", lambda: called(libc.semget(0, 1, 0o1600)))
tried("messages", lambda: called(libc.msgget(0, 0o1600)))
"""
    lines = await confined.python(text, NEIGHBOUR=str(neighbour.pid))
    assert [line for line in lines if " done" in line] == []
    assert len(lines) == 14
    assert neighbour.poll() is None


async def test_no_socket_of_the_machine_is_reached(confined: Walled, secret: Path) -> None:
    """By path (engines, agents, buses), by abstract name, by TCP and UDP."""
    stream, datagram = secret.parent / "s", secret.parent / "d"
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        listeners[0].bind(str(stream))
        listeners[1].bind(f"\0{secret}")
        listeners.append(stack.enter_context(socket.create_server(("127.0.0.1", 0))))
        takers = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))]
        takers[0].bind(str(datagram))
        takers.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        takers[1].bind(("127.0.0.1", 0))
        for path in (stream, datagram):
            path.chmod(0o777)
        for each in listeners:
            each.listen()
        for each in (*listeners, *takers):
            each.setblocking(False)
        lines = await confined.python(
            f"""{TRY}
def connect(family, address, kind=socket.SOCK_STREAM):
    socket.socket(family, kind).connect(address)
stream, datagram, abstract = (os.environ[n] for n in ("STREAM", "DATAGRAM", "ABSTRACT"))
tcp, udp = int(os.environ["TCP"]), int(os.environ["UDP"])
tried("path", lambda: connect(socket.AF_UNIX, stream))
tried("abstract", lambda: connect(socket.AF_UNIX, "\\0" + abstract))
tried("tcp", lambda: connect(socket.AF_INET, ("127.0.0.1", tcp)))
tried("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", udp)))
tried("netlink", lambda: socket.socket(16, socket.SOCK_RAW))
tried("listen", lambda: socket.socket().listen())
for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
    pair = lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | flags)[0].sendto(b"x", datagram)
    tried("datagram", pair)
tried("again", lambda: socket.socketpair()[0].connect(stream))
""",
            STREAM=str(stream),
            DATAGRAM=str(datagram),
            ABSTRACT=str(secret),
            TCP=str(listeners[2].getsockname()[1]),
            UDP=str(takers[1].getsockname()[1]),
        )
        assert [line for line in lines if " done" in line] == []
        assert len(lines) == 11
        for each in listeners:
            with pytest.raises(BlockingIOError):
                each.accept()
        for each in takers:
            with pytest.raises(BlockingIOError):
                each.recv(1)


async def test_other_terminals_of_the_user_cannot_be_opened(confined: Walled) -> None:
    ours, theirs = os.openpty()
    try:
        path = os.ttyname(theirs)
        os.chmod(path, 0o666)  # noqa: S103 - only the wall is to be in the way
        text = f'{TRY}\ntried("type", lambda: os.open(os.environ["TTY"], os.O_RDWR | os.O_NOCTTY))'
        assert outcomes(await confined.python(text, TTY=path)) == {"type": "EACCES"}
    finally:
        os.close(ours)
        os.close(theirs)


async def test_files_over_the_channel_have_the_same_walls(confined: Walled, secret: Path) -> None:
    with pytest.raises(PermissionError):
        await confined.channel.read_file(str(secret))
    with pytest.raises(PermissionError):
        await confined.channel.write_file(str(secret), b"x")
    (confined.workspace / "link").symlink_to(secret)
    with pytest.raises(PermissionError):
        await confined.channel.read_file(str(confined.workspace / "link"))
    assert content(secret) == "secret\n"


async def test_no_program_is_looked_for_where_nothing_can_be_read(tmp_path: Path) -> None:
    """The `python3` of kakoi's own virtual environment is first on PATH where the tutorial is done."""
    for folder in ("venv/bin", "project/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "venv/bin")
    mine = f"{tmp_path}/project/bin:/usr/bin:/bin"
    env = {"PATH": f"{tmp_path}/venv/bin::{tmp_path}/link:{mine}"}
    adapter = HostAdapter(tmp_path / "project", confine=True, env=env)
    try:
        result = await adapter.run(Command(command='echo "$PATH"'))
    finally:
        await adapter.cleanup()
    assert result.stdout.strip() == mine


async def test_nothing_is_left_of_the_private_directory(tmp_path: Path) -> None:
    adapter = HostAdapter(tmp_path, confine=True)
    try:
        result = await adapter.run(Command(command="mkdir ~/d; touch ~/d/f; chmod 0 ~/d; echo ~"))
    finally:
        await adapter.cleanup()
    assert result.stdout.strip()
    assert os.path.basename(result.stdout.strip()) == "home"
    with pytest.raises(FileNotFoundError):
        os.stat(os.path.dirname(result.stdout.strip()))


async def test_the_host_as_it_is_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    for wanted in ({"network": "none"}, {"programs": ["ls"]}):
        with pytest.raises(ConfigurationError) as caught:
            HostAdapter(tmp_path, **wanted)
        assert "--confine" in caught.value.hint


# --- The list of programs --------------------------------------------------------------------

LISTED = "python3 ls cat cp git sh chmod ln grep env true".split()
# With mounts that we make ourselves, nothing is even mapped as code from where commands write.
UNMAPPED: list[Place] = ["bubblewrap", "bubblewrap, a user", "confined host", "docker"]
LOADER = "import glob; LOADER = (glob.glob('/lib64/ld-linux*') or glob.glob('/lib/ld-linux*'))[0]"


@pytest.fixture(params=PLACES)
async def listed(request: pytest.FixtureRequest) -> AsyncIterator[Walled]:
    async with walled(request.param, LISTED) as opened:
        yield opened


async def test_only_listed_programs_are_executed_whatever_starts_them(listed: Walled) -> None:
    text = f"""{TRY}{LOADER}
copies = [os.environ.get("TMPDIR", "/tmp"), os.environ["HOME"], "."]
tried("listed", lambda: ran("ls", "/usr"))
tried("git", lambda: ran("git", "--version"))
tried("again", lambda: ran("python3", "-c", "pass"))
tried("unlisted", lambda: ran("mount"))
tried("by path", lambda: ran("/usr/bin/mount"))
tried("by proc", lambda: ran("/proc/self/root/usr/bin/mount"))
tried("by loader", lambda: ran(LOADER, "/usr/bin/mount"))
tried("by env", lambda: ran("env", "mount"))
tried("by shell", lambda: ran("sh", "-c", "mount"))
os.symlink("/usr/bin/mount", "link")
tried("by link", lambda: ran("./link"))
tried("by hard link", lambda: (os.link("/usr/bin/mount", "hard"), ran("./hard")))
for folder in copies:
    copy = folder + "/copy"
    tried(f"copy to {{copies.index(folder)}}", lambda: shutil.copy(sys.executable, copy) and None)
    tried(f"copy in {{copies.index(folder)}}", lambda: ran(copy, "-c", "pass"))
def from_memory():
    fd = os.memfd_create("x", 0)
    os.write(fd, open(sys.executable, "rb").read())
    os.execve(fd, ["x", "-c", "pass"], {{}})
tried("memory", from_memory)
def nameless():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o700)
    os.write(fd, open(sys.executable, "rb").read())
    path = f"/proc/self/fd/{{os.open(f'/proc/self/fd/{{fd}}', os.O_RDONLY)}}"
    os.close(fd)
    os.execve(path, ["x", "-c", "pass"], {{}})
tried("nameless", nameless)
with open("script", "w") as file:
    file.write("#!/bin/sh\\ntrue\\n")
os.chmod("script", 0o755)
tried("script", lambda: ran("./script"))
tried("script by its shell", lambda: ran("sh", "script"))
os.symlink(sys.executable, "venv-python")
tried("listed by link", lambda: ran("./venv-python", "-c", "pass"))
"""
    lines = await listed.python(text)
    done = {line.partition(" done")[0] for line in lines if " done" in line}
    assert done == {
        *("listed", "git", "again", "script by its shell", "listed by link"),
        *("copy to 0", "copy to 1", "copy to 2"),
    }, lines
    refused = dict(line.rsplit(" ", 1) for line in lines if " done" not in line)
    for name in ("unlisted", "by path", "by proc", "by link", "script", "nameless"):
        assert refused[name] == "EACCES", name
    assert refused["memory"] == "ENOSYS"


async def test_a_copied_program_is_not_loaded_by_the_loader_either(listed: Walled) -> None:
    text = f"""{TRY}{LOADER}
for folder in (os.environ.get("TMPDIR", "/tmp"), os.environ["HOME"], ".", "/dev/shm", "/var/tmp"):
    try:
        shutil.copy(sys.executable, folder + "/copy")
    except OSError:
        continue
    tried("loaded", lambda: ran(LOADER, folder + "/copy", "-c", "pass"))
"""
    lines = await listed.python(text)
    assert len(lines) >= 3
    if listed.place in UNMAPPED:
        assert {line.rsplit(" ", 1)[0] for line in lines} == {"loaded failed"}
    else:  # As SECURITY.md says: without a mount of ours, this stays open.
        assert set(lines) == {"loaded done None"}


async def test_with_a_list_nothing_else_is_lost(listed: Walled) -> None:
    text = "id -u 2>/dev/null; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; cat <<<here"
    said = await listed.sh(text)
    assert "CapEff:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said
    assert "here" in said
    command = Command(command="cd /usr", report_shell=True)
    assert (await listed.channel.run(command)).cwd == "/usr"
    terminal = Command(command="test -t 0 && echo yes", terminal=TerminalSize())
    assert (await listed.channel.run(terminal)).stdout == "yes\r\n"
    assert (await listed.sh("unshare -U true; mkdir x; ls")).count("Permission denied") == 2


async def test_a_program_that_the_list_refused_is_reported_with_a_way_out(listed: Walled) -> None:
    async def told(*words: str) -> tuple[int, str]:
        result = await listed.channel.run(Command(command=words, timeout_s=WAIT_S))
        return result.exit_code, result.error

    for words in (["mount"], ["/usr/bin/mount"], ["/proc/self/root/usr/bin/mount"]):
        status, error = await told(*words)
        assert status == 126
        assert error.startswith("the program: Permission denied; the kernel enforces the list"), (
            words
        )
        assert "add it to policy.additional" in error
    await listed.sh("printf '#!/bin/sh\\ntrue\\n' > script; chmod u+x script; cp script text")
    status, error = await told("./script")
    assert status == 126
    assert "executes nothing from where commands can write" in error
    # Of everything else the list says nothing: it would be a guess.
    await listed.sh("chmod a-x text; ln -s gone dangling")
    quiet = [await told(word) for word in ("./text", "./dangling", "/usr", "nothing-like-it")]
    assert all("list" not in error for _, error in quiet), quiet
    assert await told("ls", "/usr") == (0, "")


async def test_for_a_shell_the_result_mentions_the_list_and_not_the_program(
    listed: Walled,
) -> None:
    result = await listed.channel.run(Command(command="mount", timeout_s=WAIT_S))
    assert (result.exit_code, result.reason) == (126, "exited")
    assert "with 126 a shell says that it could not execute something" in result.error
    fine = await listed.channel.run(Command(command="mount; exit 3", timeout_s=WAIT_S))
    assert (fine.exit_code, fine.error) == (3, "")


async def test_without_a_list_the_result_mentions_none(box: Walled) -> None:
    await box.sh("printf x > text")
    result = await box.channel.run(Command(command=["./text"], timeout_s=WAIT_S))
    assert (result.exit_code, result.error) == (126, "the program: Permission denied")
    assert (await box.channel.run(Command(command="./text", timeout_s=WAIT_S))).error == ""


# --- What cannot be kept is refused ----------------------------------------------------------


async def test_a_kernel_that_cannot_keep_a_wall_is_refused_with_the_reason(tmp_path: Path) -> None:
    restrictions = {**Restrictions(programs=["ls"]).for_runner(), "needs_abi": 99}
    launch = Launch(argv=python_argv("/usr/bin/python3"), env=ENV, kept=True)
    with pytest.raises(SandboxError) as caught:
        await open_channel(launch, RunnerSettings(restrictions=restrictions))
    told = unavailable_error(caught.value, sandbox="host")
    assert isinstance(told, EnvironmentUnavailableError)
    assert "needs Landlock ABI 99" in str(told)
    assert "landlock" in told.hint


async def test_an_image_without_python_cannot_keep_a_list_and_is_not_available_with_one() -> None:
    plain = DockerAdapter(DockerSettings(image="kakoi-test:busybox"))
    if not await plain.availability():
        pytest.skip("no docker here")
    settings = DockerSettings(image="kakoi-test:busybox", programs=["ls"])
    adapter = DockerAdapter(settings, lifetime="sandbox")
    try:
        found = await adapter.availability()
        assert not found
        assert "an image without python3" in found.reason
        assert "kernel_allowlist" in found.fix
        with pytest.raises(EnvironmentUnavailableError, match="python3"):
            await adapter.run(Command(command="ls"))
    finally:
        await adapter.cleanup()


async def test_what_is_only_wished_for_is_not_required(tmp_path: Path) -> None:
    assert Restrictions().for_runner()["needs_abi"] == 0
    assert Restrictions(programs=["ls"]).for_runner()["needs_abi"] == 1
    assert Restrictions(required=True).for_runner()["needs_abi"] == 6


# --- Values ----------------------------------------------------------------------------------


async def test_each_version_of_landlock_keeps_more() -> None:
    assert restrictions_of(0) == []
    assert restrictions_of(1) == ["files"]
    assert "TCP ports" in restrictions_of(4)
    assert "TCP ports" in restrictions_missing_from(3)
    assert restrictions_missing_from(7) == []


async def test_no_port_is_not_the_same_as_any_port() -> None:
    assert LandlockRules().for_runner()["ports"] is None
    assert LandlockRules(bind=(), connect=()).for_runner()["ports"] == ([], [])
    assert LandlockRules(connect=(80,)).for_runner()["ports"] == ([], [80])


async def test_programs_bring_the_folders_of_their_own_helpers() -> None:
    assert helpers_of(["ls"]) == []
    assert "/usr/lib/git-core" in helpers_of(["git", "ls"])
