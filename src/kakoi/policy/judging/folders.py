"""Which directory each command of a script runs in: `cd` is followed, subshells have their own.

Within its own list (`cd x && …`) a `cd` is assumed to succeed. After that list, the directory
before it also counts as possible, unless the new one certainly exists. A `cd` that can happen again
makes the directory unknown.
"""

import re
from collections import Counter
from dataclasses import replace

from kakoi._support.late import dataclass
from kakoi.policy.judging.paths import SCRATCH, absolute, within
from kakoi.policy.judging.values import Values
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import Word

_HOME = "/home/user"  # represents the home directory, which is always outside
_MOVING = ("cd", "pushd", "popd")
_MAX_OTHERS = 8
_LONGEST_PATH = 1000


@dataclass(frozen=True, slots=True)
class WorkingFolder:
    """Where a command runs; `others` are where it runs if an earlier `cd` did not happen."""

    path: str | None
    others: frozenset[str | None] = frozenset()


@dataclass(slots=True)
class _Subshell:
    """One subshell: where it is, where else it can be, and where this statement can leave it."""

    path: str | None
    others: frozenset[str | None] = frozenset()
    left: frozenset[str | None] = frozenset()
    statement: int = -1


class WorkingFolders:
    """The current directory of every subshell; None if it is unknown."""

    def __init__(self, start: str | None, script: Script) -> None:
        self._start = start
        self._by_scope: dict[tuple[int, ...], _Subshell] = {(): _Subshell(start)}
        commands = script.commands
        self._moves = any(_moves(command) for command in commands)
        self._lost = any(_moves(c) and c.function for c in commands) or any(
            map(_trap_moves, commands)
        )
        self._lost_in_loops = any(_moves(c) and c.repeats for c in commands)
        # From this command on, a `cd` on its own ends the script if it fails.
        ends = (i for i, c in enumerate(commands) if c.certain and not c.scope and _sets(c, "-"))
        self._ends_early = next(ends, len(commands))
        if any(_sets(command, "+") for command in commands):
            self._ends_early = len(commands)
        self._sizes = Counter(command.statement for command in commands)
        self._text = script.text

    def of(self, command: SimpleCommand) -> WorkingFolder:
        """Return where the command runs. A new subshell starts where its parent is."""
        # A function runs wherever it is called.
        if self._lost or (command.function and self._moves):
            return WorkingFolder(None)
        if self._lost_in_loops and command.repeats:
            return WorkingFolder(None)
        subshell = self._subshell(command)
        return WorkingFolder(subshell.path, subshell.others - {subshell.path})

    def _subshell(self, command: SimpleCommand) -> _Subshell:
        known = command.scope
        while known not in self._by_scope:
            known = known[:-1]
        subshell = self._by_scope[known]
        if known != command.scope:
            subshell = replace(subshell)
            self._by_scope[command.scope] = subshell
        if subshell.statement != command.statement:
            # Within its own list a `cd` is assumed to succeed; after it, it may have failed.
            subshell.others = _few(subshell.others | subshell.left)
            subshell.left, subshell.statement = frozenset(), command.statement
        return subshell

    def follow(self, command: SimpleCommand, index: int, values: Values) -> None:
        """Follow a `cd`."""
        if not _moves(command):
            return
        subshell = self._subshell(command)
        variants = list(values.variants(command.words[1:], index))
        name = command.words[0].static
        lost = (
            name == "popd"
            or command.repeats
            or (name == "pushd" and len(command.words) != 2)
            or len({_target(words, subshell.path) for words in variants}) != 1
        )
        before = subshell.path
        subshell.path = None if lost else _target(variants[0], before)
        ends = index > self._ends_early and self._stands_alone(command)
        surely = command.certain and (ends or self._exists(subshell.path))
        if not surely:
            subshell.left = _few(subshell.left | subshell.others | {before})
        subshell.others = _few(
            frozenset(_target(words, other) for other in subshell.others for words in variants)
        )

    def _stands_alone(self, command: SimpleCommand) -> bool:
        """Whether the shell notices if it fails: it is not in a list, and not after `!`."""
        negated = self._text[: command.start].rstrip().endswith("!")
        return self._sizes[command.statement] == 1 and not negated

    def _exists(self, path: str | None) -> bool:
        """Whether it certainly exists: the first directory, one above it, or a temporary one."""
        above = path is not None and self._start is not None and within(self._start, path)
        return above or path in ("/", *SCRATCH)


def _few(folders: frozenset[str | None]) -> frozenset[str | None]:
    return folders if len(folders) <= _MAX_OTHERS else frozenset({None})


def _sets(command: SimpleCommand, sign: str) -> bool:
    """`set -e`, or `set +e` and anything else that can undo it."""
    words = [word.static or "+" for word in command.words]
    options = words[1:2] if sign == "-" else words[1:]
    pattern = re.compile(re.escape(sign) + (r"[a-zA-Z]*e" if sign == "-" else ""))
    return words[:1] == ["set"] and any(map(pattern.match, options))


def _trap_moves(command: SimpleCommand) -> bool:
    trap = bool(command.words) and command.words[0].static == "trap"
    return trap and any(re.search(r"\b(?:cd|pushd|popd)\b", w.shown) for w in command.words[1:])


def _moves(command: SimpleCommand) -> bool:
    return bool(command.words) and command.words[0].static in _MOVING


def _target(words: tuple[Word, ...], before: str | None) -> str | None:
    operands = [word for word in words if not (word.static or "").startswith("-")]
    if any(word.static == "-" for word in words) or len(operands) > 1:
        return None
    if not operands or operands[0].tilde:
        return _HOME
    path = operands[0].shape
    if path is None or (before is None and not path.startswith("/")):
        return None
    folder = absolute(path, before or "/")
    return folder if len(folder) <= _LONGEST_PATH else None
