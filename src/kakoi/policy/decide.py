"""decide(policy, command) → Decision. The same text gets the same answer, so it is cached."""

from functools import lru_cache

from kakoi.policy.judging.decision import Decision, Finding, Report, decision_from
from kakoi.policy.judging.files import FileRules
from kakoi.policy.judging.judge import Judge, TextContext
from kakoi.policy.judging.paths import within
from kakoi.policy.parsing.fast_path import plain_script
from kakoi.policy.parsing.parser import readings
from kakoi.policy.parsing.script import Unreadable
from kakoi.policy.rules import Policy, Verdict

__all__ = ["Decision", "Finding", "decide", "is_for_any_shell", "known_decision"]

DEFAULT_CWD = "/workspace/project"
_CACHED_TEXT = 4096


def decide(
    policy: Policy,
    command: str,
    *,
    cwd: str = DEFAULT_CWD,
    read_by: str = "bash",
    confined: bool = False,
) -> Decision:
    """May `command` run under `policy`, started in `cwd`? Never raises because of the text.

    `read_by` is its shell. `sh` can be any shell, so a text for `sh` is judged in each reading.
    `confined`: a sandbox with a network of its own stands behind the command, so a program of the
    workspace can do no more than the interpreters that are allowed anyway.

        decision = decide(load_policy(), "git push --force")
        print(decision.verdict, *(finding.reason for finding in decision.findings))
    """
    if len(command) > _CACHED_TEXT:
        return _decide(policy, command, cwd, read_by, confined=confined)
    slot = _slot(policy, command, cwd, read_by, confined)
    if not slot:
        slot.append(_decide(policy, command, cwd, read_by, confined=confined))
    return slot[0]


def known_decision(
    policy: Policy, command: str, *, cwd: str, read_by: str, confined: bool = False
) -> Decision | None:
    """Return what `decide` returned for the same before, if it is still cached. Never parses."""
    cached = len(command) <= _CACHED_TEXT
    slot = _slot(policy, command, cwd, read_by, confined) if cached else []
    return slot[0] if slot else None


def is_for_any_shell(command: str) -> bool:
    """Whether bash and every `sh` read it the same way. False if that is not obvious."""
    return plain_script(command) is not None


@lru_cache(maxsize=4096)
def _slot(_policy: Policy, _command: str, _cwd: str, _by: str, _confined: bool) -> list[Decision]:
    """Return the place for a decision, which is empty until it is made."""
    return []


def _decide(
    policy: Policy, command: str, cwd: str, read_by: str = "bash", *, confined: bool = False
) -> Decision:
    blocked = blocked_pattern(policy, command, "command")
    if blocked is not None:
        return decision_from(command, [blocked], cwd=cwd)
    found = findings_on_all(policy, command, cwd)
    for reading in readings(command, read_by):
        if isinstance(reading, Unreadable):
            found.append(_unreadable(reading, policy, read_by))
        elif reading.script.empty:
            found.append(_nothing_to_run(command))
        else:
            report = Report(policy, command, confined=confined and policy.trusts_sandbox)
            files = FileRules(report, command, policy.roots or (cwd,))
            Judge(TextContext(files, cwd), reading).judge()
            found += report.findings
    return decision_from(command, found, cwd=cwd)


def blocked_pattern(policy: Policy, text: str, kind: str) -> Finding | None:
    """Return the finding about the first block pattern that `text`, a command or path, holds."""
    for pattern in policy.block_patterns:
        at = text.find(pattern)
        if at >= 0:
            reason = f"the policy refuses any {kind} that holds {pattern!r}"
            hint = f"Write the {kind} without it."
            end = at + len(pattern)
            return Finding("blocked-pattern", Verdict.DENY, at, end, pattern, reason, hint)
    return None


def findings_on_all(policy: Policy, text: str, cwd: str) -> list[Finding]:
    """Return the findings that do not depend on `text`, a command or a file access in `cwd`."""
    found = [
        Finding(rule.id, rule.verdict, 0, len(text), text, rule.reason, rule.hint)
        for rule in policy.rules_for_all
    ]
    for directory in () if policy.directories is None else policy.roots or (cwd,):
        if not any(at == "/" or within(directory, at) for at in policy.directories or ()):
            reason = f"the working directory {directory} is not in an allowed directory"
            hint = "Work in a directory of `allowed_directories`, or ask your user to add this one."
            place = (0, len(text))
            found.append(Finding("allowed-directories", Verdict.DENY, *place, text, reason, hint))
    return found


def _unreadable(reading: Unreadable, policy: Policy, read_by: str) -> Finding:
    why = "" if read_by == "bash" else ": there is no bash where it would run"
    hint = f"Write it as plain, valid {read_by}{why}."
    verdict = Verdict.DENY if reading.never_runs else policy.unreadable
    hint = hint if verdict is Verdict.DENY else ""
    return Finding("unreadable", verdict, reading.start, reading.end, "", reading.reason, hint)


def _nothing_to_run(command: str) -> Finding:
    reason, hint = "there is nothing to run", "Give a command."
    return Finding("empty-command", Verdict.DENY, 0, len(command), "", reason, hint)
