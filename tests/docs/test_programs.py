"""The programs in examples/ run as they are, are short, and use nothing but what is exported."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import has_bubblewrap, need
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def run(name: str, folder: Path, *words: str) -> list[str]:
    """Run a program in a folder, and return what it prints."""
    need("bubblewrap", is_there=has_bubblewrap())
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *words],
        cwd=folder,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_there_are_these_programs_and_each_is_run_here() -> None:
    own = Path(__file__).read_text("utf-8")
    assert [name for name in PROGRAMS if f'run("{name}"' not in own] == []
    assert len(PROGRAMS) == 8


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short_and_imports_public_names_only(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert len(text.splitlines()) <= 40
    modules = {
        module
        for node in ast.walk(ast.parse(text))
        for module in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    foreign = {module for module in modules if (module or "").split(".")[0] not in _STANDARD}
    assert foreign <= {"kakoi", "kakoi.sync"}
    assert foreign


_STANDARD = sys.stdlib_module_names


def test_the_model_sees_refusals_and_goes_on(tmp_path: Path) -> None:
    printed = run("agent_loop", tmp_path)
    assert any(line.startswith("Refused: Blocked command: sudo") for line in printed)
    assert printed[-2:] == ["Hello, agent", "[exited, exit code 0]"]


def test_workers_have_copies_of_one_prepared_sandbox(tmp_path: Path) -> None:
    printed = run("parallel_workers", tmp_path)
    assert printed[0] == "alpha: ALPHA"
    assert len(printed) == 6


def test_output_is_streamed_to_a_web_socket(tmp_path: Path) -> None:
    sent = [json.loads(line) for line in run("stream_to_websocket", tmp_path)]
    # Nothing says which stream is read first.
    assert sorted(map(str, sent[:-1])) == ["{'stderr': 'two\\n'}", "{'stdout': 'one\\n'}"]
    assert sent[-1] == {"reason": "exited", "exit_code": 3}


@pytest.mark.slow("two of the programs run into their time limit of five seconds")
def test_untrusted_code_stays_within_its_limits(tmp_path: Path) -> None:
    printed = run("untrusted_code", tmp_path)
    ends = dict(line.split(": ", 1) for line in printed if ": " in line)
    assert ends["harmless"] == "exited, exit code 0: 45"
    assert ends["endless"].startswith("timed_out, exit code 124")
    assert ends["greedy"].startswith(("out_of_memory", "exited, exit code 1: MemoryError"))
    assert ends["chatty"].startswith("timed_out, exit code 124: spam")
    assert ends["curious"].startswith("exited, exit code 1: FileNotFoundError")
    assert ends["phones home"].startswith("exited, exit code 1: OSError")
    assert printed[-1] == "  ended 1 process that it left behind"


def test_only_reviewed_changes_are_applied(tmp_path: Path) -> None:
    printed = run("review_and_apply", tmp_path)
    assert "+print(42)" in printed
    assert printed[-2:] == ["applied: hello.py", "hello.py"]


def test_a_project_of_your_own_can_be_reviewed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    run("review_and_apply", tmp_path, str(project), "touch new.py new.txt")
    assert [path.name for path in project.iterdir()] == ["new.py"]


def test_a_server_in_the_background_answers_requests(tmp_path: Path) -> None:
    assert run("background_server", tmp_path) == [
        "index.html <h1>Hello</h1>",
        "missing.html urllib.error.HTTPError: HTTP Error 404: File not found",
        "2 requests, 1 job",
    ]


def test_a_search_returns_to_checkpoints(tmp_path: Path) -> None:
    printed = run("checkpoint_search", tmp_path)
    assert [line.partition(":")[0] for line in printed] == ["undone", "kept", "undone", "kept"]
    assert printed[-1].endswith("(1 -> 2)")


@pytest.mark.slow("one of the answers runs into its time limit of ten seconds")
def test_each_answer_gets_its_outcome(tmp_path: Path) -> None:
    *printed, greedy = run("evaluation", tmp_path)
    assert printed == ["right: passed", "wrong: failed", "endless: too slow"]
    # Without a control group, an allocation above the limit fails in the program itself.
    assert greedy in ("greedy: out of memory", "greedy: failed")
