"""Transcripts: written without secrets for one's own eyes, read strictly, and gone on from."""

import asyncio
import json
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ToolCallPart

from kakoi.agents.conversation import ModelAnswer, TokenUsage, ToolReplies, UserMessage
from kakoi.agents.events import (
    AgentEvent,
    ContextShortened,
    LoopEnded,
    LoopStarted,
    ModelFailed,
    ModelReminded,
    ModelReplied,
    Outcome,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kakoi.agents.loop import AgentLoop
from kakoi.agents.transcript import TranscriptFile, read_transcript, turns_from_events
from kakoi.cli.io.agent_view import event_lines
from kakoi.errors import AuditError, ConfigurationError
from tests.agents.models_for_tests import Ear, HangingTools, Script, ToolsInMemory, call, done

USAGE = TokenUsage(input_tokens=10, output_tokens=2, cost=0.25)
EVENTS: list[AgentEvent] = [
    LoopStarted(
        model="openai:x", tools=("look", "done"), instructions="Be careful.", prompt="Do it."
    ),
    StepStarted(step=1, tokens=100),
    ModelFailed(step=1, error="busy", wait_s=1.0),
    ModelReplied(step=1, text="I look.", usage=USAGE, total=USAGE),
    ToolCalled(step=1, id="a", tool="look", arguments={"at": "x", "deep": [1, {"y": None}]}),
    ToolAnswered(step=1, id="a", tool="look", text="seen", meta={"exit_code": 0}),
    ModelReminded(step=1, text="Think."),
    ContextShortened(step=2, shortened=1, dropped=0, tokens=50),
    ToolCalled(step=2, id="b", tool="?", arguments={}, fault="no such thing"),
    LoopEnded(outcome=Outcome.DONE, steps=2, usage=TokenUsage(), summary="ok"),
]


def ticking() -> Iterator[datetime]:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    while True:
        yield now
        now += timedelta(seconds=1)


def write(path: Path, events: list[AgentEvent], secrets: tuple[str, ...] = ()) -> None:
    clock = ticking()
    with TranscriptFile(path, clock=lambda: next(clock), task="t", secrets=secrets) as file:
        for event in events:
            file(event)


# --- Writing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [60, 100, 600, 900])
@pytest.mark.anyio
async def test_arguments_that_are_nested_deeply_do_not_end_the_loop(
    tmp_path: Path, depth: int
) -> None:
    nested: dict[str, object] = {}
    for _ in range(depth):
        nested = {"a": nested}
    clock, tools = ticking(), ToolsInMemory(look="seen")
    with TranscriptFile(tmp_path / "t.jsonl", clock=lambda: next(clock)) as file:
        script = Script(call("look", a=nested), done())
        ended = await AgentLoop(script.model, tools, listener=file).run("", "x")
    assert ended.outcome is Outcome.DONE
    assert len(tools.called) == (depth < 64)
    assert depth < 64 or "nested too deeply" in script.last_heard


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "t.jsonl"
    write(path, EVENTS)
    found = read_transcript(path)
    assert [event for _at, event in found.events] == EVENTS
    assert [at for at, _event in found.events] == [float(n) for n in range(1, 11)]
    assert (found.task, found.began[:10], found.is_cut) == ("t", "2026-01-31", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_secrets_are_taken_out_wherever_they_are(tmp_path: Path) -> None:
    secret = "a plain secret nobody would know"
    path = tmp_path / "t.jsonl"
    arguments = {
        "command": f"curl -H 'Authorization: Bearer {secret}'",
        "env": {"DB_PASSWORD": "hunter2 and more", "list": [secret]},
        secret: "a key",
    }
    write(
        path,
        [
            ToolCalled(step=1, id="a", tool="t", arguments=arguments),
            ToolAnswered(step=1, id="a", tool="t", text=f"https://u:{secret}@h/ ghp_" + "a" * 36),
            ModelReplied(step=1, text=json.dumps(secret), usage=USAGE, total=USAGE),
        ],
        secrets=(secret,),
    )
    text = path.read_text()
    for each in (secret, "hunter2", "ghp_aaaa"):
        assert each not in text
    assert len(read_transcript(path).events) == 3


def test_a_file_that_is_there_and_a_link_are_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for path in (there, link, tmp_path / "there" / "below"):
        with pytest.raises(AuditError):
            TranscriptFile(path, clock=lambda: datetime.now(UTC))
    assert there.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_huge_and_deep_values_are_cut(tmp_path: Path) -> None:
    deep: object = "x"
    for _ in range(200):
        deep = [deep]
    path = tmp_path / "t.jsonl"
    arguments = {"content": "z" * 1_000_000, "deep": deep}
    wide = {f"k{number}": "w" * 100_000 for number in range(60)}
    write(
        path,
        [
            ToolCalled(step=1, id="a", tool="t", arguments=arguments),
            ToolCalled(step=1, id="b", tool="t", arguments=wide),
            EVENTS[-1],
        ],
    )
    assert path.stat().st_size < 400_000
    found = read_transcript(path)
    assert len(found.events) == 2
    first = found.events[0][1]
    assert isinstance(first, ToolCalled)
    assert "characters omitted" in first.arguments["content"]


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    clock = ticking()
    with pytest.raises(AuditError, match="/dev/full"):
        TranscriptFile(Path("/dev/full"), clock=lambda: next(clock))


# --- Reading ---------------------------------------------------------------------------------

HEAD = '{"kakoi_transcript": 1, "task": "", "began": ""}\n'
SAID = '{"event": "StepStarted", "at": 1, "step": 1, "tokens": 5}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a transcript"),
        ("hello\n", "is not a transcript"),
        ("[]\n", "is not a transcript"),
        ("{}\n", "is not a transcript"),
        ("{\n", ":1: not valid JSON"),
        ('{"kakoi_transcript": 2}\n', "of version 2; this kakoi reads 1"),
        ('{"kakoi_transcript": true}\n', "of version True"),
        ('{"kakoi_transcript": "1"}\n', "of version 1"),
        ('{"kakoi_transcript": 1, "task": 7}\n', "must be text"),
        (HEAD + "nonsense\n", ":2: not valid JSON"),
        (HEAD + "7\n", ":2: not a JSON object"),
        (HEAD + "[" * 100_000 + "\n", ":2: not valid JSON"),
        (HEAD + '{"event": "Exploded", "at": 1}\n', "unknown event 'Exploded'"),
        (HEAD + '{"event": ["x"], "at": 1}\n', "unknown event"),
        (HEAD + '{"event": "StepStarted", "at": "x"}\n', "`at` must be a number"),
        (HEAD + '{"event": "StepStarted", "at": NaN}\n', "`at` must be a number"),
        (HEAD + SAID.replace("5}", '"5"}'), "`tokens` has the wrong type"),
        (HEAD + SAID.replace("5}", "true}"), "`tokens` has the wrong type"),
        (HEAD + SAID.replace("5}", '5, "more": 1}'), "StepStarted has no `more`"),
        (HEAD + SAID.replace(', "tokens": 5', ""), "StepStarted is incomplete"),
        (HEAD + SAID.replace("\n", " " * 5_000_000 + "\n"), "too long"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_transcript_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_transcript(path)
    assert words in str(caught.value)


def test_another_version_names_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"kakoi_transcript": 99}\n')
    with pytest.raises(ConfigurationError) as caught:
        read_transcript(path)
    assert "the kakoi that wrote it" in caught.value.hint


def test_a_line_that_was_cut_by_a_crash_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(HEAD + SAID + SAID[:20])
    found = read_transcript(path)
    assert (len(found.events), found.is_cut) == (1, True)


def test_a_pipe_a_folder_and_nothing_are_no_transcripts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigurationError):
            read_transcript(path)


# --- Going on --------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_paused_task_goes_on_from_its_transcript(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    tools = HangingTools()
    clock = ticking()
    with TranscriptFile(path, clock=lambda: next(clock)) as file:

        def pause(event: AgentEvent) -> None:
            file(event)
            if isinstance(event, ToolCalled) and not event.fault:
                loop.pause()

        broken = ToolCallPart(tool_name="wait", args="{")
        script = Script(broken, "hm", call("wait", at="x"))
        loop = AgentLoop(script.model, tools, listener=pause)
        async with asyncio.timeout(30):
            assert (await loop.run("", "Do it.")).outcome is Outcome.PAUSED
    earlier = turns_from_events(event for _at, event in read_transcript(path).events)
    kinds = [type(turn) for turn in earlier]
    assert kinds == [ModelAnswer, ToolReplies, ModelAnswer, UserMessage, ModelAnswer, ToolReplies]
    resumed = Script(done("went on"))
    ended = await AgentLoop(resumed.model, ToolsInMemory(), listener=Ear()).run(
        "", "Do it.", earlier
    )
    assert ended.summary == "went on"
    assert "cancelled: the task was paused" in resumed.last_heard
    assert len(resumed.asked[0]) == 7


# --- The view --------------------------------------------------------------------------------


def test_every_event_is_shown_in_a_few_short_lines() -> None:
    for event in EVENTS:
        lines = list(event_lines(event, color=False))
        assert lines
        assert all(len(line) < 300 for line in lines)


@given(st.text(alphabet=st.characters(), max_size=300))
def test_whatever_strangers_write_is_shown_and_not_obeyed(text: str) -> None:
    events: list[AgentEvent] = [
        LoopStarted(model=text, tools=(), instructions="", prompt=""),
        ModelFailed(step=1, error=text, wait_s=1),
        ModelReplied(step=1, text=text, usage=USAGE, total=USAGE),
        ToolCalled(step=1, id="a", tool=text, arguments={text: text}),
        ToolCalled(step=1, id="a", tool=text, arguments={"command": text}),
        ToolAnswered(step=1, id="a", tool=text, text=text, meta={"exit_code": 3}),
        ModelReminded(step=1, text=text),
        LoopEnded(outcome=Outcome.GAVE_UP, steps=1, usage=TokenUsage(), summary=text, error=text),
    ]
    for event in events:
        for line in event_lines(event, color=False):
            assert all(char.isprintable() for char in line)


def test_a_megabyte_in_one_line_is_not_shown() -> None:
    answer = ToolAnswered(step=1, id="a", tool="t", text="x" * 1_000_000 + "\n" * 10_000)
    lines = list(event_lines(answer, color=False))
    assert sum(map(len, lines)) < 2000


@pytest.mark.parametrize(
    ("meta", "is_error", "words"),
    [
        ({"verdict": "deny"}, True, "refused"),
        ({"code": "USER_CANCELLED", "verdict": "ask"}, True, "not approved"),
        ({"exit_code": 0}, False, "allowed, exit code 0"),
        ({"exit_code": "\x1b[2J"}, True, "failed"),
        ({}, False, "done"),
    ],
)
def test_the_verdict_is_shown(meta: dict[str, object], is_error: bool, words: str) -> None:
    event = ToolAnswered(step=1, id="a", tool="t", text="", is_error=is_error, meta=meta)
    assert words in next(event_lines(event, color=False))
