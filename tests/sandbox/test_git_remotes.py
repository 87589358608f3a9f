"""A confined `git push` reaches its repository and nothing else, and sees no credential."""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.network.git_access import GitAccess, SshTunnel, repository_at
from kakoi.network.git_remotes import GitCredential
from kakoi.network.requests import parse_request
from kakoi.policy.git_commands import FETCH, PUSH, git_traffic
from tests.backends.boxes import needs_root, require_bubblewrap
from tests.cli.conftest import has_image, need
from tests.git_http import AUTHORIZATION, SECRET, USER, GitServer, git_server, make_certificate

WAIT_S = 120.0
PROGRAM = """
import asyncio, json, sys
from kakoi.builtin import git_commit, git_push, shell

async def main():
    told = []
    for words in json.loads(sys.argv[1]):
        function = {"push": git_push, "commit": git_commit, "shell": shell}[words[0]]
        try:
            told.append(await function(*words[1:]))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    print(json.dumps(told))

asyncio.run(main())
"""
# As the hook of a push, it runs with the network of that push.
SPY = """#!/bin/sh
exec >>spied 2>&1
env
git config --list
cat ~/.git-credentials /proc/*/environ
ask() { curl -s -m 20 -o /dev/null -w '%{http_code} ' "$@" >>asked; }
ask -x http://127.0.0.1:13128 http://HOST/other.git/info/refs?service=git-receive-pack
ask -x http://127.0.0.1:13128 http://HOST/p.git/HEAD
ask -x http://127.0.0.1:13128 http://HOST/p.git/info/refs?service=git-receive-pack\\&x=1
ask -x http://127.0.0.1:13128 -X DELETE http://HOST/p.git/git-receive-pack
ask -x http://127.0.0.1:13128 -p http://HOST/p.git/info/refs?service=git-receive-pack
ask -x http://127.0.0.1:13128 http://127.0.0.1:1/p.git/info/refs?service=git-receive-pack
ask --noproxy '*' http://HOST/p.git/info/refs?service=git-receive-pack
exit 0
"""


@dataclass(frozen=True)
class User:
    """Somebody with a home, a project in it, and git's own store of credentials."""

    home: Path

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def environ(self) -> dict[str, str]:
        audit = str(self.home / "audit.jsonl")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "KAKOI_AUDIT_FILE": audit,
        }

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.project), *words]
        return subprocess.run(
            argv, env=self.environ, check=True, capture_output=True, text=True, timeout=WAIT_S
        ).stdout

    def call(self, *calls: Sequence[object], **env: str) -> list[str]:
        """Call built-ins in a program of their own, one after the other."""
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(calls)],
            cwd=self.project,
            env={**self.environ, **env},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout)
        return found


@pytest.fixture
def user(tmp_path: Path) -> User:
    require_bubblewrap()
    found = User(tmp_path.resolve() / "home")
    found.project.mkdir(parents=True)
    (found.home / ".gitconfig").write_text(
        "[user]\nname = Ann Author\nemail = ann@example.org\n[credential]\nhelper = store\n"
    )
    found.git("init", "-q", "-b", "main")
    (found.project / "a").write_text("a")
    return found


def store(user: User, server: GitServer) -> None:
    line = f"{server.scheme}://{USER}:{SECRET}@{server.host}\n"
    (user.home / ".git-credentials").write_text(line)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "srv") as found:
        yield found


@pytest.mark.requirement("D-026", "X-30")
@pytest.mark.slow("opens a sandbox for each command that talks to the server")
def test_a_confined_push_arrives_and_neither_it_nor_its_hooks_see_the_credential(
    user: User, server: GitServer
) -> None:
    address = server.make("p.git")
    server.make("other.git")
    store(user, server)
    user.git("remote", "add", "origin", address)
    hook = user.project / ".git" / "hooks" / "pre-push"
    hook.write_text(SPY.replace("HOST", server.host))
    hook.chmod(0o755)
    told = user.call(
        ("commit", "first", ["a"]),
        ("push",),
        ("shell", "git tag v1 && git push --tags"),
        ("shell", "git fetch origin && git branch -r"),
        ("shell", "git pull --ff-only origin main"),
    )
    assert "main" in told[1]
    assert told[3] == "  origin/main\n"
    assert "Already up to date" in told[4]
    assert server.log("p.git", "v1") == "Ann Author first\n"
    assert {given for _, given in server.asked} == {AUTHORIZATION}
    asked = {line.partition("?")[0].split(" ")[1] for line, _ in server.asked}
    assert asked == {"/p.git/info/refs", f"/p.git/{PUSH}"}
    spied = (user.project / "spied").read_text()
    for form in (SECRET, AUTHORIZATION.partition(" ")[2]):
        assert form not in spied
    assert "GIT_CONFIG_COUNT" in spied
    # A tunnel (the fifth) is refused, and nothing is reached without the proxy (the last).
    once = ["403", "403", "403", "403", "000", "403", "000"]
    assert (user.project / "asked").read_text().split() == once * 2


@pytest.mark.requirement("D-026")
def test_a_push_over_tls_and_one_by_its_address_arrive(user: User, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "tls")
    with git_server(tmp_path / "secure", certificate) as server:
        address = server.make("p.git")
        store(user, server)
        told = user.call(
            ("commit", "first", ["a"]),
            ("shell", f"git push {address} HEAD:main"),
            SSL_CERT_FILE=str(certificate.with_name("ca.pem")),
        )
        assert told[1] == "", told
        assert server.log("p.git") == "Ann Author first\n"


def test_a_server_without_a_credential_of_the_user_is_not_reached(
    user: User, server: GitServer
) -> None:
    user.git("remote", "add", "origin", server.make("p.git"))
    (told,) = user.call(("shell", "git ls-remote origin"))
    assert "CommandFailedError" in told
    assert server.asked == []
    words = (sys.executable, "-m", "kakoi", "run", "--yes", "git ls-remote origin")
    typed = subprocess.run(
        words, cwd=user.project, env=user.environ, capture_output=True, text=True, timeout=WAIT_S
    )
    assert typed.returncode == 128
    assert "git has no credential for 127.0.0.1:" in typed.stderr
    assert "so this command has no network" in typed.stderr
    assert server.asked == []


def test_a_network_that_somebody_chose_stays_as_it_is(user: User, server: GitServer) -> None:
    user.git("remote", "add", "origin", server.make("p.git"))
    store(user, server)
    security = user.home / ".kakoi" / "security.toml"
    security.parent.mkdir()
    security.write_text('[shell.sandbox]\nnetwork = "none"\n')
    (told,) = user.call(("shell", "git ls-remote origin"))
    assert "CommandFailedError" in told
    assert server.asked == []


@pytest.mark.slow("starts a container for each command that talks to the server")
def test_a_push_from_a_container_arrives(user: User, server: GitServer) -> None:
    need("docker", is_there=has_image("kakoi-test:base"))
    user.git("remote", "add", "origin", server.make("p.git"))
    store(user, server)
    security = user.home / ".kakoi" / "security.toml"
    security.parent.mkdir()
    security.write_text(
        '[shell.sandbox]\ntype = "docker"\n[shell.sandbox.docker]\nimage = "kakoi-test:base"\n'
    )
    user.git("add", "a")
    user.git("commit", "-qm", "first")
    told = user.call(("push",))
    assert server.log("p.git") == "Ann Author first\n", told


# --- ssh -------------------------------------------------------------------------------------

SSHD = "/usr/sbin/sshd"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@needs_root
@pytest.mark.requirement("D-026")
@pytest.mark.slow("starts an ssh server")
def test_a_push_over_ssh_arrives_and_the_key_stays_outside(user: User, tmp_path: Path) -> None:
    need("sshd: scripts/setup installs it", is_there=Path(SSHD).exists())
    Path("/run/sshd").mkdir(exist_ok=True)
    keys, port = tmp_path / "keys", _free_port()
    keys.mkdir(mode=0o700)
    for name in ("host", "id_ed25519"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(argv, check=True, timeout=WAIT_S)
    kind, value = (keys / "host.pub").read_text().split()[:2]
    (keys / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {value}\n")
    hub = tmp_path / "hub's.git"
    subprocess.run(["git", "init", "-q", "--bare", str(hub)], check=True, timeout=WAIT_S)
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": keys / "host",
        "AuthorizedKeysFile": keys / "id_ed25519.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    options = [word for name, text in settings.items() for word in ("-o", f"{name}={text}")]
    sshd = subprocess.Popen([SSHD, "-D", "-f", os.devnull, *options], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        user.git("remote", "add", "origin", f"ssh://root@127.0.0.1:{port}{hub}")
        told = _with_keys(user, keys, ("commit", "first", ["a"]), ("push",))
        # A server whose key is unknown is told nothing.
        (keys / "known_hosts").write_text("")
        refused = _with_keys(user, keys, ("shell", "git fetch origin"))
    finally:
        sshd.terminate()
        sshd.wait(WAIT_S)
    argv = ["git", "-C", str(hub), "log", "--format=%an %s", "main"]
    log = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    assert log.stdout == "Ann Author first\n", told
    assert "Host key verification failed" in refused[0]


def _wait_for(port: int) -> None:
    ends = time.monotonic() + WAIT_S
    with socket.socket() as line:
        line.settimeout(WAIT_S)
        while line.connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < ends
            time.sleep(0.05)


def _with_keys(user: User, keys: Path, *calls: Sequence[object]) -> list[str]:
    """Call built-ins where `~/.ssh` of this user is `keys`: ssh does not ask HOME where it is."""
    home = os.path.expanduser("~root/.ssh")
    script = f'mkdir -p {home}; mount --bind {keys} {home}; exec "$@"'
    python = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    own = [f"HOME={user.home}", f"KAKOI_AUDIT_FILE={user.home}/audit.jsonl", "LANG=C.UTF-8"]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
        + ["env", "-i", f"PATH={os.environ['PATH']}", *own, *python],
        cwd=user.project,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


# --- What is lent, without a sandbox -----------------------------------------------------------


def _access(*addresses: str, service: str = PUSH) -> GitAccess:
    lent = GitCredential("ann", "word")
    found = [repository_at(each, lent) for each in addresses]
    return GitAccess([each for each in found if each], frozenset([service]), environ={})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("git@host.example:team/p.git", "git git-receive-pack 'team/p.git'"),
        ("ssh://git@host.example/team/p.git", "git git-receive-pack '/team/p.git'"),
        ("ssh://git@host.example/~ann/p.git", "git git-receive-pack '~ann/p.git'"),
        ("ssh://host.example/it's.git", r"git-receive-pack '/it'\''s.git'"),
    ],
)
def test_ssh_runs_one_service_for_one_repository(address: str, said: str) -> None:
    def ask(words: str) -> object:
        head = f"CONNECT host.example:22 HTTP/1.1\r\nHost: host.example:22\r\nKakoi-Ssh: {words}"
        return _access(address).access_for(parse_request(f"{head}\r\n\r\n".encode()))

    loan = ask(said)
    assert isinstance(loan, SshTunnel)
    service = said.removeprefix("git ")
    assert loan.argv[-1] == service
    assert loan.argv[0] == "ssh"
    assert "StrictHostKeyChecking=yes" in loan.argv
    assert len(shlex.split(service)) == 2
    for other in (
        said.replace("receive", "upload"),
        said.replace("p.git", "q.git").replace("s.git", "q.git"),
        f"{said}; id",
        said.replace("git ", "root ", 1) if said.startswith("git ") else f"git {said}",
        "",
    ):
        assert ask(other) is None


@pytest.mark.parametrize(
    ("text", "services"),
    [
        ("git push", {PUSH}),
        ("cd sub && git -C x -c a=b push origin main", {PUSH}),
        ("git fetch; git ls-remote", {FETCH}),
        ("git pull && git push", {FETCH, PUSH}),
        ("echo git push", None),
        ("g=git; $g push", None),
        ("git $x push", None),
        ("git commit -m push", None),
        ("git status", None),
        ("echo 'git push", None),
    ],
)
def test_only_certain_commands_of_git_that_talk_to_a_remote_count(
    text: str, services: set[str] | None
) -> None:
    found = git_traffic(text)
    assert (None if found is None else set(found.services)) == services
