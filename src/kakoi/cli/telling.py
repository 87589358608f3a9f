"""What is said about an ending: to people a line on standard error, to programs one object."""

import dataclasses
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from kakoi.cli.asking import has_color, put
from kakoi.cli.render import render
from kakoi.errors import KakoiError
from kakoi.policy.decide import Decision
from kakoi.printable import shown
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Command
from kakoi.sandbox.adapter import Holding, Limits

_SIGNALS: Final = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "told to stop",
    signal.SIGHUP: "the terminal was closed",
}
_MOST_BLOCKED: Final = 5


def say(text: str, *, hint: str = "") -> None:
    """A word of our own, on standard error; lost if nobody is there to read it."""
    lines = [f"kakoi: {shown(text)}", *([f"  hint: {shown(hint)}"] if hint else [])]
    put("\n".join(lines) + "\n")


def show_decision(decision: Decision) -> None:
    """Why the policy said no, as `kakoi check` says it, on standard error."""
    put(render(decision, color=has_color()) + "\n")


def say_error(error: KakoiError) -> None:
    """The fact, the way out, and the next command to type."""
    # Of a file of strangers there may be words in it.
    more = "" if "`kakoi " in error.hint else f"  next: kakoi explain {error.code}\n"
    say(str(error), hint=error.hint)
    put(more)


class Voice(logging.Handler):
    """Words of the library, in ours. An error of a sandbox is raised besides.

    `is_verbose`: what is going on, too, each with the time since the word before.
    """

    def __init__(self, *, is_verbose: bool) -> None:
        super().__init__(logging.INFO if is_verbose else logging.WARNING)
        self._last_s = time.time() if is_verbose else 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            since_ms = (record.created - self._last_s) * 1000
            self._last_s = record.created
            say(f"{record.getMessage()} ({since_ms:.0f} ms)")
        elif record.levelno < logging.ERROR or not record.name.startswith("kakoi.sandbox."):
            say(record.getMessage())


def show_warnings(*, is_verbose: bool = False) -> None:
    """From now on the library's warnings are told; if `is_verbose`, what it does as well."""
    logger = logging.getLogger("kakoi")
    logger.addHandler(Voice(is_verbose=is_verbose))
    logger.propagate = False
    if is_verbose:
        logger.setLevel(logging.INFO)


def say_blocked(result: ExecutionResult, *, remedy: str = "--allow-domain {}") -> None:
    """What the command could not reach, and how it could: by `remedy`, for what is not listed."""
    for blocked in result.blocked_connections[:_MOST_BLOCKED]:
        say(str(blocked), hint=remedy.format(blocked.line) if blocked.line else "")
    if (more := len(result.blocked_connections) - _MOST_BLOCKED) > 0:
        say(f"{more} more connections were refused; --json tells them all")


# --- For people ------------------------------------------------------------------------------


def ending_in_words(result: ExecutionResult, command: Command) -> str:
    """Why the command ended, and what was ended with it; empty if it just exited."""
    # A lower bound: what dies together with its parent is not always counted.
    left = result.leftovers_ended
    number = f"at least {left} process{'' if left == 1 else 'es'}"
    more = f"; ended what it had started ({number})" if left else ""
    all_of_it = f"; ended the command{f' and what it had started ({number})' if left else ''}"
    match result.reason:
        case Reason.EXITED:
            ended = f"ended what the command had left running ({number})" if left else ""
            full = f"no room is left on the disk of {result.disk_full}" if result.disk_full else ""
            return "; ".join(filter(None, (result.error, full, ended)))
        case Reason.SIGNALLED:
            why = " (a file got too large)" if result.signal == signal.SIGXFSZ else ""
            return f"the command was ended by {_signal(result.signal)}{why}{more}"
        case Reason.TIMED_OUT:
            return f"timed out after {command.timeout_s:g} s{all_of_it}"
        case Reason.IDLE_TIMEOUT:
            return f"no output for {command.idle_timeout_s:g} s{all_of_it}"
        case Reason.OUT_OF_MEMORY:
            return f"out of memory{more}"
        case Reason.CANCELLED:
            return f"cancelled{all_of_it}"
        case Reason.NEVER_STARTED:
            words = command.command
            program = "the shell" if isinstance(words, str) else f"`{words[0]}`"
            return f"cannot start {program}: {result.error}"
        case Reason.SANDBOX_LOST:
            return f"the sandbox failed: {result.error}"


def limits_in_words(holding: Holding, limits: Limits, command: Command) -> str:
    """The limits of a command that runs: by what each is kept, or why it is not."""
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
    told = {name: words for name, words in wanted.items() if words}
    held, loose = _by_reason(told, holding.kept), _by_reason(told, holding.not_kept)
    not_kept = f"; not kept: {', '.join(loose)}" if loose else ""
    return f"it runs; limits: {', '.join([*times, *held]) or 'none'}{not_kept}"


def _by_reason(told: Mapping[str, str], reasons: Mapping[str, str]) -> list[str]:
    """The limits that have a reason, those of one reason together, each reason once."""
    found: dict[str, list[str]] = {}
    for name, words in told.items():
        if name in reasons:
            found.setdefault(reasons[name], []).append(words)
    return [f"{', '.join(words)} ({reason})" for reason, words in found.items()]


def use_in_words(result: ExecutionResult) -> str:
    """What a command took."""
    memory = f", {result.max_rss_bytes / MIB:.0f} MiB" if result.max_rss_bytes else ""
    return (
        f"it has ended: {result.reason}, status {result.exit_code}, {result.duration_ms} ms, "
        f"{result.cpu_ms} ms of processor time{memory}"
    )


def interruption_in_words(number: int) -> str:
    """Why we end, after a signal of our own."""
    why = _SIGNALS.get(signal.Signals(number), _signal(number))
    return f"{why}; nothing of the command is running any more"


def _signal(number: int | None) -> str:
    try:
        return f"signal {number} ({signal.Signals(number or 0).name})"
    except ValueError:
        return f"signal {number}"


# --- For programs ----------------------------------------------------------------------------


def result_as_dict(result: ExecutionResult, sandbox: str, holding: Holding) -> dict[str, Any]:
    """What came of a command, where, and which limits held there."""
    told = dataclasses.asdict(result) | {"truncated": result.truncated}
    del told["exports"]  # Nobody has asked for them.
    return told | {"sandbox": sandbox, "limits": dataclasses.asdict(holding)}


def failure_as_dict(
    error: KakoiError, exit_code: int, reason: str, decision: Decision | None
) -> dict[str, Any]:
    """Why there is no result, and what the policy said if it was that."""
    told: dict[str, Any] = {
        "exit_code": exit_code,
        "reason": reason,
        "error": str(error),
        "code": error.code,
        "hint": error.hint,
    }
    if decision is not None:
        from kakoi.cli.check import as_dict

        told["findings"] = as_dict(decision, "")["findings"]
    return told
