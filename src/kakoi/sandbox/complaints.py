"""What a program said when it failed → an error that has the fact and the next step. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kakoi.errors import SandboxError
from kakoi.redact import redact

_SHOWN: Final = 2000


@dataclass(frozen=True, slots=True)
class Complaint:
    """`fact` and `hint` may hold names in braces; who explains fills them in."""

    pattern: re.Pattern[str]
    fact: str
    hint: str
    error: type[SandboxError] = SandboxError

    def as_error(self, words: Mapping[str, str], details: dict[str, Any]) -> SandboxError:
        """The error that it stands for."""
        return self.error(
            self.fact.format(**words), details=details, hint=self.hint.format(**words)
        )


def complaint(
    pattern: str, fact: str, hint: str, error: type[SandboxError] = SandboxError
) -> Complaint:
    """One that is known by `pattern`, in letters of any size."""
    return Complaint(re.compile(pattern, re.IGNORECASE), fact, hint, error)


def first_of(complaints: Iterable[Complaint], text: str) -> Complaint | None:
    """The first whose words are in `text`."""
    return next((each for each in complaints if each.pattern.search(text)), None)


def end_of(stderr: str) -> str:
    """What of it is shown, without secrets."""
    return redact(stderr.strip())[-_SHOWN:]


def last_line(text: str, *, but: tuple[str, ...], without: str) -> str:
    """What it comes down to: programs say it at the end, after progress and warnings.

    `but`: how lines begin that say nothing. `without`: what is left out at its beginning.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(but)]
    return re.sub(without, "", said[-1]) if said else ""
