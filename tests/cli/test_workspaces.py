"""A workspace that is not there: said by every command that needs one, and never made by one."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.calling import Home
from tests.cli.terminals import KAKOI, PATIENCE_S

NEEDING = {
    "check ls": 2,
    "policy show": 2,
    "config show": 2,
    "config path": 2,
    "config init --project": 2,
    "prompt": 2,
    "copy changes": 2,
    "copy apply": 2,
    "copy discard": 2,
    "client install claude --scope project": 2,
    "run --sandbox host ls": 125,
    "mcp --sandbox host": 2,
}
NAMED = [words for words in NEEDING if words not in ("copy discard", "run --sandbox host ls")]


@pytest.mark.parametrize("words", NEEDING)
def test_a_directory_that_was_removed_around_us_is_reported(home: Home, words: str) -> None:
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(home.project), *KAKOI, *words.split()],
        cwd=home.root,
        env=home.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    first, hint, _ = done.stderr.decode().splitlines()
    assert done.returncode == NEEDING[words]
    assert first == "kakoi: the workspace is '.': No such file or directory"
    assert "--workspace DIR" in hint


@pytest.mark.parametrize("words", NAMED)
def test_a_mistyped_workspace_is_reported_and_not_made(home: Home, words: str) -> None:
    missing, file = home.root / "mistyped", home.write(home.root / "file", "")
    for path, why in ((missing, "No such file or directory"), (file, "Not a directory")):
        named = ["--workspace", str(path)]
        # What follows the first word of a command belongs to it.
        argv = ["check", *named, "ls"] if words == "check ls" else [*words.split(), *named]
        status, _, said = home(*argv)
        assert (status, said.splitlines()[0]) == (2, f"kakoi: the workspace is '{path}': {why}")
    assert not missing.exists()


def test_the_copy_of_a_project_that_is_gone_can_be_discarded(home: Home, tmp_path: Path) -> None:
    status, out, _ = home("copy", "discard", "--workspace", str(tmp_path / "gone"))
    assert (status, out) == (0, "0 changes discarded\n")


def test_an_error_is_explained_wherever_one_is(home: Home) -> None:
    status, out, said = home("explain", "TIMED_OUT", "--workspace", "mistyped")
    assert (status, "error TIMED_OUT: " in out) == (0, True)
    assert "your own rules are not included: the workspace is 'mistyped'" in said
