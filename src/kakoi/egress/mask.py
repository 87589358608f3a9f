"""Stars in the place of a credential, in what a server answers.

The sandbox must not learn a credential that is added for it, and some servers show what they were
sent: pages for debugging, errors, other methods than the usual ones. The length stays, so that an
answer is as long as it says. It is a net for what a server shows by itself, not a boundary: one
that writes a credential in a way of its own is trusted with it anyway.
"""

import html
import re
from collections.abc import Iterator

from kakoi.redact import written_forms

# Shorter ones would be found by chance.
_SHORTEST = 8


class Mask:
    """Takes an answer piece by piece, and gives it without the credential `value`."""

    def __init__(self, value: str) -> None:
        forms = sorted({form for form in _forms(value) if len(form) >= _SHORTEST}, key=len)
        self._forms = tuple(reversed(forms))
        pattern = b"|".join(re.escape(form) for form in self._forms)
        self._pattern = re.compile(pattern) if forms else None
        self._longest = max(map(len, forms), default=0)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on. The beginning of a credential is held until its rest comes."""
        if self._pattern is None:
            return data
        seen = self._pattern.sub(lambda found: b"*" * len(found[0]), self._held + data)
        at = len(seen) - self._unfinished(seen)
        self._held = seen[at:]
        return seen[:at]

    def rest(self) -> bytes:
        """What is still held, at the end."""
        rest, self._held = self._held, b""
        return rest

    def _unfinished(self, seen: bytes) -> int:
        """How long the longest end is that begins one of the forms."""
        tail = seen[1 - self._longest :]
        for at in range(len(tail)):
            if any(form.startswith(tail[at:]) for form in self._forms):
                return len(tail) - at
        return 0


def _forms(value: str) -> Iterator[bytes]:
    """The value, and what follows a scheme (`Bearer …`), as pages and errors write them."""
    for text in {value, value.rpartition(" ")[2]}:
        yield from (form.encode("latin-1") for form in (html.escape(text), *written_forms(text)))
