"""What was said about a task before it was interrupted: its transcripts tell."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kakoi.agent.conversation import Told, Turn
from kakoi.agent.events import Ended, Event, Outcome
from kakoi.agent.transcript import read_transcript, turns_of
from kakoi.errors import ConfigurationError

_log = logging.getLogger(__name__)
_INTERRUPTED: Final = (Outcome.PAUSED, Outcome.CANCELLED)
_MADE_ANEW: Final = "The work was interrupted here, and the environment was made anew: "
_BACK: Final = (
    "what you had changed in the project was brought back, and nothing else. What was running, and "
    "what was installed or written elsewhere, is gone. See what is there, and go on."
)
_GONE: Final = (
    "the project is as it was in the beginning, and what you had changed in it is gone. Do again "
    "what is still right, and go on."
)


def note(*, is_back: bool) -> Told:
    """What the model is told after what was said before; `is_back`: its changes are there."""
    return Told(text=_MADE_ANEW + (_BACK if is_back else _GONE))


def earlier_turns(folder: Path, *, task_uuid: str, key: str) -> tuple[Turn, ...]:
    """What to go on from; nothing if the task was never begun, or has ended since.

    `key`: a transcript of another task is not believed, whatever its name is.
    """
    events: list[Event] = []
    for path in sorted(folder.glob(f"*-{task_uuid}.jsonl")):
        try:
            found = read_transcript(path)
        except (ConfigurationError, OSError) as error:
            _log.warning("a transcript is left out: %s", error)
            continue
        if found.task == key:
            events = _going_on(events, [event for _at, event in found.events])
    return tuple(turns_of(events))


def _going_on(before: Sequence[Event], events: Sequence[Event]) -> list[Event]:
    last = events[-1] if events else None
    if isinstance(last, Ended) and last.outcome not in _INTERRUPTED:
        return []
    return [*before, *events]
