"""What to start and what came of it: the values around `ProcessExecutor.spawn`."""

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kakoi.errors import ConfigurationError
from kakoi.redact import is_secret_name, redact

Stream = Literal["pipe", "inherit"]

DEFAULT_MAX_OUTPUT_BYTES = 1024 * 1024
_MAX_TIMEOUT_MS = 2**53

# The whole names: `LC_*` is a pattern that people have hidden secrets behind.
BASE_NAMES = frozenset(
    """PATH HOME LANG LANGUAGE TERM TZ USER LOGNAME SHELL TMPDIR
    LC_ALL LC_COLLATE LC_CTYPE LC_MESSAGES LC_MONETARY LC_NUMERIC LC_TIME""".split()
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnOptions:
    """How to start a program. Wrong values raise ConfigurationError here, not later.

    `cwd`: the working directory; None is ours.
    `env`: variables added to the executor's base environment.
    `stdin`: what the program reads; None is an empty input.
    `timeout`: milliseconds, counted from the start of the program; None is for ever.
    `stdout`, `stderr`: "pipe" captures the stream, "inherit" lets it through to our own.
    `max_output_bytes`: how much of each captured stream is kept; the rest is counted only.

    Text is given to the program as UTF-8. What Python read from the system with
    `surrogateescape` goes back as the bytes it was; other lone surrogates are refused.
    """

    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None
    stdin: str | bytes | None = None
    timeout: float | None = None
    stdout: Stream = "pipe"
    stderr: Stream = "pipe"
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)
        encode_cwd(self.cwd)
        encode_env({} if self.env is None else self.env)
        if not isinstance(self.stdin, str | bytes | None):
            raise _wrong("stdin", type(self.stdin).__name__, "text, bytes or None")
        for name in ("stdout", "stderr"):
            if getattr(self, name) not in ("pipe", "inherit"):
                raise _wrong(name, getattr(self, name), "`pipe` or `inherit`")
        kept: object = self.max_output_bytes
        if not isinstance(kept, int) or isinstance(kept, bool) or kept < 0:
            raise _wrong("max_output_bytes", kept, "a number of bytes")


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """What came of a program that was started. Nothing that it started is running any more.

    `exit_code` is 128 + `signal` if a signal ended it. `stdout` and `stderr` are the kept heads
    of the captured streams (empty if inherited); the `_bytes` fields count all that was written.
    `leftovers_ended` counts the processes that it left behind and that were killed.
    `max_rss_bytes` is never below the size of the keeper: the kernel starts counting there.
    """

    stdout: str
    stderr: str
    exit_code: int
    signal: int | None = None
    duration_ms: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    leftovers_ended: int = 0
    cpu_ms: int = 0
    max_rss_bytes: int = 0

    @property
    def exitCode(self) -> int:  # noqa: N802 - the name in spec B
        """`exit_code`, under the name that spec B gives it."""
        return self.exit_code

    @property
    def truncated(self) -> bool:
        """Was either stream cut?"""
        return self.stdout_truncated or self.stderr_truncated


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that every program may have: short, and free of secrets."""
    return {
        name: value
        for name, value in environ.items()
        if name in BASE_NAMES and not is_secret_name(name)
    }


def default_environment() -> dict[str, str]:
    """The base environment of an executor that was given none: the system's, not our own."""
    base = {"PATH": _DEFAULT_PATH, "LANG": "C.UTF-8", "HOME": "/"}
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return base
    return base | {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}


def check_options(options: object) -> None:
    """Refuse what was not made by `SpawnOptions`: nobody has looked at it."""
    if not isinstance(options, SpawnOptions):
        raise _wrong("options", options, "SpawnOptions")


def encode_argv(command: object, args: object) -> list[bytes]:
    """The program and its arguments as the kernel takes them."""
    if not command:
        raise _wrong("command", command, "the name or path of a program")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise _wrong("args", args, "a list of arguments; no shell will split a text")
    return [_encode("command", command), *(_encode("an argument", each) for each in args)]


def encode_env(env: object) -> list[bytes]:
    """The environment as the kernel takes it."""
    if not isinstance(env, Mapping):
        raise _wrong("env", env, "a mapping of names to values")
    entries = []
    for name, value in env.items():
        encoded = _encode("a name in env", name)
        if not encoded or b"=" in encoded:
            raise _wrong("a name in env", name, "not empty and without `=`")
        entries.append(encoded + b"=" + _encode(f"env[{name!r}]", value))
    return entries


def encode_cwd(cwd: object) -> bytes:
    """The working directory as the kernel takes it; empty for ours."""
    if cwd is None:
        return b""
    if not cwd:
        raise _wrong("cwd", cwd, "a path, or None for our own working directory")
    return _encode("cwd", os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd)


def encode_stdin(stdin: str | bytes) -> bytes:
    """The input as bytes."""
    return stdin if isinstance(stdin, bytes) else _utf8("stdin", stdin)


def _check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise _wrong("timeout", timeout, "a number of milliseconds")
    if not 0 < timeout <= _MAX_TIMEOUT_MS:
        raise _wrong("timeout", timeout, "above zero and finite; leave it out for no limit")


def _encode(what: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} is {type(value).__name__}; it must be text")
    encoded = _utf8(what, value)
    if b"\0" in encoded:
        raise ConfigurationError(f"{what} holds a NUL; no program can be given one")
    return encoded


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{what} holds a lone surrogate at character {error.start}; it is no text"
        ) from None


def _wrong(what: str, value: object, wanted: str) -> ConfigurationError:
    shown = cut if len(cut := repr(value)) <= 80 else cut[:77] + "..."
    return ConfigurationError(f"{what} is {redact(shown)}; it must be {wanted}")
