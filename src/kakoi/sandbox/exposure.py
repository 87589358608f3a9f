"""What is within reach of a command? Found by reaching for it, from inside.

Modes and mounts would be a guess: Landlock and idmapped mounts say otherwise. So directories are
listed and written to, and files are opened.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kakoi.errors import SandboxError
from kakoi.runner.commands import Channel, Command

_LIMIT_S: Final = 60.0
# What opens other doors, by name. Programs and their data are not looked through: they are shown
# to everybody on every machine.
_SECRETS: Final = """shadow gshadow sudoers id_rsa id_ecdsa id_ed25519 *.pem *.key *.kdbx *.keytab
    .netrc .git-credentials .npmrc .pypirc credentials credentials.json hosts.yml .env *_history
    docker.sock containerd.sock podman.sock system_bus_socket agent.*""".split()
_SYSTEM: Final = """/proc /sys /dev /usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc/ssl/certs
    /etc/ca-certificates""".split()

_SCRIPT: Final = r"""
begin() { printf '\n[%s]\n' "$1"; }
# By name as well: where the root cannot be listed, what is in it may be there all the same.
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
    """What a command in a sandbox got at. `secrets`: files and sockets by their name."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    devices: tuple[str, ...]
    variables: tuple[str, ...]
    processes: int
    interfaces: tuple[str, ...]
    secrets: tuple[str, ...]


async def look_around(channel: Channel) -> Exposure:
    """Reach for everything, as a command would. SandboxError: it could not be found out."""
    skipped = " ".join(f"-path {path} -prune -o" for path in _SYSTEM)
    named = " -o ".join(f"-name '{name}'" for name in _SECRETS)
    script = _SCRIPT.replace("SKIPPED", skipped).replace("NAMED", named)
    result = await channel.run(Command(command=["sh", "-c", script], timeout_s=_LIMIT_S))
    found = parts(result.stdout)
    if "end" not in found:
        why = result.stderr.strip()[-200:] or f"{result.reason}"
        raise SandboxError(f"what is in reach could not be found out: {why}")
    return exposure_from(found)


def parts(text: str) -> Mapping[str, list[str]]:
    """What the script wrote, by its headings; the last of a name counts, the script's own."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            lines = found[line[1:-1]] = []
        elif line:
            lines.append(line)
    return found


def exposure_from(found: Mapping[str, list[str]]) -> Exposure:
    """The parts as facts: paths once, and nothing that is below another one that was found."""
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
