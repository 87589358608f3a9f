"""Questions that clients take along, and come back with an answer to.

An answer counts once, from the client that was asked, for the call that it was asked about, and
only if this server has asked and remembers it: what cannot be found is asked again.
"""

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kakoi.mcp_server.callers import Caller

_PREFIX: Final = "approve-"
_MOST_PENDING: Final = 4096


class Questions:
    """Those that wait for an answer, for `patience_s` seconds of `clock`."""

    def __init__(self, clock: Callable[[], float], *, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._pending: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def ask(self, subject: str) -> str:
        """A name for the question about `subject` that nobody can guess."""
        key = f"{_PREFIX}{secrets.token_hex(16)}"
        self._pending[key] = subject, self._clock() + self._patience_s
        if len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        return key

    def answered(self, keys: Iterable[str], subject: str) -> str | None:
        """Which of `keys` names a question about `subject` that still waits."""
        return next((key for key in keys if self._is_about(key, subject)), None)

    def take(self, keys: Iterable[str], subject: str) -> str | None:
        """The same; it waits no longer."""
        key = self.answered(keys, subject)
        if key is not None:
            del self._pending[key]
        return key

    def _is_about(self, key: str, subject: str) -> bool:
        asked, deadline_s = self._pending.get(key, ("", 0.0))
        return asked == subject and self._clock() <= deadline_s


def subject_of(caller: Caller, tool: str, arguments: Mapping[str, Any], question: str) -> str:
    """Names a question by who is asked, what was called with what, and the words."""
    told = [caller.identity, caller.connection, tool, arguments, question]
    text = json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
