"""Approval of tool calls: who is asked, what the answer covers, and that a call is judged once."""

import asyncio
import json
from pathlib import Path

import pytest

from kakoi.backends.host.adapter import HostAdapter
from kakoi.policy.profiles import load_policy
from kakoi.tools.approval import ApprovalAnswer, Question, UserContact
from kakoi.tools.toolset import Toolset
from tests.tools.places import CountingGate, ToolPlace, run, tools_over

pytestmark = pytest.mark.anyio
ASKS = "git init inner"
NO, ONCE, ALWAYS = ApprovalAnswer.NO, ApprovalAnswer.ONCE, ApprovalAnswer.ALWAYS


class Person:
    """Gives the answers in order, and remembers the questions."""

    def __init__(self, *answers: ApprovalAnswer) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def ask(self, question: Question) -> ApprovalAnswer:
        self.asked.append(question.text)
        return self._answers.pop(0)

    @property
    def contact(self) -> UserContact:
        return UserContact(ask=self.ask)


def events(place: ToolPlace) -> list[str]:
    return [json.loads(line)["event"] for line in place.log.read_text().splitlines()]


async def test_a_yes_runs_it_once_and_a_no_is_told_with_the_question(
    tools: Toolset, place: ToolPlace
) -> None:
    person = Person(ONCE, NO)
    arguments = {"command": ASKS, "description": "a new one"}
    first = await tools.call("execute_command", arguments, contact=person.contact)
    second = await tools.call("execute_command", arguments, contact=person.contact)
    assert (first.is_error, second.is_error) == (False, True)
    assert events(place) == ["asked", "approved", "started", "ended", "asked", "declined"]
    assert f"in {place.workspace}:\n  | {ASKS}\nthe agent says: a new one" in person.asked[0]
    assert second.text.startswith("ask[asks-first]: ")
    assert "it was declined" in second.text
    assert (second.meta["code"], second.meta["verdict"]) == ("USER_CANCELLED", "ask")


async def test_always_is_for_the_same_command_input_and_session(tools: Toolset) -> None:
    person = Person(ALWAYS, NO, NO, NO)
    for changed in ({}, {}, {"stdin": "x"}, {"session": "other"}, {"workdir": "inner"}):
        arguments = {"command": ASKS, **changed}
        result = await tools.call("execute_command", arguments, contact=person.contact)
        assert result.is_error is bool(changed), changed
    assert len(person.asked) == 4


async def test_without_a_person_the_answer_is_no(tools: Toolset, place: ToolPlace) -> None:
    refused = await run(tools, ASKS)
    assert refused.is_error
    assert "there was nobody to ask" in refused.text
    assert events(place) == ["asked", "declined"]


async def test_a_file_that_git_runs_is_asked_about(tools: Toolset, place: ToolPlace) -> None:
    (place.workspace / ".git" / "hooks").mkdir(parents=True)
    hook = {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"}
    person = Person(NO, ONCE)
    assert (await tools.call("write_file", hook, contact=person.contact)).is_error
    assert not (await tools.call("write_file", hook, contact=person.contact)).is_error
    assert len(person.asked) == 2


async def test_a_question_that_is_put_off_is_not_recorded(tools: Toolset, place: ToolPlace) -> None:
    class LaterError(Exception):
        pass

    def put_off(_question: Question) -> None:
        raise LaterError

    later = UserContact(ask=Person().ask, before_asking=put_off)
    with pytest.raises(LaterError):
        await tools.call("execute_command", {"command": ASKS}, contact=later)
    assert not place.log.exists()
    allowed = await tools.call("execute_command", {"command": "echo hi"}, contact=later)
    assert not allowed.is_error


async def test_a_question_holds_no_turn(place: ToolPlace) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def think(_question: Question) -> ApprovalAnswer:
        asked.set()
        await answer.wait()
        return ONCE

    one = ToolPlace(place.folder, settings={"execution.concurrency": 1})
    async with one.open() as tools, asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(
            tools.call("execute_command", {"command": ASKS}, contact=UserContact(ask=think))
        )
        await asked.wait()
        assert not (await run(tools, "echo meanwhile")).is_error
        answer.set()
        assert not (await waiting).is_error


@pytest.mark.parametrize("answer", [ONCE, NO])
async def test_a_command_is_judged_once_even_if_it_is_asked_about(
    tmp_path: Path, answer: ApprovalAnswer
) -> None:
    gate = CountingGate(load_policy(), HostAdapter(tmp_path), cwd=str(tmp_path))
    async with tools_over(gate, tmp_path) as tools:
        await tools.call("execute_command", {"command": ASKS}, contact=Person(answer).contact)
        assert gate.judged == 1
        await run(tools, ASKS)
        assert gate.judged == 2
