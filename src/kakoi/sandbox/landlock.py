"""Walls by Landlock: which there are, which kernel keeps them, and how they are handed over.

Landlock lets a process give up rights for good, for itself and all that it starts: on files, on TCP
ports, on signals and abstract sockets to whatever is outside. It needs no privilege, no namespace
and no mount. Everything here is a value; runner/walls.py raises it from inside.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kakoi.errors import EnvironmentUnavailableError, SandboxError
from kakoi.runner import walls
from kakoi.sandbox.seccomp import memory_file_filters

ALL_FILES: Final = (1 << 16) - 1
READ: Final = walls.READ_FILE | walls.READ_DIR
RUN: Final = READ | walls.EXECUTE
_DEVICES: Final = (1 << 6) | (1 << 11)  # Making character and block devices.
CHANGE: Final = ALL_FILES & ~_DEVICES
USE: Final = walls.READ_FILE | walls.WRITE_FILE | walls.IOCTL_DEV
ABSTRACT_SOCKETS: Final = 1
SIGNALS: Final = 2
SCOPES: Final = ABSTRACT_SOCKETS | SIGNALS

# What each version keeps besides those before it.
_KEEPS: Final[Mapping[int, str]] = {
    1: "files",
    2: "moves between directories",
    3: "truncation",
    4: "TCP ports",
    5: "devices",
    6: "signals and abstract sockets",
}
FILES_ABI: Final = 1
SCOPES_ABI: Final = 6

# Programs that have programs of their own, in folders where nobody else looks for any.
_HELPERS: Final[Mapping[str, str]] = {
    "git": "/usr/lib/git-core /usr/libexec/git-core /usr/local/libexec/git-core",
    "gcc g++ cc c++": "/usr/lib/gcc /usr/libexec/gcc /usr/lib/gcc-cross /usr/bin/*-linux-gnu-*"
    " /usr/bin/as /usr/bin/ld",
    "clang clang++": "/usr/lib/llvm-*/bin",
    "go": "/usr/lib/go-* /usr/local/go /usr/share/go-*",
    "cargo rustc": "/usr/lib/rustlib /usr/local/rustup /usr/local/cargo",
    "java javac jar mvn gradle": "/usr/lib/jvm /opt/java",
    "node npm npx yarn pnpm": "/usr/lib/node_modules /usr/local/lib/node_modules /usr/share/nodejs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One domain. `paths`: what is granted of the rights in `handled`, by path.

    `bind`, `connect`: the only TCP ports to use; None for both: all of them.
    """

    handled: int = 0
    paths: tuple[tuple[str, int], ...] = ()
    bind: tuple[int, ...] | None = None
    connect: tuple[int, ...] | None = None
    scopes: int = 0

    def handed_over(self) -> dict[str, Any]:
        """As runner/walls.py takes it."""
        ports = None
        if self.bind is not None or self.connect is not None:
            ports = (list(self.bind or ()), list(self.connect or ()))
        paths = [tuple(pair) for pair in self.paths]
        return {"handled": self.handled, "paths": paths, "ports": ports, "scopes": self.scopes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """What a runner raises before the first command.

    `runner`, `commands`: the domain of the runner, and the one of commands inside of it.
    `runner_filter`: a filter of system calls for both, by machine.
    `programs`: the only ones that commands may execute, by name; None: any.
    `writable`: where commands can write, so that no program is looked for there.
    `noexec`: mounts on which nothing is to be executed; it takes CAP_SYS_ADMIN. `become`: the uid
        and gid that the runner then has in a user namespace of its own, without that right.
    `required`: without all of it, nothing starts; otherwise it is as much as this kernel keeps.
    """

    runner: Rules | None = None
    commands: Rules = field(default_factory=lambda: Rules(scopes=SCOPES))
    runner_filter: Mapping[str, bytes] = field(default_factory=dict)
    programs: Sequence[str] | None = None
    writable: Sequence[str] = ()
    noexec: Sequence[str] = ()
    become: tuple[int, int] | None = None
    required: bool = False

    def handed_over(self) -> dict[str, Any]:
        """As runner/walls.py takes it: numbers, texts, bytes."""
        needed = SCOPES_ABI if self.required else 0 if self.programs is None else FILES_ABI
        told: dict[str, Any] = {
            "needs_abi": needed,
            "runner": {"filter": dict(self.runner_filter)},
            "commands": {"landlock": self.commands.handed_over()},
            "noexec": list(self.noexec),
            "become": self.become,
        }
        if self.runner is not None:
            told["runner"]["landlock"] = self.runner.handed_over()
        if self.programs is not None:
            told["commands"]["filter"] = memory_file_filters()
            told["programs"] = {
                "names": sorted(self.programs),
                "helpers": helpers_of(self.programs),
                "writable": list(self.writable),
            }
        return told


def helpers_of(programs: Iterable[str]) -> list[str]:
    """Patterns of the folders with programs that these programs start by themselves."""
    allowed = set(programs)
    return [
        pattern
        for names, patterns in _HELPERS.items()
        if allowed.intersection(names.split())
        for pattern in patterns.split()
    ]


def kept_by(abi: int) -> list[str]:
    """What this version of Landlock keeps, in words."""
    return [what for version, what in _KEEPS.items() if version <= abi]


def missing_from(abi: int) -> list[str]:
    """What it does not keep, and a newer one would."""
    return [what for version, what in _KEEPS.items() if version > abi]


def as_unavailable(error: SandboxError, *, sandbox: str) -> SandboxError:
    """What a runner said that could not raise its walls, as an error with its way out."""
    said = dict(
        line.partition(": ")[::2] for line in str(error.details.get("stderr", "")).splitlines()
    )
    told = {
        "cannot keep what was asked for": said.get("kakoi-unkept"),
        "cannot be used here": said.get("staging"),
    }
    what, why = next(((what, why) for what, why in told.items() if why), ("", ""))
    if not why:
        return error
    return EnvironmentUnavailableError(
        f"{sandbox} {what}: {why}",
        details={"environmentType": sandbox},
        hint=said.get("fix", ""),
    )
