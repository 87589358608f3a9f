"""A task in a Markdown file: read as settings are, never written to, its record beside it."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.files import FileSource, file_key
from kakoi.tasks.sources.source import TaskChange, TaskGetter, set_stage
from tests.tasks.trackers import is_wanted

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXT = """---
title: Say hello
repository: https://example.org/team/project.git
---

In two languages.
"""


def source(folder: Path | None = None) -> FileSource:
    return FileSource(folder, clock=lambda: NOW)


def written(path: Path, text: str = TEXT) -> str:
    path.write_text(text, "utf-8")
    return file_key(path)


async def test_a_file_is_a_task(tmp_path: Path) -> None:
    key = written(tmp_path / "hello there.md")
    task = await TaskGetter([source()]).fetch(key)
    assert (task.title, task.body) == ("Say hello", "In two languages.")
    assert (task.repository, task.kind) == ("https://example.org/team/project.git", "issue")
    assert (task.labels, task.state, task.key) == (("coding agent",), "open", key)
    assert task.uuid == (await source().fetch(key)).uuid


async def test_a_file_may_say_everything_that_a_tracker_says(tmp_path: Path) -> None:
    front = "repository: ./repo\nkind: pull_request\nsource_branch: feature\ntarget_branch: main\nlabels: [a]\nassignees: [bot]\nstate: closed"
    task = await source().fetch(written(tmp_path / "x.md", f"---\n{front}\n---\n"))
    assert (task.kind, task.source_branch, task.target_branch) == (
        "pull_request",
        "feature",
        "main",
    )
    assert (task.labels, task.assignees, task.state) == (("a",), ("bot",), "closed")
    assert (task.title, task.repository) == ("x", str(tmp_path / "repo"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no front matter",
        "---\ntitle: x\n",
        "---\ntitle: x\n---\n",
        "---\nrepository: 5\n---\n",
        "---\nrepository: /x\nlabels: bug\n---\n",
        "---\nrepository: /x\nlabel: bug\n---\n",
        "---\nrepository: /x\nkind: epic\n---\n",
        "---\nrepository: /x\nstate: done\n---\n",
        "---\nrepository: /x\nkind: pull_request\n---\n",
        "---\nrepository: /x\nsource_branch: --x\n---\n",
        "---\nrepository: !!python/object/apply:os.system [x]\n---\n",
        "---\na: &a [x]\nrepository: *a\n---\n",
        "---\n" + "[" * 5000 + "\n---\n",
        "---\nrepository: /x\n---\n" + "x" * 300_000,
    ],
)
async def test_a_file_that_cannot_be_one_is_told(tmp_path: Path, text: str) -> None:
    key = written(tmp_path / "x.md", text)
    with pytest.raises(ConfigurationError) as caught:
        await source().fetch(key)
    assert len(str(caught.value)) < 400
    assert await source(tmp_path).waiting() == ()


async def test_what_waits_in_a_folder_is_listed(tmp_path: Path) -> None:
    keys = [written(tmp_path / f"{name}.md") for name in "ba"]
    written(tmp_path / "c.md", TEXT.replace("title", "state: closed\ntitle"))
    written(tmp_path / "d.md", TEXT.replace("title", "labels: [bug]\ntitle"))
    (tmp_path / "README.md").write_text("# Something else\n")
    (tmp_path / "x.txt").write_text(TEXT)
    (tmp_path / "folder.md").mkdir()
    os.mkfifo(tmp_path / "pipe.md")  # Whoever opens it waits for ever.
    assert await source(tmp_path).waiting() == tuple(sorted(keys))
    assert await source().waiting() == ()


async def test_a_folder_that_is_not_there_is_a_failure_of_the_source(tmp_path: Path) -> None:
    found = await TaskGetter([source(tmp_path / "gone")]).waiting()
    assert found.keys == ()
    assert "cannot list" in str(found.failures[0])


async def test_what_came_of_it_is_kept_beside_the_file(tmp_path: Path) -> None:
    key = written(tmp_path / "x.md")
    files = source(tmp_path)
    task = await files.fetch(key)
    first = await files.comment(task, "I begin.")
    second = await files.comment(task, "password=hunter2hunter2")
    await files.update_comment(task, first, "I began.")
    await set_stage(files, task, "processing")
    assert await files.waiting() == (key,)
    await set_stage(files, task, "done")
    again = await source(tmp_path).fetch(key)
    assert first != second
    assert [(each.author, each.body) for each in again.comments] == [
        ("kakoi", "I began."),
        ("kakoi", "password=[redacted]"),
    ]
    assert again.comments[0].created_at == "2026-01-02T03:04:05+00:00"
    assert again.labels == ("coding agent done",)
    assert await files.waiting() == ()
    assert (tmp_path / "x.md").read_text() == TEXT
    assert sorted(os.listdir(tmp_path)) == ["x.md", "x.md.kakoi.json"]


async def test_without_the_record_it_is_as_on_the_first_day(tmp_path: Path) -> None:
    key = written(tmp_path / "x.md")
    files = source(tmp_path)
    await set_stage(files, await files.fetch(key), "error")
    assert await files.waiting() == ()
    (tmp_path / "x.md.kakoi.json").unlink()
    assert await files.waiting() == (key,)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "{",
        '{"labels": 5}',
        '{"labels": []}',
        '{"labels": [], "comments": [5]}',
        "[" * 99_999,
    ],
)
async def test_a_broken_record_is_told(tmp_path: Path, record: str) -> None:
    key = written(tmp_path / "x.md")
    (tmp_path / "x.md.kakoi.json").write_text(record)
    with pytest.raises(SourceError, match="it should be "):
        await source().fetch(key)
    other = written(tmp_path / "y.md")
    assert await source(tmp_path).waiting() == (other,)  # It hides nothing else.


async def test_comments_do_not_pile_up_without_end(tmp_path: Path) -> None:
    key = written(tmp_path / "x.md")
    files = source()
    task = await files.fetch(key)
    ids = [await files.comment(task, f"{number}") for number in range(105)]
    again = await files.fetch(key)
    assert len(set(ids)) == 105
    assert [each.body for each in again.comments] == [f"{number}" for number in range(5, 105)]
    assert not again.comments_complete


async def test_a_comment_that_is_not_there_cannot_be_changed(tmp_path: Path) -> None:
    files = source()
    task = await files.fetch(written(tmp_path / "x.md"))
    with pytest.raises(SourceError, match="has no comment"):
        await files.update_comment(task, "1", "x")


async def test_a_file_that_goes_away_or_is_closed_ends_the_task(tmp_path: Path) -> None:
    key = written(tmp_path / "x.md", TEXT.replace("title", "assignees: [bot]\ntitle"))
    files = source()
    task = await files.fetch(key)
    assert await is_wanted(files, task)
    written(tmp_path / "x.md")
    assert not await is_wanted(files, task)
    assert await files.propose(task, TaskChange(branch="x", title="x", body="")) == ""
    (tmp_path / "x.md").unlink()
    with pytest.raises(ConfigurationError, match="not a Markdown file"):
        await files.comment(task, "x")


@pytest.mark.parametrize(
    "key",
    ["file://host/x.md", "file:///x.txt", "x.md", "/x.md", "file:///a%00.md", "https://x/y.md"],
)
def test_an_address_of_something_else_is_not_ours(key: str) -> None:
    assert not source().owns(key)


def test_a_path_with_a_nul_is_no_key() -> None:
    with pytest.raises(ConfigurationError, match="is not a valid path"):
        file_key("a\0.md")
