"""Every error and every rule in words: what it means, why, and what to do.

A rule explains itself: reason, way out and examples are part of it. An error's meaning is the
docstring of its class. The rest is said here, once.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kakoi import errors
from kakoi.errors import KakoiError
from kakoi.policy.profiles import PROFILES, load_policy
from kakoi.policy.rules import Policy, Rule
from kakoi.runner.delivery import NoPythonError
from kakoi.tasks.checkout import CloneError
from kakoi.tasks.delivery import PushError

# Why an error is raised, and what to do about it, by its code.
CAUSES_AND_WAYS_OUT: Final[Mapping[str, tuple[str, str]]] = {
    "KAKOI_ERROR": (
        "Code that wants to catch everything of kakoi's catches this one; what is raised is one "
        "of the others.",
        "Read the message; `kakoi doctor` says what this machine lacks.",
    ),
    "CONFIGURATION_ERROR": (
        "Settings are read strictly: a slip that is passed over would be a weaker wall.",
        "Mend what the message names: `kakoi config show --origin` says which value holds and "
        "where it comes from, `kakoi config path` which files are read.",
    ),
    "COMMAND_REFUSED": (
        "A rule of the policy denies something that the command would do. Nothing has run.",
        "Do it in another way: `kakoi check COMMAND` underlines the part that is refused, and "
        "`kakoi explain RULE` says more about the rule.",
    ),
    "COMMAND_NOT_ALLOWED": (
        "What nobody has listed, nobody has thought about. Nothing has run.",
        "Use a command that `kakoi policy show` lists, or add the program to `policy.additional` "
        "in your settings (`kakoi config path`).",
    ),
    "BLOCKED_PATTERN": (
        "The profile or your settings refuse that text wherever it stands. Nothing has run.",
        "Write the command without the text that the message names; `policy.block_patterns` of "
        "`kakoi config show --origin` says who asked.",
    ),
    "EMPTY_COMMAND": (
        "An empty text is a slip of the caller; to run it would hide that.",
        "Give a command: `kakoi run 'ls | wc -l'`.",
    ),
    "USER_CANCELLED": (
        "The policy wants a person to decide; no answer is a no. Nothing has run.",
        "Ask again when somebody is there, say yes beforehand (`kakoi run --yes`), or use a "
        "command that needs no answer (`kakoi check COMMAND`).",
    ),
    "AUDIT_FAILED": (
        "What happens is recorded before it happens; without a record nothing runs.",
        "Make the log writable, or name another: KAKOI_AUDIT_FILE, or `audit.file` in your "
        "settings. `kakoi audit verify` says whether the log is whole.",
    ),
    "COMMAND_FAILED": (
        "The command exited with a status other than 0, where its success was promised.",
        "Look at what the command wrote and at its exit status, which the error carries in "
        "`details`.",
    ),
    "SOURCE_FAILED": (
        "The place that tasks come from was not there, refused, or answered with something else.",
        "Read the message. The address, the token and what the token may do have to belong "
        "together.",
    ),
    "QUEUE_FAILED": (
        "The queue of tasks was not there, or somebody else works on the task by now.",
        "Read the message. A file has to be writable, a broker to be reached; a task whose lease "
        "ran out is done by whoever took it next.",
    ),
    "MODEL_FAILED": (
        "The model's server refused the question, was not there, or answered with something else.",
        "Read the message. `agent.model`, `agent.base_url` and the variable of the key have to "
        "belong together (`kakoi config show`).",
    ),
    "EXECUTION_FAILED": (
        "The command could not be started, or was lost on the way.",
        "Read the message. If it names no cause, `kakoi doctor` tries every sandbox of this "
        "machine.",
    ),
    "TIMED_OUT": (
        "The limit is that of the call, or `execution.timeout_seconds`.",
        "Give it more time (`kakoi run --timeout SECONDS`), or run less at once.",
    ),
    "SANDBOX_FAILED": (
        "A container was removed, a connection broke, or an engine did not do its part.",
        "Run `kakoi doctor`: it tries every sandbox and names the fix. The command itself may be "
        "run again.",
    ),
    "ENVIRONMENT_UNAVAILABLE": (
        "Instead of a weaker place nothing is taken, unless you name one.",
        "Run `kakoi doctor` for what is missing, or choose another sandbox: `kakoi run --sandbox "
        "NAME`, `sandbox.type` or `sandbox.fallback`.",
    ),
    "IMAGE_PULL_FAILED": (
        "The engine could not fetch it: the name, the network or the login is wrong.",
        "Look at the name (`kakoi config show --origin`), then try it: `docker pull IMAGE`.",
    ),
    "NO_PYTHON": (
        "Most sandboxes run a small program of kakoi's that needs python3, 3.8 or newer.",
        "Take an image with python3; in Docker and Podman kakoi does without it by itself.",
    ),
    "LIMIT_NOT_KEPT": (
        "A limit was set, and nothing on this machine would keep it in this sandbox.",
        "`kakoi doctor` says what keeps which limit; take another sandbox, or set it to `none`.",
    ),
    "CLONE_FAILED": (
        "The address, the branch or the token is wrong, or the network does not reach the server.",
        "Try it by hand: `git ls-remote ADDRESS`. Tokens are read from "
        "GITHUB_PERSONAL_ACCESS_TOKEN and GITLAB_PERSONAL_ACCESS_TOKEN.",
    ),
    "PUSH_FAILED": (
        "The token may not write there, the branch has moved on meanwhile, or what the task made "
        "is no history that builds on the branch it began from.",
        "Try it by hand: `git push --dry-run ADDRESS HEAD:BRANCH`. The token needs the right to "
        "write; nothing is ever pushed by force.",
    ),
    "EXECUTION_TIMEOUT": (
        "The limit is that of the call, `sandbox.docker.timeout` or `sandbox.host.timeout`.",
        "Give it more time (`kakoi run --timeout SECONDS`), or run less at once.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`kind` is error or rule. `where` a rule holds, or which class an error is."""

    code: str
    kind: str
    meaning: str
    why: str
    what_to_do: str
    where: str = ""
    refused: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()


_DENIED: Final = "The policy says no. Nothing has run, and nobody is asked."
_ASKED: Final = "The policy wants a person to decide. Without an answer nothing runs."

# Findings that are made without a rule, because they hold under every policy.
BUILT_IN: Final[tuple[Explanation, ...]] = (
    Explanation(
        code="unreadable",
        kind="rule",
        meaning="the text cannot be read for certain: it is no valid bash, too long, too deeply "
        "nested, or holds characters that hide something",
        why="What cannot be read cannot be judged, so it does not run.",
        what_to_do="Write it as plain, valid bash; `kakoi check` points at the place.",
        where="every policy",
        refused=("echo 'never closed", "if true; then ls"),
        fine=("echo 'closed'",),
    ),
    Explanation(
        code="empty-command",
        kind="rule",
        meaning="there is nothing to run",
        why="An empty text is a slip of the caller; to run it would hide that.",
        what_to_do="Give a command.",
        where="every policy",
        refused=("", "# only a remark"),
        fine=("true",),
    ),
    Explanation(
        code="blocked-pattern",
        kind="rule",
        meaning="the text holds something that the policy refuses wherever it stands",
        why="Some settings refuse plain texts, such as a backquote, without looking further.",
        what_to_do="Write the command without it; `kakoi config show --origin` says who asked.",
        where="policies with `block_patterns`, such as the profile bash-executor",
    ),
    Explanation(
        code="asks-first",
        kind="rule",
        meaning="the command is on the list, to be run after a person has agreed",
        why=_ASKED,
        what_to_do="Answer yes, say it beforehand (`kakoi run --yes`), or use a command that only "
        "reads. `kakoi policy show` lists what is asked about, and why.",
        where="every policy",
        refused=("git commit -m x",),
        fine=("git status",),
    ),
    Explanation(
        code="blocked-by-list",
        kind="rule",
        meaning="the command is on a list of blocked commands",
        why="Somebody put it there: you, or the project, which can tighten the policy.",
        what_to_do="Do it in another way, or take it off the list: `kakoi config show --origin` "
        "says where `policy.blocked` comes from.",
        where="settings with `policy.blocked`",
    ),
)


def explanations(own: Policy | None = None) -> dict[str, Explanation]:
    """Everything there is to explain, by its code. `own` is a policy with rules of its own."""
    found = {each.code: each for each in (*_errors(), *BUILT_IN, *_shipped_rules())}
    for rule in () if own is None else own.rules:
        # A rule without a name of its own is explained above.
        found.setdefault(rule.id, _rule(rule, f"{rule.origin}, which holds here"))
    return found


def _errors() -> Iterator[Explanation]:
    classes = [each for each in vars(errors).values() if inspect.isclass(each)]
    for kind in dict.fromkeys((*classes, NoPythonError, CloneError, PushError)):
        if issubclass(kind, KakoiError) and "code" in vars(kind):
            why, way = CAUSES_AND_WAYS_OUT[kind.code]
            yield Explanation(
                code=kind.code,
                kind="error",
                meaning=" ".join((inspect.getdoc(kind) or "").split()),
                why=why,
                what_to_do=way,
                where=f"raised as {kind.__module__}.{kind.__name__}",
            )


def _shipped_rules() -> Iterator[Explanation]:
    holds: dict[str, list[str]] = {}
    rules: dict[str, Rule] = {}
    for profile in PROFILES:
        for rule in load_policy(profile).rules:
            holds.setdefault(rule.id, []).append(profile)
            rules.setdefault(rule.id, rule)
    for name, rule in rules.items():
        every = len(holds[name]) == len(PROFILES)
        yield _rule(rule, "every profile" if every else f"profile {', '.join(holds[name])}")


def _rule(rule: Rule, where: str) -> Explanation:
    return Explanation(
        code=rule.id,
        kind="rule",
        meaning=rule.reason.replace("{subject}", "…"),
        why=_DENIED if rule.verdict.value == "deny" else _ASKED,
        what_to_do=rule.hint.replace("{subject}", "…") or "Do it in another way.",
        where=where,
        refused=rule.match,
        fine=rule.not_match,
    )
