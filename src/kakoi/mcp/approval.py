"""Asks the user of a client for approval when the policy says so.

Clients of protocol 2026-07-28 and later get the question as the answer to their call, and call
again with the user's reply. Older clients get a request while the call is running.

An answer counts once, from the client that was asked, for the call that the question was about, and
only if this server asked it and still remembers it. Otherwise the question is asked again.
"""

import contextlib
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
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

from kakoi.tools.approval import ApprovalAnswer, Question, UserContact
from kakoi.tools.sessions import Caller

# The first version without protocol sessions, and in which a server cannot send requests.
STATELESS_SINCE: Final = "2026-07-28"


def caller_from(context: ServerRequestContext[Any, Any]) -> Caller:
    """Return who sent this request: with which token, over which connection.

    On stdio there is one client. A client of an older protocol has an HTTP session id, which the
    SDK has checked against the token that opened the session. Since protocol 2026-07-28 each
    request stands alone: only what a client presents itself ties it to its earlier requests.
    """
    request = context.request
    if request is None:
        return Caller()
    user = request.scope.get("user")
    identity = user.username if isinstance(user, AuthenticatedUser) else ""
    if is_version_at_least(context.protocol_version, STATELESS_SINCE):
        # Nobody has checked an id in its headers.
        return Caller(identity, is_connected=False)
    return Caller(identity, str(request.headers.get("mcp-session-id", ""))[:128])


_PREFIX: Final = "approve-"
_MOST_PENDING: Final = 4096


class PendingQuestions:
    """The questions that wait for an answer, each for `timeout_s` seconds of `clock`."""

    def __init__(self, clock: Callable[[], float], *, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._pending: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def ask(self, subject: str) -> str:
        """Register a question about `subject`; returns an unguessable key."""
        key = f"{_PREFIX}{secrets.token_hex(16)}"
        self._pending[key] = subject, self._clock() + self._timeout_s
        if len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        return key

    def answered(self, keys: Iterable[str], subject: str) -> str | None:
        """Return which of `keys` is a pending question about `subject`."""
        return next((key for key in keys if self._is_about(key, subject)), None)

    def take(self, keys: Iterable[str], subject: str) -> str | None:
        """Like `answered`, but also remove the question."""
        key = self.answered(keys, subject)
        if key is not None:
            del self._pending[key]
        return key

    def _is_about(self, key: str, subject: str) -> bool:
        asked, deadline_s = self._pending.get(key, ("", 0.0))
        return asked == subject and self._clock() <= deadline_s


def question_subject(
    caller: Caller, tool: str, arguments: Mapping[str, Any], question: Question
) -> str:
    """Return a digest of who is asked, the tool and its arguments, and the question."""
    asked = [question.text, question.offer]
    parts = [caller.identity, caller.connection, tool, arguments, asked]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "remember": {
            "type": "boolean",
            "title": "Do not ask again",
            "description": "Run this exact command in this session without asking again.",
            "default": False,
        }
    },
}


def _schema(question: Question) -> dict[str, Any]:
    """Return the form of the answer: what can be remembered depends on the question."""
    if not question.offer:
        return _SCHEMA
    here = {
        "type": "boolean",
        "title": "Always allow here",
        "description": f"Always: {question.offer}.",
        "default": False,
    }
    return {**_SCHEMA, "properties": {**_SCHEMA["properties"], "always_here": here}}


class ApprovalNeeded(Exception):
    """The client must ask the user and call again; `result` is the answer to send it."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("the client must ask the user")
        self.result = result


def user_contact(
    context: ServerRequestContext[Any, Any],
    params: CallToolRequestParams,
    questions: PendingQuestions,
) -> UserContact | None:
    """Return how to ask the user of a client during one call; None if the client cannot ask.

    Asking can raise ApprovalNeeded.
    """
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    # Without a mode it is a client from before modes existed: it supports forms.
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return None
    if not is_version_at_least(context.protocol_version, STATELESS_SINCE):
        return UserContact(ask=partial(_ask_client, context))
    answers = _AnswersInCall(context, params, questions)
    return UserContact(ask=answers.ask, before_asking=answers.before_asking)


async def _ask_client(
    context: ServerRequestContext[Any, Any], question: Question
) -> ApprovalAnswer:
    """Ask by a request to the client while the call is running."""
    with contextlib.suppress(MCPError, ValidationError):
        return _approval_answer(
            await context.session.elicit_form(question.text, _schema(question), context.request_id),
            question,
        )
    return ApprovalAnswer.NO


class _AnswersInCall:
    """Finds the answer in the call; if there is none, the client must call again with one."""

    def __init__(
        self,
        context: ServerRequestContext[Any, Any],
        params: CallToolRequestParams,
        questions: PendingQuestions,
    ) -> None:
        self._caller = caller_from(context)
        self._params = params
        self._answers = params.input_responses or {}
        self._questions = questions

    async def ask(self, question: Question) -> ApprovalAnswer:
        key = self._questions.take(self._answers, self._subject(question))
        answer = self._answers[key] if key is not None else None
        if not isinstance(answer, ElicitResult):
            return ApprovalAnswer.NO
        return _approval_answer(answer, question)

    def before_asking(self, question: Question) -> None:
        subject = self._subject(question)
        if self._questions.answered(self._answers, subject) is None:
            form = ElicitRequestFormParams(
                message=question.text, requested_schema=_schema(question)
            )
            request = ElicitRequest(params=form)
            key = self._questions.ask(subject)
            raise ApprovalNeeded(InputRequiredResult(input_requests={key: request}))

    def _subject(self, question: Question) -> str:
        params = self._params
        return question_subject(self._caller, params.name, params.arguments or {}, question)


def _approval_answer(result: ElicitResult, question: Question) -> ApprovalAnswer:
    if result.action != "accept":
        return ApprovalAnswer.NO
    content = result.content or {}
    if question.offer and content.get("always_here") is True:
        return ApprovalAnswer.HERE
    return ApprovalAnswer.ALWAYS if content.get("remember") is True else ApprovalAnswer.ONCE
