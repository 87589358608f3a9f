"""Keeps a conversation within the model's context window.

When it grows beyond three quarters of the window, old tool output is shortened, oldest first, then
the oldest steps are dropped, until half of the window is free. Shortening rarely keeps the vendors'
prompt caches valid. The length in tokens is an estimate, corrected by what the model reports. The
full output of a command can still be read by its job id.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kakoi._support.late import dataclass
from kakoi.agents.conversation import (
    ModelAnswer,
    ToolDescription,
    ToolReplies,
    ToolReply,
    Turn,
    UserMessage,
)

_FULL: Final = 0.75
_AIM: Final = 0.5
_CHARS_PER_TOKEN: Final = 3.5
_FEWEST_CHARS, _MOST_CHARS = 1.0, 6.0
# How much of a shortened output is kept at each end.
_KEPT_CHARS: Final = 200
# Per turn and request, for what vendors add around them.
_OVERHEAD_CHARS: Final = 24


@dataclass(frozen=True, slots=True)
class Shortening:
    """How many replies were shortened and how many steps dropped."""

    shortened: int = 0
    dropped: int = 0

    def __bool__(self) -> bool:
        return bool(self.shortened or self.dropped)


class ContextWindow:
    """The turns of one conversation. The first turn, the task, is never dropped."""

    def __init__(
        self, instructions: str, tools: Sequence[ToolDescription], *, window_tokens: int
    ) -> None:
        self.instructions = instructions
        self.tools = tuple(tools)
        self.turns: list[Turn] = []
        self._window_tokens = window_tokens
        self._chars_per_token = _CHARS_PER_TOKEN
        schemas = sum(len(json.dumps(dict(each.schema))) + len(each.doc) for each in tools)
        self._fixed_chars = len(instructions) + schemas + _OVERHEAD_CHARS * len(self.tools)
        self._left_out = 0

    @property
    def tokens(self) -> int:
        """The estimated length in tokens."""
        return round(self._chars / self._chars_per_token)

    def calibrate(self, input_tokens: int) -> None:
        """Correct the estimate with the length that the model reported for the last request."""
        if input_tokens > 0:
            ratio = self._chars / input_tokens
            self._chars_per_token = min(max(ratio, _FEWEST_CHARS), _MOST_CHARS)

    def fit(self) -> Shortening:
        """Shorten the conversation if it is too long."""
        if self.tokens <= self._window_tokens * _FULL:
            return Shortening()
        return self._reduce(round(self._window_tokens * _AIM))

    def shrink(self) -> Shortening:
        """Halve the conversation: the model reported that it does not fit."""
        return self._reduce(self.tokens // 2)

    @property
    def _chars(self) -> int:
        return self._fixed_chars + sum(map(_chars, self.turns))

    def _reduce(self, tokens: int) -> Shortening:
        shortened = sum(self._shorten(at) for at in self._reply_turns() if self.tokens > tokens)
        dropped, first = 0, self._first_step
        while self.tokens > tokens and (count := self._oldest_step()):
            del self.turns[first : first + count]
            dropped += 1
        if dropped:
            self._left_out += dropped
            note = UserMessage(text=f"[{self._left_out} earlier steps are omitted here]")
            self.turns[1:first] = [note]
        return Shortening(shortened, dropped)

    def _reply_turns(self) -> list[int]:
        return [at for at, turn in enumerate(self.turns) if isinstance(turn, ToolReplies)]

    def _shorten(self, at: int) -> int:
        turn = self.turns[at]
        if not isinstance(turn, ToolReplies):
            return 0
        replies = tuple(map(_shortened, turn.replies))
        changed = sum(new is not old for new, old in zip(replies, turn.replies, strict=True))
        self.turns[at] = replace(turn, replies=replies)
        return changed

    @property
    def _first_step(self) -> int:
        """The index of the first step: after the task, and the note on omitted steps."""
        return 2 if self._left_out and len(self.turns) > 1 else 1

    def _oldest_step(self) -> int:
        """Return how many turns the oldest step has; 0 if only the last step is left."""
        first = self._first_step
        count = 1
        while first + count < len(self.turns) and not isinstance(
            self.turns[first + count], ModelAnswer
        ):
            count += 1
        return count if first + count < len(self.turns) else 0


def _chars(turn: Turn) -> int:
    if isinstance(turn, UserMessage):
        return len(turn.text) + _OVERHEAD_CHARS
    if isinstance(turn, ToolReplies):
        return sum(len(reply.text) + _OVERHEAD_CHARS for reply in turn.replies)
    asked = sum(len(json.dumps(dict(each.arguments))) + _OVERHEAD_CHARS for each in turn.requests)
    return len(turn.text) + asked


def _shortened(reply: ToolReply) -> ToolReply:
    if len(reply.text) <= 3 * _KEPT_CHARS:
        return reply
    job = reply.meta.get("job_id")
    way = f'; read_output(job_id="{job}") has all of it' if isinstance(job, str) else ""
    left_out = len(reply.text) - 2 * _KEPT_CHARS
    middle = f"\n[… {left_out} characters omitted from an old answer{way} …]\n"
    return replace(reply, text=reply.text[:_KEPT_CHARS] + middle + reply.text[-_KEPT_CHARS:])
