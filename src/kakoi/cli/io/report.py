"""Reports: messages and results for people on stderr, results for programs as a dict."""

import dataclasses
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from kakoi.backends.adapter import LimitReport, Limits
from kakoi.channel.api import MIB, Command
from kakoi.cli.io.format import format_decision
from kakoi.cli.io.messages import print_message
from kakoi.cli.io.streams import stderr_has_color, write_stderr
from kakoi.errors import KakoiError
from kakoi.policy.decide import Decision
from kakoi.results import ExecutionResult, Reason

_SIGNALS: Final = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "the terminal was closed",
}
_MOST_BLOCKED: Final = 5


def print_decision(decision: Decision) -> None:
    """Print why the policy refused, as `kakoi check` does, on stderr."""
    write_stderr(format_decision(decision, color=stderr_has_color()) + "\n")


class MessageHandler(logging.Handler):
    """Prints log records of the library. Errors of a sandbox are skipped: they are raised as well.

    `is_verbose`: print progress too, each line with the time since the one before.
    """

    def __init__(self, *, is_verbose: bool) -> None:
        super().__init__(logging.INFO if is_verbose else logging.WARNING)
        self._last_s = time.time() if is_verbose else 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            since_ms = (record.created - self._last_s) * 1000
            self._last_s = record.created
            print_message(f"{record.getMessage()} ({since_ms:.0f} ms)")
        elif record.levelno < logging.ERROR or not record.name.startswith("kakoi.backends."):
            print_message(record.getMessage())


def enable_log_messages(*, is_verbose: bool = False) -> None:
    """From now on, print the library's warnings; if `is_verbose`, its progress too."""
    logger = logging.getLogger("kakoi")
    logger.addHandler(MessageHandler(is_verbose=is_verbose))
    logger.propagate = False
    if is_verbose:
        logger.setLevel(logging.INFO)


def print_blocked_connections(
    result: ExecutionResult, *, remedy: str = "--allow-domain {}"
) -> None:
    """Print the connections that were refused; `remedy` is the hint for an unlisted domain."""
    for blocked in result.blocked_connections[:_MOST_BLOCKED]:
        print_message(str(blocked), hint=remedy.format(blocked.line) if blocked.line else "")
    if (more := len(result.blocked_connections) - _MOST_BLOCKED) > 0:
        print_message(f"{more} more connections were refused; --json lists them all")


# --- For people ------------------------------------------------------------------------------


def describe_end(result: ExecutionResult, command: Command) -> str:
    """Why the command ended, and what was ended with it; empty if it simply exited."""
    # A lower bound: a process that dies together with its parent is not always counted.
    left = result.leftovers_ended
    number = f"at least {left} process{'' if left == 1 else 'es'}"
    more = f"; ended what it had started ({number})" if left else ""
    ended_too = f"; ended the command{f' and what it had started ({number})' if left else ''}"
    match result.reason:
        case Reason.EXITED:
            ended = f"ended what the command had left running ({number})" if left else ""
            full = f"no space left on the disk of {result.disk_full}" if result.disk_full else ""
            return "; ".join(filter(None, (result.error, full, ended)))
        case Reason.SIGNALLED:
            why = " (a file grew too large)" if result.signal == signal.SIGXFSZ else ""
            return f"the command was ended by {_signal(result.signal)}{why}{more}"
        case Reason.TIMED_OUT:
            return f"timed out after {command.timeout_s:g} s{ended_too}"
        case Reason.IDLE_TIMEOUT:
            return f"no output for {command.idle_timeout_s:g} s{ended_too}"
        case Reason.OUT_OF_MEMORY:
            return f"out of memory{more}"
        case Reason.CANCELLED:
            return f"cancelled{ended_too}"
        case Reason.NEVER_STARTED:
            argv = command.command
            program = "the shell" if isinstance(argv, str) else f"`{argv[0]}`"
            return f"cannot start {program}: {result.error}"
        case Reason.SANDBOX_LOST:
            return f"the sandbox failed: {result.error}"


def describe_limits(holding: LimitReport, limits: Limits, command: Command) -> str:
    """The limits of a running command: what enforces each, or why it is not enforced."""
    times = [
        f"{what} {seconds:g} s"
        for what, seconds in (("time", command.timeout_s), ("silence", command.idle_timeout_s))
        if seconds is not None
    ]
    wanted = {
        "memory_bytes": limits.memory_bytes and f"memory {limits.memory_bytes / MIB:.0f} MiB",
        "cpus": limits.cpus and f"processors {limits.cpus:g}",
        "processes": limits.processes and f"processes {limits.processes}",
        "open_files": limits.open_files and f"open files {limits.open_files}",
        "file_bytes": limits.file_bytes and f"file size {limits.file_bytes / MIB:.0f} MiB",
        "disk_bytes": limits.disk_bytes and f"disk {limits.disk_bytes / MIB:.0f} MiB",
    }
    texts = {name: text for name, text in wanted.items() if text}
    enforced = _group_by_reason(texts, holding.enforced)
    unenforced = _group_by_reason(texts, holding.unenforced)
    rest = f"; not enforced: {', '.join(unenforced)}" if unenforced else ""
    return f"the command runs; limits: {', '.join([*times, *enforced]) or 'none'}{rest}"


def _group_by_reason(texts: Mapping[str, str], reasons: Mapping[str, str]) -> list[str]:
    """The limits that have a reason; those that share one are listed together."""
    found: dict[str, list[str]] = {}
    for name, text in texts.items():
        if name in reasons:
            found.setdefault(reasons[name], []).append(text)
    return [f"{', '.join(group)} ({reason})" for reason, group in found.items()]


def describe_usage(result: ExecutionResult) -> str:
    """How the command ended, and what it used."""
    memory = f", {result.max_rss_bytes / MIB:.0f} MiB" if result.max_rss_bytes else ""
    return (
        f"the command ended: {result.reason}, exit code {result.exit_code}, "
        f"{result.duration_ms} ms, {result.cpu_ms} ms of CPU time{memory}"
    )


def describe_interruption(number: int) -> str:
    """Why kakoi ends, after a signal."""
    why = _SIGNALS.get(signal.Signals(number), _signal(number))
    return f"{why}; the command and everything it started have ended"


def _signal(number: int | None) -> str:
    try:
        return f"signal {number} ({signal.Signals(number or 0).name})"
    except ValueError:
        return f"signal {number}"


# --- For programs ----------------------------------------------------------------------------


def result_as_dict(result: ExecutionResult, sandbox: str, holding: LimitReport) -> dict[str, Any]:
    """The result of a command, its sandbox, and the limits enforced there."""
    fields = dataclasses.asdict(result) | {"truncated": result.truncated}
    del fields["exports"]  # Only the specs' own shells ask for them.
    return fields | {"sandbox": sandbox, "limits": holding.as_dict()}


def failure_as_dict(
    error: KakoiError, exit_code: int, reason: str, decision: Decision | None
) -> dict[str, Any]:
    """Why there is no result, with the findings of the policy if it refused."""
    fields: dict[str, Any] = {
        "exit_code": exit_code,
        "reason": reason,
        "error": str(error),
        "code": error.code,
        "hint": error.hint,
    }
    if decision is not None:
        from kakoi.cli.commands.check import as_dict

        fields["findings"] = as_dict(decision, "")["findings"]
    return fields
