"""Asking the person behind a client, when the policy wants one to decide.

Clients of protocol 2026-07-28 and later are asked by the answer to their call, and call again with
the reply; older ones by a request while the call goes on. Whoever cannot ask anybody gets a no.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import is_version_at_least
from pydantic import ValidationError

from kakoi.gate import Approver, Call, Gate
from kakoi.mcp_server.callers import STATELESS_SINCE
from kakoi.mcp_server.questions import Questions, subject_of
from kakoi.mcp_server.sessions import Session
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Verdict
from kakoi.policy.wording import in_words
from kakoi.printable import shown
from kakoi.runner.commands import Command

PATIENCE_S: Final = 600.0
# What a command is given besides its text: an approval covers that as well.
_INPUTS: Final = ("stdin", "stdin_open", "content", "old_text", "new_text", "replace_all")
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "remember": {
            "type": "boolean",
            "title": "Do not ask again",
            "description": "Run this very command in this session without asking again.",
            "default": False,
        }
    },
}


class MustAsk(Exception):
    """The client has to ask, and to call again: `result` is what it is told."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("the client has to ask")
        self.result = result


class Person:
    """Who is asked in one call, over its client."""

    def __init__(
        self,
        context: ServerRequestContext[Any, Any],
        params: CallToolRequestParams,
        session: Session,
        questions: Questions,
    ) -> None:
        self._context = context
        self._answers = params.input_responses or {}
        self._tool = params.name
        self._given = params.arguments or {}
        self._session = session
        self._questions = questions
        self._asked: tuple[Gate, Command, Call] | None = None

    async def call(self, gate: Gate, command: Command, variables: Mapping[str, str]) -> Call:
        """What to hand to the gate with `command`. MustAsk: the client has to ask first."""
        call = Call(variables=variables, session=self._session.label)
        cwd = command.cwd or ""
        if self._answers_by_calling_again and self._can_ask:
            decision = await gate.judge(command, call)
            if decision.verdict is Verdict.ASK and not self._has_agreed(decision, cwd):
                self._ask_first(decision, cwd)
        self._asked = gate, command, call
        return replace(call, approver=self.approver(cwd))

    async def question(self) -> Decision | None:
        """What the last call would have had to ask, or has asked."""
        if self._asked is None:
            return None
        gate, command, call = self._asked
        return await gate.judge(command, call)

    @property
    def _answers_by_calling_again(self) -> bool:
        return is_version_at_least(self._context.protocol_version, STATELESS_SINCE)

    @property
    def _can_ask(self) -> bool:
        capabilities = self._context.session.client_capabilities
        asking = capabilities.elicitation if capabilities is not None else None
        # Without any mode it is a client from before there were modes: it has forms.
        return asking is not None and (asking.form is not None or asking.url is None)

    def approver(self, cwd: str) -> Approver | None:
        """Answers for the gate; None if nobody can be asked. MustAsk as in `call`."""

        async def approve(decision: Decision) -> bool:
            if self._has_agreed(decision, cwd):
                return True
            if self._answers_by_calling_again:
                self._ask_first(decision, cwd)
            answer = await self._answer(decision, cwd)
            if answer is None or answer.action != "accept":
                return False
            if (answer.content or {}).get("remember") is True:
                self._session.agree(decision.command, cwd, self._inputs)
            return True

        return approve if self._can_ask else None

    def _has_agreed(self, decision: Decision, cwd: str) -> bool:
        return self._session.has_agreed(decision.command, cwd, self._inputs)

    @property
    def _inputs(self) -> str:
        """Names what the command is given besides its text."""
        given = {name: self._given.get(name) for name in _INPUTS if self._given.get(name)}
        text = json.dumps(given, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if given else ""

    async def _answer(self, decision: Decision, cwd: str) -> ElicitResult | None:
        if self._answers_by_calling_again:
            key = self._questions.take(self._answers, self._subject(decision, cwd))
            given = self._answers[key] if key is not None else None
            return given if isinstance(given, ElicitResult) else None
        with contextlib.suppress(MCPError, ValidationError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                return await self._context.session.elicit_form(
                    self._question(decision, cwd), _SCHEMA, self._context.request_id
                )
        return None

    def _ask_first(self, decision: Decision, cwd: str) -> None:
        subject = self._subject(decision, cwd)
        if self._questions.answered(self._answers, subject) is None:
            message = self._question(decision, cwd)
            request = ElicitRequest(
                params=ElicitRequestFormParams(message=message, requested_schema=_SCHEMA)
            )
            asked = InputRequiredResult(input_requests={self._questions.ask(subject): request})
            raise MustAsk(asked)

    def _subject(self, decision: Decision, cwd: str) -> str:
        question = self._question(decision, cwd)
        return subject_of(self._session.caller, self._tool, self._given, question)

    def _question(self, decision: Decision, cwd: str) -> str:
        lines = [in_words(decision), "", f"in {shown(cwd)}:"]
        # All of it: nobody agrees unseen.
        lines += [f"  | {shown(line)}" for line in decision.command.strip().splitlines()]
        if description := self._given.get("description"):
            lines.append(f"the agent says: {shown(str(description))}")
        return "\n".join([*lines, "", "Accept to run it; decline to refuse it."])
