"""run_filter: bytes through a trusted program, quickly and within bounds."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError, ExecutionError
from kakoi.process import FilterResult, run_filter
from tests.children import children_of_ours
from tests.process.trees import PATIENCE_S

MEBIBYTE = 1024 * 1024


def filtered(
    *argv: str,
    stdin: bytes = b"",
    timeout_s: float = PATIENCE_S,
    max_output_bytes: int = MEBIBYTE,
) -> FilterResult:
    return run_filter(argv, stdin, timeout_s=timeout_s, max_output_bytes=max_output_bytes)


def shell(script: str, *, stdin: bytes = b"", timeout_s: float = PATIENCE_S) -> FilterResult:
    return filtered("/bin/sh", "-c", script, stdin=stdin, timeout_s=timeout_s)


def test_what_goes_in_comes_out_with_both_outputs_apart() -> None:
    assert filtered("/bin/cat", stdin=b"hello") == FilterResult(0, b"hello", b"")
    assert shell("echo out; echo err >&2; exit 3") == FilterResult(3, b"out\n", b"err\n")


def test_arguments_are_not_shell_text() -> None:
    assert filtered("/bin/echo", "; id", "$HOME").stdout == b"; id $HOME\n"


def test_a_program_ended_by_a_signal_has_the_code_that_a_shell_gives() -> None:
    assert shell("kill -TERM $$").exit_code == 128 + signal.SIGTERM


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    assert filtered("/usr/bin/env").stdout == b""


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 4 * MEBIBYTE])
def test_input_of_any_size_passes_while_output_floods_back(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    result = filtered("/bin/cat", stdin=data[:size], max_output_bytes=size)
    assert result == FilterResult(0, data[:size], b"")


def test_a_program_that_does_not_read_its_input_is_fine() -> None:
    assert shell("exit 4", stdin=bytes(MEBIBYTE)).exit_code == 4
    assert shell("exec <&-; echo ok", stdin=bytes(MEBIBYTE)).stdout == b"ok\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_that_says_too_much_is_ended_and_its_head_is_kept(stream: str) -> None:
    script = "cat /dev/zero" if stream == "stdout" else "cat /dev/zero >&2"
    result = filtered("/bin/sh", "-c", f"exec {script}", max_output_bytes=100_000)
    assert (result.overflowed, result.timed_out) == (True, False)
    assert getattr(result, stream) == bytes(100_000)
    assert result.exit_code == 128 + signal.SIGKILL


def test_exactly_as_much_as_the_limit_is_not_too_much() -> None:
    assert not filtered(
        "/usr/bin/head", "-c", "5000", "/dev/zero", max_output_bytes=5000
    ).overflowed
    assert filtered("/usr/bin/head", "-c", "5001", "/dev/zero", max_output_bytes=5000).overflowed


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 600",
        "exec sleep 600 >&- 2>&-",  # hangs after it has closed its outputs
        "trap '' TERM INT HUP; while :; do :; done",
        "while :; do :; done >&- 2>&-",
    ],
)
def test_a_program_that_takes_too_long_is_ended(script: str) -> None:
    result = shell(script, timeout_s=0.1)
    assert (result.timed_out, result.overflowed) == (True, False)
    assert result.exit_code == 128 + signal.SIGKILL
    assert children_of_ours() == []


def test_output_before_the_timeout_is_kept() -> None:
    for timeout_s in (0.1, 1, 10):
        result = shell("echo partial; exec sleep 600", timeout_s=timeout_s)
        if result.stdout:
            break  # A busy machine may need more than a moment to start a shell.
    assert (result.stdout, result.timed_out) == (b"partial\n", True)


@pytest.mark.parametrize("program", ["/no/such/program", "/etc/passwd", "/", "cat"])
def test_a_program_that_cannot_start_is_an_error(program: str) -> None:
    """PATH is not searched: the caller knows where its own tools are."""
    with pytest.raises(ExecutionError, match="cannot start") as failure:
        filtered(program)
    assert failure.value.details["errno"] in ("ENOENT", "EACCES")


@pytest.mark.parametrize(
    ("argv", "timeout_s", "max_output_bytes"),
    [
        ([], 1, 1),
        (["/bin/cat", "a\0b"], 1, 1),
        (["/bin/cat"], 0, 1),
        (["/bin/cat"], -1, 1),
        (["/bin/cat"], float("nan"), 1),
        (["/bin/cat"], 1, -1),
    ],
)
def test_nonsense_is_refused(argv: list[str], timeout_s: float, max_output_bytes: int) -> None:
    with pytest.raises(ConfigurationError):
        run_filter(argv, b"", timeout_s=timeout_s, max_output_bytes=max_output_bytes)


def test_an_endless_time_limit_works() -> None:
    assert filtered("/bin/cat", stdin=b"x", timeout_s=float("inf")).stdout == b"x"


def test_many_threads_at_once_get_their_own_answers() -> None:
    def ask(number: int) -> bytes:
        return filtered("/bin/cat", stdin=b"%d" % number * 20_000).stdout

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(200)))
    assert answers == [b"%d" % number * 20_000 for number in range(200)]


def test_nothing_leaks_on_any_way_out() -> None:
    def every_way() -> None:
        filtered("/bin/cat", stdin=b"x")
        filtered("/bin/cat", "/dev/zero", max_output_bytes=10)
        shell("exec sleep 600", timeout_s=0.001)
        for nonsense in ("/no/such/program", "\0"):
            with pytest.raises((ExecutionError, ConfigurationError)):
                filtered(nonsense)

    every_way()
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        every_way()
    assert os.listdir("/proc/self/fd") == before
    assert children_of_ours() == []


class Interrupted(Exception):
    """Raised by a signal handler, as KeyboardInterrupt is."""


def test_an_interrupted_call_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    os.mkfifo(tmp_path / "started")
    before = os.listdir("/proc/self/fd")

    def interrupt_once_started() -> None:
        (tmp_path / "started").read_bytes()
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt_once_started)
    handler = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thread.start()
        with pytest.raises(Interrupted):
            shell(f"echo > {tmp_path}/started; exec sleep 600")
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, handler)
    assert children_of_ours() == []
    assert os.listdir("/proc/self/fd") == before


def test_a_call_that_is_interrupted_just_after_the_start_leaves_nothing_behind() -> None:
    """A handler raises between two calls of C: here, as soon as there is a child."""

    def interrupt(_frame: object, event: str, _argument: object) -> None:
        if event == "c_return" and children_of_ours():
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(interrupt)
    try:
        with pytest.raises(Interrupted):
            shell("exec sleep 600")
    finally:
        sys.setprofile(None)
    assert children_of_ours() == []


def test_without_pidfds_a_program_is_still_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux before 5.3, or with a Python that was built there."""
    monkeypatch.delattr(os, "pidfd_open")
    assert filtered("/bin/cat", stdin=b"x") == FilterResult(0, b"x", b"")
    assert shell("exec sleep 600 >&- 2>&-", timeout_s=0.05).timed_out
    assert shell("exec >&- 2>&-; exit 5").exit_code == 5


def test_a_program_of_python_can_be_a_filter() -> None:
    code = "import sys; sys.stdout.write(sys.stdin.read().upper())"
    assert filtered(sys.executable, "-I", "-S", "-c", code, stdin=b"abc").stdout == b"ABC"
