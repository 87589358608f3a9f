"""Links that are swapped in while kakoi itself works in a directory that others can change.

A process exchanges a directory with a link to a place outside all the while. Whatever kakoi does
there meanwhile, nothing outside is read, changed, made or removed.
"""

import contextlib
import os
import stat
import threading
from pathlib import Path

from kakoi._support.files import remove_tree
from kakoi.cli.commands.env.cp import _write
from kakoi.errors import KakoiError
from kakoi.overlay import Overlay
from tests.attacks.swapping import SECRET, a_secret_place, swapping, swaps
from tests.overlay.layers import Desk, a_desk, copied_up, white_out, write
from tests.overlay.snapshots import exactly


def _texts(folder: Path) -> set[str]:
    """What is in the files of a tree, links not followed."""
    found = set()
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # Gone, or a link by now.
                fd = os.open(f"{above}/{name}", os.O_RDONLY | os.O_NOFOLLOW)
                with open(fd) as file:
                    found.add(file.read())
    return found


# --- Copies on write ----------------------------------------------------------------------------


def _fill(project: Path) -> None:
    for name in ("dir/one", "dir/two", "dir/sub/file", "own/one", "own/two", "own/sub/file"):
        write(project / name, "project\n")


def _change(desk: Desk, number: int) -> None:
    """Change each file, delete one and make one, in a layer that a command writes to."""
    for folder in ("dir", "own"):
        above = desk.upper / folder
        with contextlib.suppress(OSError):  # What is swapped away is changed in the next round.
            copied_up(above / "one", f"changed {number}\n")
            write(above / "sub" / f"new{number % 5}", f"new {number}\n")
            if not os.path.lexists(above / "two"):
                white_out(above / "two")


@swaps
def test_links_swapped_into_the_project_and_the_copy_lead_apply_and_diff_nowhere(
    tmp_path: Path, count: int
) -> None:
    """`dir` is swapped in the project, where others work; `own` in the copy, where commands do."""
    outside = a_secret_place(tmp_path / "outside")
    before = exactly(outside)
    desk = a_desk(tmp_path / "desk", _fill)
    _change(desk, 0)
    upper = desk.upper
    links = [tmp_path / "link", upper.parent / "link"]
    for link in links:
        link.symlink_to(outside)
    pairs = (desk.project / "dir", links[0], upper / "own", links[1])
    rounds, told = 0, ""
    with swapping(count, *pairs) as goes_on:
        while goes_on() or rounds < 3:
            rounds += 1
            told += _once_through(desk.overlay)
            assert SECRET not in told
            told = ""
    assert exactly(outside) == before
    assert SECRET not in _texts(desk.project)


def _once_through(overlay: Overlay) -> str:
    """See, compare and take over whatever can be; what was told of it."""
    told = ""
    with contextlib.suppress(KakoiError):
        told += repr(overlay.changes())
    with contextlib.suppress(KakoiError):
        told += "".join(repr(each) for each in overlay.diff())
    with contextlib.suppress(KakoiError):
        told += repr(overlay.apply(force=True))
    return told


def test_a_link_among_the_layers_is_thrown_away_and_not_followed(tmp_path: Path) -> None:
    outside = a_secret_place(tmp_path / "outside")
    before = exactly(outside)
    desk = a_desk(tmp_path / "desk", _fill)
    layers = desk.upper.parent
    (layers / "link").symlink_to(outside)
    desk.overlay.discard()
    assert not layers.exists()
    assert exactly(outside) == before


# --- Trees that are removed ---------------------------------------------------------------------


@swaps
def test_links_swapped_into_a_tree_lead_its_removal_nowhere(tmp_path: Path, count: int) -> None:
    outside = a_secret_place(tmp_path / "outside")
    before = exactly(outside)
    tree, link = tmp_path / "tree", tmp_path / "link"
    link.symlink_to(outside)
    removed = 0
    # Most tries find nothing to swap: the tree is gone.
    with swapping(count // 5, tree / "dir", link) as goes_on:
        while goes_on() or removed == 0:
            if not os.path.lexists(tree):
                if not link.is_symlink():  # The directory ended up out here.
                    remove_tree(link)
                    link.symlink_to(outside)
                write(tmp_path / "new" / "dir" / "sub" / "file", "theirs")
                (tmp_path / "new" / "dir" / "sub").chmod(0)
                (tmp_path / "new").rename(tree)
            with contextlib.suppress(OSError):
                remove_tree(tree)
                removed += 1
    assert removed > 0
    assert exactly(outside) == before


# --- Files that are copied out ------------------------------------------------------------------


@swaps
def test_a_link_in_the_place_of_a_half_copied_file_is_not_touched(
    tmp_path: Path, count: int
) -> None:
    """`kakoi env cp` into a directory that commands can write to: they see the half file, too."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    before = exactly(secret)
    folder = tmp_path / "folder"
    folder.mkdir()
    over = threading.Event()

    def swap() -> None:
        os.symlink(secret, tmp_path / "next")
        while not over.is_set():
            for name in os.listdir(folder):
                if name.startswith(".kakoi-"):
                    with contextlib.suppress(OSError):
                        os.rename(tmp_path / "next", folder / name)
                        os.symlink(secret, tmp_path / "next")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(count // 250):
            with contextlib.suppress(OSError):
                _write(folder / "file", b"x" * 100_000, "file")
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    finally:
        over.set()
        thread.join()
    assert exactly(secret) == before
