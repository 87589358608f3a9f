"""The state of a walk over a syntax tree: what was found so far, and the current position."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi.policy.parsing.script import (
    Assignment,
    Binding,
    Definition,
    Redirect,
    SimpleCommand,
    Trap,
    covering,
)
from kakoi.policy.parsing.words import Word

Node = dict[str, Any]

# Positions and spelling details without a meaning of their own.
_LAYOUT: Final = frozenset(
    "Type Pos End ValuePos ValueEnd Left Right OpPos Position Lparen Rparen Lbrace Rbrace Lbrack "
    "Rbrack Semicolon Case In Esac Coproc Time ForPos DoPos DonePos InPos WhilePos ThenPos FiPos "
    "Let Comments Last Hash Text Unsigned PosixFormat Braces Parens RsrvWord Short Until Select "
    "Negated Bracket Backquotes Dollar".split()
)


class UnknownConstruct(Exception):
    """A node of the syntax tree that cannot be judged."""

    def __init__(self, what: str, start: int, end: int) -> None:
        super().__init__(what)
        self.what, self.start, self.end = what, start, end


@dataclass(frozen=True, slots=True)
class WalkPosition:
    """Where the walk is: the commands that feed it, the subshell, the function."""

    feeders: tuple[int, ...] = ()
    scope: tuple[int, ...] = ()
    function: str = ""
    certain: bool = True
    background: bool = False
    repeats: bool = False


class Walk:
    """Collects what the tree contains; `statements` walks a nested list of statements."""

    def __init__(self, text: str, statements: Callable[["Walk", Iterable[Node]], None]) -> None:
        self.text = text
        self.statements = statements
        self.commands: list[SimpleCommand | None] = []
        self.definitions: list[Definition] = []
        self.bindings: list[Binding] = []
        self.traps: list[Trap] = []
        # Whether anything is evaluated as arithmetic, and texts that would run if it is.
        self.arithmetic = False
        self.hidden: list[tuple[str, int, int]] = []
        self.position = WalkPosition()
        self.statement = 0
        self._statements = 0
        # Greater than zero if single quotes do not quote: in "${x:-'…'}" and arithmetic.
        self.quotes_are_plain = 0
        self._scopes = 0
        self._offsets = None if text.isascii() else _character_offsets(text)

    def span(self, node: Node) -> tuple[int, int]:
        """Return the range of characters that the node covers."""
        start, end = int(node["Pos"]["Offset"]), int(node["End"]["Offset"])
        if self._offsets is None:
            return start, end
        last = len(self._offsets) - 1
        return self._offsets[min(start, last)], self._offsets[min(end, last)]

    def refuse(self, what: str, node: Node) -> UnknownConstruct:
        """Return the error for a node that cannot be judged."""
        start, end = self.span(node) if "Pos" in node and "End" in node else (0, len(self.text))
        return UnknownConstruct(what, start, end)

    def known(self, node: Node, fields: str) -> None:
        """Raise UnknownConstruct if the node has other fields: they could contain commands."""
        for key, value in node.items():
            if value and key not in _LAYOUT and key not in fields.split():
                raise self.refuse(f"{node.get('Type', 'node')}.{key}", node)

    def inside(
        self,
        walk: Callable[[], None],
        *,
        feeders: tuple[int, ...] | None = None,
        subshell: bool = False,
        function: str | None = None,
        background: bool = False,
        repeats: bool = False,
    ) -> tuple[int, ...]:
        """Walk a part at its own position and return the indexes of the commands in it."""
        before, first = self.position, len(self.commands)
        scope = before.scope
        if subshell:
            self._scopes += 1
            scope = (*scope, self._scopes)
        self.position = WalkPosition(
            before.feeders if feeders is None else feeders,
            scope,
            before.function if function is None else function,
            certain=False,
            background=before.background or background,
            repeats=repeats or (before.repeats and not subshell),
        )
        statement = self.statement
        walk()
        self.position, self.statement = before, statement
        return tuple(range(first, len(self.commands)))

    def next_statement(self) -> None:
        """Begin the next statement of a list."""
        self._statements += 1
        self.statement = self._statements

    def nested(
        self, node: Node, feeders: tuple[int, ...] = (), *, subshell: bool = True
    ) -> tuple[int, ...]:
        """Walk the statements of `$(…)`, `<(…)` and the like."""
        stmts = node.get("Stmts") or ()
        return self.inside(lambda: self.statements(self, stmts), feeders=feeders, subshell=subshell)

    def reserve(self) -> int:
        """Reserve an index for a command whose words can contain commands themselves."""
        self.commands.append(None)
        return len(self.commands) - 1

    def fill(
        self,
        index: int,
        words: tuple[Word, ...],
        assignments: tuple[Assignment, ...],
        redirects: tuple[Redirect, ...],
    ) -> None:
        """Store a command at the index reserved for it."""
        start, end = covering(words, assignments, redirects)
        at = self.position
        self.commands[index] = SimpleCommand(
            words,
            assignments,
            redirects,
            start,
            end,
            at.feeders,
            at.scope,
            at.function,
            at.certain,
            at.background,
            at.repeats,
            self.statement,
        )


def _character_offsets(text: str) -> list[int]:
    """Return a list: byte offset in UTF-8 → index of the character that covers it."""
    offsets: list[int] = []
    for index, char in enumerate(text):
        offsets.extend([index] * len(char.encode("utf-8")))
    offsets.append(len(text))
    return offsets
