"""Explanations of every error and every rule: what it means, why, and what to do.

A rule explains itself: its reason, hint and examples are part of it. The meaning of an error is
the docstring of its class. The rest is written here, once.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

from kakoi import errors
from kakoi._support.late import dataclass
from kakoi.channel.delivery import NoPythonError
from kakoi.errors import KakoiError
from kakoi.policy.profiles import PROFILES, load_policy
from kakoi.policy.rules import Policy, Rule
from kakoi.tasks.changes import PushError
from kakoi.tasks.checkout import CloneError

# Why an error is raised, and what to do about it, by its code.
CAUSES_AND_FIXES: Final[Mapping[str, tuple[str, str]]] = {
    "KAKOI_ERROR": (
        "This is the base class, for code that wants to catch every error of kakoi; the error that "
        "is raised is one of the others.",
        "Read the message; `kakoi doctor` shows what this machine lacks.",
    ),
    "CONFIGURATION_ERROR": (
        "Settings are read strictly: an ignored mistake would mean weaker protection.",
        "Correct what the message names: `kakoi config show --origin` shows each effective value "
        "and where it comes from, `kakoi config path` the files that are read.",
    ),
    "COMMAND_REFUSED": (
        "A rule of the policy denies something that the command would do. Nothing was run.",
        "Do it in another way: `kakoi check COMMAND` underlines the part that is refused, and "
        "`kakoi explain RULE` explains the rule.",
    ),
    "COMMAND_NOT_ALLOWED": (
        "A program that is not on the list has not been reviewed. Nothing was run.",
        "Use a command that `kakoi policy show` lists, or add the program to `policy.additional` "
        "in your settings (`kakoi config path`).",
    ),
    "BLOCKED_PATTERN": (
        "The profile or your settings refuse that text wherever it occurs. Nothing was run.",
        "Write the command without the text that the message names; `policy.block_patterns` of "
        "`kakoi config show --origin` shows where it comes from.",
    ),
    "EMPTY_COMMAND": (
        "An empty command is a mistake of the caller; running it would hide the mistake.",
        "Give a command: `kakoi run 'ls | wc -l'`.",
    ),
    "USER_CANCELLED": (
        "The policy wants a person to decide; no answer means no. Nothing was run.",
        "Try again when someone can answer, approve in advance (`kakoi run --yes`), or use a "
        "command that needs no approval (`kakoi check COMMAND`).",
    ),
    "AUDIT_FAILED": (
        "Every command is recorded before it runs; without a record nothing runs.",
        "Make the log writable, or name another: KAKOI_AUDIT_FILE, or `audit.file` in your "
        "settings. `kakoi audit verify` checks whether the log is intact.",
    ),
    "UNSUPPORTED": (
        "The sandbox, or the way it is configured, has no means to do what was asked.",
        "Read the hint: it names what can, such as another sandbox or an image with python3.",
    ),
    "FILE_ERROR": (
        "The file system refused it: the path is a directory, the disk is full, or the file "
        "belongs to another user. Commands have the same rights.",
        "Read the message: it names the path and the reason. `errno` has the number of the error.",
    ),
    "FILE_MISSING": (
        "Nothing is at that path. Relative paths start in the workspace.",
        "Look at what is there: `ls`, or `await box.files.list()` in Python.",
    ),
    "COMMAND_FAILED": (
        "The command exited with a code other than 0, where the caller requires success.",
        "Look at the command's output and its exit code, which the error carries in `details`.",
    ),
    "SOURCE_FAILED": (
        "The task source was unreachable, refused the request, or sent an unexpected reply.",
        "Read the message. Check that the token belongs to this address and has the permissions "
        "that are needed.",
    ),
    "QUEUE_FAILED": (
        "The task queue was unreachable, or another worker has taken the task.",
        "Read the message. A queue file must be writable, a broker reachable. A task whose lease "
        "has expired is done by the worker that took it next.",
    ),
    "MODEL_FAILED": (
        "The model's server was unreachable, refused the request, or sent an unexpected reply.",
        "Read the message. Check that `agent.model`, `agent.base_url` and the variable with the "
        "key belong together (`kakoi config show`).",
    ),
    "EXECUTION_FAILED": (
        "The command could not be started, or the connection to it was lost.",
        "Read the message. If it names no cause, `kakoi doctor` tests every sandbox on this "
        "machine.",
    ),
    "TIMED_OUT": (
        "The limit is that of the call, or `execution.timeout_seconds`.",
        "Give it more time (`kakoi run --timeout SECONDS`), or run less at once.",
    ),
    "SANDBOX_FAILED": (
        "A container was removed, a connection broke, or the container engine failed.",
        "Run `kakoi doctor`: it tests every sandbox and names the fix. The command itself can be "
        "run again.",
    ),
    "ENVIRONMENT_UNAVAILABLE": (
        "kakoi never falls back to weaker isolation unless you name it.",
        "Run `kakoi doctor` for what is missing, or choose another sandbox: `kakoi run --sandbox "
        "NAME`, `sandbox.type` or `sandbox.fallback`.",
    ),
    "IMAGE_PULL_FAILED": (
        "The engine could not pull it: the name, the network or the login is wrong.",
        "Check the name (`kakoi config show --origin`), then try it: `docker pull IMAGE`.",
    ),
    "NO_PYTHON": (
        "Most sandboxes run a small program of kakoi that needs python3, 3.8 or newer.",
        "Use an image with python3; in Docker and Podman, kakoi works without it automatically.",
    ),
    "LIMIT_NOT_ENFORCED": (
        "A limit was set that nothing on this machine enforces in this sandbox.",
        "`kakoi doctor` shows what enforces each limit; use another sandbox, or set it to `none`.",
    ),
    "CLONE_FAILED": (
        "The address, the branch or the token is wrong, or the server is unreachable.",
        "Try it by hand: `git ls-remote ADDRESS`. Tokens are read from "
        "GITHUB_PERSONAL_ACCESS_TOKEN and GITLAB_PERSONAL_ACCESS_TOKEN.",
    ),
    "PUSH_FAILED": (
        "The token has no write permission, the branch has new commits, or the task's history "
        "does not build on the branch it started from.",
        "Try it by hand: `git push --dry-run ADDRESS HEAD:BRANCH`. The token needs write "
        "permission; kakoi never pushes by force.",
    ),
    "EXECUTION_TIMEOUT": (
        "The limit is that of the call, `sandbox.docker.timeout` or `sandbox.host.timeout`.",
        "Give it more time (`kakoi run --timeout SECONDS`), or run less at once.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`kind`: error or rule. `where`: the profiles of a rule, or the class of an error."""

    code: str
    kind: str
    meaning: str
    why: str
    what_to_do: str
    where: str = ""
    refused: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()


_DENIED: Final = "The policy denies it. Nothing was run, and nobody was asked."
_ASKED: Final = "The policy wants a person to decide. Without an answer nothing runs."

# Findings that need no rule, because they apply under every policy.
BUILT_IN: Final[tuple[Explanation, ...]] = (
    Explanation(
        code="unreadable",
        kind="rule",
        meaning="the text cannot be parsed reliably: it is not valid bash, too long, too deeply "
        "nested, or contains characters that hide something",
        why="What cannot be parsed cannot be judged, so it does not run. Under the profile open it "
        "runs, and this rule in the audit log marks it as unread.",
        what_to_do="Write it as plain, valid bash; `kakoi check` points at the place.",
        where="every policy",
        refused=("echo 'never closed", "if true; then ls"),
        fine=("echo 'closed'",),
    ),
    Explanation(
        code="empty-command",
        kind="rule",
        meaning="there is nothing to run",
        why="An empty command is a mistake of the caller; running it would hide the mistake.",
        what_to_do="Give a command.",
        where="every policy",
        refused=("", "# only a remark"),
        fine=("true",),
    ),
    Explanation(
        code="blocked-pattern",
        kind="rule",
        meaning="the text contains something that the policy refuses wherever it occurs",
        why="Some settings refuse plain text, such as a backquote, without looking further.",
        what_to_do="Write the command without it; `kakoi config show --origin` shows where it "
        "comes from.",
        where="policies with `block_patterns`, such as the profile bash-executor",
    ),
    Explanation(
        code="shell-off",
        kind="rule",
        meaning="no command can run, because the user has turned that off",
        why="`enabled = false` in security.toml, or `policy.enabled: false` in the settings.",
        what_to_do="Ask your user; `kakoi config show --origin` shows where it is set.",
        where="the profile shell and `kakoi.shell` with a security.toml, and `policy.enabled`",
    ),
    Explanation(
        code="confirmation",
        kind="rule",
        meaning="the user wants to approve every command",
        why="`require_confirmation = true` in security.toml, or in the settings under `policy`.",
        what_to_do="Let your user decide; `kakoi run --yes` approves in advance.",
        where="the profile shell with a security.toml, and `policy.require_confirmation`",
    ),
    Explanation(
        code="allowed-directories",
        kind="rule",
        meaning="the working directory is not in one of the allowed directories",
        why="`allowed_directories` in security.toml, or in the settings under `policy`.",
        what_to_do="Work in one of them; `kakoi config show --origin` lists them.",
        where="the profile shell and `kakoi.shell` with a security.toml, and "
        "`policy.allowed_directories`",
    ),
    Explanation(
        code="asks-first",
        kind="rule",
        meaning="the command is on the list, but a person must approve it first",
        why=_ASKED,
        what_to_do="Answer yes, approve in advance (`kakoi run --yes`), or use a command that only "
        "reads. `kakoi policy show` lists what needs approval, and why.",
        where="every policy",
        refused=("git commit -m x",),
        fine=("git status",),
    ),
    Explanation(
        code="blocked-by-list",
        kind="rule",
        meaning="the command is on a list of blocked commands",
        why="You put it there, or the project did, which can tighten the policy.",
        what_to_do="Do it in another way, or remove it from the list: `kakoi config show --origin` "
        "shows where `policy.blocked` comes from.",
        where="settings with `policy.blocked`",
    ),
)


def explanations(own: Policy | None = None) -> dict[str, Explanation]:
    """Every explanation by its code. `own`: a policy that may have its own rules."""
    found = {each.code: each for each in (*_errors(), *BUILT_IN, *_shipped_rules())}
    for rule in () if own is None else own.rules:
        # A rule without its own name is explained above.
        found.setdefault(rule.id, _rule(rule, f"{rule.origin}, in effect here"))
    return found


def _errors() -> Iterator[Explanation]:
    classes = [each for each in vars(errors).values() if inspect.isclass(each)]
    for kind in dict.fromkeys((*classes, NoPythonError, CloneError, PushError)):
        if issubclass(kind, KakoiError) and "code" in vars(kind):
            why, fix = CAUSES_AND_FIXES[kind.code]
            yield Explanation(
                code=kind.code,
                kind="error",
                meaning=" ".join((inspect.getdoc(kind) or "").split()),
                why=why,
                what_to_do=fix,
                where=f"raised as {kind.__module__}.{kind.__name__}",
            )


def _shipped_rules() -> Iterator[Explanation]:
    holds: dict[str, list[str]] = {}
    rules: dict[str, Rule] = {}
    for profile in PROFILES:
        for rule in load_policy(profile).rules:
            holds.setdefault(rule.id, []).append(profile)
            rules.setdefault(rule.id, rule)
    judging = [profile for profile in PROFILES if not load_policy(profile).is_open]
    for name, rule in rules.items():
        every = holds[name] == judging
        where = "every profile except open" if every else f"profile {', '.join(holds[name])}"
        yield _rule(rule, where)


def _in_a_sandbox(rule: Rule) -> str:
    if rule.confined is None:
        return ""
    return f" In a sandbox with a network of its own the verdict is {rule.confined.value}."


def _rule(rule: Rule, where: str) -> Explanation:
    return Explanation(
        code=rule.id,
        kind="rule",
        meaning=rule.reason.replace("{subject}", "…"),
        why=(_DENIED if rule.verdict.value == "deny" else _ASKED) + _in_a_sandbox(rule),
        what_to_do=rule.hint.replace("{subject}", "…") or "Do it in another way.",
        where=where,
        refused=rule.match,
        fine=rule.not_match,
    )
