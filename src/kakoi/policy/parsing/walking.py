"""The state of a walk over a syntax tree: what was found so far, and where the walk stands."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kakoi.policy.parsing.script import (
    Assignment,
    Binding,
    Command,
    Definition,
    Redirect,
    Trap,
    covering,
)
from kakoi.policy.words import Word

Node = dict[str, Any]

# Positions and spelling details that carry no meaning of their own.
_LAYOUT: Final = frozenset(
    "Type Pos End ValuePos ValueEnd Left Right OpPos Position Lparen Rparen Lbrace Rbrace Lbrack "
    "Rbrack Semicolon Case In Esac Coproc Time ForPos DoPos DonePos InPos WhilePos ThenPos FiPos "
    "Let Comments Last Hash Text Unsigned PosixFormat Braces Parens RsrvWord Short Until Select "
    "Negated Bracket Backquotes Dollar".split()
)


class UnknownConstruct(Exception):
    """A node of the syntax tree that nobody taught us to judge."""

    def __init__(self, what: str, start: int, end: int) -> None:
        super().__init__(what)
        self.what, self.start, self.end = what, start, end


@dataclass(frozen=True, slots=True)
class Place:
    """Where the walk stands: what feeds it, which subshell, which function."""

    feeders: tuple[int, ...] = ()
    scope: tuple[int, ...] = ()
    function: str = ""
    certain: bool = True
    background: bool = False
    repeats: bool = False


class Walk:
    """Collects what the tree holds; `statements` is how a nested list of statements is walked."""

    def __init__(self, text: str, statements: Callable[["Walk", Iterable[Node]], None]) -> None:
        self.text = text
        self.statements = statements
        self.commands: list[Command | None] = []
        self.definitions: list[Definition] = []
        self.bindings: list[Binding] = []
        self.traps: list[Trap] = []
        # Whether anything is evaluated as arithmetic, and texts that would run if it is.
        self.arithmetic = False
        self.hidden: list[tuple[str, int, int]] = []
        self.place = Place()
        self.statement = 0
        self._statements = 0
        # Greater than zero where single quotes do not quote: "${x:-'…'}" and arithmetic.
        self.quotes_are_plain = 0
        self._scopes = 0
        self._offsets = None if text.isascii() else _character_offsets(text)

    def span(self, node: Node) -> tuple[int, int]:
        """The characters of the text that the node covers."""
        start, end = int(node["Pos"]["Offset"]), int(node["End"]["Offset"])
        if self._offsets is None:
            return start, end
        last = len(self._offsets) - 1
        return self._offsets[min(start, last)], self._offsets[min(end, last)]

    def refuse(self, what: str, node: Node) -> UnknownConstruct:
        """The error for a node that cannot be judged."""
        start, end = self.span(node) if "Pos" in node and "End" in node else (0, len(self.text))
        return UnknownConstruct(what, start, end)

    def known(self, node: Node, fields: str) -> None:
        """Insist that the node has no fields but these: another one may hold what nobody walked."""
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
        """Walk a part in its own place and give the indexes of the commands found there."""
        before, first = self.place, len(self.commands)
        scope = before.scope
        if subshell:
            self._scopes += 1
            scope = (*scope, self._scopes)
        self.place = Place(
            before.feeders if feeders is None else feeders,
            scope,
            before.function if function is None else function,
            certain=False,
            background=before.background or background,
            repeats=repeats or (before.repeats and not subshell),
        )
        statement = self.statement
        walk()
        self.place, self.statement = before, statement
        return tuple(range(first, len(self.commands)))

    def next_statement(self) -> None:
        """Begin the next statement of a list."""
        self._statements += 1
        self.statement = self._statements

    def nested(
        self, node: Node, feeders: tuple[int, ...] = (), *, subshell: bool = True
    ) -> tuple[int, ...]:
        """Walk the statements of `$(…)`, `<(…)` and their like."""
        stmts = node.get("Stmts") or ()
        return self.inside(lambda: self.statements(self, stmts), feeders=feeders, subshell=subshell)

    def reserve(self) -> int:
        """A place in the order for a command whose words may hold commands themselves."""
        self.commands.append(None)
        return len(self.commands) - 1

    def fill(
        self,
        index: int,
        words: tuple[Word, ...],
        assignments: tuple[Assignment, ...],
        redirects: tuple[Redirect, ...],
    ) -> None:
        """Put a command into the place reserved for it."""
        start, end = covering(words, assignments, redirects)
        at = self.place
        self.commands[index] = Command(
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
    """Byte offset in UTF-8 → index of the character that covers it."""
    offsets: list[int] = []
    for index, char in enumerate(text):
        offsets.extend([index] * len(char.encode("utf-8")))
    offsets.append(len(text))
    return offsets
