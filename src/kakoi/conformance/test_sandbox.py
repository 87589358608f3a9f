"""`kakoi.Sandbox` over the sandbox under test: every call, judged and recorded."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.audit import read
from kakoi.channel.api import Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import TIMEOUT_S, channel_output
from kakoi.conformance.subjects import Subject
from kakoi.errors import (
    CommandFailedError,
    ConfigurationError,
    FileError,
    MissingFileError,
    SandboxError,
    SecurityError,
    TimeoutError,
    UnsupportedError,
    UserCancelledError,
)
from kakoi.results import Reason
from kakoi.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.needs("resident", "jobs", "files")]


@pytest.fixture(scope="module")
async def shared_box(
    subject: Subject, available: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Sandbox]:
    """One sandbox for all tests of this module."""
    adapter = subject.make(tmp_path_factory.mktemp("box"))
    inside = (await channel_output(adapter, "pwd -P")).rstrip("\n")
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    async with Sandbox(adapter, workspace=inside, audit=audit, timeout=TIMEOUT_S) as box:
        yield box


@pytest.fixture
async def box(shared_box: Sandbox) -> AsyncIterator[Sandbox]:
    yield shared_box
    for job in await shared_box.jobs():
        await job.stop()
    for entry in await shared_box.files.list():
        await shared_box.files.remove(entry.name)


# --- Commands --------------------------------------------------------------------------------


async def test_a_command_has_a_result(box: Sandbox) -> None:
    result = await box.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.reason, result.ok) == (Reason.EXITED, False)


async def test_a_program_runs_without_a_shell(box: Sandbox) -> None:
    assert (await box.run(["echo", "$HOME;", "*"])).stdout == "$HOME; *\n"


async def test_a_command_gets_directory_variables_and_input(box: Sandbox) -> None:
    await box.files.make_dir("sub")
    result = await box.run('pwd; echo "$NAME"; cat', cwd="sub", env={"NAME": "x y"}, stdin="in")
    assert result.stdout == f"{box.info.workspace}/sub\nx y\nin"


async def test_a_time_limit_is_a_result(box: Sandbox, mark: str) -> None:
    result = await box.run(["sleep", mark], timeout=0.1)
    assert result.reason is Reason.TIMED_OUT
    assert await alive(box._life.opened.adapter, mark) == []
    result = await box.run(["sleep", mark], idle_timeout=0.1)
    assert result.reason is Reason.IDLE_TIMEOUT


async def test_check_raises_for_a_failure_and_for_a_limit(box: Sandbox) -> None:
    with pytest.raises(CommandFailedError, match="exit code 3: oops") as caught:
        await box.run("echo oops >&2; exit 3", check=True)
    assert caught.value.details["exit_code"] == 3
    with pytest.raises(TimeoutError):
        await box.run("sleep 600", timeout=0.1, check=True)
    assert (await box.run("true", check=True)).ok


async def test_a_refused_command_raises_and_does_nothing(box: Sandbox) -> None:
    await box.files.write("kept", "x")
    with pytest.raises(SecurityError):
        await box.run("rm kept; rm -rf /")
    assert await box.files.exists("kept")
    assert (await box.check("rm -rf /")).verdict == "deny"
    assert (await box.check("ls")).verdict == "allow"


async def test_what_asks_is_refused_without_an_approver(box: Sandbox) -> None:
    assert (await box.check("git push origin main")).verdict == "ask"
    with pytest.raises(UserCancelledError, match="nobody to ask"):
        await box.run("git push origin main")


async def test_output_is_kept_up_to_the_limit(box: Sandbox) -> None:
    result = await box.run("printf 123456", max_output=3)
    assert (result.stdout, result.stdout_truncated, result.stdout_bytes) == ("123", True, 6)


async def test_many_at_once_are_told_apart(box: Sandbox) -> None:
    results = await asyncio.gather(*(box.run(f"echo {number}") for number in range(12)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(12)]


# --- Streams, jobs, sessions -----------------------------------------------------------------


async def test_a_stream_yields_output_and_has_the_result(box: Sandbox) -> None:
    stream = box.stream("echo one; echo two >&2; exit 4")
    with pytest.raises(ConfigurationError, match="no result yet"):
        _ = stream.result
    seen = {"stdout": "", "stderr": ""}
    async for chunk in stream:
        assert chunk.text.encode() == chunk.data
        seen[chunk.stream] += chunk.text
    assert seen == {"stdout": "one\n", "stderr": "two\n"}
    assert (stream.result.exit_code, stream.result.stdout) == (4, "one\n")


async def test_a_character_that_is_split_arrives_whole(box: Sandbox) -> None:
    text = ""
    async for chunk in box.stream("printf '\\303'; sleep 0.05; printf '\\244'"):
        text += chunk.text
    assert text == "ä"


async def test_leaving_a_stream_ends_its_command(box: Sandbox, mark: str) -> None:
    async with box.stream(["sh", "-c", "echo up; sleep $0", mark]) as stream:
        async for chunk in stream:
            assert chunk.text == "up\n"
            break
    assert await alive(box._life.opened.adapter, mark) == []


async def test_a_job_is_written_read_and_waited_for(box: Sandbox) -> None:
    job = await box.start("cat; exit 5")
    assert await job.wait(0.01) is None
    await job.write("one\n")
    part = await job.read(wait=TIMEOUT_S)
    assert part.data == b"one\n"
    await job.write(b"two\n")
    await job.close_stdin()
    result = await job.wait()
    assert (result.exit_code, result.stdout) == (5, "one\ntwo\n")
    assert job.result == result
    assert (await job.read(part.next_offset)).data == b"two\n"


async def test_a_job_is_found_again_and_stopped(box: Sandbox, mark: str) -> None:
    job = await box.start(["sh", "-c", "echo up; sleep $0", mark])
    await job.read(wait=TIMEOUT_S)
    assert job.id in [each.id for each in await box.jobs()]
    again = await box.job(job.id)
    assert mark in again.command
    assert (await again.stop()).reason is Reason.CANCELLED
    assert await alive(box._life.opened.adapter, mark) == []
    with pytest.raises(ConfigurationError, match="there is no job 'nope'"):
        await box.job("nope")


async def test_a_job_gets_signals(box: Sandbox) -> None:
    job = await box.start("trap 'echo caught; exit 7' INT; echo up; while :; do sleep 0.05; done")
    await job.read(wait=TIMEOUT_S)
    await job.signal("SIGINT")
    assert (await job.wait()).exit_code == 7
    other = await box.start("sleep 600")
    await other.signal(signal.SIGKILL)
    assert (await other.wait()).reason is Reason.SIGNALLED


@pytest.mark.needs("terminal")
async def test_a_job_on_a_terminal_has_its_size(box: Sandbox) -> None:
    try:
        job = await box.start("read x; stty size; read x; stty size", terminal=(30, 100))
    except UnsupportedError:
        return
    await job.write("\n")
    seen = b""
    while b"30 100" not in seen:
        seen += (await job.read(len(seen), TIMEOUT_S)).data
    try:
        await job.resize(40, 120)
    except UnsupportedError:
        await job.stop()
        return
    await job.write("\n")
    assert "40 120" in (await job.wait()).stdout


async def test_a_session_keeps_directory_and_variables(box: Sandbox) -> None:
    async with box.session() as session:
        await session.run("mkdir deep && cd deep && export NAME=value && other=lost")
        result = await session.run('echo "$NAME$other"; pwd')
        assert result.stdout == f"value\n{box.info.workspace}/deep\n"
        assert session.cwd == f"{box.info.workspace}/deep"
        assert session.env == {"NAME": "value"}
        await session.run("unset NAME")
        assert (await session.run('echo "[$NAME]"')).stdout == "[]\n"


# --- Files -----------------------------------------------------------------------------------


async def test_files_are_written_and_read(box: Sandbox) -> None:
    data = bytes(range(256)) * 5000
    await box.files.write("new/deep/data", data)
    assert await box.files.read("new/deep/data") == data
    assert await box.files.read(f"{box.info.workspace}/new/deep/data") == data
    await box.files.write("text", "grüße\n")
    assert await box.files.read_text("text") == "grüße\n"
    assert b"".join([part async for part in box.files.stream("new/deep/data")]) == data
    assert (await box.run("cat text")).stdout == "grüße\n"


async def test_files_are_described_listed_and_moved(box: Sandbox) -> None:
    await box.files.write("a/one", "1", mode=0o600)
    await box.files.write("a/b/two", "22")
    info = await box.files.stat("a/one")
    assert (info.name, info.kind, info.size, info.mode) == ("one", "file", 1, 0o600)
    assert [each.name for each in await box.files.list("a")] == ["b", "one"]
    root = f"{box.info.workspace}/"
    below = [each.path.removeprefix(root) for each in await box.files.list(".", 3)]
    assert below == ["a", "a/b", "a/b/two", "a/one"]
    await box.files.move("a/one", "c/three")
    assert await box.files.read("c/three") == b"1"
    assert not await box.files.exists("a/one")
    assert await box.files.make_dir("d") is True
    assert await box.files.make_dir("d") is False
    await box.files.remove("a")
    assert [each.name for each in await box.files.list()] == ["c", "d"]


async def test_a_missing_file_is_reported_as_that(box: Sandbox) -> None:
    for call in (box.files.read, box.files.stat, box.files.remove, box.files.list):
        with pytest.raises(MissingFileError, match="missing"):
            await call("missing")
        with pytest.raises(FileNotFoundError):
            await call("missing")
    await box.files.remove("missing", missing_ok=True)
    with pytest.raises(FileError):
        await box.files.read(".")


async def test_files_are_judged_by_what_is_done_where(box: Sandbox) -> None:
    with pytest.raises(SecurityError, match="/etc/passwd"):
        await box.files.write("/etc/passwd", "x")
    with pytest.raises(SecurityError):
        await box.files.remove("/etc/hosts")
    with pytest.raises(SecurityError):
        await box.files.read("/root/.ssh/id_rsa")
    with pytest.raises(SecurityError):
        await box.files.move("/etc/hosts", "hosts")


@pytest.mark.parametrize(
    ("path", "words"),
    [("a\0b", "path is"), ("../up", r"must not contain `\.\.`"), ("", "path is")],
)
async def test_a_bad_path_names_the_argument(box: Sandbox, path: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        await box.files.read(path)
    with pytest.raises(ConfigurationError, match=words):
        await box.files.write(path, "x")


async def test_a_directory_goes_in_and_comes_out(box: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("echo hi\n")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "-odd name\n").write_bytes(b"\0\xff")
    await box.files.upload(source, "there")
    assert (await box.run("cat sub/run.sh", cwd="there")).stdout == "echo hi\n"
    await box._life.opened.adapter.run(
        Command(command=["mkfifo", f"{box.info.workspace}/there/pipe"])
    )
    await box.run("ln -s sub there/link", check=True)
    await box.files.download("there", tmp_path / "back")
    back = tmp_path / "back"
    assert (back / "-odd name\n").read_bytes() == b"\0\xff"
    assert (back / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (back / "sub" / "empty").is_dir()
    assert sorted(os.listdir(back)) == ["-odd name\n", "sub"]
    await box.files.download("there/sub/run.sh", tmp_path)
    assert (tmp_path / "run.sh").read_text() == "echo hi\n"


async def test_a_watch_sees_what_commands_do(box: Sandbox) -> None:
    watch = box.files.watch()
    try:
        await watch.__aenter__()
    except UnsupportedError:
        return
    try:
        await box.run("echo x > new; rm new")
        seen = set()
        async with asyncio.timeout(TIMEOUT_S):
            async for event in watch:
                seen.add((event.kind, os.path.basename(event.path)))
                if event.kind == "removed":
                    break
        assert {("created", "new"), ("written", "new"), ("removed", "new")} <= seen
    finally:
        await watch.__aexit__(None, None, None)


# --- Recorded, closed ------------------------------------------------------------------------


async def test_everything_is_recorded(box: Sandbox) -> None:
    await box.run("echo recorded")
    await box.files.write("note", "x")
    async for _chunk in box.stream("echo streamed"):
        pass
    await (await box.start("echo started")).wait()
    audit = box._options.audit_file
    assert audit is not None
    started = {record.id: record.command for record in read(audit) if record.event == "started"}
    ended = [started.get(record.id) for record in read(audit) if record.event == "ended"]
    wrote = f"write {box.info.workspace}/note"
    assert {"echo recorded", wrote, "echo streamed", "echo started"} <= set(ended)


async def test_a_closed_sandbox_says_so(fresh: Opener) -> None:
    async with fresh() as adapter:
        box = Sandbox(adapter)
        await box.open()
        await box.close()
        await box.close()
        for use in (box.run("true"), box.files.read("x"), box.start("true"), box.jobs()):
            with pytest.raises(SandboxError, match="the sandbox is closed"):
                await use
        with pytest.raises(ConfigurationError, match="closed"):
            _ = box.info


async def test_files_return_to_a_checkpoint(fresh: Opener) -> None:
    async with fresh() as adapter, Sandbox(adapter) as box:
        await box.run("echo one > file && mkdir -m 500 shut && ln -s file link", check=True)
        try:
            await box.checkpoint("first")
        except UnsupportedError as error:
            pytest.skip(str(error))
        await box.run("echo two > file; rm link; touch new; mkdir -m 500 shut2", check=True)
        await box.checkpoint("second")
        with pytest.raises(ConfigurationError, match="first"):
            await box.checkpoint("first")
        with pytest.raises(ConfigurationError, match="never"):
            await box.rollback("never")
        await box.start("while :; do echo late > file; done")
        await box.rollback("first")
        assert (await box.run("cat link; ls")).stdout == "one\nfile\nlink\nshut\n"
        with pytest.raises(ConfigurationError, match="second"):
            await box.rollback("second")


async def test_what_it_cannot_do_it_says(fresh: Opener) -> None:
    """Forks, checkpoints and pauses work, or raise UnsupportedError that says what would help."""
    async with fresh() as adapter, Sandbox(adapter) as box:
        hints = []
        for work in (box.fork(1), box.checkpoint("one"), box.pause()):
            try:
                for fork in await work or []:
                    await fork.close()
                await box.resume()
            except UnsupportedError as error:
                hints.append(error.hint)
        assert all(hints)
        assert (await box.run("echo fine")).stdout == "fine\n"
