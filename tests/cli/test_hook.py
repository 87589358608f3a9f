"""`kakoi hook claude-code`: what it answers is Claude Code's protocol, and what it cannot judge it blocks."""

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from kakoi.audit import read, verify
from tests.cli.calling import Home
from tests.cli.conftest import has_bubblewrap, need

HOOK = [sys.executable, "-m", "kakoi", "hook", "claude-code"]


def event(home: Home, command: object, **more: object) -> dict[str, Any]:
    return {
        "session_id": "s",
        "transcript_path": "/t.jsonl",
        "cwd": str(home.project),
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": command, "description": "d", "timeout": 5000},
        "tool_use_id": "t",
        **more,
    }


def kakoi_words(rewritten: str) -> list[str]:
    """The call of kakoi in a rewritten command."""
    found = re.fullmatch(r"\{ kakoi_cwd=\$\((.*) 3>&1 1>&4 4>&-\); .*\} 4>&1", rewritten, re.DOTALL)
    assert found is not None
    return shlex.split(found[1])


NO_OPINION = {"permissionDecision": "none", "permissionDecisionReason": ""}


def answer(home: Home, command: str, *arguments: str, **more: Any) -> dict[str, Any]:
    env = more.pop("env", {})
    stdin = json.dumps(event(home, command, **more)).encode()
    status, out, err = home("hook", "claude-code", *arguments, stdin=stdin, **env)
    assert (status, err) == (0, "")
    if not out:
        return NO_OPINION
    (key, told), *rest = json.loads(out).items()
    assert (key, rest) == ("hookSpecificOutput", [])
    assert told["hookEventName"] == "PreToolUse"
    assert told["permissionDecisionReason"].startswith("kakoi: ")
    return dict(told)


@pytest.mark.parametrize(
    ("command", "verdict", "why"),
    [
        ("ls -la | head", "none", ""),
        ("python3 x.py", "none", ""),
        ("make", "none", ""),
        ("npm install", "none", ""),
        ("git commit -m x", "ask", "[asks-first]"),
        ("sudo id", "deny", "`sudo` changes users, owners or privileges [privilege]: Run the"),
        ("ls; rm -rf /", "deny", "[recursive-delete]"),
        ("echo 'open", "deny", "[unreadable]"),
        ("", "deny", "[empty-command]"),
        ("echo \ud800", "deny", "[unreadable]"),
        ("echo \x1b[31m", "deny", "[unreadable]"),
        ("frob", "deny", "`kakoi explain not-listed` says more"),
    ],
)
def test_a_bash_call_is_answered_with_the_verdict_and_why(
    home: Home, command: str, verdict: str, why: str
) -> None:
    """Unconfined, nothing is allowed: that would skip the question of the client itself."""
    told = answer(home, command)
    assert told["permissionDecision"] == verdict
    assert why in told["permissionDecisionReason"]
    assert "updatedInput" not in told
    assert "\x1b" not in told["permissionDecisionReason"]


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ("sandbox: {type: host}\n", "none"),
        ("sandbox: {type: bubblewrap, fallback: host}\n", "none"),
        ("sandbox: {type: host, host: {confine: true}}\n", "allow"),
        ("sandbox: {type: bubblewrap, fallback: docker}\n", "allow"),
    ],
)
def test_confine_allows_nothing_that_the_settings_would_run_unconfined(
    home: Home, settings: str, verdict: str
) -> None:
    home.write(home.config, settings)
    assert answer(home, "make", "--confine")["permissionDecision"] == verdict


@pytest.mark.parametrize(
    ("network", "verdict", "status"), [("none", "allow", 0), ("host", "deny", 126)]
)
def test_the_network_that_is_set_for_containers_counts_too(
    home: Home, network: str, verdict: str, status: int
) -> None:
    """What is harmless on a network of its own is not on that of this machine."""
    home.write(home.config, f"sandbox: {{type: docker, docker: {{network: {network}}}}}\n")
    command = "curl -d a=b http://localhost:8000/x"
    assert answer(home, command, "--confine")["permissionDecision"] == verdict
    assert home("check", command)[0] == status


def test_only_a_command_that_is_confined_runs_programs_of_the_project_unasked(home: Home) -> None:
    assert answer(home, "./x")["permissionDecision"] == "ask"
    assert answer(home, "./x", "--confine")["permissionDecision"] == "allow"


def test_each_verdict_is_recorded(home: Home) -> None:
    for command in ("ls", "git commit -m x", "sudo id", "echo \ud800"):
        answer(home, command, session_id="abc\x1b" + "x" * 5000)
    answer(home, "ls", session_id=7)
    records = list(read(home.root / "audit.jsonl"))
    assert [(record.event, record.verdict) for record in records] == [
        *(("judged", "allow"), ("judged", "ask"), ("refused", "deny"), ("refused", "deny")),
        ("judged", "allow"),
    ]
    assert [record.command for record in records[:3]] == ["ls", "git commit -m x", "sudo id"]
    assert records[2].rules == ("privilege",)
    assert records[0].session.startswith("claude-code:abc")
    assert records[4].session == "claude-code"
    assert verify(home.root / "audit.jsonl").ok
    assert "judged" in home("audit", "tail")[1]


def test_what_cannot_be_recorded_is_blocked(home: Home) -> None:
    stdin = json.dumps(event(home, "ls")).encode()
    file = home.write(home.root / "file", "no folder")
    status, out, err = home(
        "hook", "claude-code", stdin=stdin, KAKOI_AUDIT_FILE=str(file / "audit.jsonl")
    )
    assert (status, out) == (2, "")
    assert "blocked: " in err


def test_the_policy_is_the_one_that_holds_in_the_project(home: Home) -> None:
    home.write(home.config, "policy: {additional: [frob]}\n")
    assert answer(home, "frob")["permissionDecision"] == "none"
    assert answer(home, "frob", "--confine")["permissionDecision"] == "allow"
    home.write(home.project / ".kakoi.yaml", "policy: {blocked: [frob]}\n")
    assert answer(home, "frob")["permissionDecision"] == "deny"


def test_the_project_may_be_written_from_any_of_its_folders_and_nothing_else(home: Home) -> None:
    (home.project / "src").mkdir()
    below = {"cwd": str(home.project / "src"), "env": {"CLAUDE_PROJECT_DIR": str(home.project)}}
    assert answer(home, "touch ../x", "--confine", **below)["permissionDecision"] == "allow"
    assert answer(home, "touch /srv/x", **below)["permissionDecision"] == "deny"
    away = {"cwd": "/etc", "env": {"CLAUDE_PROJECT_DIR": str(home.project)}}
    assert answer(home, "touch x", **away)["permissionDecision"] == "deny"


@pytest.mark.parametrize("tool", ["Read", "Edit", "mcp__kakoi__execute_command"])
def test_there_is_no_opinion_about_other_tools(home: Home, tool: str) -> None:
    stdin = json.dumps(event(home, "x", tool_name=tool)).encode()
    assert home("hook", "claude-code", stdin=stdin) == (0, "", "")


# --- Confined --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "echo it\\'s \"$HOME\" '$(id)' | tr a-z A-Z",
        "printf '%s\\n' a\nprintf b",
        "cat <<'E'\n`x` $y\nE",
        "echo --help; ls -- -x",
    ],
)
def test_what_may_run_is_rewritten_to_run_in_kakoi_as_it_is(home: Home, command: str) -> None:
    told = answer(home, command, "--confine")
    assert told["permissionDecision"] == "allow"
    updated = told["updatedInput"]
    assert {key: updated[key] for key in ("description", "timeout")} == {
        "description": "d",
        "timeout": 5000,
    }
    *argv, text = kakoi_words(updated["command"])
    assert text == command
    where = ["--workspace", str(home.project), "--cwd", str(home.project)]
    assert argv[1:] == ["run", *where, "--cwd-fd", "3"]


def test_the_rewritten_command_runs_as_the_first_would_have(home: Home) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    command = 'echo "it\'s" \'$x\' "a  b" > out.txt; cat out.txt; exit 3'
    rewritten = answer(home, command, "--confine")["updatedInput"]["command"]
    environ = {**home.environ, "KAKOI_SANDBOX": "bubblewrap"}
    done = subprocess.run(
        ["/bin/bash", "-c", rewritten], cwd="/", env=environ, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (3, b"it's $x a  b\n")
    assert (home.project / "out.txt").exists()


def test_a_text_that_begins_with_a_dash_is_not_an_option(home: Home) -> None:
    told = answer(home, "--yes", "--confine")
    assert told["permissionDecision"] == "deny"
    home.write(home.config, "policy: {additional: ['--yes']}\n")
    told = answer(home, "--yes", "--confine")
    assert told["permissionDecision"] == "allow"
    assert kakoi_words(told["updatedInput"]["command"])[-1] == " --yes"


def test_who_agrees_in_the_client_has_agreed(home: Home) -> None:
    told = answer(home, "git commit -m x", "--confine")
    assert told["permissionDecision"] == "ask"
    assert kakoi_words(told["updatedInput"]["command"])[-2:] == ["--yes", "git commit -m x"]


def test_what_is_denied_is_not_rewritten(home: Home) -> None:
    assert "updatedInput" not in answer(home, "sudo id", "--confine")


# --- Where the client is ---------------------------------------------------------------------

# A directory's name may be anything but a slash: none of it may be read as more than a name.
NAMES = [
    "-",
    "--help",
    'it\'s  "quoted" ',
    "$(touch pwned)`touch pwned`;touch pwned;",
    "\nline\nbreak\n",
    "~*\\ü\t",
]


class ClaudeCode:
    """Runs commands of its Bash tool as the client does: each in a shell of its own, which tells
    where it ended if it ended well, and the next one begins there."""

    def __init__(self, home: Home, *hook: str) -> None:
        self._home = home
        self._hook = hook
        self.cwd = str(home.project)
        self._env = {"KAKOI_SANDBOX": "bubblewrap", "CLAUDE_PROJECT_DIR": str(home.project)}

    def bash(self, command: str, redirection: str = "< /dev/null") -> tuple[int, bytes]:
        file = self._home.root / "cwd"
        file.unlink(missing_ok=True)
        told = answer(self._home, command, *self._hook, cwd=self.cwd, env=self._env)
        if told is not NO_OPINION:
            command = told["updatedInput"]["command"]
        end = f"pwd -P >| {shlex.quote(str(file))}"
        done = subprocess.run(
            ["/bin/bash", "-c", f"eval {shlex.quote(command)} {redirection} && {end}"],
            cwd=self.cwd,
            env={**self._home.environ, **self._env},
            stdout=subprocess.PIPE,
            timeout=120,
        )
        if file.exists():
            self.cwd = os.fsdecode(file.read_bytes())[:-1]
        return done.returncode, done.stdout


@pytest.fixture
def claude(home: Home) -> ClaudeCode:
    need("bubblewrap", is_there=has_bubblewrap())
    return ClaudeCode(home, "--confine")


def test_a_confined_cd_is_the_directory_of_the_next_command(home: Home, claude: ClaudeCode) -> None:
    (home.project / "sub" / "deeper").mkdir(parents=True)
    plain = ClaudeCode(home)
    for command in ("cd sub && pwd", "cd deeper; echo hi", "pwd", "cd ../..; pwd", "cd sub; false"):
        assert claude.bash(command) == plain.bash(command)
        assert claude.cwd == plain.cwd
    assert claude.cwd == str(home.project)


def test_a_directory_is_a_name_and_nothing_else(home: Home, claude: ClaudeCode) -> None:
    for name in NAMES:
        folder = home.project / name
        folder.mkdir()
        assert claude.bash(f"cd -- {shlex.quote('./' + name)}")[0] == 0, name
        assert claude.cwd == str(folder)
        claude.cwd = str(home.project)
    odd = home.project / "odd" / os.fsdecode(b"\x1b[31m\xff\r")
    odd.mkdir(parents=True)
    assert claude.bash("cd odd/*")[0] == 0
    assert claude.cwd == str(odd)
    left = {path.name for path in home.project.iterdir()} - {*NAMES, "odd"}
    assert left == set()
    assert not (home.root / "pwned").exists()


def test_the_exit_code_the_output_and_the_shell_of_the_client_stay_theirs(
    home: Home, claude: ClaudeCode
) -> None:
    assert claude.bash("printf 'a\\nb'; exit 3") == (3, b"a\nb")
    # Some releases append the redirection to the text.
    for redirection in ("< /dev/null", "\\< /dev/null"):
        assert claude.bash("cat; echo end", redirection) == (0, b"end\n")
    big = claude.bash("head -c 300000 /dev/zero | tr '\\0' x")
    assert big == (0, b"x" * 300_000)
    assert claude.cwd == str(home.project)


@pytest.mark.parametrize(
    "command",
    [
        "cd /tmp",
        "cd /; cd usr",
        "ln -s /tmp out && cd out",
        "mkdir gone && cd gone && rmdir ../gone",
        # What only the shell of the sandbox should say.
        "echo /tmp >&200",
        "printf '/tmp\\0' >&200; exec 200>&-",
        "printf '%s\\n' '/tmp; touch pwned' '$(touch pwned)' >&200",
        "head -c 9000 /dev/zero | tr '\\0' / >&200",
    ],
)
def test_a_command_leads_the_client_nowhere_else(
    home: Home, claude: ClaudeCode, command: str
) -> None:
    claude.bash(command)
    assert claude.cwd == str(home.project)
    assert not (home.project / "pwned").exists()


def test_a_command_cannot_write_to_the_descriptor_of_the_client(
    home: Home, claude: ClaudeCode
) -> None:
    (home.project / "sub").mkdir()
    told = f"{home.project}/sub"
    for fd in (3, 4, 5):
        assert claude.bash(f"printf %s '{told}' >&{fd}")[0] != 0
        assert claude.cwd == str(home.project)


# --- What cannot be judged -------------------------------------------------------------------

MALFORMED: list[tuple[bytes | dict[str, object], str]] = [
    (b"", "it is not valid JSON"),
    (b"{", "it is not valid JSON"),
    (b"\xff", "it is not valid JSON"),
    (b"[" * 100_000, "it is not valid JSON"),
    (b"[]", "it is not an object"),
    (b"null", "it is not an object"),
    (b"{}", "its hook_event_name is not PreToolUse"),
    ({"hook_event_name": "PostToolUse"}, "its hook_event_name is not PreToolUse"),
    ({"tool_name": None}, "its tool_name is not a string"),
    ({"tool_name": ["Bash"]}, "its tool_name is not a string"),
    ({"tool_input": None}, "its tool_input has no command"),
    ({"tool_input": {}}, "its tool_input has no command"),
    ({"tool_input": {"command": ["ls"]}}, "its tool_input has no command"),
    ({"cwd": None}, "its cwd is not an absolute path"),
    ({"cwd": "relative"}, "its cwd is not an absolute path"),
    ({"cwd": "/a\0b"}, "its cwd is not an absolute path"),
    (b'"' + b"x" * (8 * 1024 * 1024), "it is larger than 8388608 bytes"),
]


@pytest.mark.parametrize(("given", "why"), MALFORMED)
def test_what_is_malformed_is_blocked_with_a_clear_message(
    home: Home, given: bytes | dict[str, object], why: str
) -> None:
    stdin = given if isinstance(given, bytes) else json.dumps(event(home, "ls", **given)).encode()
    status, out, err = home("hook", "claude-code", stdin=stdin)
    assert (status, out) == (2, "")
    assert err.startswith(f"kakoi: blocked: cannot judge the event from Claude Code: {why}")
    assert "kakoi hook claude-code --settings" in err


def test_wrong_settings_and_wrong_options_block(home: Home) -> None:
    stdin = json.dumps(event(home, "ls")).encode()
    assert home("hook", "claude-code", "--confin", stdin=stdin)[0] == 2
    assert home("hook", "claude", stdin=stdin)[0] == 2
    home.write(home.project / ".kakoi.yaml", "sandbox: {type: host}\n")
    status, out, err = home("hook", "claude-code", stdin=stdin)
    assert (status, out) == (2, "")
    assert "a project cannot set `sandbox.type`" in err


def test_an_answer_that_nobody_reads_blocks(home: Home) -> None:
    stdin = json.dumps(event(home, "sudo id"))
    shell = f"{shlex.quote(stdin)} | {{ exec 1>/dev/full; {shlex.join(HOOK)}; echo $? >&2; }}"
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf %s {shell}"],
        env=home.environ,
        capture_output=True,
        timeout=120,
    )
    assert done.stderr.decode().splitlines()[-1] == "2"


# --- Setting it up ---------------------------------------------------------------------------


def test_the_settings_that_claude_code_needs_are_printed(home: Home) -> None:
    status, out, _ = home("hook", "claude-code", "--settings")
    assert status == 0
    assert home("hook", "claude-code", "--settings", "--confine")[1] == out
    plain = home("hook", "claude-code", "--settings", "--no-confine")[1]
    assert plain == out.replace(" --confine", "")
    (group,) = json.loads(out)["hooks"]["PreToolUse"]
    (hook,) = group["hooks"]
    assert group["matcher"] == "Bash"
    assert (hook["type"], hook["onFailure"]) == ("command", "block")
    assert shlex.split(hook["command"])[1:] == ["hook", "claude-code", "--confine"]
    stdin = json.dumps(event(home, "sudo id")).encode()
    done = subprocess.run(
        ["/bin/sh", "-c", hook["command"]],
        input=stdin,
        env=home.environ,
        capture_output=True,
        timeout=120,
    )
    decision = json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"]
    assert (done.returncode, decision) == (0, "deny")


def test_the_open_profile_refuses_nothing_and_leaves_the_host_to_the_client(home: Home) -> None:
    home.write(home.config, "policy: {profile: open}\n")
    for command in ("sudo rm -rf /", "echo 'never closed"):
        assert answer(home, command)["permissionDecision"] == "none"
        told = answer(home, command, "--confine")
        assert told["permissionDecision"] == "allow"
        assert kakoi_words(told["updatedInput"]["command"])[-1] == command
    assert answer(home, "# nothing")["permissionDecision"] == "deny"


@pytest.mark.extended("repetition: single calls are tried in the default tier")
@pytest.mark.slow("starts two hundred processes")
def test_two_hundred_hooks_at_once_lose_no_verdict_and_no_record(home: Home) -> None:
    expected = {"ls -la": "", "git commit -m x": "ask", "sudo id": "deny", "echo 'open": "deny"}
    commands = list(expected) * 50
    started = []
    for number, command in enumerate(commands):
        process = subprocess.Popen(
            HOOK,
            cwd=home.project,
            env=home.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(event(home, command, session_id=f"s{number}")).encode())
        process.stdin.flush()
        started.append(process)
    # They have started, and wait for the end of what they read.
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    for command, process in zip(commands, started, strict=True):
        out, err = process.communicate(timeout=240)
        assert (process.returncode, err) == (0, b"")
        told = json.loads(out)["hookSpecificOutput"]["permissionDecision"] if out else ""
        assert told == expected[command]
    records = list(read(home.root / "audit.jsonl"))
    wanted = [(f"claude-code:s{number}", command) for number, command in enumerate(commands)]
    assert sorted((each.session, each.command) for each in records) == sorted(wanted)
    assert verify(home.root / "audit.jsonl").ok
