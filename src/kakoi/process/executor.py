"""ProcessExecutor: starts a program under a keeper and returns when all its processes have ended.

    spawn ──line── keeper.py ── the program ── its descendants

The keeper starts the program on the pipes created here, enforces the timeout, always ends every
process below itself, writes one record to the line and exits (see keeper.py). This side moves bytes
and waits until the keeper has exited. It never blocks the event loop.
"""

import contextlib
import errno
import logging
import math
import os
from collections.abc import Mapping, Sequence

from kakoi._support.redact import redact
from kakoi.errors import ExecutionError, ExecutionTimeoutError, KakoiError
from kakoi.process.keeper_client import KeeperProcess, KeeperRecord, Streams, encode_request
from kakoi.process.options import (
    GivenSpawnOptions,
    ProcessResult,
    SpawnOptions,
    as_spawn_options,
    default_environment,
    encode_argv,
    encode_cwd,
    encode_env,
    encode_stdin,
)
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import Capture, Reason

_LOG = logging.getLogger(__name__)


class ProcessExecutor:
    """Starts programs from an argv, without a shell, and ends every process they started.

    `base_env` is the environment that every program gets; `base_environment(os.environ)` returns
    the harmless part of ours. Without it, programs get the system's default PATH, HOME, USER and
    LANG. `grace_s` is how long to wait for the keeper's record after a timeout or a cancellation
    before helping it from outside: its program may have stopped it.
    """

    def __init__(self, *, base_env: Mapping[str, str] | None = None, grace_s: float = 2.0) -> None:
        given = default_environment() if base_env is None else base_env
        encode_env(given)
        self._base_env = dict(given)
        self._grace_s = grace_s

    async def spawn(
        self,
        command: str,
        args: Sequence[str] = (),
        options: GivenSpawnOptions = None,
    ) -> ProcessResult:
        """Run `command` with `args`, without a shell. It is looked up on PATH of its environment.

        `options`: SpawnOptions, or a mapping such as `{"cwd": "/tmp", "timeout": 5000}`.

        Returns as soon as the program itself exits, with all output written until then. When this
        returns or raises, no process that the program started is still running, unless an error
        below says so.

        ExecutionTimeoutError: the timeout expired; `details` has the partial `stdout` and `stderr`.
        ExecutionError: it could not be started, or some of its processes may still be running.
        ConfigurationError: an argument is invalid; nothing was started.
        """
        options = as_spawn_options(options)
        request = self._request(command, args, options)
        streams = Streams(
            None if options.stdin is None else encode_stdin(options.stdin),
            Capture(options.max_output_bytes) if options.stdout == "pipe" else None,
            Capture(options.max_output_bytes) if options.stderr == "pipe" else None,
        )
        timeout_s = None if options.timeout is None else options.timeout / 1000
        kept = KeeperProcess(request, streams, timeout_s=timeout_s, grace_s=self._grace_s)
        with contextlib.closing(kept):
            record = await kept.end()
        stdout = streams.stdout or Capture(0)
        stderr = streams.stderr or Capture(0)
        if record is None or record.kind not in ("exited", "signalled") or record.survivors:
            partial = {"command": command, "stdout": stdout.text(), "stderr": stderr.text()}
            failure = _failure(options, record, partial, overdue=kept.overdue)
            # At level INFO: some callers start a program only to find out whether it is installed.
            _LOG.info("%s", redact(str(failure)))
            raise failure
        return _result(record, stdout, stderr)

    def stream(self, launch: Launch) -> ProcessStream:
        """Start a long-running program and open a stream to it. The caller must `end` it."""
        return ProcessStream(launch)

    def _request(self, command: str, args: Sequence[str], options: SpawnOptions) -> bytes:
        return encode_request(
            encode_argv(command, args),
            encode_env({**self._base_env, **(options.env or {})}),
            cwd=encode_cwd(options.cwd),
            timeout_ms=math.ceil(options.timeout or 0),
        )


def _result(record: KeeperRecord, stdout: Capture, stderr: Capture) -> ProcessResult:
    signal = record.number if record.kind == "signalled" else None
    return ProcessResult(
        stdout=stdout.text(),
        stderr=stderr.text(),
        exit_code=record.number if signal is None else 128 + signal,
        signal=signal,
        duration_ms=record.duration_ms,
        stdout_bytes=stdout.total_bytes,
        stderr_bytes=stderr.total_bytes,
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        leftovers_ended=record.ended,
        cpu_ms=record.cpu_ms,
        max_rss_bytes=record.max_rss_kib * 1024,
    )


def _failure(
    options: SpawnOptions, record: KeeperRecord | None, partial: Mapping[str, str], *, overdue: bool
) -> KakoiError:
    """Return the error that says who failed: the program, the caller, or kakoi."""
    name = redact(partial["command"])
    if record is not None and record.kind.startswith("no_"):
        return _never_started(name, options, record)
    survivors = record.survivors if record is not None else 0
    kind = record.kind if record is not None else "second_lost"
    if kind == "timed_out" or (kind == "second_lost" and overdue):
        certain = record is not None and not survivors
        return ExecutionTimeoutError(
            f"`{name}` ran longer than {options.timeout} ms"
            + ("" if certain else "; what it started may still be running"),
            details={**partial, "timeout": options.timeout, "survivors": survivors},
            hint="raise the timeout, or give the program less to do",
        )
    if survivors:
        return ExecutionError(
            f"processes that `{name}` left behind could not be ended: {survivors}",
            details={**partial, "survivors": survivors},
            hint="they may belong to another user: look for setuid programs such as sudo",
        )
    if record is None:
        return ExecutionError(
            f"the keepers of `{name}` were killed; what it started may still be running",
            details=partial,
            hint="look for its processes; run such a program in a sandbox",
        )
    return ExecutionError(
        f"a keeper of `{name}` was killed, and everything below it was ended",
        details=partial,
        hint="a program must not kill its parent; if it did not, the machine may lack memory",
    )


_UNSTARTABLE = {
    ("no_cwd", errno.ENOENT): ("does not exist", "create it first"),
    ("no_cwd", errno.ENOTDIR): ("is not a directory", ""),
    ("no_cwd", errno.EACCES): ("cannot be entered by this user", ""),
    ("no_program", errno.ENOENT): (
        "was not found on PATH",
        "install it, give its full path, or set PATH in `env`",
    ),
    ("no_program", errno.EACCES): ("is on PATH but not executable", "chmod +x it"),
    ("no_start", errno.ENOENT): (
        "does not exist, or the interpreter on its first line does not",
        "check the path, and the line that begins with #!",
    ),
    ("no_start", errno.EACCES): ("is not an executable file", "chmod +x it"),
    ("no_start", errno.ENOEXEC): (
        "is not a program for this machine",
        "a script needs a first line such as #!/bin/sh, or its interpreter as the command",
    ),
    ("no_start", errno.E2BIG): (
        "has more arguments and environment than the system accepts",
        "pass long input on stdin or in a file",
    ),
}


def _never_started(name: str, options: SpawnOptions, record: KeeperRecord) -> ExecutionError:
    what = f"the working directory `{options.cwd}`" if record.kind == "no_cwd" else f"`{name}`"
    why, hint = _UNSTARTABLE.get((record.kind, record.number), (os.strerror(record.number), ""))
    return ExecutionError(
        f"cannot start `{name}`: {what} {why}",
        details={
            "command": name,
            "reason": Reason.NEVER_STARTED,
            "cause": record.kind,
            "errno": errno.errorcode.get(record.number, str(record.number)),
        },
        hint=hint,
    )
