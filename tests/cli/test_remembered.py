"""Remembered approvals: given at the terminal, listed, removed, learned, and never widened."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kakoi.audit import read, verify
from tests.cli.conftest import has_bubblewrap, need
from tests.cli.terminals import Door, terminal

ASKED = b"kakoi: run it? [y/N/a/e] "
COMMIT = "git commit --allow-empty -m x"


@pytest.fixture
def user(tmp_path: Path) -> Door:
    """A user with a home, and a project with a repository."""
    folder = tmp_path.resolve()
    folder.chmod(0o700)
    home, project = folder / "home", folder / "project"
    for each in (home, project):
        each.mkdir(mode=0o700)
    own = {"HOME": str(home), "KAKOI_SANDBOX": "host"}
    return Door(project, folder / "audit.jsonl", own)


def home(user: Door) -> Path:
    return Path(user.env["HOME"])


def answer(user: Door, command: str, *keys: bytes, asked: bytes = ASKED) -> tuple[int, str]:
    """Type `keys` at each question about a command; returns the exit code and the screen."""
    with terminal(user, "run", command, columns=200) as screen:
        for key in keys:
            screen.until(asked)
            screen.type(key)
        status = screen.wait()
        return status, screen.screen.decode()


def listed(user: Door) -> list[dict[str, Any]]:
    status, out, err = user("policy", "remembered", "--json")
    assert status == 0, err
    found: list[dict[str, Any]] = json.loads(out)["remembered"]
    return found


def events(user: Door) -> list[tuple[str, str]]:
    return [(record.event.value, record.reason) for record in read(user.log)]


def test_always_here_is_asked_once_and_says_what_it_covers(user: Door) -> None:
    status, seen = answer(user, "git init first", b"a\n")
    assert status == 0
    assert "what it would change: makes a repository" in seen
    assert f"a  always here: `git init first` in {user.workspace}, for 30 days" in seen
    (one,) = listed(user)
    assert (one["form"], one["directory"]) == ("git init first", str(user.workspace))
    # Nobody is there to be asked, and nobody has to be.
    status, _, err = user("run", "git init first")
    assert status == 0, err
    status, _, err = user("run", "git init second")
    assert status == 126
    assert "ask[asks-first]" in err
    told = [(event, why) for event, why in events(user) if event == "approved"]
    day = one["expires"][:10]
    remembered = f"{one['id']} (`git init first` until {day})"
    assert told == [
        ("approved", f"approved, and remembered as {remembered}"),
        ("approved", f"approved by the remembered approval {remembered}"),
    ]
    assert [event for event, _ in events(user)] == [
        *("asked", "approved", "started", "ended"),
        *("asked", "approved", "started", "ended"),
        *("asked", "declined"),
    ]
    assert verify(user.log).ok


@pytest.mark.parametrize(
    "command",
    [
        "git push --force origin x",
        "FOO=1 git push origin x",
        "timeout 9 git push origin x",
        "git push https://example.invalid/x x",
        "git push origin x:main",
        "git push origin x; git push -f",
    ],
)
def test_what_is_more_than_its_form_has_no_always(user: Door, command: str) -> None:
    with terminal(user, "run", command, columns=200) as screen:
        asked = screen.until(b"kakoi: run it? [y/N/e] ")
        assert b"always" not in asked
        screen.type(b"a\n")
        assert screen.wait() == 126
    assert user.records() == ["asked", "declined"]
    assert listed(user) == []


def test_the_question_can_be_explained_and_is_asked_again(user: Door) -> None:
    status, seen = answer(user, "git push origin x", b"e\n", b"?\n", b"n\n")
    assert status == 126
    assert seen.count("rule asks-first: the command is on the list, but a person must") == 2
    assert "more: kakoi explain asks-first" in seen
    assert "why: " in seen
    assert "Ask your user" not in seen
    assert user.records() == ["asked", "declined"]


def test_questions_without_an_end_are_a_no(user: Door) -> None:
    status, _ = answer(user, "git push origin x", *[b"e\n"] * 5)
    assert status == 126


def test_it_is_removed_one_by_one_or_altogether(user: Door) -> None:
    for name in ("a", "b", "c"):
        answer(user, f"git init {name}", b"always\n")
    ids = {each["form"]: each["id"] for each in listed(user)}
    status, out, _ = user("policy", "remembered", "--remove", ids["git init a"])
    assert (status, out.split()[:2]) == (0, ["removed", ids["git init a"]])
    assert user("run", "git init a")[0] == 126
    assert user("run", "git init b")[0] == 0
    status, _, err = user("policy", "remembered", "--remove", "00000000")
    assert status == 2
    assert "no remembered approval has the id '00000000'" in err
    status, out, _ = user("policy", "remembered", "--remove-all", "--json")
    assert {each["form"] for each in json.loads(out)["removed"]} == {"git init b", "git init c"}
    assert listed(user) == []
    assert user("run", "git init b")[0] == 126
    assert "Nothing is remembered" in user("policy", "remembered")[1]
    assert user("policy", "remembered", "--remove", "x", "--remove-all")[0] == 2


def test_a_damaged_store_is_ignored_with_a_warning_and_can_be_started_anew(user: Door) -> None:
    answer(user, "git init a", b"a\n")
    (store,) = home(user).rglob("approvals.json")
    store.write_bytes(store.read_bytes()[:-9])
    status, _, err = user("run", "git init a")
    assert status == 126
    assert "remembered approvals are not used" in err
    assert "is damaged" in err
    status, _, err = user("policy", "remembered")
    assert status == 2
    assert "--remove-all" in err
    status, seen = answer(user, "git init a", b"y\n", asked=b"run it? [y/N/e] ")
    assert status == 0, seen
    assert user("policy", "remembered", "--remove-all")[0] == 0
    assert listed(user) == []


def test_zero_days_neither_offer_nor_answer(user: Door) -> None:
    answer(user, "git init a", b"a\n")
    off = Door(user.workspace, user.log, {**user.env, "KAKOI_REMEMBER_DAYS": "0"})
    assert off("run", "git init a")[0] == 126
    assert "`policy.remember_days` is 0" in off("policy", "remembered")[1]
    with terminal(off, "run", "git init a", columns=200) as screen:
        screen.until(b"kakoi: run it? [y/N/e] ")
        screen.type(b"n\n")
        assert screen.wait() == 126


# --- Never widened by a project ----------------------------------------------------------------


def test_a_project_can_shorten_and_tighten_and_never_add(user: Door) -> None:
    answer(user, "git init a", b"a\n")
    own = user.workspace / "kakoi.yaml"
    own.write_text("policy: {remember_days: 60}\n")
    status, _, err = user("run", "git init a")
    assert status == 125
    assert "can only lower" in err
    own.write_text("policy: {remember_days: 0}\n")
    assert user("run", "git init a")[0] == 126
    rule = "{id: mine, verdict: ask, commands: [git init], reason: always ask}"
    own.write_text(f"policy: {{rules: [{rule}]}}\n")
    status, _, err = user("run", "git init a")
    assert status == 126
    assert "always ask" in err
    own.write_text("policy: {blocked: [git init]}\n")
    assert "deny[" in user("run", "git init a")[2]
    own.unlink()
    assert user("run", "git init a")[0] == 0


def test_a_store_that_commands_can_write_approves_nothing(user: Door) -> None:
    answer(user, "git init a", b"a\n")
    (store,) = home(user).rglob("approvals.json")
    inside = user.workspace / "state" / "kakoi" / "approvals"
    inside.mkdir(parents=True, mode=0o700)
    (inside / "approvals.json").write_bytes(store.read_bytes())
    (inside / "approvals.json").chmod(0o600)
    state = {**user.env, "XDG_STATE_HOME": str(user.workspace / "state")}
    moved = Door(user.workspace, user.log, state)
    status, _, err = moved("run", "git init a")
    assert status == 126
    assert "is inside the workspace, where commands can write" in err
    with terminal(moved, "run", "git init a", columns=200) as screen:
        screen.until(b"kakoi: run it? [y/N/e] ")
        screen.type(b"a\n")
        assert screen.wait() == 126


def test_a_confined_command_cannot_reach_the_store(user: Door) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    answer(user, "git init a", b"a\n")
    (store,) = home(user).rglob("approvals.json")
    before = store.read_bytes()
    confined = Door(user.workspace, user.log, {**user.env, "KAKOI_SANDBOX": "bubblewrap"})
    script = f"import pathlib; pathlib.Path({str(store)!r}).write_text('x')"
    (user.workspace / "x.py").write_text(script)
    assert confined("run", "python3 x.py")[0] != 0
    assert store.read_bytes() == before
    assert confined("run", "git init a")[0] == 0


def test_no_flag_and_no_setting_to_ask_always_is_answered(user: Door) -> None:
    answer(user, "git init a", b"a\n")
    config = home(user) / ".config" / "kakoi" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("policy: {require_confirmation: true}\n")
    assert user("run", "git init a")[0] == 126


def test_a_hook_is_answered_and_its_confined_command_runs(user: Door) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    answer(user, "git init a", b"a\n")
    confined = Door(user.workspace, user.log, {**user.env, "KAKOI_SANDBOX": "bubblewrap"})

    def hook(command: str, *options: str) -> dict[str, Any] | None:
        event = {
            "hook_event_name": "PreToolUse",
            "tool_name": "Bash",
            "tool_input": {"command": command},
            "cwd": str(user.workspace),
        }
        status, out, _ = confined("hook", "claude-code", *options, stdin=json.dumps(event).encode())
        assert status == 0
        return json.loads(out)["hookSpecificOutput"] if out else None

    told = hook("git init a", "--confine")
    assert told is not None
    assert told["permissionDecision"] == "allow"
    assert "you approved it before" in told["permissionDecisionReason"]
    assert "--yes" not in told["updatedInput"]["command"]
    other = hook("git init b", "--confine")
    assert other is not None
    assert other["permissionDecision"] == "ask"
    assert "--yes" in other["updatedInput"]["command"]
    # Unconfined, kakoi never answers in the place of the client.
    assert hook("git init a") is None


# --- Learn -------------------------------------------------------------------------------------


def proposals(user: Door) -> list[dict[str, Any]]:
    status, out, err = user("policy", "learn", "--json")
    assert status == 0, err
    found: list[dict[str, Any]] = json.loads(out)["proposals"]
    return found


def accept(user: Door, number: int, keys: bytes) -> tuple[int, str]:
    with terminal(user, "policy", "learn", "--accept", str(number), columns=200) as screen:
        screen.until(b"kakoi: add it? [y/N]: ")
        screen.type(keys)
        return screen.wait(), screen.screen.decode()


def test_what_was_refused_and_asked_about_is_proposed_most_frequent_first(user: Door) -> None:
    for _ in range(3):
        user("run", "frobnicate --all")
    for name in ("x", "y"):
        user("run", f"git push origin {name}")
    for never in ("sudo id", "rm -rf /", "git push -f", "frob2 | sudo sh", "./frob3", "curl x|sh"):
        user("run", never)
    user("run", "ls")
    found = proposals(user)
    assert [(each["kind"], each["text"], each["count"]) for each in found] == [
        ("program", "frobnicate", 3),
        ("approval", "git push origin <branch>", 2),
    ]
    assert found[0]["examples"] == ["frobnicate --all"]
    assert (found[1]["approved"], found[1]["directory"]) == (0, str(user.workspace))
    text = user("policy", "learn")[1]
    assert text.index("1. program `frobnicate`: refused 3 times") < text.index("2. always `git pu")


def test_a_proposal_is_added_only_if_a_person_says_so(user: Door) -> None:
    user("run", "frobnicate --all")
    config = home(user) / ".config" / "kakoi" / "config.yaml"
    status, _, err = user("policy", "learn", "--accept", "1", stdin=b"y\n")
    assert status == 2
    assert "needs a person at a terminal" in err
    assert accept(user, 1, b"n\n")[0] == 1
    assert not config.exists()
    assert accept(user, 1, b"y\n")[0] == 0
    assert config.read_text() == "policy:\n  additional:\n    - frobnicate\n"
    assert list(user.workspace.iterdir()) == []
    assert user("run", "frobnicate --all")[0] == 127
    assert proposals(user) == []
    assert user("policy", "learn", "--accept", "1")[0] == 2


def test_a_form_is_remembered_by_a_proposal(user: Door) -> None:
    user("run", "git init a")
    status, seen = accept(user, 1, b"y\n")
    assert status == 0
    assert re.search(r"remembered as [0-9a-f]{8}: git init a in ", seen)
    assert user("run", "git init a")[0] == 0
    assert proposals(user) == []


def test_a_hostile_log_moves_no_cursor_and_proposes_no_path(user: Door) -> None:
    for text in ("frob\x1b[2J", "'fr ob' x", "../x", "--yes", "frob '\x9b31m'", "a\u202eb"):
        user("run", "--", text)
        user("run", text)
    status, out, _ = user("policy", "learn")
    assert status == 0
    assert not set(out) & {"\x1b", "\x9b", "\u202e"}
    assert {each["text"] for each in proposals(user)} <= {"frob"}


def test_without_a_log_there_is_nothing_to_learn_from(user: Door) -> None:
    status, _, err = user("policy", "learn")
    assert status == 2
    assert "no audit log" in err
