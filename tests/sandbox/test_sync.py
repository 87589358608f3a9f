"""`kakoi.sync.Sandbox`: the same object with blocking calls, wherever they are made."""

import asyncio
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kakoi
import kakoi.sync
from kakoi import CommandFailedError, SandboxError, SecurityError
from kakoi.sync import Sandbox
from tests.backends.boxes import require_bubblewrap


@pytest.fixture(autouse=True, scope="module")
def has_bubblewrap() -> None:
    require_bubblewrap()


@pytest.mark.parametrize("name", kakoi.sync.__all__)
def test_names_and_arguments_are_the_same(name: str) -> None:
    ours, theirs = getattr(kakoi.sync, name), getattr(kakoi, name)
    public = {each for each in dir(theirs) if not each.startswith("_")}
    assert public <= {each for each in dir(ours) if not each.startswith("_")} | vars_of(name)
    for each in public & set(dir(ours)):
        if inspect.isfunction(getattr(theirs, each)):
            parameters = inspect.signature(getattr(theirs, each)).parameters
            assert list(inspect.signature(getattr(ours, each)).parameters) == list(parameters)
    wanted = inspect.signature(kakoi.Sandbox).parameters
    assert list(inspect.signature(Sandbox).parameters) == list(wanted)


def vars_of(name: str) -> set[str]:
    return {"cwd", "env", "left_behind"} if name == "Session" else set()


def test_everything_of_a_sandbox_blocks_and_works(tmp_path: Path) -> None:
    with Sandbox("bubblewrap") as box:
        assert box.run("echo hi").stdout == "hi\n"
        with pytest.raises(CommandFailedError):
            box.run("false", check=True)
        with pytest.raises(SecurityError):
            box.run("rm -rf /")
        assert "".join(chunk.text for chunk in box.stream("echo one; echo two")) == "one\ntwo\n"
        job = box.start("cat")
        job.write("in\n")
        assert job.read(wait=20).data == b"in\n"
        job.close_stdin()
        assert job.wait().stdout == "in\n"
        assert [each.id for each in box.jobs()] == [job.id]
        with box.session() as session:
            session.run("mkdir d && cd d && export A=1")
            assert session.run("echo $A").stdout == "1\n"
            assert session.cwd.endswith("/d")
        box.files.write("a/b", iter([b"x", b"y"]))
        assert box.files.read_text("a/b") == "xy"
        assert b"".join(box.files.stream("a/b")) == b"xy"
        assert [each.name for each in box.files.list("a")] == ["b"]
        box.files.download("a", tmp_path / "a")
        assert (tmp_path / "a" / "b").read_text() == "xy"
        with box.files.watch("a") as events:
            box.files.remove("a/b")
            assert next(iter(events)).kind == "removed"
        (fork,) = box.fork()
        with fork:
            assert fork.run("ls").stdout == "a\nd\n"
        assert box.check("ls").verdict == "allow"
        assert box.info.backend == "bubblewrap"
    with pytest.raises(SandboxError, match="closed"):
        box.run("true")


def test_leaving_a_stream_ends_its_command() -> None:
    with Sandbox("bubblewrap") as box:
        for chunk in box.stream("echo up; sleep 600"):
            assert chunk.text == "up\n"
            break
        assert box.run("pgrep -c sleep").stdout == "0\n"


def test_it_works_inside_a_running_loop_and_in_threads() -> None:
    with Sandbox("bubblewrap") as box:

        async def inside() -> str:
            return box.run("echo loop").stdout

        assert asyncio.run(inside()) == "loop\n"
        seen: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: seen.append(box.run(f"echo {n}").stdout))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(f"{n}\n" for n in range(8))


def test_a_plain_function_approves() -> None:
    asked = []

    def approve(decision: kakoi.Decision) -> bool:
        asked.append(decision.command)
        return False

    with (
        Sandbox("bubblewrap", approve=approve) as box,
        pytest.raises(kakoi.UserCancelledError),
    ):
        box.run("git push")
    assert asked == ["git push"]


def script(text: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-W", "error", "-c", text]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "text",
    [
        # Nobody closes it.
        "box = Sandbox('bubblewrap'); print(box.run('echo fine').stdout, end='')",
        # Nobody can reach it any more.
        "print(Sandbox('bubblewrap').run('echo fine').stdout, end=''); import gc; gc.collect()",
        # Used while the interpreter exits.
        "import atexit; box = Sandbox('bubblewrap').open()\n"
        "atexit.register(lambda: print(box.run('echo fine').stdout, end=''))",
        # Closed in a finalizer.
        "class Mine:\n"
        "    def __init__(self): self.box = Sandbox('bubblewrap').open()\n"
        "    def __del__(self): self.box.close(); print('fine')\n"
        "mine = Mine(); del mine",
        # Used in a finalizer when everything else has ended.
        "class Mine:\n"
        "    def __init__(self):\n"
        "        self.box = Sandbox('bubblewrap').open(); self.lines = iter(self.box.stream('yes'))\n"
        "        next(self.lines)\n"
        "    def __del__(self):\n"
        "        try: self.box.run('true')\n"
        "        except Exception as error: assert 'shut down' in str(error), error\n"
        "        self.box.close(); print('fine')\n"
        "mine = Mine()",
        # A fork of the process opens its own, and the parent's goes on.
        "import os; box = Sandbox('bubblewrap').open(); child = os.fork()\n"
        "if child == 0:\n"
        "    own = Sandbox('bubblewrap'); own.run('true'); own.close()\n"
        "    try: box.run('true')\n"
        "    except Exception as error: assert 'fork' in str(error), error\n"
        "    else: os._exit(1)\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0; print(box.run('echo fine').stdout, end='')",
    ],
)
def test_it_ends_quietly(text: str) -> None:
    done = script(f"from kakoi.sync import Sandbox\n{text}")
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
