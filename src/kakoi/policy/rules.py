"""Policy and Rule: what may run, as values.

A policy is a list of commands that may run (`ls`, `git status`), each with its verdict, and rules
for what their arguments do. Verdicts join by severity: deny > ask > allow.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kakoi._support.late import dataclass

if TYPE_CHECKING:
    from kakoi.policy.effects.programs import Invocation

_LONGEST_MATCHED: Final = 4096
# Rules whose questions a person can have answered from then on. One that asks for another reason
# (`git push --force`, `require_confirmation`) asks every time, and so do rules that settings add:
# they cannot have these names.
REMEMBERED_RULES: Final = frozenset({"asks-first", "git-changes", "forge-writes"})


class Verdict(StrEnum):
    """May it run?"""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def severity(self) -> int:
        """0, 1 or 2: the larger one wins."""
        return ("allow", "ask", "deny").index(self.value)


@dataclass(frozen=True, slots=True)
class AllowlistEntry:
    """A command on the list. One without a category is not shown in the prompt.

    `confined`: its verdict where a sandbox stands behind the command, if that is another one.
    """

    command: str
    verdict: Verdict = Verdict.ALLOW
    category: str = ""
    reason: str = ""
    hint: str = ""
    origin: str = ""
    confined: Verdict | None = None

    def verdict_where(self, *, confined: bool) -> Verdict:
        """Return the verdict; `confined`: a sandbox stands behind the command."""
        return self.confined if confined and self.confined is not None else self.verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """Conditions with a verdict. Every condition that is set must hold.

    `commands` are names such as `git push`; `effects` are kinds of `Effect`; `flags` are options in
    any spelling; `operands` are patterns, one of which must match a whole operand. `reason` is
    written for the reader of the refusal, and `hint` says what to do instead. `confined` is the
    verdict where a sandbox stands behind the command, if that is another one. `spares` are names
    such as `apt list` that the rule does not apply to.
    """

    id: str
    verdict: Verdict
    reason: str
    hint: str = ""
    commands: frozenset[str] = frozenset()
    effects: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    operands: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()
    origin: str = ""
    confined: Verdict | None = None
    spares: frozenset[str] = frozenset()

    def verdict_where(self, *, confined: bool) -> Verdict:
        """Return the verdict; `confined`: a sandbox stands behind the command."""
        return self.confined if confined and self.confined is not None else self.verdict

    def applies_to(self, invocation: "Invocation") -> bool:
        """Whether the command, its options and its operands match."""
        names = invocation.names
        if self.commands and self.commands.isdisjoint(names):
            return False
        if not self.spares.isdisjoint(names):
            return False
        arguments = invocation.arguments
        if self.flags and arguments.named(*self.flags) is None:
            return False
        return not self.operands or any(
            # No one types an operand this long, and a pattern could take minutes on it.
            len(word.shown) > _LONGEST_MATCHED or re.fullmatch(pattern, word.shown)
            for pattern in self.operands
            for word in arguments.operands
        )

    def catches(self, effect: str, invocation: "Invocation | None") -> bool:
        """Whether this rule applies to `effect` of `invocation` (None: of the shell itself)."""
        if effect not in self.effects:
            return False
        if invocation is None:
            return not (self.commands or self.flags or self.operands)
        return self.applies_to(invocation)


@dataclass(frozen=True, eq=False)
class Policy:
    """What may run.

    `roots`: the directories it may write; none means the working directory.
    `any_command`: a program does not have to be on the list.
    `unreadable`: the verdict on a text that cannot be parsed.
    `rules_for_all`: rules whose verdict is on every command and file access; without conditions.
    `directories`: the directories below which commands may work; None means anywhere.
    `trusts_sandbox`: where a sandbox stands behind a command, the verdicts for that hold.
    """

    name: str
    entries: Mapping[str, AllowlistEntry]
    rules: tuple[Rule, ...]
    roots: tuple[str, ...] = ()
    block_patterns: tuple[str, ...] = ()
    any_command: bool = False
    unreadable: Verdict = Verdict.DENY
    origins: tuple[str, ...] = field(default=())
    rules_for_all: tuple[Rule, ...] = ()
    directories: tuple[str, ...] | None = None
    trusts_sandbox: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nothing is refused unless a rule was added that refuses it."""
        return self.any_command and self.unreadable is Verdict.ALLOW

    @cached_property
    def rules_by_effect(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules with an effect, by effect."""
        by_effect: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for effect in rule.effects:
                by_effect.setdefault(effect, []).append(rule)
        return {effect: tuple(rules) for effect, rules in by_effect.items()}

    @cached_property
    def rules_by_program(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules without an effect, by the programs of their commands."""
        by_program: dict[str, list[Rule]] = {}
        for rule in self.rules:
            if not rule.effects:
                for program in {command.split()[0] for command in rule.commands}:
                    by_program.setdefault(program, []).append(rule)
        return {program: tuple(rules) for program, rules in by_program.items()}

    @cached_property
    def programs(self) -> frozenset[str]:
        """Every program that an entry or a rule names."""
        named = (*self.entries, *(c for rule in self.rules for c in rule.commands))
        return frozenset(name.split()[0] for name in named)

    def runnable_programs(self) -> frozenset[str] | None:
        """Return the programs that may run in some form, asked for or not; None means any program.

        A program that a rule denies whatever its arguments is not included.
        """
        if self.any_command:
            return None
        listed = {
            name.split()[0]
            for name, entry in self.entries.items()
            if not entry.verdict is entry.verdict_where(confined=True) is Verdict.DENY
        }
        return frozenset(listed - self.denied_programs)

    @cached_property
    def denied_programs(self) -> frozenset[str]:
        """Programs that a rule denies whatever their arguments are."""
        return frozenset(
            name
            for rule in self.rules
            if rule.verdict is Verdict.DENY and not (rule.effects or rule.flags or rule.operands)
            for name in rule.commands
        )

    @cached_property
    def programs_with_subcommands(self) -> frozenset[str]:
        """Programs with a subcommand that an entry or a rule names."""
        named = (*self.entries, *(c for rule in self.rules for c in (*rule.commands, *rule.spares)))
        return frozenset(name.split()[0] for name in named if " " in name)

    def only_shows_itself(self, invocation: "Invocation") -> bool:
        """`git --version`: its subcommands are on the list and it has none, so it does nothing."""
        return not invocation.subcommand and invocation.program in self.programs_with_subcommands

    def entry(self, names: tuple[str, ...]) -> AllowlistEntry | None:
        """Return the most exact entry for one of these names, or None."""
        for name in names:
            found = self.entries.get(name)
            if found is not None:
                return found
        return None
