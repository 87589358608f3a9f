"""Projects come from a real sshd, whose key is checked; our own key stays on this side."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.network.git_remotes import ssh_command
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import GivenSpawnOptions, ProcessResult, as_spawn_options
from kakoi.tasks.checkout import CloneError, CloneOptions
from kakoi.tasks.task import container_name
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import WAIT_S, a_task, docker, program_of, wait_until

pytestmark = pytest.mark.anyio

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SCRIPT = """
commit() { git -c user.name=a -c user.email=a@b commit -q --allow-empty -m "$1"; }
git init -q -b main project; cd project
commit one; git checkout -q -b feature; echo x >x; git add x; commit two
git checkout -q main; commit three
"""


def run(*argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    given = {**os.environ, **(env or {})}
    done = subprocess.run(argv, cwd=cwd, env=given, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as found:
        found.settimeout(1)
        return found.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Server:
    """An sshd on loopback, and an agent with the key that it lets in."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        user = run("id", "-un").strip()
        return f"ssh://{user}@127.0.0.1:{self.port}{self.folder}/project"

    @property
    def agent(self) -> dict[str, str]:
        return {"SSH_AUTH_SOCK": str(self.folder / "agent")}

    def known(self, key: str) -> CloneOptions:
        """As if this were the key of the host."""
        file = self.folder / f"known hosts of {key}"
        kind, value = (self.folder / f"{key}.pub").read_text().split()[:2]
        file.write_text(f"[127.0.0.1]:{self.port} {kind} {value}\n")
        return CloneOptions(known_hosts=str(file))

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if SSHD is None:
        if "docker" in os.environ.get("KAKOI_REQUIRE", ""):
            pytest.fail("there is no sshd; scripts/setup installs it")
        pytest.skip("there is no sshd; scripts/setup installs it")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    for name in ("host", "other", "mine", "strange"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
    run("sh", "-ec", SCRIPT, cwd=tmp_path)
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": tmp_path / "host",
        "AuthorizedKeysFile": tmp_path / "mine.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    (tmp_path / "config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    words = [SSHD, "-D", "-f", str(tmp_path / "config"), "-E", str(tmp_path / "log")]
    agent = ["ssh-agent", "-D", "-a", str(tmp_path / "agent")]
    started = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for argv in (words, agent)]
    try:
        wait_until(lambda: answers(port) and (tmp_path / "agent").exists())
        found = Server(tmp_path, port)
        run("ssh-add", "-q", str(tmp_path / "mine"), env=found.agent)
        yield found
    finally:
        for each in started:
            each.terminate()
            each.wait(WAIT_S)


class Watching(ProcessExecutor):
    """Notes which processes were given the agent."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: list[str] = []

    async def spawn(
        self, command: str, args: Sequence[str] = (), options: GivenSpawnOptions = None
    ) -> ProcessResult:
        if "SSH_AUTH_SOCK" in (as_spawn_options(options).env or {}):
            self.lent.append(program_of(command, args))
        return await super().spawn(command, args, options)


async def test_a_pull_request_comes_over_ssh_with_a_key_that_one_process_is_lent(
    server: Server, make: Make
) -> None:
    executor = Watching()
    manager = make(clone=server.known("host"), ssh_env=server.agent, executor=executor)
    task = a_task(server.url, source="feature", target="main")
    async with manager.open(task):
        name = container_name(task.uuid)

        def git(*words: str) -> str:
            words = ("exec", "-u", "65533", "-w", "/workspace/project", name, "git", *words)
            return docker(*words)

        assert git("rev-parse", "--abbrev-ref", "HEAD") == "feature"
        assert git("diff", "--name-only", "origin/main...HEAD") == "x"
        assert git("remote", "get-url", "origin") == server.url
        held = docker("exec", name, "sh", "-c", "cat /proc/*/environ; ls -a ~ /workspace/tmp")
        assert "SSH_AUTH_SOCK" not in held
        assert ".kakoi-project" not in held
        assert ".ssh" not in held
    assert executor.lent == ["git clone", "git -C", "git -C"]  # And the branch to merge into.
    assert "Accepted publickey" in server.log()


async def test_a_host_with_an_unknown_key_or_another_one_gets_nothing_of_us(
    server: Server, make: Make, owner: str
) -> None:
    nobody = server.folder / "nobody"
    nobody.write_text("")
    for options in (CloneOptions(known_hosts=str(nobody)), server.known("other")):
        manager = make(clone=options, ssh_env=server.agent)
        with pytest.raises(CloneError, match="has an unknown host key") as failure:
            await manager.prepare(a_task(server.url))
        assert "tasks.clone.known_hosts" in (failure.value.hint or "")
    assert nobody.read_text() == ""  # It was not taken on trust either.
    assert "Accepted" not in server.log()
    assert containers(owner) == []


async def test_a_key_that_the_host_does_not_know_is_refused_and_said_so(
    server: Server, make: Make
) -> None:
    run("ssh-add", "-q", "-D", env=server.agent)
    run("ssh-add", "-q", str(server.folder / "strange"), env=server.agent)
    manager = make(clone=server.known("host"), ssh_env=server.agent)
    with pytest.raises(CloneError, match=r"it denied access .*Permission denied") as failure:
        await manager.prepare(a_task(server.url))
    assert "ssh-add -l" in (failure.value.hint or "")


def test_the_host_s_key_is_checked_whatever_the_user_has_set() -> None:
    settings = "Host *\n StrictHostKeyChecking no\n ForwardAgent yes\n ControlPath /tmp/c\n"
    words = ssh_command(known_hosts="/a b", stall_s=7).split("ssh ", 1)[1]
    script = f"printf '{settings}' | ssh -G -F /dev/stdin {words} host.example"
    found = dict(
        line.split(" ", 1) for line in run("sh", "-ec", script).splitlines() if " " in line
    )
    assert found["stricthostkeychecking"] in ("true", "yes")
    assert found["forwardagent"] == "no"
    assert found["batchmode"] == "yes"
    assert "controlpath" not in found or found["controlpath"] == "none"
    assert found["userknownhostsfile"] in ("/a b", '"/a b"')
    assert found["serveraliveinterval"] == "7"
