"""decide(policy, command) → Decision. The same text gives the same answer, so it is cached."""

from functools import lru_cache

from kakoi.policy.judging.decision import Decision, Finding, decision_from
from kakoi.policy.judging.files import Files
from kakoi.policy.judging.judge import Judge
from kakoi.policy.judging.report import Report
from kakoi.policy.judging.texts import Context, Reading, readings
from kakoi.policy.parsing.plain import plain_script
from kakoi.policy.parsing.script import Unreadable
from kakoi.policy.rules import Policy, Verdict

__all__ = ["Decision", "Finding", "decide", "is_for_any_shell"]

DEFAULT_CWD = "/workspace/project"
_CACHED_TEXT = 4096


def decide(
    policy: Policy, command: str, *, cwd: str = DEFAULT_CWD, read_by: str = "bash"
) -> Decision:
    """May `command` run under `policy`, started in `cwd`? Never raises for what the text holds.

    `read_by`: its shell. For `sh`, which may be any, it is judged in each of its readings.
    """
    if len(command) <= _CACHED_TEXT:
        return _decide_cached(policy, command, cwd, read_by)
    return _decide(policy, command, cwd, read_by)


def is_for_any_shell(command: str) -> bool:
    """Whether bash and every `sh` read it in the same way, as far as that is seen at a glance."""
    return plain_script(command) is not None


@lru_cache(maxsize=4096)
def _decide_cached(policy: Policy, command: str, cwd: str, read_by: str) -> Decision:
    return _decide(policy, command, cwd, read_by)


def _decide(policy: Policy, command: str, cwd: str, read_by: str = "bash") -> Decision:
    for pattern in policy.block_patterns:
        at = command.find(pattern)
        if at >= 0:
            reason = f"the policy refuses any command that holds {pattern!r}"
            hint = "Write the command without it."
            finding = Finding(
                "blocked-pattern", Verdict.DENY, at, at + len(pattern), pattern, reason, hint
            )
            return decision_from(command, [finding])
    found: list[Finding] = []
    for reading in readings(command, read_by):
        found += _found_in(reading, policy, command, cwd, read_by)
    return decision_from(command, found)


def _found_in(
    reading: Reading | Unreadable, policy: Policy, command: str, cwd: str, read_by: str
) -> list[Finding]:
    if isinstance(reading, Unreadable):
        why = "" if read_by == "bash" else ": there is no bash where it would run"
        hint = f"Write it as plain, valid {read_by}{why}."
        place = (reading.start, reading.end)
        return [Finding("unreadable", Verdict.DENY, *place, "", reading.reason, hint)]
    if reading.script.empty:
        reason = "there is nothing to run"
        hint = "Give a command."
        return [Finding("empty-command", Verdict.DENY, 0, len(command), "", reason, hint)]
    report = Report(policy, command)
    files = Files(report, command, policy.roots or (cwd,))
    Judge(Context(files, cwd), reading).judge()
    return list(report.findings)
