"""Which directory each command of a script runs in: `cd` is followed, subshells keep their own.

Within its own list (`cd x && …`) a `cd` is taken to have succeeded. Behind it, the directory it
came from is kept in mind as well, unless it exists for certain. One that may happen again leaves
the directory unknown.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

from kakoi.policy.judging.paths import SCRATCH, absolute, within
from kakoi.policy.judging.values import Values
from kakoi.policy.parsing.script import Command, Script
from kakoi.policy.words import Word

_HOME = "/home/user"  # stands for the home directory: outside, wherever it is
_MOVING = ("cd", "pushd", "popd")
_MAX_OTHERS = 8
_LONGEST_PATH = 1000


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a command runs; `others` are where it may run if an earlier `cd` did not happen."""

    path: str | None
    others: frozenset[str | None] = frozenset()


@dataclass(slots=True)
class _Place:
    """One subshell: where it is, where else it may be, and where this statement may leave it."""

    path: str | None
    others: frozenset[str | None] = frozenset()
    left: frozenset[str | None] = frozenset()
    statement: int = -1


class Folders:
    """The current directory of every subshell; None where nobody can tell."""

    def __init__(self, start: str | None, script: Script) -> None:
        self._start = start
        self._by_scope: dict[tuple[int, ...], _Place] = {(): _Place(start)}
        commands = script.commands
        self._moves = any(_moves(command) for command in commands)
        self._lost = any(_moves(c) and c.function for c in commands) or any(
            map(_trap_moves, commands)
        )
        self._lost_in_loops = any(_moves(c) and c.repeats for c in commands)
        # From here on a `cd` that stands alone ends the script if it fails.
        ends = (i for i, c in enumerate(commands) if c.certain and not c.scope and _sets(c, "-"))
        self._ends_early = next(ends, len(commands))
        if any(_sets(command, "+") for command in commands):
            self._ends_early = len(commands)
        self._sizes = Counter(command.statement for command in commands)
        self._text = script.text

    def of(self, command: Command) -> Folder:
        """Where the command runs. A new subshell starts where its parent is."""
        # A function runs wherever it is called.
        if self._lost or (command.function and self._moves):
            return Folder(None)
        if self._lost_in_loops and command.repeats:
            return Folder(None)
        place = self._place(command)
        return Folder(place.path, place.others - {place.path})

    def _place(self, command: Command) -> _Place:
        known = command.scope
        while known not in self._by_scope:
            known = known[:-1]
        place = self._by_scope[known]
        if known != command.scope:
            place = replace(place)
            self._by_scope[command.scope] = place
        if place.statement != command.statement:
            # Within its own list a `cd` is taken to have succeeded; behind it, it may not have.
            place.others = _few(place.others | place.left)
            place.left, place.statement = frozenset(), command.statement
        return place

    def follow(self, command: Command, index: int, values: Values) -> None:
        """Take note of a `cd`."""
        if not _moves(command):
            return
        place = self._place(command)
        variants = list(values.variants(command.words[1:], index))
        name = command.words[0].static
        lost = (
            name == "popd"
            or command.repeats
            or (name == "pushd" and len(command.words) != 2)
            or len({_target(words, place.path) for words in variants}) != 1
        )
        before = place.path
        place.path = None if lost else _target(variants[0], before)
        ends = index > self._ends_early and self._stands_alone(command)
        surely = command.certain and (ends or self._exists(place.path))
        if not surely:
            place.left = _few(place.left | place.others | {before})
        place.others = _few(
            frozenset(_target(words, other) for other in place.others for words in variants)
        )

    def _stands_alone(self, command: Command) -> bool:
        """Whether the shell takes notice that it fails: not in a list, and not behind `!`."""
        negated = self._text[: command.start].rstrip().endswith("!")
        return self._sizes[command.statement] == 1 and not negated

    def _exists(self, path: str | None) -> bool:
        """Whether the directory is there for certain: ours, one above it, or a temporary one."""
        above = path is not None and self._start is not None and within(self._start, path)
        return above or path in ("/", *SCRATCH)


def _few(folders: frozenset[str | None]) -> frozenset[str | None]:
    return folders if len(folders) <= _MAX_OTHERS else frozenset({None})


def _sets(command: Command, sign: str) -> bool:
    """`set -e`, or `set +e` and anything else that may undo it."""
    words = [word.static or "+" for word in command.words]
    options = words[1:2] if sign == "-" else words[1:]
    pattern = re.compile(re.escape(sign) + (r"[a-zA-Z]*e" if sign == "-" else ""))
    return words[:1] == ["set"] and any(map(pattern.match, options))


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
    folder = absolute(path, before or "/")
    return folder if len(folder) <= _LONGEST_PATH else None
