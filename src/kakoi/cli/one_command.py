"""Runs one command for `kakoi run`, with its options or without any."""

import os
import stat
from collections.abc import Mapping, Sequence

from kakoi.channel.api import Command
from kakoi.cli.io.approval import Approval
from kakoi.cli.io.terminal import terminal_size
from kakoi.cli.session import CommandSession
from kakoi.cli.target import RunTarget


def run_one(
    target: RunTarget,
    words: Sequence[str],
    *,
    is_argv: bool,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    idle_timeout_s: float | None = None,
    allow: Sequence[str] = (),
    yes: bool = False,
    tty: bool = False,
    no_stdin: bool = False,
    as_json: bool = False,
    cwd_fd: int | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> int:
    """Run a command and return the exit code. `is_argv`: one word is a program too."""
    stdin = not no_stdin and _has_input(tty=tty)
    execution = target.settings.execution
    to_run = Command(
        command=words[0] if len(words) == 1 and not is_argv else tuple(words),
        cwd=cwd,
        env=_terminal_variables(tty=tty) | dict(env or {}),
        stdin_open=stdin,
        terminal=terminal_size() if tty else None,
        timeout_s=execution.timeout_seconds,
        idle_timeout_s=idle_timeout_s,
        max_output_bytes=execution.max_output_size,
        report_shell=cwd_fd is not None,
    )
    session = CommandSession(
        target=target,
        policy=target.policy(allow=allow),
        approval=Approval(yes=yes, approvals=target.approvals),
        stdin=stdin,
        quiet=quiet,
        verbose=verbose,
        as_json=as_json,
        cwd_fd=cwd_fd,
    )
    return session.run([to_run])


def _has_input(*, tty: bool) -> bool:
    """Is there anything to forward? A terminal counts only with `--tty`."""
    if os.isatty(0):
        return tty
    status = os.fstat(0)
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev)


def _terminal_variables(*, tty: bool) -> dict[str, str]:
    return {"TERM": os.environ["TERM"]} if tty and os.environ.get("TERM") else {}
