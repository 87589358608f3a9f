"""The file of remembered approvals: private, whole or unused, and nothing is lost in it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi.approvals import Approvals, ApprovalStore, approvals_file
from kakoi.errors import ConfigurationError
from kakoi.policy.decide import Decision, decide
from kakoi.policy.profiles import load_policy

DAY_S = 86400
NOW = 1_800_000_000.0


class Clock:
    """Says what the test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Place:
    """A workspace, and the store of its user."""

    def __init__(self, root: Path) -> None:
        self.workspace = root / "workspace"
        self.workspace.mkdir()
        self.home = root / "state"
        self.home.mkdir(mode=0o700)
        self.file = approvals_file({"XDG_STATE_HOME": str(self.home)})
        self.store = ApprovalStore(self.file)
        self.clock = Clock()

    def approvals(self, *, workspace: Path | None = None, days: int = 30) -> Approvals:
        where = str(workspace or self.workspace)
        return Approvals(self.store, where, days=days, clock=self.clock)

    def decision(self, command: str, *, cwd: Path | None = None) -> Decision:
        at = str(cwd or self.workspace)
        return decide(load_policy(roots=[at]), command, cwd=at, confined=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    # pytest's own folders can be open to others, which the store refuses.
    tmp_path.chmod(0o700)
    return Place(tmp_path.resolve())


def test_what_is_remembered_answers_the_same_form_and_no_other(place: Place) -> None:
    approvals = place.approvals()
    asked = place.decision("git push origin fix-1")
    assert approvals.answer(asked) == ()
    offer = approvals.offer(asked)
    assert offer is not None
    assert offer.text == f"`git push origin <branch>` in {place.workspace}, for 30 days"
    (added,) = approvals.remember(asked)
    for command in ("git push origin fix-1", "git push origin other", "ls && git push origin x"):
        assert approvals.answer(place.decision(command)) == (added,)
    for command in (
        "git push -f origin x",
        "git push origin main",
        "git push origin x && git add .",
    ):
        assert approvals.answer(place.decision(command)) == ()


def test_every_asked_part_of_a_command_must_be_remembered(place: Place) -> None:
    approvals = place.approvals()
    approvals.remember(place.decision("git add -A"))
    both = place.decision("git add -A && git commit -m x")
    assert approvals.answer(both) == ()
    approvals.remember(place.decision("git commit -m y"))
    assert [each.text for each in approvals.answer(both)] == ["git add -A", "git commit -m <text>"]


def test_it_holds_in_its_directory_and_workspace_only(place: Place) -> None:
    other = place.workspace.parent / "other"
    inner = place.workspace / "inner"
    other.mkdir()
    inner.mkdir()
    (place.workspace / "link").symlink_to(inner)
    place.approvals().remember(place.decision("git push"))
    assert place.approvals().answer(place.decision("git push"))
    assert not place.approvals().answer(place.decision("cd inner && git push"))
    assert not place.approvals(workspace=other).answer(place.decision("git push", cwd=other))
    # The same directory, but as part of another workspace.
    parent = place.workspace.parent / "workspace"
    assert place.approvals(workspace=parent).answer(place.decision("git push"))
    assert not place.approvals(workspace=inner).answer(place.decision("git push"))
    # A command could make the link lead elsewhere.
    assert place.approvals().offer(place.decision("cd link && git push")) is None


def test_it_expires_and_a_shorter_setting_counts_at_once(place: Place) -> None:
    asked = place.decision("git push")
    place.approvals(days=30).remember(asked)
    place.clock.now = NOW + 29 * DAY_S
    assert place.approvals(days=30).answer(asked)
    assert not place.approvals(days=7).answer(asked)
    assert not place.approvals(days=0).answer(asked)
    place.clock.now = NOW + 31 * DAY_S
    assert not place.approvals(days=30).answer(asked)
    assert not place.approvals(days=3650).answer(asked)
    # A clock that was set back by years.
    place.clock.now = NOW - 10 * DAY_S
    assert not place.approvals(days=30).answer(asked)


def test_zero_days_remember_nothing(place: Place) -> None:
    off = place.approvals(days=0)
    assert off.offer(place.decision("git push")) is None
    with pytest.raises(ConfigurationError):
        off.remember(place.decision("git push"))
    assert not place.file.exists()


@pytest.mark.parametrize("command", ["git push -f", "sudo id", "npm publish", "ls", "git push &"])
def test_nothing_else_can_be_remembered(place: Place, command: str) -> None:
    approvals = place.approvals()
    assert approvals.offer(place.decision(command)) is None
    with pytest.raises(ConfigurationError):
        approvals.remember(place.decision(command))


def test_the_file_and_its_folder_are_closed_to_others(place: Place) -> None:
    before = os.umask(0)
    try:
        place.approvals().remember(place.decision("git push"))
    finally:
        os.umask(before)
    assert place.file.stat().st_mode & 0o777 == 0o600
    assert place.file.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(place.file.parent)) == ["approvals.json", "approvals.lock"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def half(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def edited(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def edit(file: Path) -> None:
        content = json.loads(file.read_text())
        change(content["approvals"][0])
        file.write_text(json.dumps(content, indent=1) + "\n")

    return edit


def sealed(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change an approval, and the checksum with it."""

    def edit(file: Path) -> None:
        from kakoi.approvals.store import _digest

        content = json.loads(file.read_text())
        change(content["approvals"][0])
        content["sha256"] = _digest(content["approvals"])
        file.write_text(json.dumps(content, indent=1) + "\n")

    return edit


def linked(file: Path) -> None:
    file.rename(file.with_name("real"))
    file.symlink_to("real")


def twice_named(file: Path) -> None:
    os.link(file, file.with_name("also"))


def folder_linked(file: Path) -> None:
    file.parent.rename(file.parent.with_name("real"))
    file.parent.symlink_to("real")


def deep(file: Path) -> None:
    file.write_text("[" * 100_000)


def huge(file: Path) -> None:
    with file.open("ab") as out:
        out.truncate(8 * 1024 * 1024)


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


BROKEN: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "half": half,
    "empty": empty,
    "deep": deep,
    "huge": huge,
    "another program wrote it": lambda file: file.write_text("{}"),
    "not text": lambda file: file.write_bytes(b"\xff\xfe\0"),
    "a blank more": lambda file: file.write_bytes(file.read_bytes() + b" "),
    "longer": edited(lambda one: one.update(expires=9_999_999_999)),
    "wider": edited(lambda one: one.update(form=["git", "push", "--force"])),
    "another workspace": edited(lambda one: one.update(workspace="/")),
    "sealed: a form that is none": sealed(lambda one: one.update(form=["git", "push", "--force"])),
    "sealed: any words": sealed(lambda one: one.update(form=["<text>"])),
    "sealed: no form": sealed(lambda one: one.update(form=[])),
    "sealed: text for words": sealed(lambda one: one.update(form="git push")),
    "sealed: another key": sealed(lambda one: one.update(more=1)),
    "sealed: a key less": sealed(lambda one: one.pop("expires")),
    "sealed: a time that is none": sealed(lambda one: one.update(expires=True)),
    "sealed: no time": sealed(lambda one: one.update(expires=1e300)),
    "sealed: a relative path": sealed(lambda one: one.update(directory="x")),
    "sealed: a wrong id": sealed(lambda one: one.update(id="../../x")),
    "link": linked,
    "two names": twice_named,
    "a pipe": piped,
    "readable": lambda file: file.chmod(0o644),
    "writable": lambda file: file.chmod(0o602),
    "open folder": lambda file: file.parent.chmod(0o777),
    "open folder above": lambda file: file.parent.parent.chmod(0o777),
    "folder is a link": folder_linked,
}


@pytest.mark.parametrize("way", BROKEN)
def test_a_store_that_was_touched_answers_nothing_and_warns_once(
    place: Place, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = place.decision("git push")
    place.approvals().remember(asked)
    BROKEN[way](place.file)
    approvals = place.approvals()
    for _ in range(3):
        assert approvals.answer(asked) == ()
        assert approvals.offer(asked) is None
    assert caplog.text.count("remembered approvals are not used") == 1
    with pytest.raises(ConfigurationError, match="remembered approvals are not used"):
        approvals.remember(asked)


def test_a_store_in_the_workspace_answers_nothing(place: Place) -> None:
    home = place.home.parent
    approvals = place.approvals(workspace=home)
    asked = place.decision("git push", cwd=home)
    assert approvals.offer(asked) is None
    with pytest.raises(ConfigurationError, match="inside the workspace"):
        approvals.remember(asked)
    inner = place.approvals(workspace=place.home)
    with pytest.raises(ConfigurationError, match="inside the workspace"):
        inner.remember(place.decision("git push", cwd=place.home))


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
def test_a_store_of_another_user_answers_nothing(place: Place) -> None:
    asked = place.decision("git push")
    place.approvals().remember(asked)
    os.chown(place.file, 65534, 65534)
    assert place.approvals().answer(asked) == ()
    os.chown(place.file, 0, 0)
    os.chown(place.home, 65534, 65534)
    assert place.approvals().answer(asked) == ()


WRITER = """
import sys
from kakoi.approvals import Approvals, ApprovalStore
from kakoi.approvals.forms import AskedCommand
from pathlib import Path
store, workspace, number = sys.argv[1:]
for each in range(10):
    approvals = Approvals(ApprovalStore(Path(store)), workspace, days=30, clock=lambda: 1.8e9)
    approvals.add((AskedCommand(("git", "init", f"w{number}-{each}"), workspace),))
"""


def test_writers_at_the_same_time_lose_nothing(place: Place) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(place.file), str(place.workspace), str(number)]
        )
        for number in range(4)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0, 0]
    stored = place.store.read()
    assert len({each.form for each in stored}) == len(stored) == 40
    assert len({each.id for each in stored}) == 40


def test_what_is_remembered_again_replaces_and_what_has_expired_goes(place: Place) -> None:
    approvals = place.approvals()
    approvals.remember(place.decision("git push"))
    place.clock.now += 5 * DAY_S
    approvals.remember(place.decision("git push"))
    approvals.remember(place.decision("git fetch"))
    assert [each.text for each in place.store.read()] == ["git push", "git fetch"]
    place.clock.now += 31 * DAY_S
    approvals.remember(place.decision("git pull"))
    assert [each.text for each in place.store.read()] == ["git pull"]


def test_it_is_removed_also_from_a_damaged_file(place: Place) -> None:
    place.approvals().remember(place.decision("git push"))
    cut(place.file)
    place.store.clear()
    assert place.store.read() == ()
    place.approvals().remember(place.decision("git push"))
    assert len(place.store.read()) == 1


def test_there_is_an_end_to_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kakoi.approvals.store.MOST", 2)
    approvals = place.approvals()
    approvals.remember(place.decision("git push"))
    approvals.remember(place.decision("git fetch"))
    with pytest.raises(ConfigurationError, match="is full"):
        approvals.remember(place.decision("git pull"))
    assert len(place.store.read()) == 2
