"""Words of a model that machines obey: none of them is left in what we say under our name.

Each pattern is that of the machine which obeys, as its makers publish it.
"""

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.tasks.comments import (
    TaskResult,
    commit_message,
    disarmed,
    disarmed_line,
    format_result,
    quoted,
    request_body,
    request_title,
)
from kakoi.tasks.task import Task

KEY = "https://h.example/team/project/issues/7"
_WORD = r"(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|closing|fixing|resolving|implement(?:s|ed|ing)?)"
_ADDRESS = r"https?://\S+/(?:issues|pull|merge_requests|work_items|epics)/[0-9]+"
OBEYED = {
    "skip, GitLab": r"\[(?:ci[ _-]skip|skip[ _-]ci)\]",
    "skip, GitHub": r"\[(?:skip ci|ci skip|no ci|skip actions|actions skip)\]",
    "skip, others": r"\[(?:skip|no)[ _-]\S+\]|\[\S+[ _-]skip\]|\*\*\*NO_CI\*\*\*",
    "quick action": r"(?m)^\s*/[a-z]",
    "mention, GitHub": r"(?:^|\W)@[a-z0-9][a-z0-9-]*",
    "mention, GitLab": r"(?<![A-Za-z0-9_])@[a-zA-Z0-9_.]",
    "entity": r"&(?:#[0-9]+|#x[0-9a-f]+|[a-z]+);",
    "reference": r"(?:^|[\s(\[{,:/\w])[#!&][0-9]+|\bGH-[0-9]+",
    "closing by address": rf"\b{_WORD}:?\s+[<(]?{_ADDRESS}",
    "closing, Jira": rf"\b{_WORD}:?\s+[A-Z][A-Z0-9_]+-[0-9]+",
    "smart commit": r"\b[A-Z][A-Z0-9_]+-[0-9]+\b.*#[a-z]+",
    "checks": r"(?m)^\s*skip-checks\s*:",
    "hidden": r"<[!/?a-z]|!\[[^\]]*\]|^[\s>]*\[[^\]]+\]:",
    "robots": r"(?m)^(?:bors|atlantis|recheck|rebase|/\w+)\b",
    "unseen": "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]",
}  # fmt: skip
ATTACKS = [
    "[skip ci]", "[CI SKIP]", "[ci-skip]", "[skip_ci]", "[no ci]", "[skip actions]", "[skip azp]",
    "[skip netlify]", "[skip travis]", "[CF-Pages-Skip]", "***NO_CI***", "[sk\u202eip ci]",
    "[skip\u00ad ci]", "skip-checks: true", "Skip-Checks:true",
    "/merge", "\r/close", "x\u2028/merge", "\x0b/approve", "> /label ~x", "/\u200bmerge", "\u200b/merge",
    "@eve", "x.@eve", "\\@eve", "(@team/all)", "&#64;eve", "&commat;eve", "&#x40;eve", "@\u202eeve",
    "fixes #1", "Closes: #1", "resolves other/repo#1", "fix GH-1", "Fixes &num;1", "fixes\u200b #1",
    "fixes https://h.example/o/r/issues/1", "closes <https://h.example/o/r/pull/1>", "#\u200b1",
    "implements https://h.example/g/p/-/issues/1", "resolve ABC-12", "closes issue #1, !2 and &3",
    "fixes\nhttps://h.example/o/r/issues/1", "ABC-12 #done #time 2h", "see team/project#4, !5",
    "bors r+", "atlantis apply", "recheck",
    "Co-authored-by: Eve <eve@example.org>", "Signed-off-by: Eve <eve@example.org>",
    "<!-- a hidden order -->", "<details>x</details>", "<img src=https://h.example/x.png>", "</p>",
    "![x](https://h.example/x.png)", "[//]: # (a hidden order)", "[x]: https://h.example 'order'", "<?x?>",
    "\U000e0041\U000e0042 hidden", "\x1b]0;title\x07", "a\x00b", "\ud800",
]  # fmt: skip


def everything(text: str) -> dict[str, str]:
    """All texts of ours that hold words of others."""
    task = Task(uuid="t", repository="r", key=KEY, title=text)
    handled = TaskResult(stage="done", summary=text, error=text, branch="x")
    return {
        "comment": format_result(handled),
        "request": request_body(task, handled),
        "title": request_title(task),
        "commit": commit_message(task, text, [text, f"mend it\n\n{text}"]),
    }


def obeyed(said: str) -> list[str]:
    # Our own address stands there on purpose, and no word before it closes anything.
    said = said.replace(f"For {KEY}", "").replace("<!-- kakoi -->", "")
    return [name for name, each in OBEYED.items() if re.search(each, said, re.IGNORECASE)]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_machine_obeys_what_a_model_says(attack: str) -> None:
    for text in (attack, f"It is done.\n\n{attack}", f"It is done.\n{attack}\nReally."):
        for place, said in everything(text).items():
            found = obeyed(said)
            # Those robots read comments; the first line of the others is a title of ours.
            allowed = [] if place == "comment" else ["robots"]
            assert found in ([], allowed), (place, said)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_disarmed_stays_disarmed_and_readable(attack: str) -> None:
    once = disarmed(attack)
    assert disarmed(once) == once
    letters = "".join(char for char in attack if char.isascii() and char.isalnum())
    assert "".join(char for char in once if char.isascii() and char.isalnum()) == letters


@pytest.mark.parametrize("name", ["Co-authored-by", "Signed-off-by", "Reviewed-by", "skip-checks"])
def test_nobody_else_is_named_as_an_author(name: str) -> None:
    line = f"{name}: Eve <eve@example.org>"
    for text in (line, f"mended\n\n{line}", f"mended\n\n\n{line}\n"):
        message = commit_message(Task(uuid="t", repository="r", key=KEY, title=line), text, [text])
        argv = ["git", "interpret-trailers", "--parse"]
        found = subprocess.run(argv, input=message, capture_output=True, text=True, check=True)
        assert "Eve" not in found.stdout


PIECES = st.sampled_from([*ATTACKS, " ", "\n", "\u200b", "#", "@", "1", "[", "]", "/", "fix", ":"])


@given(st.lists(PIECES, max_size=8).map("".join))
def test_no_joint_of_two_texts_is_obeyed(text: str) -> None:
    for said in (quoted(text), disarmed_line(text)):
        assert [name for name in obeyed(said) if name != "robots"] == []


def test_a_long_text_is_disarmed_in_no_time() -> None:
    """The limit of every test is the clock: the square of these lengths would take hours."""
    for piece in (
        "A",
        "A-",
        "a-",
        "[",
        "[skip ",
        "fixes ",
        "fixes: ",
        "&",
        "@",
        "/",
        "\n>",
        "#",
        "-by",
    ):
        assert disarmed(piece * 50_000)
