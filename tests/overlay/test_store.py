"""Where overlays are kept, who may use one, and what a checkpoint may be."""

import os
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.overlay import Overlay
from kakoi.overlay.store import MOST_CHECKPOINTS, overlays_folder
from tests.overlay.layers import Desk, a_desk, copied_up, write


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return a_desk(tmp_path, lambda project: write(project / "a", "1"))


def test_each_project_has_a_private_folder_of_its_own(desk: Desk) -> None:
    mounts = desk.overlay.open()
    folder = Path(mounts.folder).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    (desk.root / "link").symlink_to(desk.project)
    with pytest.raises(SandboxError, match="is using the overlay"):
        Overlay(desk.root / "link", desk.root / "overlays").open()
    other = desk.root / "other"
    other.mkdir()
    second = Overlay(other, desk.root / "overlays")
    assert second.open().folder != mounts.folder
    second.close()


def test_it_is_in_the_users_state_directory_unless_somebody_says_otherwise() -> None:
    assert overlays_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/kakoi/overlays")
    assert overlays_folder({"XDG_STATE_HOME": "s", "HOME": "/h"}) == Path(
        "/h/.local/state/kakoi/overlays"
    )
    assert overlays_folder({}).is_absolute()


def test_one_that_others_can_write_to_is_refused(desk: Desk) -> None:
    folder = desk.upper.parent.parent
    folder.chmod(0o777)
    with pytest.raises(SandboxError, match="other users can write"):
        desk.overlay.open()


def test_a_folder_that_cannot_be_made_is_reported_with_the_way_out(desk: Desk) -> None:
    blocked = write(desk.root / "file", "")
    with pytest.raises(SandboxError, match="cannot keep an overlay") as raised:
        Overlay(desk.project, blocked).open()
    assert "KAKOI_OVERLAYS" in raised.value.hint


def test_what_is_open_here_cannot_be_settled_here(desk: Desk) -> None:
    overlay = desk.overlay
    overlay.open()
    for work in (overlay.apply, overlay.discard, overlay.open):
        with pytest.raises(SandboxError):
            work()
    overlay.close()
    overlay.close()
    assert overlay.discard() == []


def test_one_in_which_nothing_is_begins_anew_with_the_project_as_it_is(desk: Desk) -> None:
    upper = desk.upper
    write(desk.project / "a", "changed before anything happened inside")
    assert desk.upper == upper
    copied_up(upper / "a", "inside")
    assert desk.conflicts() == {}
    write(desk.project / "a", "changed after that")
    assert list(desk.conflicts()) == ["a"]


def test_without_one_there_is_nothing_to_do(desk: Desk) -> None:
    overlay = desk.overlay
    assert (overlay.changes(), list(overlay.diff()), overlay.checkpoints()) == ([], [], [])
    assert overlay.apply().done == ()
    assert overlay.discard() == []
    with pytest.raises(ConfigurationError, match="has no overlay"):
        overlay.rollback("x")
    assert not (desk.root / "overlays").exists()


@pytest.mark.parametrize("name", ["", "-x", "a/b", "..", "a\n", "x" * 65, "é"])
def test_a_checkpoint_has_a_plain_name(desk: Desk, name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a valid checkpoint name"):
        desk.overlay.checkpoint(name)


def test_checkpoints_are_counted_and_named_once(desk: Desk) -> None:
    overlay = desk.overlay
    for number in range(MOST_CHECKPOINTS):
        overlay.checkpoint(f"c{number}")
    with pytest.raises(ConfigurationError, match="already"):
        overlay.checkpoint("c1")
    with pytest.raises(SandboxError, match="which is the maximum"):
        overlay.checkpoint("one-more")
    overlay.rollback("c1")
    assert overlay.checkpoints() == ["c0", "c1"]
    with pytest.raises(ConfigurationError, match="checkpoint 'c2' not found"):
        overlay.rollback("c2")


def test_what_a_killed_rollback_left_behind_is_removed_by_the_next(desk: Desk) -> None:
    write(desk.upper / "kept", "1")
    desk.overlay.checkpoint("x")
    folder = desk.upper.parent
    left = folder / "77"
    write(left / "deep/file", "")
    (left / "deep").chmod(0)
    (folder.parent / "trash").mkdir(exist_ok=True)
    write(folder.parent / "trash/5/x/y", "")
    assert desk.overlay.checkpoints() == ["x"]
    desk.overlay.checkpoint("y")
    assert sorted(os.listdir(folder)) == ["1", "2", "3", "work"]
    assert [each.path for each in desk.overlay.changes()] == ["kept"]
    overlay = desk.overlay
    overlay.open()
    assert len(os.listdir(folder.parent / "trash")) == 2
    overlay.close()
    assert os.listdir(folder.parent / "trash") == []


def test_a_rollback_removes_nothing_and_the_end_of_the_next_sandbox_does(desk: Desk) -> None:
    """A rename for each layer: it takes as long for one file as for ten thousand."""
    overlay = desk.overlay
    write(desk.upper / "kept", "1")
    overlay.checkpoint("x")
    for name in ("a", "b/c"):
        write(desk.upper / name, "")
    overlay.checkpoint("y")
    folder = desk.upper.parent
    trash = folder.parent / "trash"
    overlay.rollback("x")
    assert sorted(os.listdir(folder)) == ["1", "4", "work"]
    assert [each.path for each in overlay.changes()] == ["kept"]
    assert sorted(path.name for path in trash.rglob("*") if path.is_file()) == ["a", "c"]
    overlay.checkpoint("z")  # Nobody waits for it before the next sandbox ends.
    assert len(list(trash.rglob("*"))) > 2
    overlay.open()
    overlay.close()
    assert os.listdir(trash) == []
    assert [each.path for each in overlay.changes()] == ["kept"]


def test_what_a_rollback_left_goes_with_all_the_rest(desk: Desk) -> None:
    overlay = desk.overlay
    overlay.checkpoint("x")
    write(desk.upper / "a", "")
    folder = desk.upper.parent.parent
    overlay.rollback("x")
    overlay.discard()
    assert os.listdir(folder) == ["lock"]


def test_a_damaged_state_is_reported(desk: Desk) -> None:
    state = desk.upper.parent.parent / "state.json"
    state.write_text("{")
    with pytest.raises(SandboxError, match="is damaged"):
        desk.overlay.changes()
    state.write_text('{"version": 99}')
    with pytest.raises(SandboxError, match="another version"):
        desk.overlay.changes()
