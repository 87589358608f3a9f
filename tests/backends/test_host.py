"""HostAdapter: spec B's words for running without a sandbox. How commands run is the runner's."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import CanCheckpoint, CanFork
from kakoi.errors import ExecutionError, ExecutionTimeoutError, UnsupportedError
from kakoi.sandbox import ExecuteOptions, HostAdapter, HostSettings, SandboxConfig, SandboxFactory

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def host(workspace: Path, **settings: object) -> AsyncIterator[HostAdapter]:
    adapter = HostAdapter(workspace, **settings)  # type: ignore[arg-type]
    try:
        yield adapter
    finally:
        await adapter.cleanup()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.requirement("B-026", "X-13")
async def test_a_command_is_shell_text_for_the_shell_that_it_was_parsed_for(tmp_path: Path) -> None:
    async with host(tmp_path) as adapter:
        result = await adapter.execute("tr '\\0' ' ' </proc/$$/cmdline | cut -c-40; pwd; exit 3")
    shell, cwd = result.stdout.splitlines()
    assert shell.startswith("/bin/bash --norc --noprofile -c -- tr ")
    assert cwd == str(tmp_path)
    assert result.exitCode == 3


@pytest.mark.requirement("X-13")
async def test_no_variable_changes_what_the_shell_does_with_the_text(tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("echo hijacked\n", encoding="utf-8")
    env = {
        "PATH": "/usr/bin:/bin",
        **dict.fromkeys(("BASH_ENV", "ENV"), str(tmp_path / "rc")),
        "SHELLOPTS": "xtrace",
        "BASH_FUNC_echo%%": "() { printf hijacked; }",
    }
    async with host(tmp_path, env=env) as adapter:
        result = await adapter.execute('echo fine "${BASH_ENV-}${ENV-}"')
    assert (result.stdout, result.stderr) == ("fine \n", "")


@pytest.mark.requirement("B-027", "B-028")
async def test_the_first_command_warns_and_later_ones_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with host(tmp_path) as adapter:
        assert warnings(caplog) == []
        for _ in range(3):
            await adapter.execute("true")
    assert len(warnings(caplog)) == 1
    assert "ホスト環境で実行中" in warnings(caplog)[0]


@pytest.mark.requirement("B-029", "X-24")
@pytest.mark.parametrize("key", ["warnOnStart", "warn_on_start"])
async def test_the_warning_can_be_turned_off(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = SandboxConfig.parse({"type": "host", "host": {key: False}})
    adapter = await SandboxFactory(tmp_path).create(config)
    await adapter.execute("true")
    await adapter.cleanup()
    assert warnings(caplog) == []
    assert HostSettings().warn_on_start


@pytest.mark.requirement("B-030")
async def test_the_host_is_always_there(tmp_path: Path) -> None:
    async with host(tmp_path, env={"PATH": "/nowhere"}) as adapter:
        assert await adapter.is_available()
        assert await adapter.availability()


@pytest.mark.requirement("B-031")
async def test_a_command_out_of_time_is_ended_and_raises(tmp_path: Path) -> None:
    assert HostSettings().timeout_s == 300
    async with host(tmp_path, timeout_s=1) as adapter:
        with pytest.raises(ExecutionTimeoutError) as caught:
            await adapter.execute("(sleep 2; touch late) & echo begun; sleep 60")
        assert caught.value.details["timeout"] == 1000
        assert caught.value.details["stdout"] == "begun\n"
        seen = await adapter.execute("sleep 1.2; ls", ExecuteOptions(timeout=30_000))
    assert seen.stdout == ""


@pytest.mark.requirement("B-047")
async def test_the_time_of_a_call_is_in_milliseconds_and_goes_first(tmp_path: Path) -> None:
    async with host(tmp_path, timeout_s=60) as adapter:
        with pytest.raises(ExecutionTimeoutError) as caught:
            await adapter.execute("sleep 60", ExecuteOptions(timeout=200))
    assert caught.value.details["timeout"] == 200


@pytest.mark.requirement("B-015", "B-052", "X-27")
async def test_a_program_that_cannot_start_is_logged_and_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with host(tmp_path, warn_on_start=False) as adapter:
        with pytest.raises(ExecutionError, match="no-such-program"):
            await adapter.execute(["no-such-program", "--now"])
        # Through a shell it is an answer like any other.
        assert (await adapter.execute("no-such-program")).exit_code == 127
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert "no-such-program" in caplog.text


CONFINED = """
import asyncio, os, sys
from kakoi.sandbox import HostAdapter
async def main():
    adapter = HostAdapter(sys.argv[1], confine=True)
    result = await adapter.execute("cd; mkdir -p a/b; touch a/b/c; chmod 0 a/b a; echo $HOME")
    print(result.stdout, end="", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def temporary(own_temporary: Path) -> Path:
    """One through which commands get, whoever they are."""
    own_temporary.chmod(0o711)
    return own_temporary


@contextlib.contextmanager
def another_until_killed(workspace: Path) -> Iterator[Path]:
    """A confined host of another process, and the directory of its commands."""
    argv = [sys.executable, "-c", CONFINED, str(workspace)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield Path(child.stdout.readline().strip()).parent
        os.kill(child.pid, signal.SIGKILL)


async def test_what_a_killed_one_left_for_commands_is_swept_by_the_next_that_is_confined(
    tmp_path: Path, temporary: Path
) -> None:
    with another_until_killed(tmp_path) as left:
        async with host(tmp_path, confine=True) as adapter:
            await adapter.execute("true")
            assert left.name in os.listdir(temporary)
    async with host(tmp_path, confine=True) as adapter:
        there = (await adapter.execute("echo $HOME")).stdout.strip()
        assert os.listdir(temporary) == [Path(there).parent.name]
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("confine", [False, True])
async def test_the_host_can_neither_be_forked_nor_rolled_back(
    tmp_path: Path, *, confine: bool
) -> None:
    adapter = HostAdapter(tmp_path, confine=confine)
    assert isinstance(adapter, CanFork)
    assert isinstance(adapter, CanCheckpoint)
    for call in (adapter.fork(2), adapter.checkpoint("x"), adapter.rollback("x")):
        with pytest.raises(UnsupportedError, match=f"`{adapter.name}` cannot be") as caught:
            await call
        assert "bubblewrap" in caught.value.hint
    assert adapter.checkpoints() == []
