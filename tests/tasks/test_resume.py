"""Half-done work: kept as a patch, brought back into a new clone, gone when its task has ended."""

import stat
import subprocess
from pathlib import Path

import pytest

from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.tasks.changes import ProjectChanges
from kakoi.tasks.resume import PeriodicSave, SavedChanges
from tests.tasks.hosting import a_repository, head_of

pytestmark = pytest.mark.anyio
FILES = {"kept.txt": "one\ntwo\nthree\n", "gone.txt": "x\n", "run.sh": "true\n"}
BINARY = bytes(range(256)) * 4


def git(folder: Path, *argv: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *argv],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


class Project:
    """A repository, and clones of it."""

    def __init__(self, folder: Path, channel: RunnerChannel) -> None:
        self.folder = folder
        self.channel = channel
        self.origin = folder / "origin"
        a_repository(self.origin, FILES)

    def clone(self, name: str) -> Path:
        path = self.folder / name
        subprocess.run(["git", "clone", "-q", str(self.origin), str(path)], check=True, timeout=60)
        return path

    async def begun(self, path: Path) -> tuple[ProjectChanges, str]:
        changes = ProjectChanges(self.channel, str(path))
        return changes, await changes.begin(head_of(path))


@pytest.fixture
def project(tmp_path: Path, channel: RunnerChannel) -> Project:
    return Project(tmp_path, channel)


def change(folder: Path) -> None:
    """All kinds of changes, of which one is committed and one is staged."""
    (folder / "kept.txt").write_text("one\n2\nthree\n")
    git(folder, "commit", "-qam", "half of it")
    (folder / "gone.txt").unlink()
    (folder / "new name \u65e5 \t.txt").write_text("new\n")
    (folder / "staged.txt").write_text("staged\n")
    git(folder, "add", "staged.txt")
    (folder / "sub").mkdir()
    (folder / "sub" / "data.bin").write_bytes(BINARY)
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("kept.txt")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")


async def test_all_changes_come_back_into_a_new_clone(project: Project, tmp_path: Path) -> None:
    first, second = project.clone("first"), project.clone("second")
    changes, base = await project.begun(first)
    change(first)
    before = git(first, "status", "--porcelain")
    saved = SavedChanges(tmp_path / "state", "a-task")
    await saved.save(changes, base)
    assert git(first, "status", "--porcelain") == before  # Nobody notices.
    (kept,) = (tmp_path / "state").iterdir()
    assert kept.name == "a-task.patch"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    changes, base = await project.begun(second)
    assert await saved.restore(changes)
    assert (second / "kept.txt").read_text() == "one\n2\nthree\n"
    assert not (second / "gone.txt").exists()
    assert (second / "new name \u65e5 \t.txt").read_text() == "new\n"
    assert (second / "staged.txt").read_text() == "staged\n"
    assert (second / "sub" / "data.bin").read_bytes() == BINARY
    assert (second / "run.sh").stat().st_mode & 0o100
    assert (second / "link").readlink() == Path("kept.txt")
    assert not (second / "__pycache__").exists()
    assert git(second, "rev-parse", "HEAD").strip() == base  # Nothing is committed.
    work = await changes.collect(base)
    assert work is not None
    names = git(second, "diff", "--name-only", base, work.tree).split("\n")
    assert "staged.txt" in names


HOOKS = "post-index-change reference-transaction pre-commit post-commit post-checkout".split()


@pytest.mark.parametrize("folder", [".git/hooks", "../hooks"])
async def test_no_program_that_a_project_names_is_run_by_our_git(
    project: Project, tmp_path: Path, folder: str
) -> None:
    path = project.clone("here")
    changes, base = await project.begun(path)
    git(path, "config", "core.hooksPath", folder)
    git(path, "config", "core.fsmonitor", f"echo fsmonitor >> {tmp_path}/run; false")
    (path / folder).mkdir(exist_ok=True)
    for name in HOOKS:
        (path / folder / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/run\n")
        (path / folder / name).chmod(0o755)
    (path / "new.txt").write_text("new\n")
    patch = await changes.diff(base)
    assert await changes.collect(base)
    assert not await changes.apply(b"no patch")
    assert b"new.txt" in patch
    assert not (tmp_path / "run").exists()
    git(path, "reset", "-q", "--hard")  # With the hooks, to see that they would have been run.
    assert (tmp_path / "run").exists()


async def test_changes_fit_a_project_that_has_moved_on_elsewhere(
    project: Project, tmp_path: Path
) -> None:
    first = project.clone("first")
    changes, base = await project.begun(first)
    (first / "kept.txt").write_text("one\ntwo\nthree\nfour\n")
    saved = SavedChanges(tmp_path / "state", "a-task")
    await saved.save(changes, base)
    (project.origin / "kept.txt").write_text("zero\none\ntwo\nthree\n")
    git(project.origin, "commit", "-qam", "theirs")
    second = project.clone("second")
    changes, _ = await project.begun(second)
    assert await saved.restore(changes)
    assert (second / "kept.txt").read_text() == "zero\none\ntwo\nthree\nfour\n"


async def test_changes_that_do_not_fit_leave_the_project_as_it_is(
    project: Project, tmp_path: Path
) -> None:
    first = project.clone("first")
    changes, base = await project.begun(first)
    (first / "kept.txt").write_text("ours\n")
    (first / "new.txt").write_text("new\n")
    saved = SavedChanges(tmp_path / "state", "a-task")
    await saved.save(changes, base)
    (project.origin / "kept.txt").write_text("theirs\n")
    git(project.origin, "commit", "-qam", "theirs")
    second = project.clone("second")
    changes, _ = await project.begun(second)
    assert not await saved.restore(changes)
    assert git(second, "status", "--porcelain") == ""
    assert (second / "kept.txt").read_text() == "theirs\n"


@pytest.mark.parametrize("kept", [b"no patch\n", b"\x00\xff" * 100, b"diff --git a/x b/../../x\n"])
async def test_a_patch_that_is_none_changes_nothing(
    project: Project, tmp_path: Path, kept: bytes
) -> None:
    path = project.clone("first")
    changes, _ = await project.begun(path)
    (tmp_path / "a-task.patch").write_bytes(kept)
    assert not await SavedChanges(tmp_path, "a-task").restore(changes)
    assert git(path, "status", "--porcelain") == ""


async def test_nothing_changed_is_nothing_kept(project: Project, tmp_path: Path) -> None:
    path = project.clone("first")
    changes, base = await project.begun(path)
    saved = SavedChanges(tmp_path / "state", "a-task")
    (path / "kept.txt").write_text("changed\n")
    await saved.save(changes, base)
    git(path, "checkout", "-q", "kept.txt")
    await saved.save(changes, base)
    assert list((tmp_path / "state").iterdir()) == []
    assert not await saved.restore(changes)


class Broken(ProjectChanges):
    """Changes in an environment that is lost. `asked` counts the attempts."""

    def __init__(self) -> None:
        self.asked = 0

    async def diff(self, base: str) -> bytes:
        self.asked += 1
        raise SandboxError("the container is gone")

    async def apply(self, changes: bytes) -> bool:
        raise SandboxError("the container is gone")


async def test_what_cannot_be_kept_is_told_and_what_was_kept_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a-task.patch").write_bytes(b"earlier")
    saved = SavedChanges(tmp_path, "a-task")
    await saved.save(Broken(), "HEAD")
    assert "the container is gone" in caplog.text
    assert (tmp_path / "a-task.patch").read_bytes() == b"earlier"
    assert not await saved.restore(Broken())
    saved.discard()
    saved.discard()
    assert not (tmp_path / "a-task.patch").exists()


async def test_it_is_kept_not_more_often_than_asked_for(tmp_path: Path) -> None:
    times, place = [0.0], Broken()
    saver = PeriodicSave(
        SavedChanges(tmp_path, "x"), place, "HEAD", every_s=30, clock=lambda: times[-1]
    )
    seen = []
    for now in (0.0, 29.0, 30.0, 59.0, 60.0):
        times.append(now)
        await saver.save_if_due()
        seen.append(place.asked)
    assert seen == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("uuid", ["../x", "a/b", "", "-", ".x"])
def test_a_uuid_that_is_none_names_no_file(tmp_path: Path, uuid: str) -> None:
    with pytest.raises(ConfigurationError):
        SavedChanges(tmp_path, uuid)
