"""Parsed shell text: every simple command, redirect and assignment, wherever it is.

A `Script` is flat. The facts about a command's position that matter for a decision are stored on
the command: which commands feed its standard input, which subshell it runs in, whether it is in a
function. Text that cannot be parsed is `Unreadable`, with the reason.
"""

import re

from kakoi._support.late import dataclass
from kakoi.policy.parsing.words import Word


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=value`, before a command, alone, or as an argument of `export` and the like."""

    name: str
    value: Word | None
    elements: tuple[Word, ...]
    start: int
    end: int
    appends: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    """`2>file`, `<<EOF`, `<<<text`; `body` is the text of a heredoc or here-string."""

    operator: str
    descriptor: str
    target: Word
    body: Word | None
    start: int
    end: int

    @property
    def writes(self) -> bool:
        """Whether it opens its target for writing."""
        return self.operator in (">", ">>", ">|", ">&", "&>", "&>>", "<>")

    @property
    def copies_descriptor(self) -> bool:
        """`2>&1`, `<&3`, `>&-`: no file is opened."""
        copies = self.operator in (">&", "<&")
        return copies and re.fullmatch(r"\d*-?", self.target.static or "x") is not None


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One simple command, with its words after brace expansion.

    `feeders` are the commands whose output is its standard input; `scope` is the path of subshells
    it runs in; `function` is the function whose body it is in; `certain` means that the top level
    reaches it in order, unconditionally; `background` means that nothing waits for it; `repeats`
    means that a loop or a function can run it again in the same shell. Commands of one list share
    a `statement`.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    redirects: tuple[Redirect, ...]
    start: int
    end: int
    feeders: tuple[int, ...] = ()
    scope: tuple[int, ...] = ()
    function: str = ""
    certain: bool = True
    background: bool = False
    repeats: bool = False
    statement: int = 0


@dataclass(frozen=True, slots=True)
class Definition:
    """A function: how many commands precede it, and whether it is certainly defined."""

    name: str
    start: int
    end: int
    before: int
    certain: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable that is set without an assignment: `for`, `select`, `${x:=…}`.

    `body` is the range of commands of the loop that sets it: the first, and the one after the last.
    """

    name: str
    values: tuple[Word, ...] | None
    start: int
    end: int
    body: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Trap:
    """A construct that turns text into commands at run time, so no list of commands can show it.

    `pointer` is the variable whose value an indirect expansion uses as a name.
    """

    what: str
    start: int
    end: int
    pointer: str = ""
    effect: str = "hidden-text"


@dataclass(frozen=True, slots=True)
class Script:
    """Everything a piece of shell text can start, set or redirect.

    `evaluates`: it contains arithmetic. `hidden`: the positions of texts that arithmetic would run.
    `empty`: it has only blanks and comments.
    """

    text: str
    commands: tuple[SimpleCommand, ...]
    definitions: tuple[Definition, ...] = ()
    bindings: tuple[Binding, ...] = ()
    traps: tuple[Trap, ...] = ()
    evaluates: bool = False
    hidden: tuple[tuple[int, int], ...] = ()
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why the text cannot be parsed, and where.

    `never_runs`: no shell could run it, or no policy lets it run.
    """

    reason: str
    start: int
    end: int
    never_runs: bool = False


def covering(
    words: tuple[Word, ...],
    assignments: tuple[Assignment, ...],
    redirects: tuple[Redirect, ...],
) -> tuple[int, int]:
    """Return the span of a simple command."""
    spans = [(word.start, word.end) for word in words]
    spans += [(assignment.start, assignment.end) for assignment in assignments]
    if not spans:
        spans = [(redirect.start, redirect.end) for redirect in redirects]
    return min(start for start, _ in spans), max(end for _, end in spans)
