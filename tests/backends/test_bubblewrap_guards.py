"""A workspace that holds kakoi itself: commands can use it, and not change what confines them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.backends.workspace import identify, kakoi_paths_in
from tests.backends.boxes import KINDS, Box, Kind, a_box, require_bubblewrap


@pytest.fixture(scope="module", autouse=True)
def _required() -> None:
    require_bubblewrap()


@pytest.fixture(params=KINDS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    kind: Kind = request.param
    with a_box(kind) as box:
        venv = box.workspace / "tools" / "deep" / ".venv"
        venv.mkdir(parents=True)
        (venv / "program").write_text("ours")
        owner = box.workspace.stat()
        for path in (venv, *venv.parents[:2], venv / "program"):
            os.chown(path, owner.st_uid, owner.st_gid)
        yield box


def guarded(box: Box) -> Path:
    return box.workspace / "tools" / "deep" / ".venv"


@pytest.mark.parametrize(
    "attack",
    [
        "echo evil >tools/deep/.venv/program",
        "rm -rf tools/deep/.venv",
        "mv tools/deep/.venv elsewhere",
        "mv tools/deep elsewhere && mkdir -p tools/deep/.venv && echo evil >tools/deep/.venv/program",
        "mv tools elsewhere && mkdir -p tools/deep/.venv && echo evil >tools/deep/.venv/program",
        "rm -rf tools; mkdir -p tools/deep/.venv; echo evil >tools/deep/.venv/program",
        "ln tools/deep/.venv/program link && echo evil >link",
        "chmod 777 tools/deep/.venv/program",
        "touch tools/deep/.venv/new",
    ],
)
def test_a_command_cannot_change_or_replace_what_is_guarded(box: Box, attack: str) -> None:
    said = box.bash(attack, guarded=[guarded(box)])
    assert said.status != 0, said
    assert (guarded(box) / "program").read_text() == "ours"
    assert [each.name for each in guarded(box).iterdir()] == ["program"]


def test_a_command_can_read_it_and_write_everything_around_it(box: Box) -> None:
    script = "cat tools/deep/.venv/program && touch tools/deep/new tools/new new"
    said = box.bash(script, guarded=[guarded(box)])
    assert (said.status, said.stdout) == (0, "ours")
    owner = box.workspace.stat()
    for path in ("tools/deep/new", "tools/new", "new"):
        made = (box.workspace / path).stat()
        assert (made.st_uid, made.st_gid) == (owner.st_uid, owner.st_gid)


def test_kakoi_in_the_environment_of_a_project_runs_commands_in_that_project(
    tmp_path: Path,
) -> None:
    """As people have it: `.venv` in the checkout, and `kakoi` in there."""
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    packages = next((project / ".venv" / "lib").glob("python3*/site-packages"))
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if "site-" in path))
    source = Path(__file__).parents[2] / "src" / "kakoi"
    shutil.copytree(source, packages / "kakoi", ignore=shutil.ignore_patterns("__pycache__"))
    script = """
import asyncio
from pathlib import Path
from kakoi.channel.api import Command
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

async def main():
    sandbox = BubblewrapAdapter(Path.cwd())
    result = await sandbox.run(Command(command="touch made; touch .venv/made || echo kept"))
    await sandbox.cleanup()
    print(result.stdout, result.reason)

asyncio.run(main())
"""
    python = project / ".venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", script], cwd=project, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "kept\n exited\n", done.stderr
    assert (project / "made").exists()
    assert not (project / ".venv" / "made").exists()


def test_only_the_outermost_of_our_places_is_named() -> None:
    root = Path(__file__).parents[2]
    found = [seen.path for seen in kakoi_paths_in(identify(root, what="the project"))]
    assert os.path.realpath(sys.prefix) in found or not sys.prefix.startswith(str(root))
    assert all(not a.startswith(b + "/") for a in found for b in found)
