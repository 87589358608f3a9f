"""Which directory each command of a script runs in: `cd` is followed, subshells keep their own.

Within its own list (`cd x && …`) a `cd` is taken to have succeeded. Behind it, the directory it
came from is kept in mind as well. One that may happen again leaves the directory unknown.
"""

import re
from dataclasses import dataclass

from kakoi.policy.judging.paths import absolute
from kakoi.policy.judging.values import Values
from kakoi.policy.parsing.script import Command, Script
from kakoi.policy.words import Word

_HOME = "/home/user"  # stands for the home directory: outside, wherever it is
_MOVING = ("cd", "pushd", "popd")


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a command runs; `maybe` is where it runs if an earlier `cd` did not happen."""

    path: str | None
    maybe: str | None = None
    doubtful: bool = False


class Folders:
    """The current directory of every subshell; None where nobody can tell."""

    def __init__(self, start: str | None, script: Script) -> None:
        self._by_scope: dict[tuple[int, ...], str | None] = {(): start}
        # The last `cd` of each subshell: where it was before, the statement, and whether certain.
        self._last: dict[tuple[int, ...], tuple[str | None, int, bool]] = {}
        commands = script.commands
        self._moves = any(_moves(command) for command in commands)
        self._lost = any(_moves(c) and c.function for c in commands) or any(
            map(_trap_moves, commands)
        )
        self._lost_in_loops = any(_moves(c) and c.repeats for c in commands)

    def of(self, command: Command) -> Folder:
        """Where the command runs. A new subshell starts where its parent is."""
        # A function runs wherever it is called.
        if self._lost or (command.function and self._moves):
            return Folder(None)
        if self._lost_in_loops and command.repeats:
            return Folder(None)
        scope = known = command.scope
        while known not in self._by_scope:
            known = known[:-1]
        path = self._by_scope.setdefault(scope, self._by_scope[known])
        before, statement, certain = self._last.setdefault(
            scope, self._last.get(known, (None, command.statement, True))
        )
        if statement == command.statement:
            return Folder(path)
        return Folder(path, before, doubtful=not certain)

    def follow(self, command: Command, index: int, values: Values) -> None:
        """Take note of a `cd`."""
        if not _moves(command):
            return
        before = self.of(command).path
        targets = {_target(words, before) for words in values.variants(command.words[1:], index)}
        after = targets.pop() if len(targets) == 1 else None
        name = command.words[0].static
        if name == "popd" or command.repeats or (name == "pushd" and len(command.words) != 2):
            after = None
        self._by_scope[command.scope] = after
        self._last[command.scope] = (before, command.statement, command.certain)


def _trap_moves(command: Command) -> bool:
    trap = bool(command.words) and command.words[0].static == "trap"
    return trap and any(re.search(r"\b(?:cd|pushd|popd)\b", w.shown) for w in command.words[1:])


def _moves(command: Command) -> bool:
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
    return absolute(path, before or "/")
