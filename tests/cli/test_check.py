"""`kakoi check` and `kakoi policy` as people and scripts use them: in a process of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli import forked


def kakoi(
    *arguments: str,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    variables = {**os.environ, **(env or {})}
    done = forked.kakoi(*arguments, stdin=stdin, cwd=cwd or Path.cwd(), env=variables)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_refusal_underlines_the_offending_part_and_names_the_way_out() -> None:
    status, out, _ = kakoi("check", "git status && sudo rm -rf /")
    lines = out.splitlines()
    assert status == 126
    assert lines[0] == "deny[privilege]: `sudo` changes users, owners or privileges"
    assert lines[2] == "1 | git status && sudo rm -rf /"
    assert lines[3] == "  |               ^^^^"
    assert lines[4].startswith("  = help: ")


def test_an_everyday_line_is_allowed() -> None:
    status, out, _ = kakoi("check", "grep -rn 'sudo' docs/ | head -5 2>/dev/null")
    assert (status, out) == (0, "allow: grep -rn 'sudo' docs/ | head -5 2>/dev/null\n")


def test_a_question_has_its_own_status() -> None:
    status, out, _ = kakoi("check", "git commit -m x")
    assert status == 3
    assert out.startswith("ask[asks-first]: ")


def test_the_underline_fits_wide_characters_and_long_lines() -> None:
    _, out, _ = kakoi("check", "echo '日本語' && sudo id")
    assert "  | " + " " * 17 + "^^^^" in out.splitlines()
    _, out, _ = kakoi("check", "echo " + "x" * 500 + " && sudo id && echo " + "y" * 500)
    _, text, marks = out.splitlines()[1:4]
    assert len(text) < 120
    assert text[marks.index("^") :].startswith("sudo")


def test_the_line_of_a_long_text_is_named() -> None:
    _, out, _ = kakoi("check", "ls\npwd\nsudo id\n")
    assert "3 | sudo id" in out


def test_several_words_are_a_program_with_arguments() -> None:
    assert kakoi("check", "--", "echo", "a; sudo id")[0] == 0
    assert kakoi("check", "sudo", "id")[0] == 126
    status, out, _ = kakoi("check", "ls", "-l", "--json")
    assert (status, out.split()) == (0, ["allow:", "ls", "-l", "--json"])


def test_standard_input_is_read_for_a_dash() -> None:
    assert kakoi("check", "-", stdin=b"ls -la\n")[0] == 0
    assert kakoi("check", "-", stdin=b"cat <<E\n$(sudo id)\nE\n")[0] == 126
    assert kakoi("check", "-", stdin=b"echo \xff\n")[0] == 126


def test_json_says_everything_and_survives_odd_text() -> None:
    status, out, _ = kakoi("check", "--json", "--", "ls > /etc/x")
    answer = json.loads(out)
    assert status == 126
    assert answer["verdict"] == "deny"
    (finding,) = answer["findings"]
    assert finding["rule"] == "write-outside"
    assert finding["text"] == "/etc/x"
    assert finding["hint"]
    status, out, _ = kakoi("check", "--json", "-", stdin=b"echo \xed\xa0\x80")
    assert (status, json.loads(out)["verdict"]) == (126, "deny")


def test_jsonl_answers_each_line_in_order_and_goes_on_after_a_bad_one() -> None:
    lines = [b'{"command": "ls"}', b'{"command": "sudo id", "id": 7}', b"nonsense", b'{"command": 5}', b"[]",
             b'{"command": "echo \\ud800"}', b'{"command": "git push"}', b'{"command": ""}']  # fmt: skip
    status, out, _ = kakoi("check", "--jsonl", stdin=b"\n".join(lines))
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["verdict"] for a in answers] == [
        "allow",
        "deny",
        "deny",
        "deny",
        "deny",
        "deny",
        "ask",
        "deny",
    ]
    assert [a["line"] for a in answers] == list(range(1, 9))
    assert all(isinstance(a["reasons"], list) for a in answers)
    assert status == 2
    assert kakoi("check", "--jsonl", stdin=b'{"command": "sudo id"}\n')[0] == 0


def test_jsonl_numbers_the_lines_of_its_input() -> None:
    _, out, _ = kakoi("check", "--jsonl", stdin=b'\n{"command": "ls"}\n\n\n{"command": "pwd"}\n')
    assert [json.loads(line)["line"] for line in out.splitlines()] == [2, 5]


def test_a_program_of_the_project_is_judged_by_the_sandbox_of_the_settings() -> None:
    assert kakoi("check", "./x")[0] == 0
    assert kakoi("check", "--unconfined", "./x")[0] == 3
    line = b'{"command": "./x"}'
    verdicts = [
        json.loads(kakoi("check", "--jsonl", *option, stdin=line)[1])["verdict"]
        for option in ((), ("--unconfined",), ("--confined",))
    ]
    assert verdicts == ["allow", "ask", "allow"]


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"KAKOI_SANDBOX": "host"}, 3),
        ({"KAKOI_SANDBOX": "docker"}, 0),
        ({"KAKOI_SANDBOX": "bubblewrap", "KAKOI_FALLBACK": "host"}, 3),
        ({"KAKOI_NETWORK": "host"}, 3),
        ({"KAKOI_NETWORK": "open"}, 0),
    ],
)
def test_the_host_and_its_network_confine_nothing(variables: dict[str, str], status: int) -> None:
    assert kakoi("check", "./x", env=variables)[0] == status
    assert kakoi("check", "--confined", "./x", env=variables)[0] == 0


def test_jsonl_judges_a_file_access_of_the_audit_log_as_one() -> None:
    texts = ["read /etc/hosts", "write /etc/hosts", "remove recursively /tmp/x", "cat /etc/hosts"]
    lines = [json.dumps({"command": text, "kind": "file access"}).encode() for text in texts]
    status, out, _ = kakoi("check", "--jsonl", stdin=b"\n".join(lines))
    answers = [json.loads(line) for line in out.splitlines()]
    assert [each["verdict"] for each in answers] == ["allow", "deny", "deny", "deny"]
    assert "does not describe a file access" in answers[-1]["error"]
    assert status == 2


@pytest.mark.parametrize("profile", ["shell", "open", "coding-agent", "x", ""])
@pytest.mark.parametrize("words", [["git push"], ["echo", "a b"], ["ls -l", "-x"], ["-", "-q"], []])
def test_a_profile_is_read_with_and_without_click_alike(
    profile: str, words: list[str], tmp_path: Path
) -> None:
    env = {"HOME": str(tmp_path), "KAKOI_CONFIG": ""}
    apart = kakoi("check", "--profile", profile, *words, cwd=tmp_path, env=env)
    by_click = kakoi("check", f"--profile={profile}", *words, cwd=tmp_path, env=env)
    assert apart == by_click


def test_profiles_differ() -> None:
    assert kakoi("check", "--profile", "shell", "git push")[0] == 0
    assert kakoi("check", "--profile", "bash-executor", "echo `date`")[0] == 126


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", "--frob"],
        ["check", "--profile", "x", "ls"],
        ["chek", "ls"],
        ["check", "--jsonl", "ls"],
        ["check", "ls -l", "--json"],
    ],
)
def test_wrong_usage_is_status_two_with_a_message(arguments: list[str]) -> None:
    status, out, err = kakoi(*arguments)
    assert status == 2
    assert out == ""
    assert "Error" in err or err.startswith("kakoi: ")


def test_a_mistyped_command_names_the_nearest() -> None:
    assert "Did you mean `kakoi check`?" in kakoi("chek", "ls")[2]


def test_quiet_answers_by_status_alone() -> None:
    assert kakoi("check", "-q", "sudo id")[:2] == (126, "")


@pytest.mark.requirement("D-005")
def test_writes_are_held_against_the_directory_it_is_asked_from(tmp_path: Path) -> None:
    assert kakoi("check", f"touch {tmp_path}/x", cwd=tmp_path)[0] == 0
    assert kakoi("check", "--cwd", "/srv/app", "touch /srv/app/x")[0] == 0
    assert kakoi("check", "--cwd", "/srv/app", "touch /srv/other/x")[0] == 126


def test_nothing_of_the_command_reaches_the_terminal_raw() -> None:
    _, out, _ = kakoi("check", "echo \x1b[31m \u202e x")
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_the_policy_is_shown_with_where_it_came_from() -> None:
    status, out, _ = kakoi("policy", "show")
    assert status == 0
    assert "Version Control: git status, git diff" in out
    assert "[profile coding-agent]" in out
    assert "recursive-delete" in out
    answer = json.loads(kakoi("policy", "show", "--json", "--profile", "shell")[1])
    assert answer["name"] == "shell"
    assert all(command["origin"] for command in answer["commands"])
    assert all(rule["origin"] for rule in answer["rules"])


def test_the_version_is_printed_without_loading_the_rest() -> None:
    code = """
import atexit, sys
atexit.register(lambda: print(sorted(sys.modules)))
sys.argv = ["kakoi", "--version"]
import kakoi.cli
kakoi.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    out = done.stdout.decode()
    assert out.startswith("kakoi ")
    for heavy in ("click", "yaml", "pydantic", "asyncio", "kakoi.policy"):
        assert f"'{heavy}'" not in out


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["ls", "-la"],
        ["git push --force"],
        ["git", "commit", "-m", "a b"],
        ["rm -rf /; ls"],
        ["make -j4", "-x"],
        ["ls", "--json"],
        ["echo 'open"],
        ["caf\u00e9 \udcff"],
        [""],
        [" "],
    ],
)
def test_a_call_without_options_is_answered_as_one_with_options(words: list[str]) -> None:
    assert kakoi("check", *words) == kakoi("check", "--workspace", ".", *words)


def test_judging_loads_nothing_that_runs_commands() -> None:
    code = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules)))
sys.argv = ["kakoi", "check", "ls"]
import kakoi.cli
kakoi.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    loaded = set(done.stdout.decode().split())
    assert "kakoi.policy.decide" in loaded
    assert loaded & {"asyncio", "kakoi.gate", "kakoi.audit", "kakoi.backends.select"} == set()
