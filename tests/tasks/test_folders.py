"""Folders for tasks on this machine: made clean, taken away whatever is in them, and swept."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kakoi.errors import KakoiError, SandboxError
from kakoi.settings.model import AuditSection, SandboxSection, Settings
from kakoi.settings.tasks import TaskSection
from kakoi.tasks.folders import FolderEnvironments
from kakoi.tasks.handler_from_settings import open_environments, sweep
from tests.tasks.hosting import a_repository, a_task

pytestmark = pytest.mark.anyio
DAY_S = 24 * 3600.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        tasks=TaskSection(place="folder"),
        sandbox=SandboxSection(type="host"),
        audit=AuditSection(file=str(tmp_path / "state" / "audit.jsonl")),
    )


@pytest.fixture
async def folders(settings: Settings) -> AsyncIterator[FolderEnvironments]:
    async with open_environments(settings) as opened:
        assert isinstance(opened, FolderEnvironments)
        yield opened


def age(path: Path, seconds: float) -> None:
    then = datetime.now(UTC).timestamp() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


async def test_a_task_has_a_clone_of_its_own_and_it_is_taken_away(
    folders: FolderEnvironments, tmp_path: Path
) -> None:
    task = a_task(a_repository(tmp_path / "origin", {"a.txt": "x\n"}))
    info = await folders.prepare(task)
    path = Path(info.workspace_path)
    assert (path / "a.txt").read_text() == "x\n"
    (path / "left.txt").write_text("from before")
    environment = await folders.prepare_environment(task)  # Anew: nothing of before is there.
    assert environment.info().container_id == info.container_id
    assert not (path / "left.txt").exists()
    await folders.cleanup(task.uuid)
    await folders.cleanup(task.uuid)
    assert path.name not in os.listdir(path.parent)
    with pytest.raises(SandboxError, match="closed"):
        await environment.box.run("true")


async def test_a_clone_that_fails_leaves_nothing(
    folders: FolderEnvironments, tmp_path: Path
) -> None:
    with pytest.raises(KakoiError, match="cloning"):
        await folders.prepare(a_task(f"file://{tmp_path}/no-such-project"))
    assert list((tmp_path / "state" / "workspaces").iterdir()) == []


async def test_a_sweep_goes_by_name_and_age_and_follows_no_link(
    folders: FolderEnvironments, settings: Settings, tmp_path: Path
) -> None:
    task = a_task(a_repository(tmp_path / "origin", {"a.txt": "x\n"}))
    info = await folders.prepare(task)
    root = Path(info.workspace_path).parent
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "precious").write_text("x")
    for name in ("coding-agent-exec-old", "coding-agent-exec-new", "others", "xcoding-agent-exec-"):
        (root / name / "sub").mkdir(parents=True)
    (root / "coding-agent-exec-old" / "way-out").symlink_to(outside)
    (root / "coding-agent-exec-link").symlink_to(outside)
    for name in ("coding-agent-exec-old", "coding-agent-exec-link", "others", info.name,
                 "xcoding-agent-exec-"):  # fmt: skip
        age(root / name, 2 * DAY_S)
    removed = await sweep(settings, folders)
    assert removed == ["coding-agent-exec-link", "coding-agent-exec-old"]
    left = sorted(each.name for each in root.iterdir())
    assert left == sorted([info.name, "coding-agent-exec-new", "others", "xcoding-agent-exec-"])
    assert (outside / "precious").exists()
    assert outside.stat().st_mode & 0o777 == 0o750
    assert await folders.cleanup_stale_containers(timedelta(0)) == ["coding-agent-exec-new"]
    await folders.cleanup(task.uuid)


async def test_several_can_sweep_at_once(folders: FolderEnvironments, tmp_path: Path) -> None:
    root = tmp_path / "state" / "workspaces"
    names = {f"coding-agent-exec-{number}" for number in range(500)}
    for name in names:
        (root / name).mkdir(parents=True)
    sweeps = [folders.cleanup_stale_containers(timedelta(seconds=-1)) for _ in range(4)]
    removed = await asyncio.gather(*sweeps)
    assert set().union(*removed) == names
    assert list(root.iterdir()) == []


async def test_a_sweep_where_there_is_nothing_is_no_error(
    folders: FolderEnvironments, settings: Settings
) -> None:
    assert await sweep(settings, folders) == []
