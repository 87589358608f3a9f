"""The shell text, taken apart: every simple command, redirect and assignment, wherever it stands.

A `Script` is flat. What a command's place in the text means for a decision is kept as facts on
the command: which others feed its standard input, which subshell it lives in, whether it stands
in a function. Text that cannot be taken apart is `Unreadable`, with the reason.
"""

import re
from dataclasses import dataclass

from kakoi.policy.words import Word


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=value`, before a command, alone, or given to `export` and its like."""

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
        """Whether the target is a file that it opens for writing."""
        return self.operator in (">", ">>", ">|", ">&", "&>", "&>>", "<>")

    @property
    def copies_descriptor(self) -> bool:
        """`2>&1`, `<&3`, `>&-`: no file is opened."""
        copies = self.operator in (">&", "<&")
        return copies and re.fullmatch(r"\d*-?", self.target.static or "x") is not None


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command, with its words after brace expansion.

    `feeders` are the commands whose output is its standard input; `scope` is the path of subshells
    it lives in; `function` names the body it stands in; `certain` says that the top level reaches
    it in order, whatever the conditions; `background` that nobody waits for it; `repeats` that a
    loop or a function may run it again in the same shell. Commands of one list share a `statement`.
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
    """A function: how many commands were seen before it, and whether it is defined for certain."""

    name: str
    start: int
    end: int
    before: int
    certain: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable set by other means than an assignment: `for`, `select`, `${x:=…}`.

    `body` are the first command of the loop that sets it, and the one behind its last.
    """

    name: str
    values: tuple[Word, ...] | None
    start: int
    end: int
    body: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Trap:
    """A construct that makes text into commands at run time; no list of commands can show it.

    `pointer` is the variable whose value an indirect expansion takes for a name.
    """

    what: str
    start: int
    end: int
    pointer: str = ""
    effect: str = "hidden-text"


@dataclass(frozen=True, slots=True)
class Script:
    """Everything a piece of shell text can start, set or redirect.

    `evaluates` says that it has arithmetic, and `hidden` is where texts are that arithmetic would
    run; `empty`, that there is nothing but blanks and comments.
    """

    text: str
    commands: tuple[Command, ...]
    definitions: tuple[Definition, ...] = ()
    bindings: tuple[Binding, ...] = ()
    traps: tuple[Trap, ...] = ()
    evaluates: bool = False
    hidden: tuple[tuple[int, int], ...] = ()
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why the text cannot be taken apart, and where."""

    reason: str
    start: int
    end: int


def covering(
    words: tuple[Word, ...],
    assignments: tuple[Assignment, ...],
    redirects: tuple[Redirect, ...],
) -> tuple[int, int]:
    """The span of a simple command."""
    spans = [(word.start, word.end) for word in words]
    spans += [(assignment.start, assignment.end) for assignment in assignments]
    if not spans:
        spans = [(redirect.start, redirect.end) for redirect in redirects]
    return min(start for start, _ in spans), max(end for _, end in spans)
