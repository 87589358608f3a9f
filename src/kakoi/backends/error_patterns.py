"""The stderr of a program that failed → an error with the fact and the next step. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.errors import SandboxError

_SHOWN: Final = 2000


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """`fact` and `hint` can hold names in braces, which `as_error` fills in."""

    pattern: re.Pattern[str]
    fact: str
    hint: str
    error: type[SandboxError] = SandboxError

    def as_error(self, words: Mapping[str, str], details: dict[str, Any]) -> SandboxError:
        """The error for this pattern."""
        return self.error(
            self.fact.format(**words), details=details, hint=self.hint.format(**words)
        )


def error_pattern(
    pattern: str, fact: str, hint: str, error: type[SandboxError] = SandboxError
) -> ErrorPattern:
    """An error known by `pattern`, which ignores case."""
    return ErrorPattern(re.compile(pattern, re.IGNORECASE), fact, hint, error)


def find_pattern(complaints: Iterable[ErrorPattern], text: str) -> ErrorPattern | None:
    """The first pattern that matches `text`."""
    return next((each for each in complaints if each.pattern.search(text)), None)


def redacted_end(stderr: str) -> str:
    """The end of stderr as it is shown, without secrets."""
    return redact(stderr.strip())[-_SHOWN:]


def last_line(text: str, *, but: tuple[str, ...], without: str) -> str:
    """The last line that matters: programs print the reason at the end, after other output.

    `but`: prefixes of lines to skip. `without`: a pattern to remove from the line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(but)]
    return re.sub(without, "", useful[-1]) if useful else ""
