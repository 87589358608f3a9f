"""ContainerAdapter against a server with container-use's tools, and against servers gone bad.

The server is a program of ours (container_use_server.py) that really runs the commands; the real
binary was not to be had.
"""

import asyncio
import contextlib
import dataclasses
import gc
import inspect
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.backends.container_use.adapter import ContainerUseTimeouts
from kakoi.channel.api import Command, TerminalSize
from kakoi.errors import (
    ConfigurationError,
    ExecutionError,
    ExecutionTimeoutError,
    KakoiError,
    SandboxError,
    UnsupportedError,
)
from kakoi.gate import Gate
from kakoi.policy.profiles import load_policy
from kakoi.process import ProcessExecutor
from kakoi.process.mcp_stdio import McpLine
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch
from kakoi.results import Reason
from kakoi.sandbox import ContainerAdapter, ContainerUseSettings, ExecuteOptions
from tests.backends.container_use_server import install
from tests.fakes import RecordingExecutor

pytestmark = pytest.mark.anyio
TIMEOUTS = ContainerUseTimeouts(answer_s=20, create_s=20, late_s=20, delete_s=20)
SHORT = ContainerUseTimeouts(answer_s=1, create_s=1, late_s=1, delete_s=1)


@dataclasses.dataclass(frozen=True)
class World:
    """A machine with a container-use on it, and a repository."""

    bin: Path
    repository: Path
    environments: Path
    calls: Path

    def behave(self, mode: str = "") -> None:
        lines = [f"MODE={mode}", f"ENVIRONMENTS={self.environments}", f"CALLS={self.calls}"]
        (self.bin / "settings").write_text("\n".join(lines), encoding="utf-8")

    @contextlib.asynccontextmanager
    async def adapter(
        self,
        *,
        mode: str = "",
        timeouts: ContainerUseTimeouts = TIMEOUTS,
        workspace: str = "",
        **config: str,
    ) -> AsyncIterator[ContainerAdapter]:
        self.behave(mode)
        adapter = ContainerAdapter(
            ContainerUseSettings(**config),  # type: ignore[arg-type]
            workspace=self.repository / workspace,
            engine_env={"PATH": f"{self.bin}:{os.environ['PATH']}"},
            timeouts=timeouts,
        )
        try:
            yield adapter
        finally:
            await adapter.cleanup()

    @property
    def said(self) -> list[dict[str, object]]:
        """Every message to the server, and every deletion."""
        text = self.calls.read_text(encoding="utf-8") if self.calls.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    @property
    def taken_back(self) -> list[object]:
        """By which messages a question was taken back."""
        return [each["method"] for each in self.said if "requestId" in str(each)]

    def called(self, tool: str) -> list[dict[str, object]]:
        params = [message.get("params") for message in self.said]
        found = [each for each in params if isinstance(each, dict) and each.get("name") == tool]
        return [each["arguments"] for each in found]


@pytest.fixture
def world(tmp_path: Path) -> World:
    for name in ("repository", "repository/.git", "repository/sub", "environments"):
        (tmp_path / name).mkdir()
    install(tmp_path / "bin")
    world = World(
        tmp_path / "bin", tmp_path / "repository", tmp_path / "environments", tmp_path / "calls"
    )
    world.behave()
    return world


# --- As it should be -------------------------------------------------------------------------


@pytest.mark.requirement("B-032", "B-034", "X-25")
async def test_a_command_gives_its_two_streams_and_its_status(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.execute("echo out; echo err >&2; exit 3")
    assert adapter.name == "container-use"
    assert (result.exitCode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (4, 4, False)


async def test_the_judged_text_runs_as_it_is(world: World) -> None:
    text = """printf '%s\\n' "it's" $'a\\tb' '$HOME' "`echo x`"; echo '\n{braces}' \\\\ # done"""
    async with world.adapter() as adapter:
        result = await adapter.execute(text)
    assert result.stdout == "it's\na\tb\n$HOME\nx\n\n{braces} \\\n"


async def test_words_run_without_a_shell(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.execute(["printf", "%s|", "a b", "$(id)", "'"])
    assert result.stdout == "a b|$(id)|'|"


async def test_variables_and_the_directory_reach_the_command(world: World) -> None:
    options = ExecuteOptions(cwd="/usr", env={"A": "x 'y' $z", "odd-name": "1"})
    async with world.adapter() as adapter:
        result = await adapter.execute('pwd; echo "$A"; env | grep odd', options)
    assert result.stdout == "/usr\nx 'y' $z\nodd-name=1\n"


async def test_a_directory_of_the_workspace_is_translated(world: World) -> None:
    async with world.adapter(workspace="sub") as adapter:
        await adapter.run(Command(command="mkdir sub", cwd=str(world.repository)))
        here = await adapter.run(Command(command="pwd"))
        same = await adapter.run(Command(command="pwd", cwd=str(world.repository / "sub")))
        environment = adapter.environment or ""
    assert here.stdout == same.stdout == f"{world.environments / environment / 'sub'}\n"


async def test_a_directory_that_is_not_there_means_that_nothing_was_started(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.run(Command(command="echo no", cwd="/nope"))
        assert (result.reason, result.stdout) == (Reason.NEVER_STARTED, "")
        with pytest.raises(ExecutionError, match="working directory"):
            await adapter.execute("true", ExecuteOptions(cwd="/nope"))


async def test_a_program_that_is_not_there_was_never_started(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.run(Command(command=["no-such-program"]))
    assert (result.reason, result.exit_code) == (Reason.NEVER_STARTED, 127)


async def test_variables_that_change_the_shell_are_gone(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.execute('echo $- $0; echo "${BASH_ENV-none}"')
    assert result.stdout.splitlines() == ["hBc bash", "none"]


@pytest.mark.requirement("B-033")
async def test_it_is_made_from_nothing_but_defaults(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.repository)
    adapter = ContainerAdapter()
    assert (adapter.name, adapter.environment) == ("container-use", None)
    await adapter.cleanup()
    words = list(inspect.signature(ContainerAdapter).parameters.values())
    assert [each.name for each in words[:2]] == ["config", "executor"]
    assert words[0].default == ContainerUseSettings()
    assert all(each.kind is each.KEYWORD_ONLY for each in words[2:])
    await ContainerAdapter(ContainerUseSettings(), RecordingExecutor()).cleanup()


async def test_commands_find_what_the_last_one_left(world: World) -> None:
    async with world.adapter() as adapter:
        await adapter.execute("echo kept > file")
        both = await asyncio.gather(adapter.execute("cat file"), adapter.execute("cat file"))
    assert [each.stdout for each in both] == ["kept\n", "kept\n"]
    assert len(world.called("environment_create")) == 1


async def test_the_gate_runs_commands_there(world: World) -> None:
    async with world.adapter() as adapter:
        gate = Gate(load_policy(), adapter, cwd=str(world.repository))
        result = await gate.run(Command(command="echo through the gate"))
    assert result.stdout == "through the gate\n"


async def test_there_is_no_channel_and_it_says_what_has_one(world: World) -> None:
    async with world.adapter() as adapter:
        with pytest.raises(UnsupportedError, match="no live output") as caught:
            await adapter.channel()
    assert "docker" in caught.value.hint


@pytest.mark.parametrize(
    "command",
    [
        Command(command="cat", stdin=b"x"),
        Command(command="cat", stdin_open=True),
        Command(command="top", terminal=TerminalSize()),
        Command(command="make", idle_timeout_s=3),
    ],
    ids=lambda command: str(command.command),
)
async def test_what_it_cannot_do_is_refused_before_anything_is_made(
    world: World, command: Command
) -> None:
    async with world.adapter() as adapter:
        with pytest.raises(UnsupportedError, match="can only run a command to its end"):
            await adapter.run(command)
    assert world.said == []


# --- Floods, forgeries, leftovers ------------------------------------------------------------


async def test_a_flood_is_cut_inside_and_counted(world: World) -> None:
    command = Command(command="yes | head -c 30000000; echo e >&2", max_output_bytes=1000)
    async with world.adapter() as adapter:
        result = await adapter.run(command)
    assert result.stdout == "y\n" * 500
    assert (result.stdout_bytes, result.stdout_truncated) == (30_000_000, True)
    assert (result.stderr, result.stderr_truncated) == ("e\n", False)


async def test_a_cut_breaks_no_character(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.run(Command(command="printf aéé", max_output_bytes=4))
    assert (result.stdout, result.stdout_bytes) == ("aé", 5)


async def test_bytes_that_are_not_text_are_marked(world: World) -> None:
    async with world.adapter() as adapter:
        result = await adapter.run(Command(command="printf 'a\\377b'"))
    assert result.stdout == "a\ufffdb"


async def test_output_that_looks_like_an_answer_is_output(world: World) -> None:
    fake = "\n0123456789abcdef0123456789abcdef:x exited 0 0 0\n\nAny changes to the container"
    async with world.adapter() as adapter:
        result = await adapter.execute(["sh", "-c", f"printf %s '{fake}'; exit 4"])
    assert (result.exit_code, result.stdout) == (4, fake)


async def test_a_command_may_look_at_all_processes(world: World) -> None:
    look = "cat /proc/$PPID/cmdline; ls -d $TMPDIR/kakoi-*; echo; exit 5"
    async with world.adapter() as adapter:
        result = await adapter.execute(look)
    assert result.exit_code == 5
    assert "k_n=" in result.stdout


async def test_a_command_that_forges_the_answer_with_the_real_number_is_found_out(
    world: World,
) -> None:
    forge = """n=$(tr '\\0' '\\n' </proc/$PPID/cmdline | sed -n 's/^k_n=\\([0-9a-f]*\\) .*/\\1/p')
        [ -n "$n" ] && printf '\\n%s:x exited 0 0 0\\n' "$n"; exit 9"""
    async with world.adapter() as adapter:
        result = await adapter.run(Command(command=forge))
        assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
        with pytest.raises(SandboxError, match="does not contain the result of the command"):
            await adapter.execute(forge)
        assert (await adapter.execute("echo still here")).stdout == "still here\n"


@pytest.mark.parametrize("start", ["sleep 61.5 &", "setsid sleep 61.5 &"])
async def test_a_child_that_holds_the_output_is_ended_with_the_command(
    world: World, start: str
) -> None:
    async with world.adapter() as adapter:
        result = await adapter.execute(f"{start} echo $!; echo done >&2")
        ended = await adapter.execute(f"sleep 0.2; kill -0 {result.stdout.strip()}")
    assert (result.stderr, ended.exit_code) == ("done\n", 1)


async def test_nothing_is_left_in_the_environments_tmp(world: World) -> None:
    async with world.adapter() as adapter:
        before = await adapter.execute(
            "ls -d $TMPDIR/kakoi-*; echo $$", ExecuteOptions(timeout=5000)
        )
        after = await adapter.execute("ls -d $TMPDIR/kakoi-*; echo $$")
    assert len(before.stdout.split()) == len(after.stdout.split()) == 2


# --- Time ------------------------------------------------------------------------------------


async def test_a_command_out_of_time_is_ended_inside_and_gives_what_it_wrote(world: World) -> None:
    command = Command(command="echo begun; sleep 62.5 & sleep 62.5", timeout_s=2)
    async with world.adapter() as adapter:
        began = time.monotonic()
        result = await adapter.run(command)
        took_s = time.monotonic() - began
    assert (result.reason, result.exit_code, result.stdout) == (Reason.TIMED_OUT, 124, "begun\n")
    assert 2 <= took_s < 30
    assert not _running("sleep 62.5")


async def test_execute_raises_what_spec_b_raises_for_a_timeout(world: World) -> None:
    async with world.adapter() as adapter:
        with pytest.raises(ExecutionTimeoutError) as caught:
            await adapter.execute("echo begun; sleep 63.5", ExecuteOptions(timeout=300))
    assert caught.value.details["timeout"] == 300
    assert caught.value.details["stdout"] == "begun\n"


async def test_a_status_of_124_or_137_is_not_a_timeout(world: World) -> None:
    async with world.adapter() as adapter:
        for status in (124, 137):
            command = Command(command=f"exit {status}", timeout_s=30)
            result = await adapter.run(command)
            assert (result.reason, result.exit_code) == (Reason.EXITED, status)


async def test_a_server_that_does_not_answer_in_time_is_ended(world: World) -> None:
    async with world.adapter(
        mode="mute", timeouts=dataclasses.replace(TIMEOUTS, late_s=0.3)
    ) as adapter:
        result = await adapter.run(Command(command="true", timeout_s=0.2))
        world.behave()
        again = await adapter.run(Command(command="echo again"))
    assert result.reason is Reason.TIMED_OUT
    assert again.stdout == "again\n"


async def test_a_caller_that_stops_waiting_cancels_its_question(world: World) -> None:
    world.behave("mute")
    launch = Launch(argv=[str(world.bin / "container-use"), "stdio"], env=default_environment())
    line = await McpLine.open(ProcessExecutor(), launch, timeout_s=TIMEOUTS.answer_s)
    try:
        with pytest.raises(TimeoutError):
            await line.call("environment_run_cmd", {}, timeout_s=0.1)
        async with asyncio.timeout(20):
            while not world.taken_back:  # noqa: ASYNC110 - another process writes it down
                await asyncio.sleep(0.01)
    finally:
        await line.close()
    assert world.taken_back == ["notifications/cancelled"]


async def test_a_question_that_does_not_fit_is_refused_once_and_fails_no_other(
    world: World,
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    launch = Launch(argv=[str(world.bin / "container-use"), "stdio"], env=default_environment())
    line = await McpLine.open(ProcessExecutor(), launch, timeout_s=TIMEOUTS.answer_s)
    try:
        with pytest.raises(SandboxError, match="it does not read its input"):
            await line.call("environment_run_cmd", "x" * (5 << 20), timeout_s=None)
    finally:
        await line.close()
    gc.collect()
    assert told == []


async def test_cancelling_takes_the_question_back_and_ends_the_command(world: World) -> None:
    async with world.adapter() as adapter:
        await adapter.execute("true")
        work = asyncio.ensure_future(adapter.run(Command(command="touch begun; sleep 64.5")))
        await _there(world.environments / (adapter.environment or "") / "begun")
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not _running("sleep 64.5")
        assert (await adapter.execute("echo next")).stdout == "next\n"


async def _there(path: Path) -> None:
    async with asyncio.timeout(20):
        while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.01)


def _running(words: str) -> bool:
    wanted = b"\0".join(word.encode() for word in words.split()) + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == wanted:
                return True
    return False


# --- The life of an environment --------------------------------------------------------------


@pytest.mark.requirement("B-036")
async def test_cleanup_deletes_the_environment_once(world: World) -> None:
    async with world.adapter() as adapter:
        assert world.said == []
        await adapter.execute("true")
        name = adapter.environment
        assert [each.name for each in world.environments.iterdir()] == [name]
        await adapter.cleanup()
        await adapter.cleanup()
        with pytest.raises(SandboxError, match="cleaned up"):
            await adapter.execute("true")
    assert list(world.environments.iterdir()) == []
    deletions = [each for each in world.said if "delete" in each]
    assert deletions == [{"delete": [name], "cwd": str(world.repository)}]


@pytest.mark.parametrize("mode", ["", "lingers"])
async def test_a_server_that_owes_nothing_sees_the_end_of_its_input_and_is_gone(
    world: World, mode: str
) -> None:
    async with world.adapter(mode=mode) as adapter:
        await adapter.execute("true")
    (process,) = [each["goodbye"] for each in world.said if "goodbye" in each]
    assert isinstance(process, int)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.requirement("B-016")
@pytest.mark.parametrize("mode", ["undeletable", "slowdelete"])
async def test_a_deletion_that_fails_is_a_warning(
    world: World, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    timeouts = dataclasses.replace(TIMEOUTS, delete_s=0.5)
    async with world.adapter(mode=mode, timeouts=timeouts) as adapter:
        await adapter.execute("true")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "could not be deleted" in caplog.text


async def test_cleanup_ends_a_command_that_runs(world: World) -> None:
    async with world.adapter() as adapter:
        await adapter.execute("true")
        work = asyncio.ensure_future(adapter.run(Command(command="touch begun; sleep 65.5")))
        await _there(world.environments / (adapter.environment or "") / "begun")
        await adapter.cleanup()
        assert (await work).reason is Reason.SANDBOX_LOST
    assert not _running("sleep 65.5")


@pytest.mark.requirement("B-037")
async def test_a_given_environment_is_neither_made_nor_deleted(world: World) -> None:
    (world.environments / "mine").mkdir()
    async with world.adapter(env_id="mine", image="node:20") as adapter:
        assert (await adapter.execute("echo hi")).stdout == "hi\n"
    assert (world.environments / "mine").is_dir()
    assert world.called("environment_create") == world.called("environment_config") == []
    assert [each for each in world.said if "delete" in each] == []


@pytest.mark.requirement("B-037")
async def test_the_image_is_set_for_this_environment_only(world: World) -> None:
    async with world.adapter(image="node:20") as adapter:
        await adapter.execute("true")
        await adapter.execute("true")
    given = world.called("environment_config")
    assert [each["config"] for each in given] == [{"base_image": "node:20"}]
    assert sorted(each.name for each in world.repository.iterdir()) == [".git", "sub"]


@pytest.mark.requirement("B-037")
async def test_empty_settings_mean_none(world: World) -> None:
    async with world.adapter(image="", env_id="") as adapter:
        await adapter.execute("true")
    assert len(world.called("environment_create")) == 1
    assert world.called("environment_config") == []


async def test_an_image_that_cannot_be_used_leaves_no_environment(world: World) -> None:
    async with world.adapter(image="no/such:image") as adapter:
        with pytest.raises(SandboxError, match="no/such:image"):
            await adapter.execute("true")
        assert adapter.environment is None
    assert list(world.environments.iterdir()) == []


async def test_changes_that_are_not_committed_are_mentioned(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.adapter(mode="dirty") as adapter:
        await adapter.execute("true")
    assert "uncommitted" in caplog.text


async def test_an_environment_that_is_gone_is_the_sandboxes_failure(world: World) -> None:
    async with world.adapter(env_id="vanished") as adapter:
        result = await adapter.run(Command(command="true"))
        with pytest.raises(SandboxError, match="vanished not found"):
            await adapter.execute("true")
    assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)


# --- Is it there? ----------------------------------------------------------------------------


async def test_it_is_available_if_it_really_answers(world: World) -> None:
    async with world.adapter(image="node:20") as adapter:
        assert await adapter.is_available()
        await adapter.execute("true")
    assert len([each for each in world.said if each.get("method") == "initialize"]) == 1


@pytest.mark.requirement("B-035", "X-26")
async def test_without_the_program_it_is_not_available_and_says_why(world: World) -> None:
    (world.bin / "container-use").unlink()
    async with world.adapter() as adapter:
        found = await adapter.availability()
        assert not await adapter.is_available()
        with pytest.raises(SandboxError, match="was not found on PATH"):
            await adapter.execute("true")
    assert found.reason == "`container-use` was not found on PATH"
    assert "github.com/dagger/container-use" in found.fix


async def test_outside_of_a_repository_it_is_not_available(world: World) -> None:
    (world.repository / ".git").rmdir()
    async with world.adapter() as adapter:
        found = await adapter.availability()
    assert "not in a git repository" in found.reason
    assert "git init" in found.fix


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("silent", "has not answered within 1 s"),
        ("garbage", "does not speak MCP: Welcome to container-use!"),
        ("deep", "does not speak MCP"),
        ("huge", "a line of more than 33554432 bytes"),
        ("docker", "its stderr: Error: Docker daemon is not running"),
        ("refusing", "unsupported protocol version"),
        ("wrongid", "does not list its tools in time"),
        ("toolless", "has no environment_run_cmd"),
    ],
)
async def test_a_server_gone_bad_is_not_available_and_says_why(
    world: World, mode: str, reason: str
) -> None:
    timeouts = SHORT if mode in ("silent", "wrongid") else TIMEOUTS
    async with world.adapter(mode=mode, timeouts=timeouts) as adapter:
        found = await adapter.availability()
    assert not found
    assert reason in found.reason


async def test_a_program_that_is_none_is_not_available(world: World) -> None:
    (world.bin / "container-use").write_text("#!/no/such/interpreter\n", encoding="utf-8")
    async with world.adapter() as adapter:
        assert not await adapter.is_available()


# --- Servers gone bad under way --------------------------------------------------------------


async def test_questions_and_strange_answers_of_the_server_do_no_harm(world: World) -> None:
    async with world.adapter(mode="chatty") as adapter:
        assert (await adapter.execute("echo fine")).stdout == "fine\n"
    answers = {each["id"]: each for each in world.said if "result" in each or "error" in each}
    assert answers[77]["result"] == {}
    assert set(answers) == {77, "why"}
    assert "error" in answers["why"]


async def test_a_server_that_dies_half_way_fails_the_command_at_once(world: World) -> None:
    async with world.adapter(mode="dying") as adapter:
        async with asyncio.timeout(20):
            result = await adapter.run(Command(command="true"))
        assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
        assert "engine lost" in result.error
        with pytest.raises(SandboxError, match="is lost"):
            await adapter.execute("true")
        world.behave()
        assert (await adapter.execute("echo back")).stdout == "back\n"


async def test_an_answer_without_the_numbers_is_not_a_result(world: World) -> None:
    async with world.adapter(mode="lying") as adapter:
        with pytest.raises(SandboxError, match="does not contain the result of the command"):
            await adapter.execute("true")


async def test_an_environment_with_the_name_of_an_option_is_refused(world: World) -> None:
    async with world.adapter(mode="nameless") as adapter:
        with pytest.raises(SandboxError, match="which environment"):
            await adapter.execute("true")
    assert [each for each in world.said if "delete" in each] == []


async def test_a_server_that_makes_nothing_in_time_is_ended(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    timeouts = dataclasses.replace(TIMEOUTS, create_s=0.3)
    async with world.adapter(mode="slowmaker", timeouts=timeouts) as adapter:
        with pytest.raises(SandboxError, match="in time"):
            await adapter.execute("true")
    assert "container-use list" in caplog.text


# --- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["", "a\0b", "echo \udcff", "echo " + "x" * 131_000, [], ["a", ""], ["\udc80"], 5, None],
    ids=lambda command: repr(command)[:20],
)
async def test_a_command_that_cannot_be_run_is_refused_with_an_error_of_ours(
    world: World, command: object
) -> None:
    async with world.adapter() as adapter:
        with contextlib.suppress(KakoiError):
            await adapter.execute(command)  # type: ignore[arg-type]
        assert isinstance(await adapter.execute("echo ok"), object)


async def test_a_command_longer_than_an_argument_says_so(world: World) -> None:
    async with world.adapter() as adapter:
        with pytest.raises(ConfigurationError, match="one argument"):
            await adapter.execute("echo " + "x" * 130_000)
    assert world.said == []


async def test_no_adapter_leaves_a_warning_or_a_task_behind(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="asyncio")
    before = asyncio.all_tasks()
    async with world.adapter() as adapter:
        await adapter.execute("true")
    assert asyncio.all_tasks() == before
    assert "never retrieved" not in caplog.text


# --- From the command line -------------------------------------------------------------------


def test_the_command_line_prints_the_output_when_the_command_has_ended(
    world: World, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kakoi", "run", "--sandbox", "container-use"),
            *("--workspace", str(world.repository), "echo out; echo err >&2; exit 3"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PATH": f"{world.bin}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "KAKOI_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
        },
    )
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr.startswith("err\n")


@pytest.mark.slow("runs three modules of the conformance suite in a process of their own")
def test_the_conformance_suite_passes_without_a_channel(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--pyargs", "kakoi.conformance", "-k", "test_ends or test_output or test_words"),
            *("--sandbox", "tests.backends.container_use_subject:SUBJECT"),
        ],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "does not claim `channel`" in done.stdout
