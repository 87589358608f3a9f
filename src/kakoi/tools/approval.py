"""Asks the user behind a call for approval, and remembers the answer if the user wants that.

If the user cannot be reached, the answer is no.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.approvals import Approvals
from kakoi.approvals.forms import changes_of
from kakoi.gate import Answer, Approver, Call
from kakoi.policy.decide import Decision
from kakoi.policy.explanation import format_decision, without_hints
from kakoi.tools.sessions import ToolSession

ANSWER_TIMEOUT_S: Final = 600.0
# What a command gets besides its text: an approval covers this as well.
_INPUTS: Final = ("stdin", "stdin_open", "content", "old_text", "new_text", "replace_all")


class ApprovalAnswer(Enum):
    """A user's answer.

    ALWAYS: also for the same command in the same session later. HERE: also for all that the
    question offers to remember, in this workspace.
    """

    NO = "no"
    ONCE = "once"
    ALWAYS = "always"
    HERE = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a user is asked.

    `text`: the whole question. `offer`: what the answer HERE would be about; empty: there is no
    such answer. `description`: what the agent says about it.
    """

    text: str
    decision: Decision
    offer: str = ""
    description: str = ""


def _ask_now(_question: Question) -> None:
    """Let every question be asked in the call that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserContact:
    """How to reach the user behind a call.

    `ask`: returns the user's answer to a question.
    `before_asking`: called first, before the question is recorded. It raises to end the call if the
        answer has to come with a later one.
    """

    ask: Callable[[Question], Awaitable[ApprovalAnswer]]
    before_asking: Callable[[Question], None] = _ask_now


class CallApproval:
    """Approval of what one tool call does. Without a `contact` nobody can be asked.

    `approvals`: those of the gate, which remembers and answers; here they are only offered.
    """

    def __init__(
        self,
        contact: UserContact | None,
        session: ToolSession,
        arguments: Mapping[str, Any],
        approvals: Approvals | None = None,
    ) -> None:
        self._contact = contact
        self._session = session
        self._arguments = arguments
        self._approvals = approvals

    def gate_call(self, cwd: str, variables: Mapping[str, str] | None = None) -> Call:
        """Return what to pass to the gate with a command or a file access in `cwd`."""

        def before_asking(decision: Decision) -> None:
            if self._contact is not None and not self._has_agreed(decision, cwd):
                self._contact.before_asking(self._question(decision, cwd))

        return Call(
            variables=variables or {},
            session=self._session.label,
            approver=self.approver(cwd),
            before_asking=before_asking,
        )

    def approver(self, cwd: str) -> Approver | None:
        """Return an approver for a gate; None if nobody can be asked."""
        contact = self._contact
        if contact is None:
            return None

        async def approve(decision: Decision) -> bool | Answer:
            if self._has_agreed(decision, cwd):
                return True
            question = self._question(decision, cwd)
            # Again: another call may have used up the answer meanwhile.
            contact.before_asking(question)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await contact.ask(question)
            except TimeoutError:
                return False
            if answer is ApprovalAnswer.ALWAYS:
                self._session.agree(decision.command, cwd, self._inputs)
            if answer is ApprovalAnswer.HERE:
                return Answer.HERE
            return answer is not ApprovalAnswer.NO

        return approve

    def _has_agreed(self, decision: Decision, cwd: str) -> bool:
        return self._session.has_agreed(decision.command, cwd, self._inputs)

    @property
    def _inputs(self) -> str:
        """A digest of what the command gets besides its text."""
        given = {name: self._arguments.get(name) for name in _INPUTS if self._arguments.get(name)}
        text = json.dumps(given, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if given else ""

    def _question(self, decision: Decision, cwd: str) -> Question:
        description = str(self._arguments.get("description") or "")
        lines = [format_decision(without_hints(decision)), "", f"in {shown(cwd)}:"]
        # All of it: nobody should approve what they cannot see.
        lines += [f"  | {shown(line)}" for line in decision.command.strip().splitlines()]
        if description:
            lines.append(f"the agent says: {shown(description)}")
        lines += [f"what it would change: {shown(each)}" for each in changes_of(decision)]
        text = "\n".join([*lines, "", "Accept to run it; decline to refuse it."])
        offer = None if self._approvals is None else self._approvals.offer(decision)
        offered = "" if offer is None else offer.text
        return Question(text=text, decision=decision, offer=offered, description=description)
