"""`kakoi run` as people and scripts use it: real processes, real pipes, real terminals."""

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.terminals import PATIENCE_S, Door, alive, terminal, until
from tests.docs.pages import ROOT

TREE = "echo up; sleep {0} & (setsid sleep {0} &) ; trap '' INT TERM HUP; sleep {0}; sleep {0}"


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    """The next line of its output, read while it runs."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "nothing came"
    return process.stdout.readline()


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Exit status, and what it said on standard error."""
    _, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, err.decode()


# --- Exit status -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_that_of_the_command(any_door: Door, status: int) -> None:
    assert any_door("run", f"exit {status}")[0] == status
    assert any_door.records() == ["started", "ended"]


def test_a_program_that_is_not_there_is_127_and_named(door: Door) -> None:
    status, out, err = door("run", "--allow", "frob", "--", "frob")
    assert (status, out) == (127, "")
    assert "kakoi: cannot start `frob`: the program: No such file or directory" in err
    assert door("run", "--allow", "frob", "frob --now")[0] == 127


@pytest.mark.parametrize(
    "words",
    [
        ["echo hi; exit 3"],
        ["--", "sh", "-c", "exit 4"],
        ["--", "frob"],
        ["echo", "a  b"],
        ["sudo ls"],
        ["git push --force"],
        [],
        ["--"],
        [""],
        ["-x"],
    ],
    ids=" ".join,
)
def test_a_call_is_answered_alike_whether_click_reads_it_or_not(
    words: list[str], door: Door
) -> None:
    apart = door("run", "--profile", "coding-agent", *words)
    assert apart == door("run", "--profile=coding-agent", *words)


@pytest.mark.parametrize("option", ["--sandbox", "--profile"])
@pytest.mark.parametrize("value", ["", "nope", "--", "ls"])
def test_a_wrong_value_is_reported_alike_whether_click_reads_it_or_not(
    option: str, value: str, door: Door
) -> None:
    apart = door("run", option, value, "ls")
    assert apart == door("run", f"{option}={value}", "ls")
    assert apart[0] == 125


def test_a_descriptor_for_the_directory_must_be_open(door: Door) -> None:
    for fd, why in (("250", "250 is not open"), ("1", "1 is not in the range")):
        status, out, err = door("run", "--cwd-fd", fd, "echo hi")
        assert (status, out) == (125, "")
        assert why in err


def test_a_command_that_a_signal_ended_is_told_apart(door: Door) -> None:
    (door.workspace / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    status, _, err = door("run", "--", "python3", "dies.py")
    assert status == 137
    assert "kakoi: the command was ended by signal 9 (SIGKILL)" in err


def test_a_command_that_kills_its_keeper_is_reported_as_a_lost_sandbox(
    door: Door, mark: str
) -> None:
    code = f"import os, subprocess; nap = subprocess.Popen(['sleep', '{mark}'])"
    (door.workspace / "kills.py").write_text(f"{code}; os.kill(os.getppid(), 9); nap.wait()")
    status, _, err = door("run", "--", "python3", "kills.py")
    assert status == 125
    assert "kakoi: the sandbox failed: the command killed its keeper" in err
    assert alive(mark) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sandbox", "bubblewarp", "ls"], "did you mean `bubblewrap`?"),
        (["--sandbox", "docker", "ls"], "docker"),
        (["--frob", "ls"], "--frob"),
        ([], "missing command"),
        (["--timeout", "0", "ls"], "0"),
        (["--cwd", "nowhere", "--env", "BASH_ENV=x", "ls"], "BASH_ENV"),
        (["--env", "KAKOI_NO_SUCH", "ls"], "KAKOI_NO_SUCH"),
        (["--audit-file", "/proc/version/log", "touch ran"], "audit log"),
        (["--workspace", "nowhere", "ls"], "nowhere"),
        (
            ["--sandbox", "host", "--network", "none", "ls"],
            "`host` does not support the network `none`",
        ),
        (["--sandbox", "bubblewrap", "--network", "bridge", "ls"], "--sandbox docker"),
        (["--sandbox", "bubblewrap", "--image", "alpine", "ls"], "does not support images"),
        (["--sandbox", "auto", "--image", "alpine", "ls"], "docker"),
    ],
)
def test_a_failure_of_ours_is_125_with_a_reason(
    door: Door, arguments: list[str], words: str
) -> None:
    nowhere = Door(
        door.workspace, door.log, {**door.env, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    )
    status, out, err = nowhere("run", *arguments)
    assert (status, out) == (125, "")
    assert words in err
    assert "Traceback" not in err
    assert list(door.workspace.iterdir()) == []


# --- Streams ---------------------------------------------------------------------------------


def test_both_streams_come_through_byte_by_byte(any_door: Door) -> None:
    status, out, err = any_door("run", r"printf 'a\0\377\r\nb'; printf 'no newline' >&2")
    assert (status, out) == (0, "a\0\xff\r\nb")
    assert err.endswith("no newline")


def test_output_arrives_while_the_command_runs(any_door: Door) -> None:
    os.mkfifo(any_door.workspace / "go", 0o666)
    with any_door.started("run", "echo first; read word < go; echo $word") as process:
        assert line_of(process) == b"first\n"
        (any_door.workspace / "go").write_text("second\n")
        assert line_of(process) == b"second\n"
        assert ended(process)[0] == 0


def test_a_flood_comes_through_whole(any_door: Door) -> None:
    status, out, _ = any_door("run", "seq 1 300000")
    assert status == 0
    assert out == "".join(f"{number}\n" for number in range(1, 300001))


def test_a_reader_that_does_not_read_stops_the_command(any_door: Door) -> None:
    steps = "for i in $(seq 1 60); do head -c 1000000 /dev/zero; echo $i > progress; done"
    with any_door.started("run", steps) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()

        def is_full() -> bool:
            (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
            return bool(waiting == fcntl.fcntl(pipe, 1032))  # F_GETPIPE_SZ

        until(is_full, "the pipe is full")
        progress = any_door.workspace / "progress"
        # A window of 1 MiB and some pipes are on the way; sixty would be all of it.
        assert not progress.exists() or int(progress.read_text() or 0) < 10
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (len(out), process.returncode) == (60_000_000, 0)


def test_a_reader_that_goes_away_ends_the_command_quietly(any_door: Door, mark: str) -> None:
    with any_door.started("run", "-q", f"sleep {mark} & yes {mark}") as process:
        assert line_of(process) == f"{mark}\n".encode()
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 141
        assert "Traceback" not in err
        assert alive(mark) == []


def test_standard_input_is_passed_on(any_door: Door) -> None:
    data = bytes(range(256)) * 5000
    status, out, _ = any_door("run", "cat", stdin=data)
    assert (status, out.encode("latin-1")) == (0, data)


def test_standard_input_may_be_a_file_or_nothing_or_closed(door: Door) -> None:
    given = door.workspace / "given"
    given.write_text("from a file\n")
    with given.open("rb") as file:
        assert door("run", "cat", stdin=file)[1] == "from a file\n"
    with given.open("rb") as file:
        assert door("run", "-n", "cat", stdin=file)[1] == ""
        assert file.read() == b"from a file\n"
    assert door("run", "cat", stdin=subprocess.DEVNULL)[1] == ""
    closed = [sys.executable, "-m", "kakoi", "run", "cat; echo done"]
    script = 'exec "$@" <&- >&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *closed],
        cwd=door.workspace,
        env=door.environ,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0


def test_input_that_never_ends_does_not_hold_up_the_end(door: Door) -> None:
    with door.started("run", "head -c 3") as process:
        assert process.stdin is not None
        process.stdin.write(b"abcdef")
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b"abc"
        process.communicate()


# --- Words -----------------------------------------------------------------------------------


def test_one_word_is_shell_text_and_several_are_an_argv(door: Door) -> None:
    assert door("run", "echo $((1 + 1))")[1] == "2\n"
    assert door("run", "echo", "$((1 + 1))")[1] == "$((1 + 1))\n"
    assert door("run", "echo", "-n", "--", "x")[1] == "-- x"
    assert door("run", "--", "echo")[1] == "\n"
    assert door("run", "--allow", "echo hi", "--", "echo hi")[0] in (126, 127)


def test_a_directory_and_variables_can_be_given(any_door: Door) -> None:
    (any_door.workspace / "sub").mkdir()
    with_own = Door(any_door.workspace, any_door.log, {**any_door.env, "OURS": "1", "SECRET": "2"})
    said = with_own("run", "--cwd", "sub", "--env", "OURS", "--env", "A=b=c", "pwd; env")[1]
    lines = said.splitlines()
    assert lines[0] == f"{any_door.workspace}/sub"
    assert {"OURS=1", "A=b=c"} <= set(lines)
    assert "SECRET" not in said


def test_the_workspace_can_be_elsewhere(any_door: Door, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert any_door("run", "--workspace", str(other), f"touch {other}/made")[0] == 0
    assert (other / "made").exists()


# --- Refusals and questions ------------------------------------------------------------------


def test_a_refusal_explains_itself_and_runs_nothing(door: Door) -> None:
    status, out, err = door("run", "touch made && sudo id")
    assert (status, out) == (126, "")
    assert "deny[privilege]: `sudo` changes users, owners or privileges" in err
    assert "1 | touch made && sudo id" in err
    assert "  |               ^^^^" in err
    assert door.records() == ["refused"]
    assert list(door.workspace.iterdir()) == []


def test_a_program_can_be_allowed_for_once_but_no_rule_lifted(door: Door) -> None:
    assert door("run", "sudo id")[0] == door("run", "--allow", "sudo", "sudo id")[0] == 126
    assert door("run", "mkfifo pipe")[0] == 126
    assert door("run", "--allow", "mkfifo", "mkfifo pipe")[0] == 0
    assert door("run", "--allow", "mkfifo", "mkfifo /etc/pipe > /etc/x")[0] == 126


def test_nobody_to_ask_means_no_and_the_way_out_is_named(door: Door) -> None:
    status, _, err = door("run", "git push")
    assert status == 126
    assert "ask[asks-first]" in err
    assert "--yes" in err
    assert door.records() == ["asked", "declined"]


def test_approval_can_be_given_in_advance(door: Door) -> None:
    assert door("run", "--yes", "git push")[0] == 128  # git's own: there is no repository.
    assert door.records() == ["asked", "approved", "started", "ended"]


def test_the_question_shows_the_whole_command(door: Door) -> None:
    text = "echo first\ngit push\n" + "echo " + "x" * 150 + "\necho last"
    with terminal(door, "run", text, columns=200) as screen:
        asked = screen.until(b"[y/N/a/e] ")
        screen.type(b"n\n")
        assert screen.wait() == 126
    for line in (b"| echo first\r\n", b"| git push\r\n", b"x" * 150, b"| echo last\r\n"):
        assert line in asked


@pytest.mark.parametrize(
    ("answer", "status", "events"),
    [
        (b"y\n", 128, ["asked", "approved", "started", "ended"]),
        (b"n\n", 126, ["asked", "declined"]),
        (b"\n", 126, ["asked", "declined"]),
        (b"\x04", 126, ["asked", "declined"]),
    ],
)
def test_the_person_at_the_terminal_is_asked(
    door: Door, answer: bytes, status: int, events: list[str]
) -> None:
    with terminal(door, "run", "git push") as screen:
        assert b"asks-first" in screen.until(b"kakoi: run it? [y/N/a/e] ")
        screen.type(answer)
        assert screen.wait() == status
    assert door.records() == events


# --- Time ------------------------------------------------------------------------------------


def test_a_timeout_ends_the_whole_tree(any_door: Door, mark: str) -> None:
    status, out, err = any_door("run", "--timeout", "1.5", TREE.format(mark))
    assert (status, out) == (124, "up\n")
    assert "kakoi: timed out after 1.5 s; ended the command and what it had started" in err
    assert alive(mark) == []


def test_silence_can_be_limited(any_door: Door, mark: str) -> None:
    status, out, err = any_door("run", "--idle-timeout", "1", f"echo up; sleep {mark}")
    assert (status, out) == (124, "up\n")
    assert "kakoi: no output for 1 s; ended the command" in err
    assert alive(mark) == []


def test_what_is_left_running_is_ended_and_reported(any_door: Door, mark: str) -> None:
    status, out, err = any_door("run", f"sleep {mark} & echo up")
    assert (status, out) == (0, "up\n")
    assert "kakoi: ended what the command had left running (at least 1 process)" in err
    assert alive(mark) == []
    assert "left running" not in any_door("run", "-q", f"sleep {mark} & echo up")[2]


# --- Signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(any_door: Door, mark: str, number: int) -> None:
    with any_door.started("run", TREE.format(mark)) as process:
        assert line_of(process) == b"up\n"
        process.send_signal(number)
        status, err = ended(process)
        assert status == 128 + number
        assert "the command and everything it started have ended" in err
        assert alive(mark) == []
        assert any_door.records() == ["started", "ended"]


def test_more_signals_leave_nothing_behind(any_door: Door, mark: str) -> None:
    with any_door.started("run", TREE.format(mark)) as process:
        assert line_of(process) == b"up\n"
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert ended(process)[0] == 130
        assert alive(mark) == []


def test_an_end_without_goodbye_leaves_nothing_behind(any_door: Door, mark: str) -> None:
    with any_door.started("run", TREE.format(mark)) as process:
        assert line_of(process) == b"up\n"
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        until(lambda: not alive(mark), "all of it is dead")


def test_a_signal_that_was_ignored_before_us_stays_ignored(door: Door) -> None:
    os.mkfifo(door.workspace / "go")
    deaf = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    with door.started("run", "echo up; read word < go; echo $word", under=deaf) as process:
        assert line_of(process) == b"up\n"
        process.send_signal(signal.SIGHUP)
        (door.workspace / "go").write_text("on\n")
        assert line_of(process) == b"on\n"
        assert ended(process)[0] == 0


def test_ctrl_c_at_a_terminal_ends_everything(any_door: Door, mark: str) -> None:
    with terminal(any_door, "run", TREE.format(mark)) as screen:
        screen.until(b"up\r\n")
        screen.type(b"\x03")
        assert screen.wait() == 130
        assert b"kakoi: interrupted; " in screen.screen
    assert alive(mark) == []


def test_a_terminal_that_is_closed_ends_everything(any_door: Door, mark: str) -> None:
    with terminal(any_door, "run", TREE.format(mark)) as screen:
        screen.until(b"up\r\n")
        process = screen.process
        screen.hang_up()
        assert process.wait(PATIENCE_S) == 129
    assert alive(mark) == []


# --- Terminals -------------------------------------------------------------------------------


def test_at_a_terminal_the_command_finds_an_empty_input(any_door: Door) -> None:
    with terminal(any_door, "run", "cat; [ -t 0 ] || [ -t 1 ] || echo none") as screen:
        screen.until(b"none\r\n")
        assert screen.wait() == 0


def test_the_command_can_have_a_terminal_of_its_own(any_door: Door, mark: str) -> None:
    wanted = f"stty size; [ -t 0 ] && [ -t 1 ] && echo $TERM; cat; echo end; sleep {mark}"
    with terminal(any_door, "run", "-t", wanted, rows=33, columns=111) as screen:
        assert b"33 111" in screen.until(b"vt100")
        assert screen.is_raw
        screen.type(b"echoed?\r\x04")
        screen.until(b"echoed?\r\nechoed?\r\nend")
        screen.type(b"\x03")
        assert screen.wait() == 130
        assert screen.settings() == screen.before
    assert alive(mark) == []


def test_a_terminal_can_be_had_without_one(door: Door) -> None:
    status, out, _ = door("run", "-t", "[ -t 0 ] && cat", stdin=b"typed\n")
    assert (status, out.splitlines()[0]) == (0, "typed")


# --- For programs ----------------------------------------------------------------------------


def test_json_shows_the_result(any_door: Door) -> None:
    status, out, _ = any_door("run", "--json", "cat; echo no >&2; exit 4", stdin=b"in\n")
    told = json.loads(out)
    assert status == told["exit_code"] == 4
    assert (told["stdout"], told["stderr"], told["reason"]) == ("in\n", "no\n", "exited")
    assert told["sandbox"] == any_door.env["KAKOI_SANDBOX"]
    assert told["truncated"] is False
    every = {"memory_bytes", "cpus", "processes", "open_files", "file_bytes", "disk_bytes"}
    assert {*told["limits"]["enforced"], *told["limits"]["unenforced"]} == every
    if told["sandbox"] == "host":
        assert told["limits"]["enforced"] == {}
    else:
        assert "/tmp" in told["limits"]["enforced"]["disk_bytes"]


def test_a_full_disk_is_reported(confined_door: Door) -> None:
    settings = confined_door.workspace.parent / "settings.yaml"
    settings.write_text("resources: {disk_limit: 4m}\n")
    door = Door(
        confined_door.workspace,
        confined_door.log,
        {**confined_door.env, "KAKOI_CONFIG": str(settings)},
    )
    status, _, err = door("run", "head -c 9000000 /dev/zero > /tmp/large")
    assert status == 1
    assert "kakoi: no space left on the disk of /tmp" in err


def test_json_bounds_what_it_keeps(door: Door) -> None:
    told = json.loads(door("run", "--json", "head -c 3000000 /dev/zero | tr '\\0' x")[1])
    assert (len(told["stdout"]), told["stdout_bytes"]) == (1024 * 1024, 3_000_000)
    assert told["truncated"] is True


@pytest.mark.parametrize(
    ("arguments", "status", "reason", "code"),
    [
        (["sudo id"], 126, "refused", "COMMAND_REFUSED"),
        (["git push"], 126, "declined", "USER_CANCELLED"),
        (["--workspace", "nowhere", "ls"], 125, "failed", "CONFIGURATION_ERROR"),
    ],
)
def test_json_shows_why_there_is_no_result(
    door: Door, arguments: list[str], status: int, reason: str, code: str
) -> None:
    exit_status, out, err = door("run", "--json", *arguments)
    told = json.loads(out)
    assert exit_status == told["exit_code"] == status
    assert (told["reason"], told["code"], err) == (reason, code, "")
    assert bool(told.get("findings")) == (status == 126)


def test_json_reports_an_interruption(door: Door, mark: str) -> None:
    with door.started("run", "--json", f"touch up; sleep {mark}") as process:
        until((door.workspace / "up").exists, "the command is up")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == json.loads(out)["exit_code"] == 143


# --- Where -----------------------------------------------------------------------------------


def test_the_host_warns_even_with_quiet(door: Door) -> None:
    assert "confined by nothing" in door("run", "-q", "true")[2]


def test_a_fallback_is_taken_with_a_warning(door: Door) -> None:
    away = Door(door.workspace, door.log, {"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    status, out, err = away("run", "--sandbox", "docker", "--fallback", "host", "echo here")
    assert (status, out) == (0, "here\n")
    assert "kakoi: falling back to `host` (docker: " in err


def test_what_the_policy_lets_pass_the_sandbox_holds(confined_door: Door, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    script = confined_door.workspace / "script.py"
    script.write_text("open('/etc/kakoi-was-here', 'w')")
    status, _, err = confined_door("run", "python3 script.py")
    assert (status, "Read-only file system" in err) == (1, True)
    script.write_text(f"open({str(outside)!r}, 'w')")
    confined_door("run", "python3 script.py")
    assert not outside.exists()


def test_auto_takes_a_sandbox_and_never_the_host(confined_door: Door) -> None:
    auto = Door(confined_door.workspace, confined_door.log)
    status, out, _ = auto("run", "--json", "true")
    assert (status, json.loads(out)["sandbox"]) == (0, "bubblewrap")


def containers_at(workspace: Path) -> list[str]:
    argv = ["docker", "ps", "--all", "--quiet", "--filter", f"volume={workspace}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def test_a_container_shows_the_workspace_at_its_own_path_and_goes_with_the_command(
    docker_door: Door, mark: str
) -> None:
    workspace = docker_door.workspace
    status, out, _ = docker_door("run", f"pwd; touch {workspace}/made; cat; exit 3", stdin=b"in")
    assert (status, out) == (3, f"{workspace}\nin")
    assert (workspace / "made").exists()
    with docker_door.started("run", TREE.format(mark)) as process:
        assert line_of(process) == b"up\n"
        assert len(containers_at(workspace)) == 1
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130
    assert alive(mark) == []
    assert containers_at(workspace) == []


def test_a_container_goes_with_a_kakoi_that_is_killed(docker_door: Door, mark: str) -> None:
    with docker_door.started("run", TREE.format(mark)) as process:
        assert line_of(process) == b"up\n"
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        until(lambda: not alive(mark), "all of it is dead")
        until(lambda: containers_at(docker_door.workspace) == [], "the container is removed")


@pytest.mark.slow("types a whole session on a terminal")
def test_the_script_that_writes_the_readmes_session_would_write_it_again(
    confined_door: Door,
) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "cast"), "--check"]
    subprocess.run(argv, env=confined_door.environ, check=True, timeout=PATIENCE_S)


def test_a_run_loads_no_library_that_it_does_not_need(door: Door) -> None:
    code = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules)))
sys.argv = ["kakoi", "run", "--", "true"]
import kakoi.cli
kakoi.cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=door.workspace,
        env=door.environ,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    loaded = set(done.stdout.decode().split())
    assert {"asyncio", "kakoi.gate"} <= loaded
    heavy = "click mcp rich httpx httpx2 redis sqlite3 openai anthropic pydantic pydantic_ai docker starlette kakoi.runner.keeper"
    unneeded = "kakoi.backends.docker.adapter kakoi.backends.bubblewrap.adapter kakoi.cli.commands.check pytest"
    assert loaded & set((heavy + " " + unneeded).split()) == set()


# --- The profile that refuses nothing --------------------------------------------------------


def test_the_open_profile_runs_what_others_refuse_and_what_nobody_can_read(door: Door) -> None:
    text = "eval 'echo hi'; echo \"$(printf 1)\""
    assert door("run", text)[0] == 126
    assert door("run", "--profile", "open", text)[:2] == (0, "hi\n1\n")
    status, out, err = door("run", "--profile", "open", "echo one\necho 'two")
    assert (status, out) == (2, "one\n")
    assert "unexpected EOF" in err
    records = [json.loads(line) for line in door.log.read_text().splitlines()]
    started = [each for each in records if each["event"] == "started"]
    assert [each.get("rules") for each in started] == [None, ["unreadable"]]
    assert door("run", "--profile", "open", "# nothing")[0] == 126
    assert door("check", "--profile", "open", "sudo reboot")[:2] == (0, "allow: sudo reboot\n")


def test_the_open_profile_on_the_bare_host_is_warned_about(door: Door) -> None:
    assert "nothing protects" not in door("run", "--sandbox", "host", "true")[2]
    err = door("run", "--sandbox", "host", "--profile", "open", "true")[2]
    assert err.count("nothing protects this machine") == 1
