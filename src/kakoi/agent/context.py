"""A conversation that fits into the model's window.

When it grows beyond three quarters of the window, old output of tools is shortened, oldest first,
then the oldest steps are left out, until half of it is free: shortening seldom keeps the vendors'
caches of what was said before. How long it is in tokens is an estimate, corrected by what the model
reports. The full text of a command's output stays readable by its job.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kakoi.agent.conversation import Answer, Offer, Replies, Reply, Told, Turn

_FULL: Final = 0.75
_AIM: Final = 0.5
_CHARS_PER_TOKEN: Final = 3.5
_FEWEST_CHARS, _MOST_CHARS = 1.0, 6.0
# What is left of a shortened output at each end.
_KEPT_CHARS: Final = 200
# Per turn and request, for what vendors put around them.
_OVERHEAD_CHARS: Final = 24


@dataclass(frozen=True, slots=True)
class Shortening:
    """What was done to make it fit."""

    shortened: int = 0
    dropped: int = 0

    def __bool__(self) -> bool:
        return bool(self.shortened or self.dropped)


class Context:
    """The turns of one conversation. The first one, which says what to do, always stays."""

    def __init__(self, instructions: str, offers: Sequence[Offer], *, window_tokens: int) -> None:
        self.instructions = instructions
        self.offers = tuple(offers)
        self.turns: list[Turn] = []
        self._window_tokens = window_tokens
        self._chars_per_token = _CHARS_PER_TOKEN
        schemas = sum(len(json.dumps(dict(each.schema))) + len(each.doc) for each in offers)
        self._fixed_chars = len(instructions) + schemas + _OVERHEAD_CHARS * len(self.offers)
        self._left_out = 0

    @property
    def tokens(self) -> int:
        """How long it is, by estimate."""
        return round(self._chars / self._chars_per_token)

    def measured(self, input_tokens: int) -> None:
        """So long it was in truth, says the model that has just read it."""
        if input_tokens > 0:
            ratio = self._chars / input_tokens
            self._chars_per_token = min(max(ratio, _FEWEST_CHARS), _MOST_CHARS)

    def fit(self) -> Shortening:
        """Make it fit, if it does not."""
        if self.tokens <= self._window_tokens * _FULL:
            return Shortening()
        return self._reduce(round(self._window_tokens * _AIM))

    def shrink(self) -> Shortening:
        """Halve it: the model says that it does not fit, whatever we think."""
        return self._reduce(self.tokens // 2)

    @property
    def _chars(self) -> int:
        return self._fixed_chars + sum(map(_chars, self.turns))

    def _reduce(self, tokens: int) -> Shortening:
        shortened = sum(self._shorten(at) for at in self._old_first() if self.tokens > tokens)
        dropped, first = 0, self._first_step
        while self.tokens > tokens and (count := self._oldest_step()):
            del self.turns[first : first + count]
            dropped += 1
        if dropped:
            self._left_out += dropped
            note = Told(text=f"[{self._left_out} earlier steps are left out here]")
            self.turns[1:first] = [note]
        return Shortening(shortened, dropped)

    def _old_first(self) -> list[int]:
        return [at for at, turn in enumerate(self.turns) if isinstance(turn, Replies)]

    def _shorten(self, at: int) -> int:
        turn = self.turns[at]
        if not isinstance(turn, Replies):
            return 0
        replies = tuple(map(_shortened, turn.replies))
        changed = sum(new is not old for new, old in zip(replies, turn.replies, strict=True))
        self.turns[at] = replace(turn, replies=replies)
        return changed

    @property
    def _first_step(self) -> int:
        """Where the first step is: after the task, and the note on what was left out."""
        return 2 if self._left_out and len(self.turns) > 1 else 1

    def _oldest_step(self) -> int:
        """How many turns the oldest step has; 0 if only the last one is left."""
        first = self._first_step
        count = 1
        while first + count < len(self.turns) and not isinstance(self.turns[first + count], Answer):
            count += 1
        return count if first + count < len(self.turns) else 0


def _chars(turn: Turn) -> int:
    if isinstance(turn, Told):
        return len(turn.text) + _OVERHEAD_CHARS
    if isinstance(turn, Replies):
        return sum(len(reply.text) + _OVERHEAD_CHARS for reply in turn.replies)
    asked = sum(len(json.dumps(dict(each.arguments))) + _OVERHEAD_CHARS for each in turn.requests)
    return len(turn.text) + asked


def _shortened(reply: Reply) -> Reply:
    if len(reply.text) <= 3 * _KEPT_CHARS:
        return reply
    job = reply.meta.get("job_id")
    way = f'; read_output(job_id="{job}") has all of it' if isinstance(job, str) else ""
    left_out = len(reply.text) - 2 * _KEPT_CHARS
    middle = f"\n[… {left_out} characters left out of an old answer{way} …]\n"
    return replace(reply, text=reply.text[:_KEPT_CHARS] + middle + reply.text[-_KEPT_CHARS:])
