"""Policy and Rule: what may run, as values.

A policy is a list of commands that may run (`ls`, `git status`), each with its verdict, and rules
for what their arguments do. Verdicts join by severity: deny > ask > allow.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from kakoi.policy.programs import Invocation

_LONGEST_MATCHED: Final = 4096


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
class Entry:
    """A command on the list. Hidden ones are allowed without being advertised in the prompt."""

    command: str
    verdict: Verdict = Verdict.ALLOW
    category: str = ""
    reason: str = ""
    hint: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition with a verdict. Every condition that is given must hold.

    `commands` are names such as `git push`; `effects` are words of programs.py; `flags` are
    options in any spelling; `operands` are patterns, of which one must match a whole operand.
    `reason` is written for the reader of the refusal and `hint` names the way out.
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

    def applies_to(self, invocation: Invocation) -> bool:
        """Whether the command, its options and its operands are the ones meant."""
        if self.commands and self.commands.isdisjoint(invocation.names):
            return False
        arguments = invocation.arguments
        if self.flags and arguments.named(*self.flags) is None:
            return False
        return not self.operands or any(
            # Nobody types so long an operand, and a pattern could take minutes over it.
            len(word.shown) > _LONGEST_MATCHED or re.fullmatch(pattern, word.shown)
            for pattern in self.operands
            for word in arguments.operands
        )

    def catches(self, effect: str, invocation: Invocation | None) -> bool:
        """Whether `effect` of `invocation` (None: of the shell itself) falls under this rule."""
        if effect not in self.effects:
            return False
        if invocation is None:
            return not (self.commands or self.flags or self.operands)
        return self.applies_to(invocation)


@dataclass(frozen=True, eq=False)
class Policy:
    """What may run. `roots` are the directories it may write; none means the one it runs in."""

    name: str
    entries: Mapping[str, Entry]
    rules: tuple[Rule, ...]
    roots: tuple[str, ...] = ()
    block_patterns: tuple[str, ...] = ()
    any_command: bool = False
    origins: tuple[str, ...] = field(default=())

    @cached_property
    def rules_by_effect(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules that speak of an effect, by that effect."""
        by_effect: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for effect in rule.effects:
                by_effect.setdefault(effect, []).append(rule)
        return {effect: tuple(rules) for effect, rules in by_effect.items()}

    @cached_property
    def rules_by_program(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules without an effect, by the program of the commands they name."""
        by_program: dict[str, list[Rule]] = {}
        for rule in self.rules:
            if not rule.effects:
                for program in {command.split()[0] for command in rule.commands}:
                    by_program.setdefault(program, []).append(rule)
        return {program: tuple(rules) for program, rules in by_program.items()}

    @cached_property
    def programs(self) -> frozenset[str]:
        """Every program that an entry or a rule knows by name."""
        named = (*self.entries, *(c for rule in self.rules for c in rule.commands))
        return frozenset(name.split()[0] for name in named)

    def runnable_programs(self) -> frozenset[str] | None:
        """The programs that may run in some way, asked for or not; None: any may.

        One that a rule denies whatever its arguments is none of them.
        """
        if self.any_command:
            return None
        listed = {
            name.split()[0]
            for name, entry in self.entries.items()
            if entry.verdict is not Verdict.DENY
        }
        denied = {
            name
            for rule in self.rules
            if rule.verdict is Verdict.DENY and not (rule.effects or rule.flags or rule.operands)
            for name in rule.commands
        }
        return frozenset(listed - denied)

    @cached_property
    def programs_with_subcommands(self) -> frozenset[str]:
        """Programs of which an entry or a rule names a subcommand."""
        named = (*self.entries, *(c for rule in self.rules for c in rule.commands))
        return frozenset(name.split()[0] for name in named if " " in name)

    def only_shows_itself(self, invocation: Invocation) -> bool:
        """`git --version`: subcommands are on the list, and none is given, so nothing is done."""
        return not invocation.subcommand and invocation.program in self.programs_with_subcommands

    def entry(self, names: tuple[str, ...]) -> Entry | None:
        """The most exact entry for one of these names."""
        for name in names:
            found = self.entries.get(name)
            if found is not None:
                return found
        return None
