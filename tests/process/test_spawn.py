"""ProcessExecutor.spawn, as spec B promises it (B-001 … B-009), and what goes with it."""

import asyncio
import errno
import os
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError, ExecutionError, ExecutionTimeoutError, SandboxError
from kakoi.process import ProcessExecutor, SpawnOptions, base_environment
from kakoi.process.pumps import Drain
from kakoi.results import Capture
from tests.children import children_of_ours
from tests.process.trees import PATIENCE_S

pytestmark = pytest.mark.anyio

MEBIBYTE = 1024 * 1024


# --- What spec B says ------------------------------------------------------------------------


@pytest.mark.requirement("B-001")
async def test_options_can_be_left_out_and_can_all_be_given(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    assert (await executor.spawn("true")).exit_code == 0
    options = SpawnOptions(
        cwd=str(tmp_path),
        env={"NAME": "value"},
        stdin="input",
        timeout=PATIENCE_S * 1000,
        stdout="pipe",
        stderr="inherit",
    )
    result = await executor.spawn("sh", ["-c", 'cat; echo " $NAME"; pwd'], options)
    assert result.stdout == f"input value\n{tmp_path}\n"
    with pytest.raises(FrozenInstanceError):
        options.timeout = 1  # type: ignore[misc]


@pytest.mark.requirement("B-001")
async def test_options_can_be_a_mapping_with_their_names(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    given = {"cwd": str(tmp_path), "env": {"NAME": "value"}, "stdin": None, "timeout": 60_000}
    result = await executor.spawn("sh", ["-c", 'cat; echo "$NAME"; pwd'], given)
    assert result.stdout == f"value\n{tmp_path}\n"
    with pytest.raises(ExecutionTimeoutError):
        await executor.spawn("sleep", ["600"], {"timeout": 100})
    for wrong, complaint in (
        ({"timout": 100}, r"options has 'timout'; did you mean `timeout`\?"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            await executor.spawn("true", [], wrong)


@pytest.mark.requirement("B-002")
async def test_a_result_has_both_outputs_and_the_exit_code_under_both_names(
    executor: ProcessExecutor,
) -> None:
    result = await executor.spawn("sh", ["-c", "echo out; echo err >&2; exit 4"])
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.exit_code == result.exitCode == 4
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (4, 4, False)
    with pytest.raises((AttributeError, TypeError)):
        result.exitCode = 0  # type: ignore[misc]


@pytest.mark.requirement("B-003")
async def test_arguments_reach_the_program_as_they_are_and_no_shell_sees_them(
    executor: ProcessExecutor,
) -> None:
    args = ["; echo x", "$(id)", "`id`", "*", "a b", "", "\n", "'", '"', "\\", "日本", "-n", "~"]
    result = await executor.spawn("printf", ["%s\\0", *args])
    assert result.stdout.split("\0")[:-1] == args


@pytest.mark.requirement("B-003")
async def test_spawns_run_side_by_side(executor: ProcessExecutor, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meet")
    reader = executor.spawn("cat", ["meet"], SpawnOptions(cwd=tmp_path))
    writer = executor.spawn("sh", ["-c", "echo hello > meet"], SpawnOptions(cwd=tmp_path))
    results = await asyncio.wait_for(asyncio.gather(reader, writer), PATIENCE_S)
    assert results[0].stdout == "hello\n"


@pytest.mark.requirement("B-004")
async def test_a_program_that_takes_too_long_raises_with_its_output(
    executor: ProcessExecutor,
) -> None:
    script = "echo partial; echo error >&2; exec sleep 600"
    for timeout_ms in (100, 1_000, 10_000):
        with pytest.raises(ExecutionTimeoutError) as failure:
            await executor.spawn("sh", ["-c", script], SpawnOptions(timeout=timeout_ms))
        if failure.value.details["stderr"]:
            break  # A busy machine may need more than a moment to start a shell.
    assert failure.value.details["stdout"] == "partial\n"
    assert failure.value.details["stderr"] == "error\n"
    assert failure.value.details["timeout"] == timeout_ms
    assert failure.value.code == "EXECUTION_TIMEOUT"
    for kind in (ExecutionError, SandboxError, TimeoutError):
        assert isinstance(failure.value, kind)


@pytest.mark.requirement("B-005")
async def test_an_unknown_program_raises_and_says_where_it_was_looked_for(
    executor: ProcessExecutor,
) -> None:
    with pytest.raises(ExecutionError, match="not found on PATH") as failure:
        await executor.spawn("no-such-program")
    assert failure.value.hint
    assert failure.value.details["reason"] == "never_started"
    assert failure.value.details["errno"] == "ENOENT"


@pytest.mark.requirement("B-006")
async def test_a_program_is_ended_at_its_limit_and_not_at_its_own_end(
    executor: ProcessExecutor,
) -> None:
    with pytest.raises(ExecutionTimeoutError):
        await executor.spawn("sleep", ["600"], SpawnOptions(timeout=100))
    assert children_of_ours() == []


@pytest.mark.requirement("B-007")
async def test_environment_directory_and_input_reach_the_program(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    given = SpawnOptions(env={"GREETING": "hello world"})
    assert (await executor.spawn("printenv", ["GREETING"], given)).stdout == "hello world\n"
    assert (await executor.spawn("pwd", [], SpawnOptions(cwd=tmp_path))).stdout == f"{tmp_path}\n"
    assert (await executor.spawn("cat", [], SpawnOptions(stdin="日本\n"))).stdout == "日本\n"
    assert (await executor.spawn("cat", [], SpawnOptions(stdin=b"\xff"))).stdout == "\ufffd"
    assert (await executor.spawn("cat")).stdout == ""


@pytest.mark.requirement("B-008")
async def test_an_inherited_stream_goes_to_our_own_and_is_not_captured(
    executor: ProcessExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    script = ["-c", "echo out; echo err >&2"]
    both = SpawnOptions(stdout="inherit", stderr="inherit")
    result = await executor.spawn("sh", script, both)
    assert (result.stdout, result.stderr, result.stdout_bytes) == ("", "", 0)
    assert capfd.readouterr() == ("out\n", "err\n")
    result = await executor.spawn("sh", script, SpawnOptions(stderr="inherit"))
    assert (result.stdout, result.stderr) == ("out\n", "")
    assert capfd.readouterr() == ("", "err\n")


@pytest.mark.requirement("B-009")
@pytest.mark.parametrize("code", [1, 2, 3, 126, 127, 255])
async def test_a_non_zero_exit_is_an_answer(executor: ProcessExecutor, code: int) -> None:
    result = await executor.spawn("sh", ["-c", f"exit {code}"])
    assert (result.exitCode, result.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
async def test_a_program_ended_by_a_signal_has_the_code_that_a_shell_gives(
    executor: ProcessExecutor, number: signal.Signals
) -> None:
    result = await executor.spawn("sh", ["-c", f"kill -{int(number)} $$"])
    assert (result.exit_code, result.signal) == (128 + number, number)


# --- Nonsense --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *({"timeout": value} for value in (0, -1, 0.0, float("nan"), float("inf"), "1", True)),
        {"timeout": 10**400},
        *({"cwd": value} for value in ("", "a\0b", 5, b"/tmp", "\ud800")),
        *({"env": value} for value in ({"": "x"}, {"A=B": "x"}, {"A": "a\0"}, {"A": None}, "A=b")),
        *({"env": value} for value in ({1: "x"}, {"A": "\ud800"}, {"\udfff": "x"}, [("A", "b")])),
        *({"stdin": value} for value in (5, ["a"], bytearray(b"x"))),
        *({"stdout": value} for value in ("", "null", None, 1)),
        *({"stderr": value} for value in ("PIPE", None)),
        *({"max_output_bytes": value} for value in (-1, 1.5, "1", None, True)),
    ],
)
def test_options_that_make_no_sense_are_refused_when_they_are_made(
    options: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError) as failure:
        SpawnOptions(**options)  # type: ignore[arg-type]
    assert next(iter(options)) in str(failure.value)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("", []),
        (None, []),
        (5, []),
        (b"true", []),
        ("tr\0ue", []),
        ("\ud800", []),
        ("true", "a b"),
        ("true", b"a"),
        ("true", None),
        ("true", {"a"}),
        ("true", [1]),
        ("true", [b"a"]),
        ("true", ["a\0"]),
        ("true", ["\udbff"]),
    ],
)
async def test_a_command_that_makes_no_sense_is_refused(
    executor: ProcessExecutor, command: object, args: object
) -> None:
    with pytest.raises(ConfigurationError):
        await executor.spawn(command, args)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [5, "cwd=/", [("timeout", 5)]])
async def test_options_of_another_kind_are_refused(
    executor: ProcessExecutor, options: object
) -> None:
    with pytest.raises(ConfigurationError, match="SpawnOptions"):
        await executor.spawn("true", [], options)  # type: ignore[arg-type]


async def test_an_input_that_is_not_text_is_refused(executor: ProcessExecutor) -> None:
    with pytest.raises(ConfigurationError, match="stdin"):
        await executor.spawn("cat", [], SpawnOptions(stdin="\ud800"))


def test_a_refused_value_shows_no_secret() -> None:
    with pytest.raises(ConfigurationError) as failure:
        SpawnOptions(env="password=hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(failure.value)


async def test_bytes_that_the_system_gave_us_go_back_as_they_were(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).write_text("found")
    options = SpawnOptions(cwd=tmp_path, env={"FILE": name})
    assert (await executor.spawn("cat", [name], options)).stdout == "found"
    assert (await executor.spawn("sh", ["-c", 'cat "$FILE"'], options)).stdout == "found"


# --- Programs that cannot start --------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def write(name: str, content: bytes, mode: int) -> None:
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)

    write("plain", b"echo hi\n", 0o644)
    write("headless", b"echo hi\n", 0o755)
    write("orphan", b"#!/no/such/interpreter\n", 0o755)
    write("garbage", b"\x7fELF garbage", 0o755)
    write("fine", b"#!/bin/sh\necho fine\n", 0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "options", "number", "words"),
    [
        ("./missing", {}, errno.ENOENT, "does not exist"),
        ("./plain", {}, errno.EACCES, "not an executable file"),
        ("./headless", {}, errno.ENOEXEC, "not a program"),
        ("./garbage", {}, errno.ENOEXEC, "not a program"),
        ("./orphan", {}, errno.ENOENT, "interpreter"),
        ("/", {}, errno.EACCES, "not an executable file"),
        ("true", {"cwd": "/no/such/directory"}, errno.ENOENT, "/no/such/directory"),
        ("true", {"cwd": "/etc/passwd"}, errno.ENOTDIR, "not a directory"),
        ("true", {"env": {"PATH": "/no/such"}}, errno.ENOENT, "not found on PATH"),
        ("true", {"env": {"PATH": ""}}, errno.ENOENT, "not found on PATH"),
        ("true", {"env": {"BIG": "x" * 3 * MEBIBYTE}}, errno.E2BIG, "arguments"),
        ("x" * 5_000, {}, errno.ENOENT, "not found on PATH"),
    ],
)
async def test_a_program_that_cannot_start_raises_and_says_why(
    executor: ProcessExecutor,
    folder: Path,
    command: str,
    options: dict[str, object],
    number: int,
    words: str,
) -> None:
    with pytest.raises(ExecutionError, match=words) as failure:
        await executor.spawn(
            command,
            [],
            SpawnOptions(**{"cwd": folder, **options}),  # type: ignore[arg-type]
        )
    assert failure.value.details["errno"] == errno.errorcode[number]
    assert failure.value.details["reason"] == "never_started"


async def test_a_program_on_path_without_the_right_to_run_it_is_named_as_such(
    executor: ProcessExecutor, folder: Path
) -> None:
    with pytest.raises(ExecutionError, match="not executable"):
        await executor.spawn("plain", [], SpawnOptions(env={"PATH": str(folder)}))


async def test_the_path_of_the_programs_own_environment_is_searched(
    executor: ProcessExecutor, folder: Path
) -> None:
    options = SpawnOptions(env={"PATH": f"/no/such:{folder}:/usr/bin:/bin"})
    assert (await executor.spawn("fine", [], options)).stdout == "fine\n"


@pytest.mark.parametrize("path", ["", ":", ".", ".:", "sub"])
async def test_a_program_that_merely_lies_in_the_working_directory_is_not_run(
    executor: ProcessExecutor, folder: Path, path: str
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "fine").hardlink_to(folder / "fine")
    with pytest.raises(ExecutionError, match="not found"):
        await executor.spawn("fine", [], SpawnOptions(cwd=folder, env={"PATH": path}))


async def test_a_path_with_a_slash_counts_from_the_programs_directory(
    executor: ProcessExecutor, folder: Path
) -> None:
    assert (await executor.spawn("./fine", [], SpawnOptions(cwd=folder))).stdout == "fine\n"


# --- What the program gets -------------------------------------------------------------------


@pytest.mark.requirement("X-15")
async def test_nothing_of_our_environment_is_inherited(
    executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "hunter2")
    monkeypatch.setenv("ANYTHING", "else")
    result = await executor.spawn("env")
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert {"PATH", "HOME", "LANG"} <= names <= {"PATH", "HOME", "LANG", "USER", "LOGNAME"}


@pytest.mark.requirement("X-15")
async def test_the_base_environment_is_the_callers_choice_and_given_variables_win() -> None:
    executor = ProcessExecutor(base_env={"PATH": "/usr/bin:/bin", "A": "base", "B": "base"})
    result = await executor.spawn("env", [], SpawnOptions(env={"B": "given"}))
    assert sorted(result.stdout.splitlines()) == ["A=base", "B=given", "PATH=/usr/bin:/bin"]


@pytest.mark.requirement("X-15")
def test_the_harmless_part_of_an_environment_is_short_and_holds_no_secret() -> None:
    harmless = ("PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "TMPDIR")
    secret = ("GITHUB_TOKEN", "LC_TOKEN", "AWS_ACCESS_KEY_ID", "PGPASSWORD")
    powerful = ("LD_PRELOAD", "BASH_ENV", "PYTHONPATH", "SSH_AUTH_SOCK")
    environ = dict.fromkeys(harmless, "x") | dict.fromkeys(secret + powerful, "never")
    assert set(base_environment(environ).values()) == {"x"}
    assert len(base_environment(environ)) == 7


def test_a_base_environment_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        ProcessExecutor(base_env={"A": "a\0b"})


async def test_a_program_inherits_no_descriptor_but_its_streams(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')))"
        result = await executor.spawn(sys.executable, ["-I", "-S", "-c", code])
    # The fourth is the one that lists the folder.
    assert result.stdout == "[0, 1, 2, 3]\n"


@pytest.fixture
def unusual_signals() -> Iterator[None]:
    """Ignored and blocked signals, which children inherit."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("unusual_signals")
async def test_a_program_starts_with_every_signal_as_it_should_be(
    executor: ProcessExecutor,
) -> None:
    status = (await executor.spawn("cat", ["/proc/self/status"])).stdout
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigI", "SigB"))]
    # The C library keeps 32 and 33 to itself; no program can ask for them.
    assert [int(mask, 16) & ~(0b11 << 31) for mask in masks] == [0, 0]


async def test_a_program_has_a_session_of_its_own_and_no_terminal(
    executor: ProcessExecutor,
) -> None:
    code = "import os; print(os.getsid(0) == os.getpid())\ntry: open('/dev/tty')\nexcept OSError: print('none')"
    assert (await executor.spawn(sys.executable, ["-c", code])).stdout == "True\nnone\n"


# --- Bytes -----------------------------------------------------------------------------------


async def test_a_flood_is_counted_and_its_head_is_kept_with_flat_memory(
    executor: ProcessExecutor,
) -> None:
    options = SpawnOptions(max_output_bytes=64 * 1024)
    tracemalloc.start()
    try:
        result = await executor.spawn("head", ["-c", str(64 * MEBIBYTE), "/dev/zero"], options)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.stdout_bytes, len(result.stdout)) == (64 * MEBIBYTE, 64 * 1024)
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)
    assert peak_bytes < 4 * MEBIBYTE


async def test_each_stream_has_a_limit_of_its_own(executor: ProcessExecutor) -> None:
    script = "head -c 3000 /dev/zero | tr '\\0' o; head -c 5000 /dev/zero | tr '\\0' e >&2"
    result = await executor.spawn("sh", ["-c", script], SpawnOptions(max_output_bytes=4000))
    assert (result.stdout, result.stderr) == ("o" * 3000, "e" * 4000)
    assert (result.stdout_bytes, result.stderr_bytes) == (3000, 5000)
    assert (result.stdout_truncated, result.stderr_truncated) == (False, True)
    assert result.truncated


@pytest.mark.requirement("X-16")
async def test_the_limit_is_a_mebibyte_per_stream_by_default_and_cuts_no_character(
    executor: ProcessExecutor,
) -> None:
    result = await executor.spawn("cat", [], SpawnOptions(stdin="本" * 400_000))
    assert result.stdout == "本" * (MEBIBYTE // 3)
    assert result.stdout_bytes == 1_200_000


@pytest.mark.parametrize("program", ["cat", "tac"])
async def test_input_of_any_size_passes_while_output_floods_back(
    executor: ProcessExecutor, program: str
) -> None:
    data = b"0123456789abcde\n" * MEBIBYTE
    result = await executor.spawn(program, [], SpawnOptions(stdin=data))
    assert (result.exit_code, result.stdout_bytes) == (0, len(data))


@pytest.mark.parametrize("script", ["exit 0", "exec <&-; head -c 1000000 /dev/zero", "head -c 1"])
async def test_a_program_that_does_not_read_its_input_is_fine(
    executor: ProcessExecutor, script: str
) -> None:
    result = await executor.spawn("sh", ["-c", script], SpawnOptions(stdin=bytes(8 * MEBIBYTE)))
    assert result.exit_code == 0


@pytest.mark.parametrize("size", [1, 4096, 65_537, 262_144, 262_145, 600_000])
async def test_what_was_written_before_the_exit_is_never_lost(
    executor: ProcessExecutor, size: int
) -> None:
    """The last bytes are still in the pipe when the keeper reports; a held pipe has no end."""
    script = f"sleep 600 & head -c {size} /dev/zero"
    results = await asyncio.gather(*(executor.spawn("sh", ["-c", script]) for _ in range(8)))
    assert {(result.stdout_bytes, result.leftovers_ended) for result in results} == {(size, 1)}


async def test_a_background_child_that_holds_the_output_does_not_hold_the_result(
    executor: ProcessExecutor,
) -> None:
    result = await executor.spawn("sh", ["-c", "sleep 600 & echo hi"])
    assert (result.stdout, result.exit_code, result.leftovers_ended) == ("hi\n", 0, 1)


async def test_a_stranger_who_holds_the_output_does_not_hold_the_result_either(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pid")
    os.mkfifo(tmp_path / "go")
    script = "echo $$ > pid; read line < go; echo done"
    task = asyncio.create_task(executor.spawn("sh", ["-c", script], SpawnOptions(cwd=tmp_path)))
    pid = (await asyncio.to_thread((tmp_path / "pid").read_text)).strip()
    stranger = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        await asyncio.to_thread((tmp_path / "go").write_text, "go\n")
        result = await asyncio.wait_for(task, PATIENCE_S)
    finally:
        os.close(stranger)
    assert result.stdout == "done\n"


class WrittenAgain(Capture):
    """The capture of a pipe that somebody writes to as fast as it is read, a hundred times."""

    def __init__(self, pipe: int) -> None:
        super().__init__(MEBIBYTE)
        self.pipe = pipe
        self.times_left = 100

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        super().feed(chunk)
        if self.times_left:
            self.times_left -= 1
            os.write(self.pipe, b"late")


async def test_what_is_written_after_the_end_of_a_program_is_not_read() -> None:
    reading, writing = os.pipe()
    capture = WrittenAgain(writing)
    os.write(writing, b"in time")
    drain = Drain(asyncio.get_running_loop(), reading, capture)
    drain.finish()
    os.close(writing)
    assert capture.text() == "in time"


async def test_bytes_that_are_not_text_are_shown_as_such(executor: ProcessExecutor) -> None:
    assert (await executor.spawn("printf", ["a\\377b"])).stdout == "a\ufffdb"


async def test_a_result_says_what_the_program_used(executor: ProcessExecutor) -> None:
    code = "data = bytearray(80_000_000)\nfor i in range(0, 80_000_000, 4096): data[i] = 1"
    result = await executor.spawn(sys.executable, ["-I", "-S", "-c", code])
    assert result.max_rss_bytes > 80_000_000
    assert result.cpu_ms > 0
    assert result.duration_ms > 0
