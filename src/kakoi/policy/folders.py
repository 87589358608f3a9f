"""Which directory each command of a script runs in: `cd` is followed, subshells keep their own."""

from kakoi.policy.paths import Location, absolute, locate
from kakoi.policy.script import Command
from kakoi.policy.values import Values
from kakoi.policy.words import Word

_HOME = "/home/user"  # stands for the home directory: outside, wherever it is


class Folders:
    """The current directory of every subshell; None where nobody can tell."""

    def __init__(self, start: str | None) -> None:
        self._by_scope: dict[tuple[int, ...], str | None] = {(): start}
        self._previous: str | None = None

    def of(self, scope: tuple[int, ...]) -> str | None:
        """Where a command in this subshell runs. A new subshell starts where its parent is."""
        known = scope
        while known not in self._by_scope:
            known = known[:-1]
        return self._by_scope.setdefault(scope, self._by_scope[known])

    def follow(self, command: Command, values: Values, roots: tuple[str, ...]) -> None:
        """Take note of a `cd`. It is taken to succeed: the kernel keeps the wall if it does not."""
        name = command.words[0].static if command.words else None
        if name not in ("cd", "pushd", "popd"):
            return
        words = next(iter(values.variants(command.words)))
        operands = [w for w in words[1:] if w.static not in ("-P", "-L", "-e", "--")]
        target = operands[0] if operands else None
        before = self.of(command.scope)
        if name == "popd" or (target is not None and target.static == "-"):
            after = self._previous
        else:
            after = _HOME if target is None or target.tilde else _joined(target, before, roots)
        self._previous = before
        self._by_scope[command.scope] = after


def _joined(target: Word, before: str | None, roots: tuple[str, ...]) -> str | None:
    if target.text is None and locate(target, before, roots) is not Location.INSIDE:
        return None
    known = target.prefix
    return None if before is None and not known.startswith("/") else absolute(known, before or "/")
