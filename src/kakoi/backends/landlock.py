"""Landlock rules: what they can restrict, which version enforces what, how the runner gets them.

Landlock lets a process permanently give up access, for itself and all its descendants, to files,
TCP ports, and signals and abstract sockets outside. It needs no privilege, no namespace and no
mount. Everything here is a value. runner/restrictions.py applies it from inside.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi.backends.seccomp import memory_file_filters
from kakoi.errors import EnvironmentUnavailableError, SandboxError
from kakoi.runner import restrictions as kernel

ALL_FILES: Final = (1 << 16) - 1
READ: Final = kernel.READ_FILE | kernel.READ_DIR
RUN: Final = READ | kernel.EXECUTE
_DEVICES: Final = (1 << 6) | (1 << 11)  # Making character and block devices.
CHANGE: Final = ALL_FILES & ~_DEVICES
USE: Final = kernel.READ_FILE | kernel.WRITE_FILE | kernel.IOCTL_DEV
ABSTRACT_SOCKETS: Final = 1
SIGNALS: Final = 2
SCOPES: Final = ABSTRACT_SOCKETS | SIGNALS

# What each version can restrict in addition to those before it.
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

# Programs that start their own helper programs, from folders that are not on PATH.
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
class LandlockRules:
    """One Landlock domain. `paths`: which of the rights in `handled` are granted, by path.

    `bind`, `connect`: the only TCP ports that can be used; None for both: all ports.
    """

    handled: int = 0
    paths: tuple[tuple[str, int], ...] = ()
    bind: tuple[int, ...] | None = None
    connect: tuple[int, ...] | None = None
    scopes: int = 0

    def for_runner(self) -> dict[str, Any]:
        """The rules as runner/restrictions.py takes them."""
        ports = None
        if self.bind is not None or self.connect is not None:
            ports = (list(self.bind or ()), list(self.connect or ()))
        paths = [tuple(pair) for pair in self.paths]
        return {"handled": self.handled, "paths": paths, "ports": ports, "scopes": self.scopes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """The restrictions that a runner applies before the first command.

    `runner`, `commands`: the domain of the runner, and that of commands inside it.
    `runner_filter`: a system call filter for both, by machine.
    `programs`: the only programs that commands can execute, by name; None: any.
    `writable`: where commands can write; programs are not looked up there.
    `noexec`: mounts from which nothing can be executed; needs CAP_SYS_ADMIN. `become`: the uid and
        gid that the runner then has in its own user namespace, without that capability.
    `required`: nothing starts unless everything is enforced; otherwise the kernel enforces what it
        can.
    """

    runner: LandlockRules | None = None
    commands: LandlockRules = field(default_factory=lambda: LandlockRules(scopes=SCOPES))
    runner_filter: Mapping[str, bytes] = field(default_factory=dict)
    programs: Sequence[str] | None = None
    writable: Sequence[str] = ()
    noexec: Sequence[str] = ()
    become: tuple[int, int] | None = None
    required: bool = False

    def for_runner(self) -> dict[str, Any]:
        """The restrictions as runner/restrictions.py takes them: numbers, text, bytes."""
        needed = SCOPES_ABI if self.required else 0 if self.programs is None else FILES_ABI
        restrictions: dict[str, Any] = {
            "needs_abi": needed,
            "runner": {"filter": dict(self.runner_filter)},
            "commands": {"landlock": self.commands.for_runner()},
            "noexec": list(self.noexec),
            "become": self.become,
        }
        if self.runner is not None:
            restrictions["runner"]["landlock"] = self.runner.for_runner()
        if self.programs is not None:
            restrictions["commands"]["filter"] = memory_file_filters()
            restrictions["programs"] = {
                "names": sorted(self.programs),
                "helpers": helpers_of(self.programs),
                "writable": list(self.writable),
            }
        return restrictions


def helpers_of(programs: Iterable[str]) -> list[str]:
    """Return path patterns for the helper programs that these programs start."""
    allowed = set(programs)
    return [
        pattern
        for names, patterns in _HELPERS.items()
        if allowed.intersection(names.split())
        for pattern in patterns.split()
    ]


def restrictions_of(abi: int) -> list[str]:
    """Describe what this version of Landlock can restrict."""
    return [what for version, what in _KEEPS.items() if version <= abi]


def restrictions_missing_from(abi: int) -> list[str]:
    """Describe what only a newer version can restrict."""
    return [what for version, what in _KEEPS.items() if version > abi]


def unavailable_error(error: SandboxError, *, sandbox: str) -> SandboxError:
    """Turn the error of a runner that could not apply its restrictions into one with a hint.

    Returns other errors unchanged.
    """
    report = dict(
        line.partition(": ")[::2] for line in str(error.details.get("stderr", "")).splitlines()
    )
    reasons = {
        "cannot enforce what was asked for": report.get("kakoi-unenforced"),
        "cannot be used here": report.get("staging"),
    }
    what, why = next(((what, why) for what, why in reasons.items() if why), ("", ""))
    if not why:
        return error
    return EnvironmentUnavailableError(
        f"{sandbox} {what}: {why}",
        details={"environmentType": sandbox},
        hint=report.get("fix", ""),
    )
