"""Wraps a command in a script for `sh -c` that runs it and prints its result; parses that result.

container-use returns only one text: stdout, then stderr, then words of its own. So we wrap the
command: its output goes through pipes into files, truncated to the limit on the way, and is printed
at the end, each stream after a line that starts with an unpredictable number. A command that finds
out the number (it can look at its parent) can at most make the output invalid, because each line
must occur exactly once. Pure: nothing runs here.
"""

import math
import re
import shlex
from dataclasses import dataclass, replace
from typing import Final

from kakoi.channel.api import MAX_WORD_BYTES, MIB, Command
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import Capture, ExecutionResult, Reason

# Limit per stream, even if a command asks for more: all of it arrives as one line.
MAX_KEPT_BYTES: Final = 2 * MIB
# Beyond the limit: enough to know that there is more, and not to split a character.
_MARGIN: Final = 4
_END: Final = re.compile(
    r" (exited|late|cwd|program|room) ([0-9]{1,3}) ([0-9]{1,15}) ([0-9]{1,15})\n"
)
_NEVER: Final = {
    "cwd": (126, "its working directory cannot be entered"),
    "program": (127, "the program was not found"),
    "room": (126, "there is no room for its output in the environment"),
}

# POSIX sh, and programs that every small image has: mkfifo, head, wc, cat, sleep. With `setsid`, if
# there is one, everything in the command's process group ends with it. Processes that left the
# group are found by the pipe they still have open (the readers have theirs as descriptor 0).
_SCRIPT: Final = r"""exec 2>/dev/null
if [ -n "${{BASH_VERSION:-}}" ]; then
    unset -f $(compgen -A function)
    export -n SHELLOPTS BASHOPTS
else
    unset SHELLOPTS BASHOPTS
fi
unset BASH_ENV ENV PROMPT_COMMAND PS4 BASH_XTRACEFD BASH_COMPAT POSIXLY_CORRECT GLOBIGNORE
unset EXECIGNORE CDPATH BASH_LOADABLES_PATH
k_n={nonce} k_d=${{TMPDIR:-/tmp}}/kakoi-{suffix} k_w=
k_say() {{ printf '\n%s:%s\n' "$k_n" "$1"; }}
k_never() {{ rm -rf "$k_d"; k_say o; k_say e; k_say "x $1 0 0 0"; exit 0; }}
set -- {words}
{shell}
{env}
if command -v setsid >/dev/null; then set -- setsid "$@"; fi
mkdir -m 700 "$k_d" && mkfifo "$k_d/1" "$k_d/2" || k_never room
{cwd}
{{ head -c {kept} >"$k_d/o"; wc -c >"$k_d/om"; : >"$k_d/od"; }} <"$k_d/1" & k_o=$!
{{ head -c {kept} >"$k_d/e"; wc -c >"$k_d/em"; : >"$k_d/ed"; }} <"$k_d/2" & k_e=$!
"$@" </dev/null >"$k_d/1" 2>"$k_d/2" & k_p=$!
k_end() {{ kill -9 "-$k_p" || kill -9 "$k_p"; }}
{watch}
wait "$k_p"
k_s=$?
[ -z "$k_w" ] || kill "$k_w"
kill -9 "-$k_p"
k_hunt() {{
    for k_f in /proc/[0-9]*/fd/[1-9]*; do
        [ "$k_f" -ef "$k_d/1" ] || [ "$k_f" -ef "$k_d/2" ] || continue
        k_f=${{k_f#/proc/}}
        kill -9 "${{k_f%%/*}}"
    done
}}
for k_i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ ! -e "$k_d/od" ] || [ ! -e "$k_d/ed" ] || break
    [ "$k_i" -lt 5 ] || k_hunt
    sleep 0.05 || sleep 1
done
kill -9 "$k_o" "$k_e"
k_more() {{ k_m=$(cat "$1m"); k_h=$(wc -c <"$1"); k_c=$((${{k_h:-0}} + ${{k_m:-0}})); }}
k_k=exited
[ ! -e "$k_d/late" ] || k_k=late
k_say o
cat "$k_d/o"
k_say e
cat "$k_d/e"
k_more "$k_d/o"
k_k="$k_k $k_s $k_c"
k_more "$k_d/e"
rm -rf "$k_d"
k_say "x $k_k $k_c"
"""
_SHELL: Final = """if command -v bash >/dev/null; then set -- bash --norc --noprofile -c -- "$@"
else set -- sh -c -- "$@"; fi"""
_WATCH: Final = """k_t={exact}
sleep 0.01 || k_t={whole}
( trap 'kill "$k_z"; exit' TERM; sleep "$k_t" & k_z=$!
  wait "$k_z" && : >"$k_d/late" && k_end ) </dev/null >/dev/null & k_w=$!"""


@dataclass(frozen=True, slots=True)
class WrappedCommand:
    """A command as sent to container-use, and what is needed to parse the output."""

    text: str
    nonce: str
    limit_bytes: int


def wrap(command: Command, *, nonce: str, suffix: str, cwd: str | None) -> WrappedCommand:
    """Return the script to run. `cwd`: a path inside, absolute or from where commands start.

    `nonce`: a random value that must stay secret. `suffix`: also random, but visible in /tmp.

    Raises ConfigurationError if it is not text, or too long for one argument of a program.
    """
    words = [command.command] if isinstance(command.command, str) else list(command.command)
    is_shell_text = isinstance(command.command, str)
    limit_bytes = min(command.max_output_bytes, MAX_KEPT_BYTES)
    settings = [f"{name}={value}" for name, value in command.env.items()]
    text = _SCRIPT.format(
        nonce=nonce,
        suffix=suffix,
        words=shlex.join(words),
        shell=_SHELL if is_shell_text else _program_check(command),
        env=f'set -- env -- {shlex.join(settings)} "$@"' if settings else "",
        cwd="" if cwd is None else f"cd -- {shlex.quote(_not_an_option(cwd))} || k_never cwd",
        kept=limit_bytes + _MARGIN,
        watch="" if command.timeout_s is None else _watch(command.timeout_s),
    )
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise ConfigurationError(
            "the command contains bytes that are not UTF-8; container-use accepts only text",
            hint="put them into a file",
        ) from None
    if size > MAX_WORD_BYTES:
        raise ConfigurationError(
            f"the command is {size} bytes long with what surrounds it; container-use hands it over"
            f" as one argument, of at most {MAX_WORD_BYTES}",
            hint="put the data into a file",
        )
    return WrappedCommand(text, nonce, limit_bytes)


def _program_check(command: Command) -> str:
    # With its own PATH, the command is looked up where we do not look.
    return "" if "PATH" in command.env else 'command -v "$1" >/dev/null || k_never program'


def _not_an_option(cwd: str) -> str:
    return cwd if cwd.startswith("/") else f"./{cwd}"


def _watch(timeout_s: float) -> str:
    return _WATCH.format(exact=f"{timeout_s:.3f}", whole=math.ceil(timeout_s))


def unwrap(wrapped: WrappedCommand, answer: str, *, duration_ms: int) -> ExecutionResult:
    """Parse the result; raises SandboxError if the script cannot have printed `answer`."""
    parts = answer.split(f"\n{wrapped.nonce}:")
    if (
        len(parts) != 4
        or not parts[1].startswith("o\n")
        or not parts[2].startswith("e\n")
        or not parts[3].startswith("x")
        or (end := _END.match(parts[3], 1)) is None
    ):
        raise SandboxError(
            "container-use's answer does not contain the result of the command",
            hint="the command may have killed its wrapper, or tampered with it",
        )
    kind, status = end[1], int(end[2])
    stdout, stderr = (_capture(part[2:], wrapped.limit_bytes) for part in parts[1:3])
    result = ExecutionResult(
        status,
        stdout.text(),
        stderr.text(),
        duration_ms,
        stdout_bytes=int(end[3]),
        stderr_bytes=int(end[4]),
        stdout_truncated=int(end[3]) > wrapped.limit_bytes,
        stderr_truncated=int(end[4]) > wrapped.limit_bytes,
    )
    return _explained(result, kind)


def _capture(text: str, limit_bytes: int) -> Capture:
    capture = Capture(limit_bytes)
    capture.feed(text.encode("utf-8", "replace"))
    return capture


def _explained(result: ExecutionResult, kind: str) -> ExecutionResult:
    if kind == "late":
        return replace(result, exit_code=124, reason=Reason.TIMED_OUT)
    if kind in _NEVER:
        status, why = _NEVER[kind]
        return replace(result, exit_code=status, reason=Reason.NEVER_STARTED, error=why)
    return result
