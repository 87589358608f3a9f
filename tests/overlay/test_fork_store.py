"""Which layers forks keep, what killed ones leave, and forks of sandboxes that are in use."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import CanCheckpoint, CanFork
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.channel.api import Command
from kakoi.errors import SandboxError
from kakoi.overlay import Overlay
from kakoi.results import Reason
from tests.backends.boxes import require_bubblewrap
from tests.overlay.layers import Desk, a_desk, copied_up, make_opaque, white_out, write

pytestmark = pytest.mark.anyio


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return a_desk(tmp_path, lambda project: [write(project / name, "1") for name in ("a", "d/x")])


def top_of(overlay: Overlay) -> Path:
    """The writable layer of a fork, which is then free for other work again."""
    mounts = overlay.open()
    overlay.unmounted()
    return Path(mounts.folder, mounts.stack[0])


def paths(overlay: Overlay) -> list[str]:
    return [each.path for each in overlay.changes()]


# --- Layers ----------------------------------------------------------------------------------


def test_marks_of_the_origin_mean_the_same_in_a_fork(desk: Desk) -> None:
    white_out(desk.upper / "a")
    write(make_opaque(desk.upper / "d") / "new", "")
    (fork,) = desk.overlay.fork(1)
    write(top_of(fork) / "d/newer", "")
    white_out(top_of(fork) / "d/new")
    assert paths(desk.overlay) == ["a", "d/new", "d/x"]
    assert paths(fork) == ["a", "d/newer", "d/x"]
    copied_up(top_of(fork) / "a", "2")
    assert [each.kind for each in fork.changes()] == ["modified", "added", "deleted"]
    fork.close()
    assert paths(desk.overlay) == ["a", "d/new", "d/x"]


def test_a_layer_is_there_as_long_as_anybody_needs_it(desk: Desk) -> None:
    write(desk.upper / "one", "")
    layers = desk.upper.parent
    first, second = desk.overlay.fork(2)
    write(top_of(first) / "two", "")
    (third,) = first.fork(1)
    desk.overlay.discard()
    assert (paths(desk.overlay), paths(second)) == ([], ["one"])
    first.close()
    second.close()
    assert paths(third) == ["one", "two"]
    assert desk.overlay.discard() == []  # Another process that tidies up.
    assert paths(third) == ["one", "two"]
    third.close()
    assert not layers.exists()
    assert os.listdir(layers.parent) == ["lock"]


def test_a_fork_that_has_written_nothing_since_the_last_adds_no_layer(desk: Desk) -> None:
    write(desk.upper / "one", "")
    made = [fork for _ in range(5) for fork in desk.overlay.fork(1)]
    assert {len(fork.open().stack) for fork in made} == {2}
    top = desk.upper
    top.chmod(0o750)  # A changed mode is something written.
    (last,) = desk.overlay.fork(1)
    assert desk.upper != top
    assert top_of(last).stat().st_mode & 0o777 == 0o750
    for fork in (*made, last):
        fork.close()


def test_attributes_of_the_workspace_itself_go_with_a_checkpoint_and_a_fork(desk: Desk) -> None:
    os.setxattr(desk.project, "user.theirs", b"1")
    os.setxattr(desk.upper, "user.ours", b"2")
    desk.overlay.checkpoint("x")
    (fork,) = desk.overlay.fork(1)
    for layer in (desk.upper, top_of(fork)):
        assert sorted(os.listxattr(layer)) == ["user.ours", "user.theirs"]
    fork.close()


def test_an_open_overlay_is_forked_only_if_nothing_new_would_be_shared(desk: Desk) -> None:
    overlay = desk.overlay
    mounts = overlay.open()
    (fork,) = overlay.fork(1)
    fork.close()
    write(Path(mounts.folder, mounts.stack[0], "new"), "")
    with pytest.raises(SandboxError, match="a sandbox is using the overlay"):
        overlay.fork(1)
    overlay.unmounted()
    (fork,) = overlay.fork(1)
    assert paths(fork) == ["new"]
    fork.close()
    overlay.close()


def leave_dead(fork: Overlay) -> None:
    """Leave everything as a killed process does."""
    lock, fork._lock = fork._lock, None
    assert lock is not None
    lock.close()


def test_what_a_killed_fork_left_in_the_project_is_removed(desk: Desk) -> None:
    copied_up(desk.upper / "d/x", "2")
    (fork,) = desk.overlay.fork(1)
    state = fork._store.read()
    assert state is not None
    half = desk.project / "d" / os.fsdecode(state.temporary_name)
    write(half, "half")
    fork._store.journal.write_text('{"in": "d"}\n')
    desk.overlay.checkpoint("alive")
    assert half.exists()
    leave_dead(fork)
    desk.overlay.checkpoint("afterwards")
    assert not half.exists()
    assert not fork._store.path.exists()


def test_forks_that_were_never_finished_are_removed(desk: Desk) -> None:
    write(desk.upper / "one", "")
    shared = desk.upper.parent.parent
    for name, file in (("aaaa", "lock"), ("bbbb", "state.json.half"), ("cccc", "open")):
        write(shared / "forks" / name / file, "")
    write(shared / "layers" / "work-aaaa" / "work" / "x", "")
    desk.overlay.checkpoint("x")
    assert os.listdir(shared / "forks") == []
    assert sorted(os.listdir(shared / "layers")) == ["1", "2", "work"]


@pytest.fixture
def overlays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAKOI_OVERLAYS", str(tmp_path / "private"))
    return tmp_path / "private"


def test_a_private_directory_is_moved_and_an_empty_one_takes_its_place(
    tmp_path: Path, overlays: Path
) -> None:
    workspace = tmp_path / "workspace"
    write(workspace / "deep/file", "1")
    workspace.chmod(0o570)
    overlay = Overlay.of_private(workspace)
    assert os.listdir(workspace) == []
    assert workspace.stat().st_mode & 0o777 == 0o570
    (fork,) = overlay.fork(1)
    overlay.close()
    workspace.rmdir()
    assert [each.path for each in fork.changes() if each.type == "file"] == ["deep/file"]
    leave_dead(fork)
    assert len(os.listdir(overlays)) == 1
    workspace.mkdir()
    Overlay.of_private(workspace).close()
    assert os.listdir(overlays) == []


def test_a_directory_of_somebody_else_is_never_taken_for_an_abandoned_one(
    tmp_path: Path, overlays: Path
) -> None:
    """Such as one that another user has put into the temporary directory."""
    theirs = overlays / "kakoi-private-theirs"
    write(theirs / "layers/1/file", "")
    theirs.chmod(0o777)
    (overlays / "kakoi-private-link").symlink_to(tmp_path)
    (tmp_path / "workspace").mkdir()
    Overlay.of_private(tmp_path / "workspace").close()
    assert sorted(os.listdir(overlays)) == ["kakoi-private-link", "kakoi-private-theirs"]
    assert (theirs / "layers/1/file").exists()


# --- Sandboxes in use ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bubblewrap() -> None:
    require_bubblewrap()


@pytest.fixture
async def box(bubblewrap: None, desk: Desk) -> AsyncIterator[BubblewrapAdapter]:
    adapter = BubblewrapAdapter(desk.project, overlay=desk.overlay)
    yield adapter
    await adapter.cleanup()


async def test_it_has_the_abilities_by_name(box: BubblewrapAdapter) -> None:
    assert isinstance(box, CanFork)
    assert isinstance(box, CanCheckpoint)


async def test_a_command_that_a_checkpoint_ends_is_lost_and_the_next_one_runs(
    box: BubblewrapAdapter,
) -> None:
    running = asyncio.ensure_future(box.run(Command(command="echo > begun; sleep 600")))
    while (await box.execute("test -e begun")).exit_code:
        pass
    with pytest.raises(SandboxError, match="running in the sandbox"):
        await box.fork(1)
    assert not running.done()
    await box.checkpoint("x")
    assert (await running).reason is Reason.SANDBOX_LOST
    assert (await box.execute("ls")).stdout == "a\nbegun\nd\n"


async def test_many_tasks_may_ask_for_copies_at_once(box: BubblewrapAdapter) -> None:
    await box.execute("echo 2 > a")
    answers = await asyncio.gather(
        box.fork(2), box.checkpoint("x"), box.fork(3), box.changes(), box.checkpoint("y")
    )
    forks = [*answers[0], *answers[2]]
    try:
        said = await asyncio.gather(*(fork.execute("cat a") for fork in (box, *forks)))
        assert [each.stdout for each in said] == ["2\n"] * 6
        assert sorted(box.checkpoints()) == ["x", "y"]
    finally:
        await asyncio.gather(*(fork.cleanup() for fork in forks))


async def test_a_fork_whose_caller_gave_up_leaves_nothing(
    box: BubblewrapAdapter, desk: Desk
) -> None:
    await box.execute("echo 2 > a")
    forking = asyncio.ensure_future(box.fork(4))
    await asyncio.sleep(0)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert (await box.execute("cat a")).stdout == "2\n"
    await box.cleanup()
    (folder,) = (desk.root / "overlays").iterdir()
    assert sorted(os.listdir(folder / "layers")) == ["1", "2", "work"]


async def test_a_fork_that_is_never_used_leaves_nothing(box: BubblewrapAdapter, desk: Desk) -> None:
    await box.execute("echo 2 > a")
    forks = await box.fork(3)
    await box.cleanup()
    for fork in forks:
        await fork.cleanup()
        await fork.cleanup()
    (folder,) = (desk.root / "overlays").iterdir()
    assert sorted(os.listdir(folder / "layers")) == ["1", "2", "work"]


async def test_a_paused_sandbox_is_ended_by_a_checkpoint(box: BubblewrapAdapter) -> None:
    await box.execute("echo 2 > a")
    await box.pause()
    await box.checkpoint("x")
    assert (await box.execute("cat a")).stdout == "2\n"
