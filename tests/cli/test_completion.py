"""Completion scripts that the shells themselves accept, and `kakoi version`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kakoi
from tests.cli import forked


def run(*words: str, **environ: str) -> str:
    env = {**os.environ, **environ}
    done = forked.kakoi(*words, cwd=Path.cwd(), env=env, text=True)
    assert done.returncode == 0
    return str(done.stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_and_its_shell_can_read_it(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(run("completion", shell))
    assert "_KAKOI_COMPLETE" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


def test_commands_and_options_are_completed() -> None:
    asked = {"_KAKOI_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    assert run(**asked, COMP_WORDS="kakoi doc").split() == ["plain,doctor"]
    asked["COMP_CWORD"] = "2"
    assert "plain,--sandbox" in run(**asked, COMP_WORDS="kakoi run --san").split()
    assert run(**asked, COMP_WORDS="kakoi env st").split() == ["plain,stop", "plain,stats"]
    assert run(**asked, COMP_WORDS="kakoi nothing st").split() == []
    asked["COMP_CWORD"] = "3"
    assert run(**asked, COMP_WORDS="kakoi run --profile o").split() == ["plain,open"]
    assert "plain,bubblewrap" in run(**asked, COMP_WORDS="kakoi run --sandbox ").split()
    assert run(**asked, COMP_WORDS="kakoi copy diff --st").split() == ["plain,--stat"]


def test_the_version_is_printed_for_people_and_for_programs() -> None:
    assert run("version").splitlines()[0].split() == ["kakoi", kakoi.__version__]
    told = json.loads(run("version", "--json"))
    assert told["kakoi"] == kakoi.__version__
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert run("--version") == f"kakoi {kakoi.__version__}\n"
