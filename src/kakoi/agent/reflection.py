"""When a model is to stop and think, and what it is told then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kakoi.agent.conversation import Reply
from kakoi.results import Reason

# One failure is an answer; two in a row are a habit.
_FAILURES: Final = 2
_REASONS: Final = frozenset(
    str(reason) for reason in (Reason.TIMED_OUT, Reason.SANDBOX_LOST, Reason.NEVER_STARTED)
)
# The shell's words for a program that cannot be run, or is not there.
_EXIT_CODES: Final = (126, 127)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """After a step. `failures`: steps in a row with something that failed; `is_due`: by count."""

    step: int
    most_steps: int
    failures: int
    replies: tuple[Reply, ...]
    is_due: bool


# Gives what to tell the model; nothing if it is to go on.
Reflection = Callable[[Situation], str]


def is_failure(reply: Reply) -> bool:
    """Did it fail for another reason than what was to be found out? (spec A, 8.1)

    A test that fails is an answer; a program that is not there is not.
    """
    return (
        reply.is_error
        or reply.meta.get("exit_code") in _EXIT_CODES
        or reply.meta.get("reason") in _REASONS
    )


def reflect(situation: Situation) -> str:
    """Ask for a moment of thought after failures in a row, and where it is due by count."""
    if situation.failures and situation.failures % _FAILURES == 0:
        return (
            f"Your last {situation.failures} steps have failed. Before you go on, say in a few "
            "words why, and what you will do differently. What was refused stays refused."
        )
    if situation.is_due:
        return (
            f"{situation.step} of {situation.most_steps} steps are used. Say in a few words what "
            "is done, what is left, and whether the way there is still the right one; then go on."
        )
    return ""
