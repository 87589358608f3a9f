"""What a sandbox may ask of the repositories that its git talks to, and what it is lent for that.

Git inside gets neither a password nor a key. Over HTTP it asks our proxy, which adds the credential
to git's own requests for these repositories and forwards nothing else. Over ssh it asks for one of
git's two services, and the one ssh process outside that speaks to the server has the keys.
"""

import base64
import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from kakoi._support.late import dataclass
from kakoi.errors import ConfigurationError
from kakoi.network.domains import BadHostError, DomainEntry, Domains, Target, parse_target
from kakoi.network.git_remotes import GitCredential, Remote, parse_remote, ssh_command
from kakoi.network.header_credentials import HeaderCredential
from kakoi.network.requests import ProxyRequest
from kakoi.runner.outlet import PORT

_PORTS: Final = {"https": 443, "http": 80, "ssh": 22}
SSH_HEADER: Final = b"kakoi-ssh"
# Git's ssh: finds the host and the command, and connects them to the proxy.
_SSH_CLIENT: Final = """
import re, socket, sys, threading
port = re.search(r"(?:^|\\0)-p\\0?(\\d+)\\0", "\\0".join(sys.argv[1:]))
target = sys.argv[-2].rpartition("@")[2].strip("[]")
target = (f"[{target}]" if ":" in target else target) + ":" + (port[1] if port else "22")
line = socket.create_connection(("127.0.0.1", %d))
line.sendall((f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\nKakoi-Ssh: "
    + sys.argv[-2].rpartition("@")[0] + " " + sys.argv[-1] + "\\r\\n\\r\\n").encode())
answer = line.makefile("rb")
head = b"".join(iter(answer.readline, b"\\r\\n"))
if b" 200 " not in head.partition(b"\\r\\n")[0] + b" ":
    sys.exit(answer.read().decode("utf-8", "replace").strip())
def send():
    while data := sys.stdin.buffer.raw.read(65536):
        line.sendall(data)
    line.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := answer.read1(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True, slots=True)
class GitRepository:
    """A repository: how it is named inside, its parsed address, and its credential over HTTP."""

    address: str
    remote: Remote
    credential: GitCredential | None = None

    @property
    def target(self) -> Target:
        """The server, as git inside names it. Raises BadHostError."""
        if self.remote.scheme == "ssh":
            _, host, port, _ = _ssh_parts(self.remote.url)
            return parse_target(host, port)
        parts = urlsplit(self.remote.url)
        return parse_target(parts.hostname or "", parts.port or 80)

    @property
    def port(self) -> int:
        """The port of the server."""
        if self.remote.scheme == "ssh":
            return self.target.port
        return urlsplit(self.remote.url).port or _PORTS[self.remote.scheme]

    @property
    def path(self) -> str:
        """The path of the repository on the server."""
        if self.remote.scheme == "ssh":
            return _ssh_parts(self.remote.url)[3]
        return urlsplit(self.remote.url).path.rstrip("/")


@dataclass(frozen=True, slots=True)
class SshTunnel:
    """The ssh process to connect the tunnel to."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class GitAccess:
    """Which requests of a sandbox are git's own, for these repositories and services.

    A repository over HTTP without a credential is not one of them. `environ`: of the ssh process.
    """

    def __init__(
        self,
        repositories: Sequence[GitRepository],
        services: frozenset[str],
        *,
        environ: Mapping[str, str],
    ) -> None:
        self._repositories = tuple(each for each in repositories if _is_reachable(each))
        self._others = tuple(each for each in repositories if not _is_reachable(each))
        self._services = services
        self._environ = environ

    def __bool__(self) -> bool:
        return bool(self._repositories)

    @property
    def without_credential(self) -> tuple[str, ...]:
        """The servers of the repositories that are not reached."""
        return tuple(dict.fromkeys(each.remote.host for each in self._others))

    @property
    def domains(self) -> Domains:
        """The servers, and nothing else."""
        return Domains(tuple(_entry(each) for each in self._repositories))

    def variables(self) -> Mapping[str, str]:
        """The variables that lead git inside to the proxy. They hold no secret."""
        settings = [("credential.helper", "")]
        for each in self._repositories:
            if each.remote.scheme != "ssh":
                plain = f"http://{each.remote.host}{each.path}"
                settings.append((f"url.{plain}.insteadOf", each.address))
        found = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSH_COMMAND": shlex.join(["python3", "-c", _SSH_CLIENT % PORT]),
            "GIT_SSH_VARIANT": "ssh",
            # Also a server on this machine is reached by the proxy.
            "NO_PROXY": "",
            "no_proxy": "",
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        for number, (name, value) in enumerate(settings):
            found[f"GIT_CONFIG_KEY_{number}"] = name
            found[f"GIT_CONFIG_VALUE_{number}"] = value
        return found

    def access_for(self, request: ProxyRequest) -> HeaderCredential | SshTunnel | None:
        """Return what gives the request access; None if it is not one of git's own."""
        for each in self._repositories:
            if each.target == request.target:
                found = self._ssh(each, request) if request.is_tunnel else self._http(each, request)
                if found is not None:
                    return found
        return None

    def _http(self, repository: GitRepository, request: ProxyRequest) -> HeaderCredential | None:
        if repository.remote.scheme == "ssh" or repository.credential is None:
            return None
        path = quote(repository.path, safe="/%:@!$&+,;=~*()'").encode("ascii")
        asked = (request.method, request.path)
        for service in (each.encode() for each in self._services):
            if asked in (
                (b"GET", path + b"/info/refs?service=" + service),
                (b"POST", path + b"/" + service),
            ):
                return HeaderCredential(
                    header="Authorization",
                    value=f"Basic {_basic(repository.credential)}",
                    port=repository.port,
                    tls=repository.remote.scheme == "https",
                )
        return None

    def _ssh(self, repository: GitRepository, request: ProxyRequest) -> SshTunnel | None:
        if repository.remote.scheme != "ssh":
            return None
        user, host, port, path = _ssh_parts(repository.remote.url)
        fields = {name.lower(): value.decode("latin-1") for name, value in request.fields}
        given = fields.get(SSH_HEADER, "").strip()
        wanted = {f"{user} {each} {_git_quoted(path)}".strip() for each in self._services}
        if given not in wanted:
            return None
        service = given.removeprefix(f"{user} ")
        where = f"{user}@{host}" if user else host
        argv = (*shlex.split(ssh_command()), "-T", "-p", port, where, service)
        return SshTunnel(argv, self._environ)


def repository_at(address: str, credential: GitCredential | None = None) -> GitRepository | None:
    """Return the repository at an address; None if git would not talk to a server for it."""
    try:
        remote = parse_remote(address)
    except ConfigurationError:
        return None
    if remote.scheme not in _PORTS:
        return None
    return GitRepository(address, remote, remote.credential_or(credential))


def _is_reachable(repository: GitRepository) -> bool:
    try:
        is_known = repository.remote.scheme == "ssh" or repository.credential is not None
        return is_known and bool(repository.target)
    except BadHostError:
        return False


def _entry(repository: GitRepository) -> DomainEntry:
    host = repository.target.host
    ports = frozenset((repository.port, repository.target.port))
    if isinstance(host, str):
        return DomainEntry(host, ports)
    return DomainEntry(ipaddress.ip_network(host), ports)


def _basic(credential: GitCredential) -> str:
    return base64.b64encode(f"{credential.username}:{credential.secret}".encode()).decode()


def _ssh_parts(url: str) -> tuple[str, str, str, str]:
    """Return user, host, port and path, as git gives them to ssh."""
    if url.startswith("ssh://"):
        parts = urlsplit(url)
        # Git passes `/~user` on without the slash.
        path = parts.path[1:] if parts.path.startswith("/~") else parts.path
        return parts.username or "", parts.hostname or "", str(parts.port or 22), path
    where, _, path = url.partition(":")
    user, _, host = where.rpartition("@")
    return user, host, "22", path


def _git_quoted(text: str) -> str:
    """Quote as git does."""
    inside = text.replace("'", "'\\''").replace("!", "'\\!'")
    return f"'{inside}'"
