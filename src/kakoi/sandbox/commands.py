"""The arguments of `Sandbox.run` and its like → a Command; and what `check=True` raises."""

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kakoi._support.parsing import as_size
from kakoi._support.text import short_repr
from kakoi.backends.adapter import check_ended
from kakoi.channel.api import Command, TerminalSize, check_type, new_id
from kakoi.errors import CommandFailedError, ConfigurationError, TimeoutError
from kakoi.gate.calls import judged_text
from kakoi.policy.decide import Decision, decide
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.options import SandboxOptions, path_text, seconds

if TYPE_CHECKING:
    from kakoi.gate import Gate
    from kakoi.sandbox.lifecycle import SandboxLife
    from kakoi.sandbox.opened import OpenSandbox

_LAST_WORDS: Final = 2000


async def prepare(
    life: "SandboxLife", command: str | Sequence[str], **given: Any
) -> "tuple[Gate, Command]":
    """Return the command and the gate to run it, which opens the sandbox if it is not open.

    A private directory of this machine is known once the sandbox is open; a command that the
    policy refuses anywhere opens nothing.
    """
    life.check_usable()
    options = life.options
    if life.opened_or_none is None and not options.knows_workspace:
        provisional = command_from(options, life.workspace, command, **given)
        await life.gate.refuse_hopeless(provisional)
        await life.ready()
    return life.gate, command_from(options, life.workspace, command, **given)


def command_from(
    options: SandboxOptions,
    workspace: str,
    command: str | Sequence[str],
    *,
    cwd: object = None,
    env: Mapping[str, str] | None = None,
    stdin: object = None,
    timeout: object = None,
    idle_timeout: object = None,
    max_output: object = None,
    terminal: object = None,
    stdin_open: bool = False,
    report_shell: bool = False,
    id: str = "",
) -> Command:
    """Return the command. Raises ConfigurationError that names the wrong argument."""
    check_type("env", env, Mapping, type(None))
    return Command(
        command=command,
        cwd=workspace if cwd is None else inside_path("cwd", cwd, workspace),
        env={**options.env, **(env or {})},
        stdin=_input(stdin),
        stdin_open=stdin_open,
        terminal=_terminal(terminal),
        timeout_s=options.timeout_s if timeout is None else seconds("timeout", timeout),
        idle_timeout_s=None if idle_timeout is None else seconds("idle_timeout", idle_timeout),
        max_output_bytes=(
            options.max_output_bytes if max_output is None else _output_bytes(max_output)
        ),
        report_shell=report_shell,
        id=id or new_id(),
    )


async def judge(
    options: SandboxOptions,
    opened: "OpenSandbox | None",
    command: str | Sequence[str],
    cwd: object,
) -> Decision:
    """Judge a command as this sandbox would, also before it is open."""
    if opened is not None:
        asked = command_from(options, opened.workspace, command, cwd=cwd)
        return await opened.gate.judge(asked)
    workspace = options.inside
    at = workspace if cwd is None else inside_path("cwd", cwd, workspace)
    text = judged_text(Command(command=command), {})
    return await asyncio.to_thread(decide, options.policy, text, cwd=at)


def inside_path(argument: str, path: object, workspace: str) -> str:
    """Return the absolute path inside the sandbox; relative ones start in the workspace."""
    text = path_text(argument, path)
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{argument} is {short_repr(text)}, which contains a lone surrogate"
        ) from None
    if ".." in text.split("/"):
        raise ConfigurationError(
            f"{argument} is {short_repr(text)}; it must not contain `..`",
            hint="write the path without it, relative to the workspace or absolute",
        )
    return posixpath.normpath(posixpath.join(workspace, text))


def check_success(result: ExecutionResult, command: Command) -> None:
    """Raise unless the command exited with 0."""
    if result.ok:
        return
    if result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT):
        limit_s = command.timeout_s if result.reason is Reason.TIMED_OUT else command.idle_timeout_s
        what = "ran longer than" if result.reason is Reason.TIMED_OUT else "was silent for"
        raise TimeoutError(
            f"the command {what} {limit_s:g} seconds",
            details={"result": result, "stdout": result.stdout, "stderr": result.stderr},
            hint="raise the limit, or give the command less to do",
        )
    check_ended(result, command)
    words = command.command
    text = words if isinstance(words, str) else " ".join(words)
    raise CommandFailedError(
        f"{short_repr(text)} failed with exit code {result.exit_code}"
        + (f": {result.stderr.strip()[-_LAST_WORDS:]}" if result.stderr.strip() else ""),
        details={
            "exit_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "reason": result.reason,
            "result": result,
        },
    )


def _input(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    check_type("stdin", value, str, bytes, type(None))
    return value if isinstance(value, bytes) else None


def _terminal(value: object) -> TerminalSize | None:
    if value is None:
        return None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigurationError(f"terminal is {short_repr(value)}; it must be (rows, columns)")
    for each in value:
        check_type("terminal", each, int)
    return TerminalSize(rows=value[0], columns=value[1])


def _output_bytes(value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    return as_size(value, "max_output")
