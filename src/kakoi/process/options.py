"""The options and the result of `ProcessExecutor.spawn`."""

import os
import pwd
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest
from kakoi._support.redact import is_secret_name, redact
from kakoi.errors import ConfigurationError

Stream = Literal["pipe", "inherit"]

DEFAULT_MAX_OUTPUT_BYTES = 1024 * 1024
_MAX_TIMEOUT_MS = 2**53

# Full names only: with a pattern such as `LC_*`, secrets have leaked.
BASE_NAMES = frozenset(
    """PATH HOME LANG LANGUAGE TERM TZ USER LOGNAME SHELL TMPDIR
    LC_ALL LC_COLLATE LC_CTYPE LC_MESSAGES LC_MONETARY LC_NUMERIC LC_TIME""".split()
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnOptions:
    """How to start a program. Invalid values raise ConfigurationError here, not later.

    `cwd`: the working directory; None means ours.
    `env`: variables added to the executor's base environment.
    `stdin`: the program's input; None means empty.
    `timeout`: milliseconds, counted from the start of the program; None means no timeout.
    `stdout`, `stderr`: "pipe" captures the stream, "inherit" passes it through to our own.
    `max_output_bytes`: how much of each captured stream is stored; the rest is only counted.

    Text is passed to the program as UTF-8. Text that Python decoded with `surrogateescape` becomes
    the original bytes again; any other lone surrogate raises ConfigurationError.
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
    """The result of a program that was started. None of its processes is still running.

    `exit_code` is 128 + `signal` if a signal ended it. `stdout` and `stderr` are the stored first
    bytes of the captured streams (empty if inherited); the `_bytes` fields count all output.
    `leftovers_ended` counts the processes that it left behind and that were killed.
    `max_rss_bytes` is never below the size of the keeper, because the kernel starts counting there.
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
    def exitCode(self) -> int:  # noqa: N802 - a public name
        """Another name for `exit_code`."""
        return self.exit_code

    @property
    def truncated(self) -> bool:
        """Was either stream truncated?"""
        return self.stdout_truncated or self.stderr_truncated


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that any program can have: short, and free of secrets."""
    return {
        name: value
        for name, value in environ.items()
        if name in BASE_NAMES and not is_secret_name(name)
    }


def default_environment() -> dict[str, str]:
    """Return the default base environment of an executor: the system's, not our own."""
    base = {"PATH": _DEFAULT_PATH, "LANG": "C.UTF-8", "HOME": "/"}
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return base
    return base | {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}


# What `spawn` takes: the options, or a mapping with their names.
GivenSpawnOptions = SpawnOptions | Mapping[str, Any] | None


def as_spawn_options(options: object) -> SpawnOptions:
    """Return the options of a call, which can also be a mapping with their names."""
    if isinstance(options, SpawnOptions):
        return options
    if options is None:
        return SpawnOptions()
    if not isinstance(options, Mapping):
        raise _wrong("options", options, "SpawnOptions or a mapping")
    given = {name: each for name, each in options.items() if each is not None}
    names = tuple(SpawnOptions.__annotations__)
    for name in given:
        if name not in names:
            raise ConfigurationError(
                f"options has {str(name)[:80]!r}{nearest(name, names)}",
                hint=f"known options: {', '.join(names)}",
            )
    return SpawnOptions(**given)


def encode_argv(command: object, args: object) -> list[bytes]:
    """Return the program and its arguments as bytes for the kernel."""
    if not command:
        raise _wrong("command", command, "the name or path of a program")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise _wrong("args", args, "a list of arguments; no shell will split a text")
    return [_encode("command", command), *(_encode("an argument", each) for each in args)]


def encode_env(env: object) -> list[bytes]:
    """Return the environment as `NAME=VALUE` bytes for the kernel."""
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
    """Return the working directory as bytes for the kernel; empty for ours."""
    if cwd is None:
        return b""
    if not cwd:
        raise _wrong("cwd", cwd, "a path, or None for our own working directory")
    return _encode("cwd", os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd)


def encode_stdin(stdin: str | bytes) -> bytes:
    """Return the input as bytes."""
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
        raise ConfigurationError(f"{what} contains a NUL, which cannot be passed to a program")
    return encoded


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{what} contains a lone surrogate at character {error.start}"
        ) from None


def _wrong(what: str, value: object, wanted: str) -> ConfigurationError:
    shown = cut if len(cut := repr(value)) <= 80 else cut[:77] + "..."
    return ConfigurationError(f"{what} is {redact(shown)}; it must be {wanted}")
