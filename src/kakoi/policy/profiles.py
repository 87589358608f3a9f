"""Profiles → Policy: read the data, apply a user's lists, check the examples of every rule."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from kakoi._support.fields import FLAG, TEXTS, described
from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest, wrong
from kakoi.errors import ConfigurationError
from kakoi.policy.default_commands import ALIASES, COMMANDS, allowed_commands_text, category_of
from kakoi.policy.rules import REMEMBERED_RULES, AllowlistEntry, Policy, Rule, Verdict
from kakoi.policy.shipped_data import load_data

DEFAULT_PROFILE: Final = "coding-agent"
PROFILES: Final = ("coding-agent", "bash-executor", "shell", "open")
_RULE_KEYS: Final = (
    *("id", "verdict", "reason", "hint", "commands", "effects", "flags", "operands"),
    *("match", "not_match", "confined", "spares"),
)
# Effects that only a user's rule can match: code on a command line, and code in a file.
_EFFECTS_WITHOUT_RULES: Final = frozenset({"code-text", "runs-code-file"})


@dataclass(frozen=True, slots=True)
class AllowedCommands:
    """The `allowed_commands` setting: additions to the default list, removals, or another list."""

    use_default: bool = described(
        True,
        FLAG,
        "Start from the profile's list of programs; if false, `custom_list` is the whole list.",
    )
    additional: tuple[str, ...] = described(
        (),
        TEXTS,
        "Programs to allow in addition to the list; `docker:read` adds the forms that only read.",
    )
    exclude: tuple[str, ...] = described((), TEXTS, "Programs to remove from the list.")
    custom_list: tuple[str, ...] = described(
        (), TEXTS, "The list of programs if `use_default` is false."
    )


def load_policy(
    profile: str = DEFAULT_PROFILE,
    *,
    allowed: AllowedCommands | None = None,
    roots: Sequence[str] = (),
    origin: str = "call",
) -> Policy:
    """Return the policy of a profile with a user's lists applied. Denied programs stay denied.

    `open` refuses nothing: the sandbox is the only protection. Use it only where that is enough.

        box = Sandbox("docker", policy=load_policy("coding-agent", roots=["/srv/app"]))
    """
    policy = _shipped(profile)
    if allowed is not None:
        policy = _with_lists(policy, allowed, origin)
    return replace(policy, roots=tuple(roots)) if roots else policy


def tightened(policy: Policy, *, rules: Iterable[Mapping[str, Any]], origin: str) -> Policy:
    """Return `policy` with rules added.

    Raises ConfigurationError for a rule that allows, because strangers write the file of a project
    and it can only tighten the policy; and for a rule that could never apply.
    """
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
    if rule.id in REMEMBERED_RULES:
        raise ConfigurationError(
            f"{rule.origin}: rule {rule.id!r} has the name of a rule of kakoi's own",
            hint="give it another id, so that it asks even where the user allows that rule always",
        )
    if not rule.commands and not rule.effects:
        raise ConfigurationError(
            f"{rule.origin}: rule {rule.id!r} names neither `commands` nor `effects`",
            hint="say which commands it applies to: `commands: [git push]`",
        )
    for effect in sorted(rule.effects - _known_effects()):
        raise ConfigurationError(
            f"{rule.origin}: rule {rule.id!r}: unknown effect "
            f"{effect!r}{nearest(effect, _known_effects())}",
            hint=f"known effects: {', '.join(sorted(_known_effects()))}",
        )
    for pattern in rule.operands:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigurationError(
                f"{rule.origin}: rule {rule.id!r}: {pattern[:80]!r} in `operands` is not a valid "
                f"regular expression: {error}"
            ) from None


@lru_cache(maxsize=1)
def _known_effects() -> frozenset[str]:
    return _EFFECTS_WITHOUT_RULES.union(
        *(rule.effects for profile in PROFILES for rule in _shipped(profile).rules)
    )


def rule_from(data: Mapping[str, Any], origin: str) -> Rule:
    """Return the rule in `data`. Raises ConfigurationError for an unknown key or a wrong value."""
    name = str(data.get("id", "?"))
    where = f"{origin}: rule {name!r}"
    for key in data:
        if key not in _RULE_KEYS:
            raise ConfigurationError(
                f"{where}: unknown key {key!r}{nearest(key, _RULE_KEYS)}",
                hint=f"known keys: {', '.join(_RULE_KEYS)}",
            )
    for key in ("id", "verdict", "reason"):
        if not data.get(key):
            raise ConfigurationError(f"{where}: {key!r} is missing")
    verdict = _verdict(data["verdict"], where)
    confined = _verdict(data["confined"], where) if "confined" in data else None

    def words(key: str) -> list[str]:
        return _words(data[key], f"{where}: {key}") if key in data else []

    def texts(key: str) -> tuple[str, ...]:
        return tuple(_texts(data[key], f"{where}: {key}")) if key in data else ()

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
        confined=confined,
        spares=frozenset(words("spares")),
    )


def _verdict(value: object, where: str) -> Verdict:
    try:
        return Verdict(str(value))
    except ValueError:
        verdicts = tuple(v.value for v in Verdict)
        raise ConfigurationError(
            f"{where}: unknown verdict {str(value)!r}{nearest(str(value), verdicts)}",
            hint="use allow, ask or deny",
        ) from None


def check_examples(policy: Policy, rules: Iterable[Rule]) -> None:
    """Raise ConfigurationError if a rule does not match its own examples."""
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
    """Return the list of commands for the prompt, by category."""
    if policy.any_command:
        return "Any command. There is no list of allowed commands."
    return allowed_commands_text(
        {entry.command: entry.category for entry in policy.entries.values() if entry.category}
    )


def _finds(policy: Policy, rule: Rule, example: str) -> bool:
    from kakoi.policy.decide import decide  # Only the rules of a user are tried.

    return any(finding.rule == rule.id for finding in decide(policy, example).findings)


@lru_cache(maxsize=len(PROFILES))
def _shipped(profile: str) -> Policy:
    if profile not in PROFILES:
        raise ConfigurationError(
            f"unknown profile {profile!r}{nearest(profile, PROFILES)}",
            hint=f"the profiles are {', '.join(PROFILES)}",
        )
    data = _profile_data(profile)
    origins = (f"profile {profile}",)
    if data.get("open"):
        return Policy(profile, {}, (), any_command=True, unreadable=Verdict.ALLOW, origins=origins)
    shared = [rule_from(rule, "rules.yaml") for rule in _profile_data("rules")["rules"]]
    own = [rule_from(rule, f"{profile}.yaml") for rule in data.get("rules", ())]
    without = set(data.get("without", ()))
    entries = dict(_entries(data, profile))
    # A test checks their examples: they do not change from one start to the next.
    rules = tuple(rule for rule in (*shared, *own) if rule.id not in without)
    return Policy(
        name=profile,
        entries=entries,
        rules=rules,
        block_patterns=tuple(data.get("block_patterns", ())),
        origins=origins,
        trusts_sandbox=bool(data.get("trusts_sandbox")),
    )


@lru_cache(maxsize=len(PROFILES) + 1)
def _profile_data(name: str) -> Mapping[str, Any]:
    return load_data("profiles", only=name)


def _entries(data: Mapping[str, Any], profile: str) -> Iterable[tuple[str, AllowlistEntry]]:
    origin = f"profile {profile}"
    if data.get("catalogue"):
        for category, commands in COMMANDS.items():
            for command in commands:
                yield from _with_aliases(command, category, origin)
    groups = ((Verdict.ALLOW, "allow"), (Verdict.ASK, "ask"), (Verdict.DENY, "confined"))
    for verdict, key in groups:
        for group in data.get(key, ()):
            for command in _words(group["commands"], origin):
                confined = _verdict(group["confined"], origin) if "confined" in group else None
                confined = Verdict.ALLOW if key == "confined" else confined
                reason, hint = group["reason"], group.get("hint", "")
                yield command, AllowlistEntry(command, verdict, "", reason, hint, origin, confined)


def _with_aliases(command: str, category: str, origin: str) -> Iterable[tuple[str, AllowlistEntry]]:
    yield command, AllowlistEntry(command, Verdict.ALLOW, category, origin=origin)
    for alias in ALIASES.get(command, ()):
        reason = f"another name of {command}"
        yield alias, AllowlistEntry(alias, Verdict.ALLOW, "", reason, origin=origin)


def _with_lists(policy: Policy, allowed: AllowedCommands, origin: str) -> Policy:
    if policy.any_command:
        return _without_programs(policy, allowed, origin)
    entries = dict(policy.entries) if allowed.use_default else {}
    chosen = allowed.additional if allowed.use_default else allowed.custom_list
    rules = policy.rules
    for command in chosen:
        name = " ".join(command.split())
        if not name:
            raise ConfigurationError(f"{origin}: an allowed command is empty")
        if re.fullmatch(r"[\w.+-]+:[\w-]*", name):  # No program has such a name.
            rules = _with_reading_forms(name, entries, rules, origin)
            continue
        for each, entry in _with_aliases(name, category_of(name), origin):
            entries[each] = entry
    removed = [n for command in allowed.exclude for n in (command, *ALIASES.get(command, ()))]
    entries = {
        name: entry
        for name, entry in entries.items()
        # A program takes its subcommands with it: `go` and `go test`.
        if not any(name == each or name.startswith(f"{each} ") for each in removed)
    }
    return replace(policy, entries=entries, rules=rules, origins=(*policy.origins, origin))


def _with_reading_forms(
    name: str, entries: dict[str, AllowlistEntry], rules: tuple[Rule, ...], origin: str
) -> tuple[Rule, ...]:
    """Add the forms of `docker:read` to the entries; return the rules, which spare them."""
    known = _profile_data("additions")
    if name not in known:
        raise ConfigurationError(
            f"{origin}: unknown addition {name!r}{nearest(name, known)}",
            hint=f"the additions are {', '.join(sorted(known))}",
        )
    data = known[name]
    commands = [f"{data['program']} {form}" for form in data["forms"]]
    for command in commands:
        entries[command] = AllowlistEntry(command, reason=data["reason"], origin=origin)
    return tuple(
        replace(rule, spares=rule.spares.union(commands)) if rule.id == data.get("lifts") else rule
        for rule in rules
    )


def _without_programs(policy: Policy, allowed: AllowedCommands, origin: str) -> Policy:
    """Return a policy that allows any program, but not the excluded ones."""
    if not allowed.use_default:
        raise ConfigurationError(
            f"{origin}: the profile {policy.name} has no list of programs that `custom_list` could "
            "replace: it allows any",
            hint="choose another profile, or leave out `use_default: false`",
        )
    if not allowed.exclude:
        return policy
    excluded = [name for each in allowed.exclude for name in (each, *ALIASES.get(each, ()))]
    rule = {
        "id": "not-listed",
        "verdict": "deny",
        "commands": excluded,
        "reason": "`{subject}` is excluded by the settings",
        "hint": "Use another command, or ask your user to take it off `policy.exclude`.",
    }
    return tightened(policy, rules=[rule], origin=origin)


def _words(value: object, where: str) -> list[str]:
    """Return a list of names (`git push`), or split a text in which every word is a name."""
    return value.split() if isinstance(value, str) else _texts(value, where)


def _texts(value: object, where: str) -> list[str]:
    listed = [value] if isinstance(value, str) else value or []
    try:
        # `str.strip` refuses what is no text. Thousands of texts are checked before each command.
        if isinstance(listed, list) and all(map(str.strip, listed)):
            return listed
    except TypeError:
        pass
    raise wrong(where, value, "a text or a list of texts")
