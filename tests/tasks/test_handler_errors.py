"""The rows of spec A 8.1: whatever keeps an environment from being made is logged, told in a
comment, and ends the task in error; on GitHub and on GitLab, and without any secret."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    ExecutionTimeoutError,
    ImagePullError,
    KakoiError,
    LimitError,
    SandboxError,
)
from kakoi.network.git_credentials import credential_for
from kakoi.process.executor import ProcessExecutor
from kakoi.settings.model import AuditSection, Settings
from kakoi.settings.tasks import McpServerSection, TaskSection
from kakoi.tasks.checkout import CloneError, CloneOptions, git_from_options
from kakoi.tasks.from_settings import task_getter
from kakoi.tasks.handler import Agent, HandlerOptions, TaskHandler, TaskResult
from kakoi.tasks.handler_from_settings import (
    open_environments,
    read_rules_files,
    task_handler,
)
from kakoi.tasks.task import Task, uuid_from_key
from tests.tasks.hub import Hub, Lab, a_hub, a_lab
from tests.tasks.trackers import TOKEN, Reply

pytestmark = pytest.mark.anyio


class NoPlace:
    """Environments that cannot be made, for one reason."""

    def __init__(self, why: BaseException) -> None:
        self.why = why
        self.steps: list[str] = []

    async def prepare_environment(self, task: Task) -> Any:
        self.steps.append("prepare")
        raise self.why

    async def cleanup(self, task_uuid: str) -> None:
        self.steps.append("cleanup")


@pytest.fixture(params=["github", "gitlab"])
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hub | Lab]:
    opened = a_hub if request.param == "github" else a_lab
    with opened(tmp_path / "srv") as tracker:
        yield tracker


def never(*_: Any) -> Any:
    raise AssertionError("nobody is to be asked")


async def handled(tracker: Hub | Lab, places: NoPlace, folder: Path, key: str = "") -> TaskResult:
    handler = TaskHandler(
        places,
        Agent(open_model=never, open_tools=never, read_rules=read_rules_files),
        HandlerOptions(transcripts=folder / "transcripts", secrets=(TOKEN,)),
        clock=lambda: datetime.now(UTC),
        git=git_from_options(ProcessExecutor(), CloneOptions(), None),
        credential_for=lambda address: credential_for(address, tracker.environ),
    )
    async with task_getter(Settings(), tracker.environ) as getter:
        task = await getter.fetch(key or tracker.issue)
        return await handler.handle(task, getter.source_of(task.key))


WHY = [
    # A container cannot be made.
    EnvironmentUnavailableError("cannot connect to the engine", hint="is it running?"),
    ImagePullError("the image x cannot be pulled", hint="docker pull x"),
    LimitError("the memory limit cannot be kept"),
    ExecutionTimeoutError("docker create took longer than 60 s"),
    SandboxError("no space left on device"),
    # A project cannot be cloned.
    CloneError("cloning failed: the server denied access", hint="is the token still good?"),
    CloneError("cloning failed: the server could not be reached"),
    CloneError("cloning failed: there is no such repository"),
]


@pytest.mark.requirement("A-094", "A-095")
@pytest.mark.parametrize(
    "why", WHY, ids=[type(each).__name__ + str(at) for at, each in enumerate(WHY)]
)
async def test_each_reason_is_logged_told_and_the_end(
    tracker: Hub | Lab, tmp_path: Path, why: KakoiError, caplog: pytest.LogCaptureFixture
) -> None:
    places = NoPlace(why)
    result = await handled(tracker, places, tmp_path)
    assert result.stage == tracker.stage() == "error"
    (said,) = tracker.said()
    for words in (str(why), why.hint, why.code):
        assert words in said
    assert [record.levelname for record in caplog.records if str(why) in record.message] == [
        "ERROR"
    ]
    assert places.steps == ["prepare"]  # What fails there is taken away there.


async def test_a_request_is_told_and_labelled_too(tracker: Hub | Lab, tmp_path: Path) -> None:
    result = await handled(tracker, NoPlace(WHY[0]), tmp_path, key=tracker.pull)
    assert result.stage == tracker.stage(8) == "error"
    assert "cannot connect" in tracker.said(8)[0]


async def test_an_environment_that_cannot_be_made_does_not_cost_the_work_of_before(
    tracker: Hub | Lab, tmp_path: Path
) -> None:
    kept = tmp_path / "transcripts" / f"{uuid_from_key(tracker.issue)}.patch"
    kept.parent.mkdir()
    kept.write_bytes(b"the work of an hour")
    assert (await handled(tracker, NoPlace(WHY[0]), tmp_path)).stage == "error"
    assert kept.read_bytes() == b"the work of an hour"


@pytest.mark.parametrize("kind", [SandboxError, CloneError, RuntimeError, OSError])
async def test_a_secret_in_an_error_is_nowhere(
    tracker: Hub | Lab, tmp_path: Path, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    why = kind(f"fatal: could not read https://x:{TOKEN}@h/ ({TOKEN})")
    result = await handled(tracker, NoPlace(why), tmp_path)
    assert result.stage == tracker.stage() == "error"
    for place in (repr(result), tracker.everything_said(), caplog.text):
        assert TOKEN not in place
    assert "fatal: could not read" in caplog.text


async def test_a_tracker_that_takes_no_comment_does_not_keep_the_label_away(
    tracker: Hub | Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = tracker.answer

    def refusing(seen: Any) -> Reply:
        if seen.method == "POST" and seen.path.endswith(("/comments", "/notes")):
            return tracker.error(403, "locked")
        return answer(seen)

    tracker.answer = refusing  # type: ignore[method-assign] # as a locked issue does
    result = await handled(tracker, NoPlace(WHY[0]), tmp_path)
    assert result.stage == tracker.stage() == "error"
    assert tracker.said() == []
    assert "cannot post the result" in caplog.text


# --- Another command executor -----------------------------------------------------------------


@pytest.mark.requirement("X-33")
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("other-server", "--stdio"), "would run commands on this machine"),
        (("npx", "@sunwood-ai-labs/command-executor-mcp-server"), "no model is named"),
        ((), "no model is named"),
    ],
    ids=["another", "the design's", "none"],
)
async def test_another_command_executor_needs_a_container_and_the_designs_own_means_kakoi(
    tmp_path: Path, command: tuple[str, ...], problem: str
) -> None:
    server = McpServerSection(command=command)
    section = TaskSection(enabled=True, place="folder", mcp_server=server)
    settings = Settings(tasks=section, audit=AuditSection(file=str(tmp_path / "audit.jsonl")))
    async with open_environments(settings) as environments:
        with pytest.raises(ConfigurationError, match=problem):
            task_handler(settings, environments)
