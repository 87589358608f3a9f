"""decide(policy, command) → Decision. The same text gives the same answer, so it is cached."""

from functools import lru_cache

from kakoi.policy.judging.decision import Decision, Finding, decision_from
from kakoi.policy.judging.files import Files
from kakoi.policy.judging.judge import Judge
from kakoi.policy.judging.report import Report
from kakoi.policy.judging.texts import Context, Reading
from kakoi.policy.parsing.script import Unreadable
from kakoi.policy.rules import Policy, Verdict
from kakoi.policy.syntax import parse

__all__ = ["Decision", "Finding", "decide"]

DEFAULT_CWD = "/workspace/project"
_CACHED_TEXT = 4096


def decide(policy: Policy, command: str, *, cwd: str = DEFAULT_CWD) -> Decision:
    """May `command` run under `policy`, started in `cwd`? Never raises for what the text holds."""
    if len(command) <= _CACHED_TEXT:
        return _decide_cached(policy, command, cwd)
    return _decide(policy, command, cwd)


@lru_cache(maxsize=4096)
def _decide_cached(policy: Policy, command: str, cwd: str) -> Decision:
    return _decide(policy, command, cwd)


def _decide(policy: Policy, command: str, cwd: str) -> Decision:
    for pattern in policy.block_patterns:
        at = command.find(pattern)
        if at >= 0:
            reason = f"the policy refuses any command that holds {pattern!r}"
            hint = "Write the command without it."
            finding = Finding(
                "blocked-pattern", Verdict.DENY, at, at + len(pattern), pattern, reason, hint
            )
            return decision_from(command, [finding])
    script = parse(command)
    if isinstance(script, Unreadable):
        hint = "Write it as plain, valid bash."
        return decision_from(
            command,
            [
                Finding(
                    "unreadable", Verdict.DENY, script.start, script.end, "", script.reason, hint
                )
            ],
        )
    if script.empty:
        reason = "there is nothing to run"
        hint = "Give a command."
        return decision_from(
            command, [Finding("empty-command", Verdict.DENY, 0, len(command), "", reason, hint)]
        )
    report = Report(policy, command)
    files = Files(report, command, policy.roots or (cwd,))
    Judge(Context(files, cwd), Reading(script)).judge()
    return decision_from(command, report.findings)
