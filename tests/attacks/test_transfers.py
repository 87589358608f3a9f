"""Copies between this machine and a sandbox, while a command swaps what is in the workspace."""

import contextlib
from pathlib import Path

import anyio
import pytest

from kakoi import KakoiError, Sandbox
from tests.attacks.swapping import SECRET, a_secret_place, swapping
from tests.backends.boxes import require_bubblewrap
from tests.overlay.snapshots import exactly

pytestmark = pytest.mark.anyio
SWAPS = 20_000


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    require_bubblewrap()
    folder = a_secret_place(tmp_path / "outside")
    (folder / "secret name").mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Path:
    """With a directory, and a link that commands can swap with it."""
    workspace = tmp_path / "project"
    (workspace / "data" / "dir" / "sub").mkdir(parents=True)
    for name in ("one", "two", "sub/file"):
        (workspace / "data" / "dir" / name).write_text("theirs")
    (workspace / "data" / "link").symlink_to(outside)
    return workspace


@pytest.mark.parametrize("deep", [True, False])
async def test_no_link_swapped_in_sends_a_file_from_elsewhere(
    workspace: Path, outside: Path, deep: bool
) -> None:
    """Also if what is named is itself in the workspace, and a link a moment later."""
    source = workspace / "data" if deep else workspace / "data" / "dir"
    if deep:
        # As it is, it is refused, because of the link: it must come from elsewhere to be swapped.
        (workspace / "data" / "link").rename(workspace / "link")
    link = workspace / "link" if deep else workspace / "data" / "link"
    sent = 0
    async with Sandbox("bubblewrap", workspace=workspace) as box:
        with swapping(SWAPS, workspace / "data" / "dir", link) as goes_on:
            while goes_on() or not sent:
                with contextlib.suppress(KakoiError, OSError):
                    await box.files.upload(source, f"sent-{sent}")
                sent += 1
    await anyio.to_thread.run_sync(assert_nothing_came, workspace)


def assert_nothing_came(workspace: Path) -> None:
    found = [path for path in workspace.rglob("*") if "sent-" in str(path)]
    assert [path for path in found if path.is_file() and SECRET in path.read_text()] == []
    assert [path for path in found if path.name == "secret name"] == []


async def test_no_link_swapped_in_receives_a_file_elsewhere(workspace: Path, outside: Path) -> None:
    before = exactly(outside)
    received = 0
    async with Sandbox("bubblewrap", workspace=workspace) as box:
        await box.files.write("from/sub/one", "theirs")
        await box.files.write("from/new", "theirs")
        data = workspace / "data"
        with swapping(SWAPS, data / "dir", data / "link") as goes_on:
            while goes_on() or not received:
                for target in ("dir", "dir/made/here", "dir/one"):
                    with contextlib.suppress(KakoiError, OSError):
                        await box.files.download("from", data / target)
                received += 1
    assert exactly(outside) == before


async def test_what_is_named_in_a_workspace_is_no_link_out_of_it(
    workspace: Path, outside: Path
) -> None:
    before = exactly(outside)
    async with Sandbox("bubblewrap", workspace=workspace) as box:
        for named in (workspace / "data" / "link", workspace / "data" / "link" / "one"):
            with pytest.raises(KakoiError, match="link"):
                await box.files.upload(named, "sent")
        await box.files.write("from", "theirs")
        for named in (workspace / "data" / "link", workspace / "data" / "link" / "new"):
            with pytest.raises(KakoiError):
                await box.files.download("from", named)
    assert exactly(outside) == before
