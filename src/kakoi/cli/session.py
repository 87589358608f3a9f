"""Runs one command from this terminal: through the gate, on our streams, to an exit code."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.adapter import LimitReport, Limits, SandboxAdapter, with_availability_hint
from kakoi.backends.workspace import is_within
from kakoi.channel.api import Command
from kakoi.cli.io.approval import Approval
from kakoi.cli.io.messages import FAILED, print_error, print_json, print_message
from kakoi.cli.io.passthrough import TerminalInput, pass_through
from kakoi.cli.io.report import (
    describe_end,
    describe_interruption,
    describe_limits,
    describe_usage,
    enable_log_messages,
    failure_as_dict,
    print_blocked_connections,
    print_decision,
    result_as_dict,
)
from kakoi.cli.io.signals import Signals
from kakoi.cli.io.streams import OutputClosed, write_all
from kakoi.cli.io.terminal import Screen
from kakoi.cli.target import RunTarget
from kakoi.errors import KakoiError, SandboxError, SecurityError, UserCancelledError
from kakoi.gate import Gate
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Policy
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.doors import sandbox_for

_log = logging.getLogger(__name__)
REFUSED: Final = 126
NOT_FOUND: Final = 127
# These sandboxes take no input, and give the output only when the command has ended.
_WITHOUT_CHANNEL: Final = ("container-use",)


@dataclass(frozen=True, kw_only=True)
class CommandSession:
    """How commands are run and reported.

    `stdin`: forward ours. `quiet`: print only warnings and errors. `verbose`: print progress and
    timings. `as_json`: print one object on stdout instead of the command's output.
    `cwd_fd`: a descriptor for the directory in which the shell ended.
    `remedy`: the hint for a domain that was refused.
    """

    target: RunTarget
    policy: Policy
    approval: Approval
    stdin: bool = False
    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    cwd_fd: int | None = None
    remedy: str = "--allow-domain {}"

    def run(self, commands: Sequence[Command]) -> int:
        """Run the first of these whose program is found; returns the exit code."""
        if self.quiet and self.verbose:
            import click  # Plain calls do without it.

            raise click.UsageError("--quiet and --verbose exclude each other")
        enable_log_messages(is_verbose=self.verbose)
        return asyncio.run(self._run(commands))

    async def _run(self, commands: Sequence[Command]) -> int:
        signals = Signals()
        with signals.caught():
            # A signal cancels the work; closing what it opened is not interrupted.
            async with contextlib.AsyncExitStack() as stack:
                work = asyncio.ensure_future(self._work(stack, commands))
                signals.cancel_on_signal(work)
                await asyncio.wait([work])
        _log.info("everything is closed")
        try:
            return work.result()
        except asyncio.CancelledError:
            return self._report_interruption(signals.received or signal.SIGINT)
        except KakoiError as error:
            return self._report_failure(error)
        except OutputClosed:
            return 128 + signal.SIGPIPE
        except OSError as error:
            print_message(f"cannot forward the command's output: {os.strerror(error.errno or 0)}")
            return FAILED

    async def _work(self, stack: contextlib.AsyncExitStack, commands: Sequence[Command]) -> int:
        options = self.target.sandbox_options(self.policy, approve=self.approval)
        gate = (await stack.enter_async_context(sandbox_for(options))).gate
        stdin = TerminalInput() if self.stdin else None
        for command in commands:
            try:
                result = await self._run_one(gate, command, stdin)
            except SandboxError as error:
                raise await with_availability_hint(error, gate.sandbox) from error
            if result.reason is not Reason.NEVER_STARTED or result.exit_code != NOT_FOUND:
                break
        self._report_result(result, command, *_name_and_limits(gate.sandbox))
        if self.cwd_fd is not None and result.cwd:
            self._report_directory(self.cwd_fd, result.cwd)
        return result.exit_code

    async def _run_one(
        self, gate: Gate, command: Command, stdin: TerminalInput | None
    ) -> ExecutionResult:
        if self.target.settings.sandbox.type in _WITHOUT_CHANNEL and command.terminal is None:
            result = await gate.run(replace(command, stdin_open=False))
            if not self.as_json:
                for fd, text in ((1, result.stdout), (2, result.stderr)):
                    screen = Screen(fd)
                    screen.write(text.encode("utf-8", "surrogateescape"))
                    screen.end()
            return result
        async with gate.open(command) as running:
            _, holding = _name_and_limits(gate.sandbox)
            self._report_limits(holding, self.target.config.docker.limits, command)
            return await pass_through(
                running,
                stdin=stdin,
                terminal=command.terminal is not None,
                shown=not self.as_json,
            )

    # --- Reports -----------------------------------------------------------------------------

    def _report_limits(self, holding: LimitReport, limits: Limits, command: Command) -> None:
        _log.info("%s", describe_limits(holding, limits, command))

    def _report_result(
        self, result: ExecutionResult, command: Command, sandbox: str, holding: LimitReport
    ) -> None:
        _log.info("%s", describe_usage(result))
        if self.as_json:
            print_json(result_as_dict(result, sandbox, holding))
        elif not self.quiet:
            print_blocked_connections(result, remedy=self.remedy)
            if text := describe_end(result, command):
                print_message(text)

    def _report_directory(self, fd: int, cwd: str) -> None:
        """Write where the shell ended, if that is a directory of the workspace.

        Checked, because a sandbox can claim anything. The slash at the end keeps a name that ends
        in newlines whole: `$(...)` in a shell strips those.
        """
        found = os.path.realpath(cwd)
        if is_within(found, self.target.directory) and os.path.isdir(found):
            with contextlib.suppress(OSError, OutputClosed):
                write_all(fd, os.fsencode(found) + b"/")

    def _report_interruption(self, number: int) -> int:
        text = describe_interruption(number)
        if self.as_json:
            print_json({"exit_code": 128 + number, "reason": "cancelled", "error": text})
        elif not self.quiet:
            print_message(text)
        return 128 + number

    def _report_failure(self, error: KakoiError) -> int:
        if isinstance(error, SecurityError):
            status, reason, decision = REFUSED, "refused", error.decision
        elif isinstance(error, UserCancelledError):
            status, reason, decision = REFUSED, "declined", self.approval.decision
        else:
            status, reason, decision = FAILED, "failed", None
        refusal = decision if isinstance(decision, Decision) else None
        if self.as_json:
            print_json(failure_as_dict(error, status, reason, refusal))
        elif not self.quiet or status == FAILED:
            self._print_failure(error, refusal)
        return status

    def _print_failure(self, error: KakoiError, decision: Decision | None) -> None:
        if not isinstance(error, UserCancelledError):
            if decision is not None:
                print_decision(decision)
            else:
                print_error(error)
        elif self.approval.user_is_present:
            print_message("declined; nothing was run")
        else:
            if decision is not None:
                print_decision(decision)
            print_message(
                "no terminal to ask for approval; nothing was run",
                hint="--yes approves in advance",
            )


def _name_and_limits(sandbox: SandboxAdapter | None) -> tuple[str, LimitReport]:
    return ("", LimitReport()) if sandbox is None else (sandbox.name, sandbox.limit_report)
