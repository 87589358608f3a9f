"""One command from this terminal: through the gate, on our streams, to an exit status."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from kakoi.cli.asking import Approval
from kakoi.cli.live import Input, Signals, pass_through
from kakoi.cli.opening import Place
from kakoi.cli.output import OutputClosed, write_all
from kakoi.cli.screen import Screen
from kakoi.cli.telling import (
    ending_in_words,
    failure_as_dict,
    interruption_in_words,
    limits_in_words,
    result_as_dict,
    say,
    say_blocked,
    say_error,
    show_decision,
    show_warnings,
    use_in_words,
)
from kakoi.config.opening import open_gate
from kakoi.errors import KakoiError, SandboxError, SecurityError, UserCancelledError
from kakoi.gate import Gate
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Policy
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import Holding, Limits, SandboxAdapter, with_way_out
from kakoi.sandbox.workspace import within

_log = logging.getLogger(__name__)
FAILED: Final = 125
REFUSED: Final = 126
NOT_FOUND: Final = 127
# They take no input, and tell what a command wrote when it has ended.
_WITHOUT_CHANNEL: Final = ("container-use",)

quiet_option: Final = click.option(
    "-q", "--quiet", is_flag=True, help="Of kakoi's own only warnings and failures."
)
verbose_option: Final = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Say which sandbox was taken and why, what was decided, which limits hold, and the times.",
)


class _Misuse(click.UsageError):
    exit_code = FAILED


class Runs(click.Command):
    """A click command whose own failures are 125: other numbers are those of what it runs."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _Misuse(error.format_message(), error.ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _Misuse(error.format_message(), error.ctx) from error
        except (click.exceptions.Exit, click.Abort):
            raise
        except KakoiError as error:
            if ctx.params.get("as_json"):
                _print_json(failure_as_dict(error, FAILED, "failed", None))
            else:
                say_error(error)
        except Exception:  # A slip of ours must not look like the command's exit status.
            traceback.print_exc()
        sys.exit(FAILED)


@dataclass(frozen=True, kw_only=True)
class Session:
    """How commands are run and spoken of.

    `stdin`: the command gets ours. `quiet`: of our own words only warnings and failures.
    `verbose`: on the way, what is being done and how long it took.
    `as_json`: the output is not passed on; one object on standard output tells everything.
    `cwd_fd`: where to write in which directory the shell ended.
    `remedy`: how a domain is allowed that was refused.
    """

    place: Place
    policy: Policy
    approval: Approval
    stdin: bool = False
    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    cwd_fd: int | None = None
    remedy: str = "--allow-domain {}"

    def run(self, commands: Sequence[Command]) -> int:
        """Run the first of these that is to be found; returns the exit status."""
        if self.quiet and self.verbose:
            raise click.UsageError("--quiet and --verbose exclude each other")
        show_warnings(is_verbose=self.verbose)
        return asyncio.run(self._run(commands))

    async def _run(self, commands: Sequence[Command]) -> int:
        signals = Signals()
        with signals.caught():
            # Signals end the work. What is opened is closed undisturbed.
            async with contextlib.AsyncExitStack() as stack:
                work = asyncio.ensure_future(self._work(stack, commands))
                signals.end(work)
                await asyncio.wait([work])
        _log.info("everything was closed")
        try:
            return work.result()
        except asyncio.CancelledError:
            return self._tell_interruption(signals.received or signal.SIGINT)
        except KakoiError as error:
            return self._tell_failure(error)
        except OutputClosed:
            return 128 + signal.SIGPIPE
        except OSError as error:
            say(f"cannot pass on what the command writes: {os.strerror(error.errno or 0)}")
            return FAILED

    async def _work(self, stack: contextlib.AsyncExitStack, commands: Sequence[Command]) -> int:
        gate = await stack.enter_async_context(
            open_gate(
                self.policy,
                self.place.config,
                workspace=self.place.directory,
                unfit=self.place.unfit,
                approver=self.approval,
                audit_file=self.place.audit_file,
            )
        )
        stdin = Input() if self.stdin else None
        for command in commands:
            try:
                result = await self._run_one(gate, command, stdin)
            except SandboxError as error:
                raise await with_way_out(error, gate.sandbox) from error
            if result.reason is not Reason.NEVER_STARTED or result.exit_code != NOT_FOUND:
                break
        self._tell_result(result, command, *_where(gate.sandbox))
        if self.cwd_fd is not None and result.cwd:
            self._tell_directory(self.cwd_fd, result.cwd)
        return result.exit_code

    async def _run_one(self, gate: Gate, command: Command, stdin: Input | None) -> ExecutionResult:
        if self.place.settings.sandbox.type in _WITHOUT_CHANNEL and command.terminal is None:
            result = await gate.run(replace(command, stdin_open=False))
            if not self.as_json:
                for fd, text in ((1, result.stdout), (2, result.stderr)):
                    screen = Screen(fd)
                    screen.write(text.encode("utf-8", "surrogateescape"))
                    screen.end()
            return result
        async with gate.open(command) as running:
            _, holding = _where(gate.sandbox)
            self._tell_limits(holding, self.place.config.docker.limits, command)
            return await pass_through(
                running,
                stdin=stdin,
                terminal=command.terminal is not None,
                shown=not self.as_json,
            )

    # --- Telling -----------------------------------------------------------------------------

    def _tell_limits(self, holding: Holding, limits: Limits, command: Command) -> None:
        _log.info("%s", limits_in_words(holding, limits, command))

    def _tell_result(
        self, result: ExecutionResult, command: Command, sandbox: str, holding: Holding
    ) -> None:
        _log.info("%s", use_in_words(result))
        if self.as_json:
            _print_json(result_as_dict(result, sandbox, holding))
        elif not self.quiet:
            say_blocked(result, remedy=self.remedy)
            if words := ending_in_words(result, command):
                say(words)

    def _tell_directory(self, fd: int, cwd: str) -> None:
        """Where the shell ended, if that is a directory of the workspace: a sandbox can say
        anything. What ends with a slash is what it was, also for a shell that cuts line ends."""
        found = os.path.realpath(cwd)
        if within(found, self.place.directory) and os.path.isdir(found):
            with contextlib.suppress(OSError, OutputClosed):
                write_all(fd, os.fsencode(found) + b"/")

    def _tell_interruption(self, number: int) -> int:
        words = interruption_in_words(number)
        if self.as_json:
            _print_json({"exit_code": 128 + number, "reason": "cancelled", "error": words})
        elif not self.quiet:
            say(words)
        return 128 + number

    def _tell_failure(self, error: KakoiError) -> int:
        if isinstance(error, SecurityError):
            status, reason, decision = REFUSED, "refused", error.decision
        elif isinstance(error, UserCancelledError):
            status, reason, decision = REFUSED, "declined", self.approval.decision
        else:
            status, reason, decision = FAILED, "failed", None
        told = decision if isinstance(decision, Decision) else None
        if self.as_json:
            _print_json(failure_as_dict(error, status, reason, told))
        elif not self.quiet or status == FAILED:
            self._explain(error, told)
        return status

    def _explain(self, error: KakoiError, decision: Decision | None) -> None:
        if not isinstance(error, UserCancelledError):
            if decision is not None:
                show_decision(decision)
            else:
                say_error(error)
        elif self.approval.somebody_is_there:
            say("declined; nothing was run")
        else:
            if decision is not None:
                show_decision(decision)
            say("nobody is here to be asked; nothing was run", hint="--yes says yes beforehand")


def _where(sandbox: SandboxAdapter | None) -> tuple[str, Holding]:
    return ("", Holding()) if sandbox is None else (sandbox.name, sandbox.holding)


def _print_json(told: dict[str, Any]) -> None:
    with contextlib.suppress(OutputClosed):
        write_all(1, json.dumps(told, indent=2).encode("ascii") + b"\n")
