"""Profiles → Policy: read the data, apply a user's lists, check every rule's examples."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from kakoi.errors import ConfigurationError
from kakoi.policy.catalogue import ALIASES, COMMANDS, allowed_commands_text, category_of
from kakoi.policy.decide import decide
from kakoi.policy.programs import load_data
from kakoi.policy.rules import Entry, Policy, Rule, Verdict
from kakoi.sections import nearest, wrong

DEFAULT_PROFILE: Final = "coding-agent"
PROFILES: Final = ("coding-agent", "bash-executor", "shell")
_RULE_KEYS: Final = frozenset(
    "id verdict reason hint commands effects flags operands match not_match".split()
)
# No rule of ours minds them; one of a user's may: code on a command line, and in a file.
_EFFECTS_WITHOUT_RULES: Final = frozenset({"code-text", "runs-code-file"})


@dataclass(frozen=True, slots=True)
class AllowedCommands:
    """Spec A's `allowed_commands` block: additions to the default, removals, or another list."""

    use_default: bool = True
    additional: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    custom_list: tuple[str, ...] = ()


def load_policy(
    profile: str = DEFAULT_PROFILE,
    *,
    allowed: AllowedCommands | None = None,
    roots: Sequence[str] = (),
    origin: str = "call",
) -> Policy:
    """The policy of a profile with a user's lists applied. Denied programs stay denied."""
    policy = _shipped(profile)
    if allowed is not None:
        policy = _with_lists(policy, allowed, origin)
    return replace(policy, roots=tuple(roots)) if roots else policy


def tightened(policy: Policy, *, rules: Iterable[Mapping[str, Any]], origin: str) -> Policy:
    """`policy` with rules added. One that allows is an error, for a project's own file is written
    by strangers and can only tighten; so is one that could never apply."""
    added = tuple(rule_from(rule, origin) for rule in rules)
    for rule in added:
        _check_tightens(rule)
    tighter = replace(policy, rules=policy.rules + added, origins=(*policy.origins, origin))
    check_examples(tighter, added)
    return tighter


def _check_tightens(rule: Rule) -> None:
    if rule.verdict is Verdict.ALLOW:
        raise ConfigurationError(
            f"{rule.origin}: rule {rule.id!r} allows, but this file can only tighten the policy",
            hint="use `ask` or `deny`, or put the rule into your own settings",
        )
    if not rule.commands and not rule.effects:
        raise ConfigurationError(
            f"{rule.origin}: rule {rule.id!r} names neither `commands` nor `effects`",
            hint="say which commands it is about: `commands: [git push]`",
        )
    for effect in sorted(rule.effects - _known_effects()):
        raise ConfigurationError(
            f"{rule.origin}: rule {rule.id!r}: there is no effect "
            f"{effect!r}{nearest(effect, _known_effects())}",
            hint=f"known are: {', '.join(sorted(_known_effects()))}",
        )
    for pattern in rule.operands:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigurationError(
                f"{rule.origin}: rule {rule.id!r}: {pattern[:80]!r} of `operands` is no regular "
                f"expression: {error}"
            ) from None


@lru_cache(maxsize=1)
def _known_effects() -> frozenset[str]:
    return _EFFECTS_WITHOUT_RULES.union(
        *(rule.effects for profile in PROFILES for rule in _shipped(profile).rules)
    )


def rule_from(data: Mapping[str, Any], origin: str) -> Rule:
    """A rule from its settings, strictly: an unknown key is an error that names the nearest one."""
    name = str(data.get("id", "?"))
    where = f"{origin}: rule {name!r}"
    for key in data:
        if key not in _RULE_KEYS:
            raise ConfigurationError(f"{where}: unknown key {key!r}{nearest(key, _RULE_KEYS)}")
    for key in ("id", "verdict", "reason"):
        if not data.get(key):
            raise ConfigurationError(f"{where}: {key!r} is missing")
    try:
        verdict = Verdict(data["verdict"])
    except ValueError:
        verdicts = tuple(v.value for v in Verdict)
        given = str(data["verdict"])
        raise ConfigurationError(
            f"{where}: verdict is {given!r}{nearest(given, verdicts)}",
            hint="use allow, ask or deny",
        ) from None

    def words(key: str) -> list[str]:
        return _words(data.get(key), f"{where}: {key}")

    def texts(key: str) -> tuple[str, ...]:
        return tuple(_texts(data.get(key), f"{where}: {key}"))

    return Rule(
        id=name,
        verdict=verdict,
        reason=str(data["reason"]),
        hint=str(data.get("hint", "")),
        commands=frozenset(" ".join(each.split()) for each in words("commands")),
        effects=frozenset(words("effects")),
        flags=frozenset(words("flags")),
        operands=texts("operands"),
        match=texts("match"),
        not_match=texts("not_match"),
        origin=origin,
    )


def check_examples(policy: Policy, rules: Iterable[Rule]) -> None:
    """Hold each rule against its own examples: a rule that misses one means something else."""
    for rule in rules:
        for example in rule.match:
            if not _finds(policy, rule, example):
                raise ConfigurationError(
                    f"{rule.origin}: rule {rule.id!r} does not match its example {example!r}"
                )
        for example in rule.not_match:
            if _finds(policy, rule, example):
                raise ConfigurationError(
                    f"{rule.origin}: rule {rule.id!r} matches {example!r}, which it must not"
                )


def prompt_commands(policy: Policy) -> str:
    """The list of commands for the prompt: what is advertised, by category."""
    return allowed_commands_text(
        {entry.command: entry.category for entry in policy.entries.values() if entry.category}
    )


def _finds(policy: Policy, rule: Rule, example: str) -> bool:
    return any(finding.rule == rule.id for finding in decide(policy, example).findings)


@lru_cache(maxsize=len(PROFILES))
def _shipped(profile: str) -> Policy:
    if profile not in PROFILES:
        raise ConfigurationError(
            f"there is no profile {profile!r}{nearest(profile, PROFILES)}",
            hint=f"the profiles are {', '.join(PROFILES)}",
        )
    data = _profile_data(profile)
    shared = [rule_from(rule, "rules.yaml") for rule in _profile_data("rules")["rules"]]
    own = [rule_from(rule, f"{profile}.yaml") for rule in data.get("rules", ())]
    without = set(data.get("without", ()))
    entries = dict(_entries(data, profile))
    # Held against their examples by a test: they do not change between two starts.
    rules = tuple(rule for rule in (*shared, *own) if rule.id not in without)
    return Policy(
        name=profile,
        entries=entries,
        rules=rules,
        block_patterns=tuple(data.get("block_patterns", ())),
        origins=(f"profile {profile}",),
    )


@lru_cache(maxsize=len(PROFILES) + 1)
def _profile_data(name: str) -> Mapping[str, Any]:
    return load_data("profiles", only=name)


def _entries(data: Mapping[str, Any], profile: str) -> Iterable[tuple[str, Entry]]:
    origin = f"profile {profile}"
    if data.get("catalogue"):
        for category, commands in COMMANDS.items():
            for command in commands:
                yield from _with_aliases(command, category, origin)
    for verdict, key in ((Verdict.ALLOW, "allow"), (Verdict.ASK, "ask")):
        for group in data.get(key, ()):
            for command in _words(group["commands"], origin):
                yield (
                    command,
                    Entry(command, verdict, "", group["reason"], group.get("hint", ""), origin),
                )


def _with_aliases(command: str, category: str, origin: str) -> Iterable[tuple[str, Entry]]:
    yield command, Entry(command, Verdict.ALLOW, category, origin=origin)
    for alias in ALIASES.get(command, ()):
        reason = f"another name of {command}"
        yield alias, Entry(alias, Verdict.ALLOW, "", reason, origin=origin)


def _with_lists(policy: Policy, allowed: AllowedCommands, origin: str) -> Policy:
    entries = dict(policy.entries) if allowed.use_default else {}
    chosen = allowed.additional if allowed.use_default else allowed.custom_list
    for command in chosen:
        name = " ".join(command.split())
        if not name:
            raise ConfigurationError(f"{origin}: an allowed command is empty")
        for each, entry in _with_aliases(name, category_of(name), origin):
            entries[each] = entry
    removed = [n for command in allowed.exclude for n in (command, *ALIASES.get(command, ()))]
    entries = {
        name: entry
        for name, entry in entries.items()
        # With a program go its subcommands: `go` and `go test`.
        if not any(name == each or name.startswith(f"{each} ") for each in removed)
    }
    return replace(policy, entries=entries, origins=(*policy.origins, origin))


def _words(given: object, where: str) -> list[str]:
    """A list of names (`git push`), or a text of several that are one word each."""
    return given.split() if isinstance(given, str) else _texts(given, where)


def _texts(given: object, where: str) -> list[str]:
    listed = [given] if isinstance(given, str) else given or []
    if not isinstance(listed, list) or not all(
        isinstance(each, str) and each.strip() for each in listed
    ):
        raise wrong(where, given, "a text or a list of texts")
    return listed
