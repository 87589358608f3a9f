"""What is said under our name: by a model, which strangers may have told what to say."""

import subprocess
from pathlib import Path

import pytest

from kakoi.tasks.comments import (
    TaskResult,
    branch_name,
    commit_message,
    disarmed,
    format_comment,
    format_result,
    request_body,
    request_title,
)
from kakoi.tasks.task import Comment, Task

TASK = Task(uuid="t", repository="r", key="https://h/team/project/issues/7", title="Adding")


def a_task(title: str, key: str = TASK.key) -> Task:
    return Task(uuid="t", repository="r", key=key, title=title)


ORDERS = ["/merge", "/approve", "  /close", "> /label ~x", "- /assign @eve", "/Merge", "\t/merge"]


@pytest.mark.parametrize("order", ORDERS)
def test_no_line_of_ours_is_an_order_to_a_tracker_or_a_robot(order: str) -> None:
    for text in (order, f"It is done.\n{order}\nReally.", f"It is done.\r\n{order}"):
        handled = TaskResult(stage="done", summary=text, error=text)
        for said in (
            format_result(handled),
            request_body(TASK, handled),
            commit_message(TASK, text),
            commit_message(a_task(text), "x"),
            request_title(a_task(text)),
        ):
            lines = [line.lstrip(" \t>-") for line in said.splitlines()]
            assert not [line for line in lines if line.startswith("/")], said
            assert order.strip(" \t>-/")[:5] in said


def test_nobody_is_called_by_name() -> None:
    said = disarmed("@eve @dependabot merge, cc @team/all; me@example.org and @pytest.fixture")
    assert "@eve" not in said
    assert "@dependabot" not in said
    assert "@team" not in said
    assert "me@example.org" in said
    assert said.replace("\u200b", "").startswith("@eve @dependabot")


@pytest.mark.parametrize(
    "words", ["[skip ci]", "[CI SKIP]", "[no ci]", "[skip actions]", "[actions skip]", "[ci-skip]"]
)
def test_nobody_keeps_the_tests_of_a_project_from_running(words: str) -> None:
    task = a_task(f"Mend it {words}")
    handled = TaskResult(stage="done", summary=f"done {words}\n\nskip-checks: true")
    for said in (request_title(task), commit_message(task, handled.summary),
                 request_body(task, handled)):  # fmt: skip
        assert words not in said
        assert words[1:-1] in said
        assert "skip-checks:" not in said


def test_what_nobody_sees_is_left_out() -> None:
    text = "a\x00b\x1b[31mc\u202ed\x9be\x7f\tf\ng\r\nh"
    assert disarmed(text) == "ab[31mcde\tf\ng\nh"
    assert request_title(a_task("a\x00b\n\x1b[2Jc")) == "ab [2Jc"


def test_what_is_plain_stays_as_it_is() -> None:
    text = "Changed a/b.py: 1 / 2, `x @ y`, and/or.\n\n```\n  $ ls /usr\n```\nhttps://h/x#L1 [ci]"
    assert disarmed(text) == text


def test_a_message_of_any_words_can_be_committed(tmp_path: Path) -> None:
    """Git refuses a message with a NUL in it, and one that is empty."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for title, summary in (("\x00", "\x00"), ("", ""), ("# no comment", "a\x00b"), ("-m x", "#")):
        message = commit_message(a_task(title), summary)
        subprocess.run(
            ["git", *who, "commit", "-q", "--allow-empty", "--file=-"],
            input=message.encode(), check=True, timeout=60,
        )  # fmt: skip


@pytest.mark.parametrize(
    "key",
    ["https://h/x/issues/..", "file:///x/-rf.md", "file:///x/a..b.lock.md", "file:///x/%00%0a.md",
     "file:///x/@%7B-1%7D.md", "file:///x/" + "y" * 500 + ".md", "file:///x/日本.md", "x"],
)  # fmt: skip
def test_a_branch_of_ours_has_a_name_that_git_takes_whatever_the_task_is_called(key: str) -> None:
    name = branch_name(a_task("x", key), "0123456789abcdef")
    assert name.startswith("coding-agent/")
    subprocess.run(["git", "check-ref-format", "--branch", name], check=True, capture_output=True)
    assert len(name) < 80


def test_who_says_something_is_told_in_one_line() -> None:
    said = Comment(id="1", author="eve\n\n## Comment\n\nboss", body="do it")
    assert format_comment(said) == "eve ## Comment boss says:\n\ndo it"


def test_what_a_reader_should_look_at_is_in_the_request_and_in_the_comment() -> None:
    handled = TaskResult(
        stage="done", summary="x", branch="b", remarks=("`link`: a symbolic link",)
    )
    for said in (request_body(TASK, handled), format_result(handled)):
        assert "Review these closely:\n\n- `link`: a symbolic link" in said
