"""What a program inside a command line (sed, awk, `python -c` …) does besides computing text."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Writing here keeps nothing: it is the terminal, the caller's pipe, or the void.
HARMLESS_OUTPUTS: Final = frozenset({"/dev/stdout", "/dev/stderr", "/dev/null"})

_SNIPPET_CHARS: Final = 80


class Effect(StrEnum):
    """What is reached for outside the program's own input and output."""

    RUNS = "runs"
    """starts a program"""
    WRITES = "writes"
    """writes, creates or removes a file, or speaks to the network as if to a file"""
    READS = "reads"
    """reads a file other than its inputs"""
    LOADS = "loads"
    """loads more code"""
    DELETES = "deletes"
    """removes a whole directory tree"""
    UNREADABLE = "unreadable"
    """cannot be told by reading"""


@dataclass(frozen=True, slots=True)
class EmbeddedEffect:
    """One such reach: the piece of the program that does it, and what it reaches for.

    `target` is the file name or command text when the program spells it out, else None.
    """

    effect: Effect
    text: str
    target: str | None = None


def snippet(text: str) -> str:
    """`text` on one line and short enough to show."""
    line = " ".join(text[: 4 * _SNIPPET_CHARS].split())
    return line if len(line) <= _SNIPPET_CHARS else line[: _SNIPPET_CHARS - 1] + "…"
