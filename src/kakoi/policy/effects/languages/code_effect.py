"""One thing that code on a command line (sed, awk, `python -c` …) does besides computing text."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from kakoi._support.late import dataclass

# A write here stores nothing: it goes to the terminal, to the caller's pipe, or nowhere.
HARMLESS_OUTPUTS: Final = frozenset({"/dev/stdout", "/dev/stderr", "/dev/null"})

_SNIPPET_CHARS: Final = 80


class CodeEffectKind(StrEnum):
    """What code reaches for outside its own input and output."""

    RUNS = "runs"
    """starts a program"""
    WRITES = "writes"
    """writes, creates or removes a file, or uses the network as if it were a file"""
    READS = "reads"
    """reads a file other than its inputs"""
    LOADS = "loads"
    """loads more code"""
    DELETES = "deletes"
    """removes a whole directory tree"""
    UNREADABLE = "unreadable"
    """cannot be determined from the text"""


@dataclass(frozen=True, slots=True)
class CodeEffect:
    """One effect: its kind, and the piece of code that has it.

    `target` is the file name or the command text if the code spells it out, else None.
    """

    kind: CodeEffectKind
    text: str
    target: str | None = None


# Finds the effects of a string that code runs as code.
ReadCode = Callable[[str], Iterable[CodeEffect]]


def snippet(text: str) -> str:
    """Return `text` on one line, short enough to show."""
    line = " ".join(text[: 4 * _SNIPPET_CHARS].split())
    return line if len(line) <= _SNIPPET_CHARS else line[: _SNIPPET_CHARS - 1] + "…"
