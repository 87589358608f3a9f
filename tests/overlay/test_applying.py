"""Taking over: only what was found, only in the project, and again after any interruption."""

import contextlib
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kakoi.errors import SandboxError
from tests.overlay.layers import Desk, a_desk, copied_up, make_opaque, white_out, write
from tests.overlay.snapshots import exactly, snapshot

MEANWHILE = "it was changed in the project meanwhile"


def fill(project: Path) -> None:
    for name in ("a", "b", "gone", "dir/one", "dir/two", "opaque/old", "was/dir/deep", "wasfile"):
        write(project / name, f"{name}\n")
    os.link(project / "a", project / "also a")
    os.link(project / "wasfile", project / "wasfile's twin")


def change(upper: Path) -> None:
    copied_up(upper / "a", "new a\n")
    copied_up(upper / "b", "b\n").chmod(0o755)
    white_out(upper / "gone")
    white_out(upper / "dir")
    write(make_opaque(upper / "opaque") / "new", "in opaque\n")
    write(upper / "was", "a file\n")
    write(upper / "wasfile/in", "a directory\n")
    copied_up(upper / "wasfile's twin", "changed\n")
    write(upper / "deep/er/file", "deep\n")
    os.link(upper / "deep/er/file", upper / "deep/twin")
    os.symlink("/etc/passwd", upper / "link")
    os.mkfifo(upper / "pipe", 0o644)
    (upper / "deep").chmod(0o555)


def move(upper: Path) -> None:
    """From where it was, to a name that the project does not know."""
    copied_up(upper / "moved", "gone\n")
    copied_up(upper / "opaque/zz moved", "one\n")


def expected(root: Path) -> dict[str, list[object]]:
    desk = a_desk(root, fill)
    change(desk.upper)
    move(desk.upper)
    done, refused = desk.apply()
    assert refused == {}
    assert "was/dir/deep" in done
    return snapshot(desk.project)


# --- Interrupted -----------------------------------------------------------------------------


READING = ("os.scandir", "os.listdir", "os.listxattr", "os.getxattr")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def at_event(
    number: int, work: Callable[[], object], act: Callable[[], None], *, reading: bool = False
) -> bool:
    """Do the work in a process of its own, and `act` just before its nth step that changes
    something, or with `reading` looks at something; says if there were so many steps."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            changes = event.startswith("os.") and event not in READING
            changes = changes or (event == "open" and bool(arguments[2] & WRITING))
            if changes or (reading and (event in READING or event == "open")):
                count += 1
                if count == number:
                    act()

        try:
            sys.addaudithook(watch)
            work()
            os._exit(0 if count >= number else 3)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) in (0, 3)
    return os.WEXITSTATUS(status) == 0


@pytest.mark.slow("a process is started and killed at each of many steps")
@pytest.mark.parametrize(
    "stride", [5, pytest.param(1, marks=pytest.mark.extended("repetition: at every step"))]
)
def test_killed_at_any_step_it_can_be_repeated_and_nothing_is_lost(
    tmp_path: Path, stride: int
) -> None:
    wanted = expected(tmp_path / "wanted")
    number = 0
    while True:
        number += stride
        desk = a_desk(tmp_path / str(number), fill)
        change(desk.upper)
        move(desk.upper)

        def work(desk: Desk = desk) -> None:
            desk.overlay.apply()

        if not at_event(number, work, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            break
        # A renamed file has one of its names at every moment, or both.
        names = [desk.project / name for name in ("gone", "moved")]
        assert "gone\n" in [path.read_text() for path in names if path.exists()], number
        _, refused = desk.apply()
        assert refused == {}, number
        assert snapshot(desk.project) == wanted, number
        assert desk.overlay.changes() == [], number
    assert number > 50


def test_after_a_kill_a_path_that_was_taken_over_can_be_changed_again(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        desk = a_desk(tmp_path / str(number), lambda project: write(project / "a", "1"))
        copied_up(desk.upper / "a", "2")
        write(desk.upper / "z", "stays")

        def work(desk: Desk = desk) -> None:
            desk.overlay.apply(["a"])

        if not at_event(number, work, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            break
        write(desk.upper / "a", "3")
        assert desk.apply("a") == (["a"], {}), number
    assert number > 10


def test_a_file_that_cannot_be_written_leaves_no_half_and_stops_no_other(tmp_path: Path) -> None:
    desk = a_desk(tmp_path)
    write(desk.upper / "dir/big", b"x" * 8192)
    write(desk.upper / "dir/small", "small")
    write(desk.upper / "later", "later")

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        done, refused = desk.apply()
        assert (done, list(refused)) == (["dir", "dir/small", "later"], ["dir/big"])

    assert at_event(1, work, lambda: None)
    assert sorted(os.listdir(desk.project / "dir")) == ["small"]
    assert desk.apply() == (["dir/big"], {})


# --- Links -----------------------------------------------------------------------------------


def test_a_link_that_is_swapped_in_at_any_step_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for name in ("one", "two", "sub/file"):
        write(outside / name, "outside\n")
    before = snapshot(outside)

    def fill_it(project: Path) -> None:
        for name in ("dir/one", "dir/two", "dir/sub/file"):
            write(project / name, "project\n")

    # Every third step: each costs the disk a sync.
    for number in range(1, 1000, 3):
        desk = a_desk(tmp_path / str(number), fill_it)
        copied_up(desk.upper / "dir/one", "changed\n")
        white_out(desk.upper / "dir/two")
        write(desk.upper / "dir/sub/new", "new\n")
        white_out(desk.upper / "dir/sub/file")
        (desk.upper / "dir").chmod(0o700)

        def work(desk: Desk = desk) -> None:
            with contextlib.suppress(SandboxError):
                desk.overlay.apply(force=True)

        def swap(desk: Desk = desk) -> None:
            (desk.project / "dir").rename(desk.root / "aside")
            (desk.project / "dir").symlink_to(outside)

        came_so_far = at_event(number, work, swap, reading=True)
        assert snapshot(outside) == before, number
        if not came_so_far:
            break
    assert number > 30


@pytest.mark.parametrize("target", ["/etc", "..", "../outside"])
def test_a_link_in_the_place_of_a_directory_is_a_link_and_not_a_way(
    tmp_path: Path, target: str
) -> None:
    outside = write(tmp_path / "outside/file", "outside")
    desk = a_desk(tmp_path / "desk", lambda project: write(project / "dir/file", "project"))
    os.symlink(target, desk.upper / "dir")
    done, refused = desk.apply()
    assert (done, refused) == (["dir", "dir/file"], {})
    assert os.readlink(desk.project / "dir") == target
    assert outside.read_text() == "outside"


def test_a_link_of_the_project_is_never_written_through(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside/file", "outside")
    desk = a_desk(tmp_path / "desk")
    upper = desk.upper
    write(upper / "way/file", "inside")
    write(upper / "name", "inside")
    (desk.project / "way").symlink_to(outside.parent)
    (desk.project / "name").symlink_to(outside)
    done, refused = desk.apply(force=True)
    assert refused == {}
    assert done == ["name", "way", "way/file"]
    assert outside.read_text() == "outside"
    assert not (desk.project / "way").is_symlink()


# --- Conflicts -------------------------------------------------------------------------------


def test_what_changed_in_the_project_meanwhile_is_refused_by_itself(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, fill)
    change(desk.upper)
    write(desk.upper / "both", "inside")
    write(desk.project / "a", "my own\n")
    write(desk.project / "gone", "still needed\n")
    write(desk.project / "dir/new", "mine\n")
    write(desk.project / "both", "mine")
    mine = ["a", "also a", "gone", "dir/new", "both"]
    before = {name: (desk.project / name).read_text() for name in mine}
    assert desk.conflicts() == dict.fromkeys(("a", "gone", "dir/new", "both"), MEANWHILE)
    done, refused = desk.apply()
    assert refused == {
        **dict.fromkeys(("a", "gone", "dir/new", "both"), MEANWHILE),
        "dir": "it still contains files that were not deleted",
    }
    assert {name: (desk.project / name).read_text() for name in mine} == before
    assert "b" in done
    done, refused = desk.apply(force=True)
    assert (done, refused) == (["a", "both", "dir", "dir/new", "gone"], {})
    assert (desk.project / "a").read_text() == "new a\n"
    assert (desk.project / "also a").read_text() == "my own\n"


@pytest.mark.parametrize("inside", ["changed", "deleted"])
def test_what_changes_in_the_project_while_it_is_taken_over_is_refused(
    tmp_path: Path, inside: str
) -> None:
    """It was looked at, and is written to when another path has been taken over already."""

    def two(project: Path) -> None:
        write(project / "first", "old\n")
        write(project / "second", "old\n")

    for number in range(1, 100):
        desk = a_desk(tmp_path / str(number), two)
        copied_up(desk.upper / "first", "new\n")
        if inside == "changed":
            copied_up(desk.upper / "second", "new\n")
        else:
            white_out(desk.upper / "second")
        first, second = desk.project / "first", desk.project / "second"

        def write_mine(first: Path = first, second: Path = second) -> None:
            if first.read_text() == "new\n":
                write(second, "own\n")
                os.utime(second, (1, 1))
                write(second.with_name("written"))

        at_event(number, desk.overlay.apply, write_mine)
        if second.with_name("written").exists():
            break
    assert (first.read_text(), second.read_text()) == ("new\n", "own\n")
    assert desk.conflicts() == {"second": MEANWHILE}


def test_an_attribute_that_a_directory_has_lost_inside_is_taken_from_it(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lambda project: write(project / "dir/file"))
    os.setxattr(desk.project / "dir", "user.note", b"old")
    (desk.upper / "dir").mkdir()
    os.setxattr(desk.upper / "dir", "user.overlay.origin", b"somewhere")
    assert desk.apply() == (["dir"], {})
    assert os.listxattr(desk.project / "dir") == []


def test_what_was_deleted_in_the_project_meanwhile_does_not_come_back_unasked(
    tmp_path: Path,
) -> None:
    desk = a_desk(tmp_path, fill)
    copied_up(desk.upper / "b", "changed")
    (desk.project / "b").unlink()
    assert desk.apply() == ([], {"b": "it was deleted in the project meanwhile"})
    assert desk.apply(force=True) == (["b"], {})


def test_what_did_not_change_inside_hides_no_change_outside(tmp_path: Path) -> None:
    """It was opened for writing inside, so that inside it is a copy, and an old one by now."""
    desk = a_desk(tmp_path, fill)
    copied_up(desk.upper / "b", "b\n")
    assert desk.overlay.changes() == []
    write(desk.project / "b", "mine\n")
    assert desk.conflicts() == {"b": MEANWHILE}


def test_another_project_at_the_same_path_is_noticed(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, fill)
    change(desk.upper)
    desk.project.rename(tmp_path / "before")
    desk.project.mkdir()
    with pytest.raises(Exception, match="is not the directory that the overlay was created for"):
        desk.overlay.changes()
    with pytest.raises(Exception, match="is not the directory that the overlay was created for"):
        desk.overlay.apply()
    desk.overlay.discard()
    assert desk.overlay.changes() == []
    assert list(desk.project.iterdir()) == []


# --- Some paths ------------------------------------------------------------------------------


def test_a_path_is_taken_over_with_what_is_above_and_below_it(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, fill)
    change(desk.upper)
    done, refused = desk.apply("deep/er", str(desk.project / "was"))
    assert refused == {}
    assert done == ["deep", "deep/er", "deep/er/file", "was", "was/dir", "was/dir/deep"]
    assert (desk.project / "a").read_text() == "a\n"
    assert desk.conflicts() == {}
    with pytest.raises(Exception, match="nothing was changed at"):
        desk.apply("was")
    for path in ("..", "/etc", "../outside", "nothing"):
        with pytest.raises(Exception, match="nothing was changed at"):
            desk.apply(path)


def test_names_of_one_file_stay_names_of_one_file(tmp_path: Path) -> None:
    def twins(project: Path) -> None:
        os.link(write(project / "x", "1"), project / "y")
        os.link(project / "x", project / "z")

    desk = a_desk(tmp_path, twins)
    copied_up(desk.upper / "x", "2")
    os.link(desk.upper / "x", desk.upper / "new")
    before = snapshot(desk.project)["z"]
    assert desk.apply() == (["new", "x"], {})
    inodes = {name: (desk.project / name).stat().st_ino for name in ("x", "y", "z", "new")}
    assert inodes["x"] == inodes["new"] != inodes["y"] == inodes["z"]
    assert snapshot(desk.project)["z"][:4] == before[:4]


def test_the_other_name_of_a_file_that_was_refused_is_taken_over_by_itself(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lambda project: (project / "dir").mkdir())
    os.link(write(desk.upper / "dir", "a file"), desk.upper / "twin")
    write(desk.project / "dir/mine", "new in the project")
    assert desk.apply() == (
        ["twin"],
        {"dir": "it still contains files that were not deleted", "dir/mine": MEANWHILE},
    )
    assert (desk.project / "twin").read_text() == "a file"


def test_a_file_that_gives_way_to_a_directory_does_not_make_its_other_names_look_changed(
    tmp_path: Path,
) -> None:
    desk = a_desk(tmp_path, lambda project: os.link(write(project / "x", "1"), project / "y"))
    write(desk.upper / "x/in", "2")
    copied_up(desk.upper / "y", "3")
    assert desk.apply("x") == (["x", "x/in"], {})
    assert desk.conflicts() == {}
    assert desk.apply() == (["y"], {})


# --- What is never taken over ----------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_sockets_and_devices_are_named_and_setuid_is_left_behind(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lambda project: write(project / "tool", "old"))
    upper = desk.upper
    copied_up(upper / "tool", "new").chmod(0o6755)
    write(upper / "mine", "x").chmod(0o4777)
    os.mknod(upper / "null", 0o020666, os.makedev(1, 3))
    os.mknod(upper / "disk", 0o060666, os.makedev(8, 0))
    # A name is at most 108 bytes.
    with socket.socket(socket.AF_UNIX) as sock, contextlib.chdir(upper):
        sock.bind("socket")
    done, refused = desk.apply()
    assert done == ["mine", "tool"]
    assert set(refused) == {"null", "disk", "socket"}
    modes = {name: stat.S_IMODE((desk.project / name).stat().st_mode) for name in done}
    assert modes == {"mine": 0o777, "tool": 0o755}
    assert desk.overlay.changes() == []


def test_only_the_users_own_attributes_are_taken_over(tmp_path: Path) -> None:
    desk = a_desk(tmp_path)
    made = write(desk.upper / "a", "x")
    os.setxattr(made, "user.note", b"1")
    os.setxattr(made, "user.overlay.overlay.opaque", b"y")
    os.setxattr(made, "user.overlay.redirect", b"/etc")
    assert desk.apply() == (["a"], {})
    assert os.listxattr(desk.project / "a") == ["user.note"]


def test_a_hole_stays_a_hole(tmp_path: Path) -> None:
    desk = a_desk(tmp_path)
    with (desk.upper / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(2 << 30)
    assert desk.apply() == (["sparse"], {})
    made = desk.project / "sparse"
    assert made.stat().st_size == 2 << 30
    assert made.stat().st_blocks < 1000
    with made.open("rb") as copy:
        assert copy.read(5) == b"begin"
        copy.seek((1 << 30) - 1)
        assert copy.read(8) == b"\0middle\0"


def test_a_tree_too_deep_to_be_read_is_refused_and_can_be_thrown_away(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, fill)
    before = exactly(desk.project)
    home = os.getcwd()
    os.chdir(desk.upper)
    try:
        for _ in range(10_000):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(home)
    with pytest.raises(Exception, match="nested too deeply"):
        desk.overlay.apply()
    desk.overlay.discard()
    assert desk.overlay.changes() == []
    assert exactly(desk.project) == before
