"""The copy of a workspace in a container: what commands change there, saved, forked and applied."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kakoi import ConfigurationError, Sandbox, SandboxError
from kakoi.overlay import Overlay
from tests.tasks.conftest import engine as engine  # Skips if there is no engine.
from tests.tasks.hosting import PYTHON

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a copy in a container"),
]
BUSYBOX = "kakoi-test:busybox"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a normal user, at a path that is hard to quote."""
    monkeypatch.setenv("KAKOI_OVERLAYS", str(tmp_path / "overlays"))
    folder = tmp_path / "a project, with:\\marks"
    (folder / "d").mkdir(parents=True)
    (folder / "file").write_text("one\n")
    (folder / "d" / "gone").write_text("x")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 1234, 1234)
    return folder


def _copied(project: Path, image: str = PYTHON) -> Sandbox:
    return Sandbox("docker", image=image, workspace=project, copy_on_write=True)


def _mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


@pytest.mark.slow("five containers")
async def test_a_copy_is_compared_saved_forked_and_applied(project: Path, engine: None) -> None:
    async with _copied(project) as box:
        assert box.supports("copy_on_write")
        assert box.supports("checkpoint")
        assert box.supports("fork")
        await box.run("echo two >> file; rm d/gone; echo new > new; echo kept > /tmp/t", check=True)
        assert box.id not in _mounts()  # Only the container has it.
        assert (project / "file").read_text() == "one\n"
        assert [each.path for each in await box.changes()] == ["d/gone", "file", "new"]
        assert "+two\n" in await box.diff(["file"])
        await box.checkpoint("first")
        with pytest.raises(ConfigurationError, match="first"):
            await box.checkpoint("first")
        await box.start("while :; do echo late >> file; done")
        await box.rollback("first")
        # What is elsewhere in the container stays, and jobs have ended.
        assert (await box.run("cat file /tmp/t; ls")).stdout == "one\ntwo\nkept\nd\nfile\nnew\n"
        forks = await box.fork(2)
        for number, fork in enumerate(forks):
            await fork.run(f"echo {number} >> file", check=True)
        assert (await forks[1].run("cat file /tmp/t")).stdout == "one\ntwo\n1\nkept\n"
        assert (await box.run("cat file")).stdout == "one\ntwo\n"
        assert (await forks[0].apply(["file"])).done == ("file",)
        for fork in forks:
            await fork.close()
        assert (project / "file").read_text() == "one\ntwo\n0\n"
        with pytest.raises(ConfigurationError, match="nothing was changed"):
            await box.apply(["never"])
        assert set((await box.apply(force=True)).done) == {"d/gone", "file", "new"}
        assert (project / "new").stat().st_uid == 1234
        assert not (project / "d" / "gone").exists()
        await box.run("rm file", check=True)
        assert [each.path for each in await box.discard()] == ["file"]
        assert (await box.run("cat file")).stdout == "one\ntwo\n"


@pytest.mark.parametrize("image", [PYTHON, BUSYBOX])
async def test_changes_wait_for_any_next_sandbox_of_the_workspace(
    image: str, project: Path, engine: None
) -> None:
    async with _copied(project, image) as box:
        await box.run("echo two >> file", check=True)
        await box.checkpoint("first")
        await box.run("rm file", check=True)
        with pytest.raises(ConfigurationError, match="never"):
            await box.rollback("never")
        assert (await box.run("ls")).stdout == "d\n"  # A mistake cost nothing.
    async with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as other:
        await other.rollback("first")
        assert (await other.run("cat file")).stdout == "one\ntwo\n"


_KILLED = """
import asyncio, sys
from kakoi import Sandbox
async def main():
    box = Sandbox("docker", image=sys.argv[1], workspace=sys.argv[2], copy_on_write=True)
    await box.run("echo two >> file", check=True)
    print(box.id, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def _leave_one(project: Path) -> str:
    """Return the name of a container whose client was killed."""
    argv = [sys.executable, "-c", _KILLED, PYTHON, str(project)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    return name


@pytest.mark.slow("two containers, and a process that is killed")
async def test_a_killed_process_leaves_its_changes_and_no_mount(
    project: Path, engine: None
) -> None:
    assert (name := await asyncio.to_thread(_leave_one, project))
    async with _copied(project) as box:  # It waits until the other container has ended.
        assert (await box.run("cat file")).stdout == "one\ntwo\n"
        assert name not in _mounts()


async def test_what_commands_cannot_change_stays_so_in_a_copy(
    project: Path, engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "venv" / "kakoi").mkdir(parents=True)
    (project / "venv" / "kakoi" / "gate.py").write_text("mine")
    monkeypatch.setattr("kakoi.backends.workspace._ours", lambda: [str(project / "venv" / "kakoi")])
    async with _copied(project) as box:
        for _ in range(2):
            result = await box.run("echo x > venv/kakoi/gate.py || mv venv other || echo kept")
            assert result.stdout == "kept\n"
            await box.discard()


async def test_a_copy_that_another_sandbox_uses_is_refused(project: Path, engine: None) -> None:
    async with _copied(project):
        with pytest.raises(SandboxError, match="is using the overlay"):
            await asyncio.to_thread(Overlay(project).discard)
