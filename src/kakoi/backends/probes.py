"""Try what a sandbox promises, from inside. `kakoi doctor` and the conformance suite share these.

A probe runs against a wall or beyond a limit, and looks whether that held. Each can fail: on the
unconfined host, where nothing is enforced, it says so.

`find_exposure` lists what a command can reach. File modes and mounts would be a guess, because
Landlock and idmapped mounts decide too: directories are listed and written to, files are opened.
"""

import contextlib
import os
import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.adapter import Limits
from kakoi.channel.api import MIB, Channel, Command, TerminalSize
from kakoi.errors import SandboxError
from kakoi.results import ExecutionResult, Reason

Run = Callable[[Command], Awaitable[ExecutionResult]]
COMMAND_S: Final = 15.0
# Tunnels that some kernels put into every new network namespace, switched off.
_KERNELS_OWN: Final = frozenset(
    "tunl0 gre0 gretap0 erspan0 ip_vti0 ip6_vti0 sit0 ip6tnl0 ip6gre0".split()
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found. `detail`: what happened, for people."""

    holds: bool
    detail: str


def failure(result: ExecutionResult) -> str:
    """Why a command of a probe did not do what it should."""
    return result.error or f"{result.reason}, exit code {result.exit_code}"


def new_mark() -> str:
    """A number of seconds that no other process of this machine sleeps: `sleep MARK`."""
    return f"300.{secrets.randbelow(10**12):012}"


async def _run(run: Run, text: str, timeout_s: float = COMMAND_S) -> ExecutionResult:
    return await run(Command(command=text, timeout_s=timeout_s))


# --- Processes -------------------------------------------------------------------------------

# The mark comes on stdin, so that the command does not find itself. All files at once first: to
# start a program for each process would take a second.
_FIND_PROCESSES: Final = r"""
IFS= read -r mark
all=$(head -c 300000 /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\0' ' ')
case $all in
*"$mark"*)
    echo "seen:"
    for process in /proc/[0-9]*; do
        words=$(cat "$process/cmdline" "$process/environ" | tr '\0' ' ')
        case $words in *"$mark"*) echo "${process#/proc/} $words" ;; esac
    done 2>/dev/null
    ;;
esac
"""


async def processes_inside(run: Run, mark: str, *, timeout_s: float = COMMAND_S) -> list[str]:
    """The processes in a sandbox with `mark` in their arguments or environment."""
    stdin = mark.encode() + b"\n"
    result = await run(Command(command=_FIND_PROCESSES, stdin=stdin, timeout_s=timeout_s))
    if not result.ok:
        raise SandboxError(f"cannot list the processes in the sandbox: {failure(result)}")
    return result.stdout.splitlines()


def processes_outside(mark: str) -> list[str]:
    """The same on this machine, where the processes of a sandbox with our kernel are seen too."""
    return [
        f"{process.name} {words}"
        for process in Path("/proc").iterdir()
        if process.name.isdigit()
        and mark in (words := f"{proc_text(process, 'cmdline')} {proc_text(process, 'environ')}")
    ]


def proc_text(process: Path, file: str) -> str:
    """A file of /proc/PID as text; empty if the process has ended, or is another user's."""
    try:
        return (process / file).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


async def probe_timeout(run: Run) -> ProbeResult:
    """Let a command time out. Its child has left the process group of the command."""
    mark = new_mark()
    text = f"setsid sleep {mark} & echo started; sleep {mark}"
    result = await run(Command(command=text, timeout_s=1.0))
    if result.reason is not Reason.TIMED_OUT or result.stdout != "started\n":
        return ProbeResult(False, f"could not be tried: {failure(result)}")
    if processes_outside(mark) or await processes_inside(run, mark):
        return ProbeResult(False, "a process that a command started outlived its timeout")
    return ProbeResult(True, "a command and every process that it started were ended")


# --- Files -----------------------------------------------------------------------------------


async def files_written_outside(
    run: Run,
    folders: Sequence[str],
    mark: str,
    *,
    relative: Iterable[str] = (),
    timeout_s: float = COMMAND_S,
) -> list[str]:
    """Have a command write to `folders` of this machine; returns what appeared, and removes it.

    Whether the attempt fails or ends in a folder of the sandbox's own is up to the sandbox.
    `relative`: more paths to try, as seen from the workspace.
    """
    paths = [*folders, *(f"/proc/1/root{folder}" for folder in folders), *relative]
    text = "".join(
        f"echo x >{shlex.quote(f'{path}/kakoi-{mark}')};"
        f" mkdir -p {shlex.quote(f'{path}/kakoi-d-{mark}')}\n"
        for path in paths
    )
    await _run(run, text, timeout_s)
    return [path for folder in folders for path in _take_away(folder, mark)]


def _take_away(folder: str, mark: str) -> list[str]:
    """What appeared in the folder: a sandbox that fails must not leave a mess on the machine."""
    paths = [os.path.join(folder, name) for name in os.listdir(folder) if mark in name]
    for path in paths:
        (os.rmdir if os.path.isdir(path) else os.unlink)(path)
    return paths


async def probe_file(
    run: Run, folder: Path, *, links: Iterable[str] = (), timeout_s: float = COMMAND_S
) -> ProbeResult:
    """Have a command read, change and remove a file in `folder`, which is outside the workspace.

    Modes do not protect the file: only a wall can. `links`: links to its `secret`, seen from the
    workspace.
    """
    content = secrets.token_hex(16)
    secret = _open_file(folder, content)
    paths = map(shlex.quote, [str(secret), f"/proc/1/root{secret}", *links])
    text = "".join(f"cat {path}; echo x >{path}; rm -rf {path}\n" for path in paths)
    result = await _run(run, text, timeout_s)
    if content in result.stdout:
        return ProbeResult(False, "files outside the workspace can be read")
    try:
        unchanged = secret.read_text(encoding="ascii") == content
    except FileNotFoundError:
        unchanged = False
    if not unchanged:
        return ProbeResult(False, "files outside the workspace can be changed")
    return ProbeResult(True, "files outside the workspace can be neither read nor changed")


def _open_file(folder: Path, content: str) -> Path:
    """A file that everybody may read and write, in a folder of the same kind."""
    folder.chmod(0o777)
    file = folder / "secret"
    file.write_text(content, encoding="ascii")
    file.chmod(0o666)
    return file


# --- Network ---------------------------------------------------------------------------------

# With whatever the sandbox has to open a connection.
_CONNECT: Final = """
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


def machine_addresses() -> set[str]:
    """The addresses at which this machine can be reached, as far as it knows."""
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


async def probe_services(run: Run, *, timeout_s: float = COMMAND_S) -> ProbeResult:
    """Connect from inside to services of this machine: a TCP port, and an abstract socket."""
    name = f"kakoi-{secrets.token_hex(8)}"
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:  # noqa: S104
        abstract.bind("\0" + name)
        abstract.listen()
        env = {
            "ADDRESSES": " ".join(sorted(machine_addresses())),
            "PORT": str(server.getsockname()[1]),
            "ABSTRACT": name,
        }
        result = await run(Command(command=_CONNECT, env=env, timeout_s=timeout_s))
        if not result.ok:
            return ProbeResult(False, f"could not be tried: {failure(result)}")
        if _has_client(server) or _has_client(abstract):
            return ProbeResult(False, "a service of this machine can be reached")
    return ProbeResult(True, "nothing can be reached, not even its own loopback")


def _has_client(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


async def probe_interfaces(run: Run, *, timeout_s: float = COMMAND_S) -> ProbeResult:
    """Look for network interfaces and routes, of IPv6 as well where the kernel has it."""
    interfaces = await _run(run, "cat /proc/net/dev", timeout_s)
    routes = await _run(run, "cat /proc/net/route", timeout_s)
    routes_6 = await _run(
        run, "! test -e /proc/net/ipv6_route || cat /proc/net/ipv6_route", timeout_s
    )
    for result in (interfaces, routes, routes_6):
        if not result.ok:
            return ProbeResult(False, failure(result))
    names = {line.partition(":")[0].strip() for line in interfaces.stdout.splitlines()[2:]}
    if others := sorted(names - _KERNELS_OWN - {"lo"}):
        return ProbeResult(False, f"it has {', '.join(others)}")
    elsewhere = [line for line in routes_6.stdout.splitlines() if line.split()[-1:] != ["lo"]]
    if "lo" not in names:
        return ProbeResult(False, "it has no loopback")
    if routes.stdout.splitlines()[1:] or elsewhere:
        return ProbeResult(False, "it has routes")
    return ProbeResult(True, "nothing can be reached")


# --- Terminals and limits --------------------------------------------------------------------


async def probe_terminal(run: Run) -> ProbeResult:
    """Ask for a terminal."""
    text = "test -t 0 && test -t 1 && test -t 2"
    result = await run(Command(command=text, terminal=TerminalSize(), timeout_s=COMMAND_S))
    return ProbeResult(result.ok, "commands can have one" if result.ok else failure(result))


# Low, so that going beyond them is quick. A sandbox that enforces these enforces the real ones.
# None of them must hold: what is not enforced is to be found out, and not refused.
LIMITS: Final = Limits(
    memory_bytes=64 * MIB,
    cpus=0.5,
    processes=64,
    open_files=256,
    file_bytes=4 * MIB,
    disk_bytes=16 * MIB,
    asked=frozenset(),
)
_PROCESSES: Final = 150
_PROCESSES_S: Final = 10.0
_MEMORY_BYTES: Final = 160 * 1000 * 1000


async def probe_process_limit(channel: Channel) -> ProbeResult:
    """Start more processes than LIMITS allows: the shell counts them, and reports an error.

    It is ended at its first error: bash would try again for many seconds.
    """
    text = f"i=0; while [ $i -lt {_PROCESSES} ]; do sleep 60 & i=$((i+1)); echo $i; done"
    output = {"stdout": b"", "stderr": b""}
    async with channel.open(Command(command=text, timeout_s=_PROCESSES_S)) as running:
        async for stream, data in running.output():
            output[stream] += data
            if b"fork" in output["stderr"]:
                return ProbeResult(True, f"stopped at {LIMITS.processes}")
        result = await running.result()
    started = len(output["stdout"].split())
    return ProbeResult(False, f"{started} were started" if started else failure(result))


async def probe_open_files(run: Run) -> ProbeResult:
    """Open a descriptor whose number is the limit."""
    result = await _run(run, f"exec {LIMITS.open_files}</dev/null")
    limit = (await _run(run, "ulimit -n")).stdout.strip()
    holds = not result.ok and limit == str(LIMITS.open_files)
    return ProbeResult(holds, f"a process can have {limit}")


async def probe_file_size(run: Run) -> ProbeResult:
    """Write too large a file, in the workspace: a limit on the disk must not be what stops it."""
    twice = 2 * (LIMITS.file_bytes or 0)
    result = await _run(run, f"head -c {twice} /dev/zero > large; wc -c < large; rm large")
    size = result.stdout.strip()
    return ProbeResult(size == str(LIMITS.file_bytes), f"a file was cut off at {size} bytes")


async def probe_disk(run: Run) -> ProbeResult:
    """Write too much, in pieces below the limit of one file; the first must fit."""
    pieces, size = 8, LIMITS.file_bytes or 0
    folder = '"${TMPDIR:-/tmp}"'
    piece = f"head -c {size} /dev/zero > {folder}/fill"
    text = f"{piece}1 || exit 4; for i in $(seq 2 {pieces}); do {piece}$i || exit 3; done"
    result = await _run(run, text)
    await _run(run, f"rm -f {folder}/fill*")
    if result.exit_code == 3:
        return ProbeResult(True, "writing too much failed")
    detail = "there is no limit" if result.ok else f"could not be tried: {failure(result)}"
    return ProbeResult(False, detail)


async def probe_memory(run: Run) -> ProbeResult:
    """Keep one line without an end in memory: a short one must fit, and a long one must not."""
    line = "head -c {0} /dev/zero | tail -n 1 | wc -c"
    short = await _run(run, line.format(MIB))
    if short.stdout.strip() != str(MIB):
        return ProbeResult(False, f"could not be tried: {failure(short)}")
    result = await _run(run, line.format(_MEMORY_BYTES))
    if result.stdout.strip() == str(_MEMORY_BYTES):
        return ProbeResult(False, "there is no limit")
    holds = result.reason is not Reason.TIMED_OUT
    return ProbeResult(holds, "a command that used too much was ended" if holds else "too slow")


_LIMIT_S: Final = 60.0
# Credentials, by file name. Programs and their data are not searched: everybody on every machine
# can see them.
_SECRETS: Final = """shadow gshadow sudoers id_rsa id_ecdsa id_ed25519 *.pem *.key *.kdbx *.keytab
    .netrc .git-credentials .npmrc .pypirc credentials credentials.json hosts.yml .env *_history
    docker.sock containerd.sock podman.sock system_bus_socket agent.*""".split()
_SYSTEM: Final = """/proc /sys /dev /usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc/ssl/certs
    /etc/ca-certificates""".split()

_SCRIPT: Final = r"""
begin() { printf '\n[%s]\n' "$1"; }
# By name as well: what is in the root directory can be reachable where that cannot be listed.
top="/bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp
    /usr /var"
begin reads
for at in / $top /* /home/* /root /var/* /run/* /mnt/* /media/* "$HOME"; do
    [ -d "$at" ] && [ -n "$(ls -A "$at" 2>/dev/null)" ] && echo "$at"
done
begin writes
for at in / $top /* /usr/* /var/* /run/* /dev/shm "$HOME" "$PWD"; do
    probe="$at/.kakoi-$$"
    [ -d "$at" ] && (: >"$probe") 2>/dev/null && rm -f "$probe" && echo "$at"
done
begin devices
ls /dev
begin variables
env -0 | tr '\n\0' ' \n' | cut -d= -f1
begin processes
for at in /proc/[0-9]*; do echo "$at"; done
begin interfaces
cat /proc/net/dev
begin secrets
find / $top "$HOME" "$PWD" SKIPPED \( NAMED \) -print 2>/dev/null | while read -r at; do
    [ -S "$at" ] && echo "$at" || { (: <"$at") 2>/dev/null && echo "$at"; }
done
begin end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What a command in a sandbox could reach. `secrets`: files and sockets, by their names."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    devices: tuple[str, ...]
    variables: tuple[str, ...]
    processes: int
    interfaces: tuple[str, ...]
    secrets: tuple[str, ...]


async def find_exposure(channel: Channel) -> Exposure:
    """Try everything, as a command would. Raises SandboxError if that fails."""
    skipped = " ".join(f"-path {path} -prune -o" for path in _SYSTEM)
    named = " -o ".join(f"-name '{name}'" for name in _SECRETS)
    script = _SCRIPT.replace("SKIPPED", skipped).replace("NAMED", named)
    result = await channel.run(Command(command=["sh", "-c", script], timeout_s=_LIMIT_S))
    found = split_sections(result.stdout)
    if "end" not in found:
        why = result.stderr.strip()[-200:] or f"{result.reason}"
        raise SandboxError(f"cannot find out what is reachable: {why}")
    return exposure_from(found)


def split_sections(text: str) -> Mapping[str, list[str]]:
    """The output of the script by heading; of two with one name the last counts."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            lines = found[line[1:-1]] = []
        elif line:
            lines.append(line)
    return found


def exposure_from(found: Mapping[str, list[str]]) -> Exposure:
    """The sections as values: each path once, and none below another that was found."""
    interfaces = [line.partition(":")[0].strip() for line in found.get("interfaces", ())[2:]]
    return Exposure(
        reads=_once(found.get("reads", ())),
        writes=_outermost(_once(found.get("writes", ()))),
        devices=_once(found.get("devices", ())),
        variables=_once(found.get("variables", ())),
        processes=len(found.get("processes", ())),
        interfaces=tuple(interfaces),
        secrets=_once(found.get("secrets", ())),
    )


def _once(lines: "list[str] | tuple[str, ...]") -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(line.replace("//", "/") for line in lines)))


def _outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in paths:
        if not any(path.startswith(f"{each.rstrip('/')}/") for each in kept):
            kept.append(path)
    return tuple(kept)
