"""What commands do in an overlay, as root and as a normal user, and what is told of it."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.boxes import ROOTS, SOME_KINDS, WAIT_S, Kind, require_bubblewrap
from tests.overlay.driving import Project, a_project
from tests.overlay.snapshots import SNAPSHOT, exactly, snapshot


@pytest.fixture(scope="module", autouse=True)
def bubblewrap() -> None:
    require_bubblewrap()


@pytest.fixture(params=SOME_KINDS)
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    with a_project(request.param) as project:
        yield project


EVERYTHING = r"""
set -e
echo more >> kept.txt; chmod 755 mode.txt; rm gone.txt; rm -r old; mkdir old; echo other > old/new
mv moved.txt elsewhere.txt; ln kept.txt hard.txt; ln -s /etc/passwd link; ln -s loop loop
mkfifo pipe; mkdir -p deep/er/est; echo leaf > deep/er/est/leaf; mkdir -m 000 shut
truncate -s 3G sparse; rm -r folder; echo now a file > folder; rm file; mkdir file; touch file/in
touch "$(printf 'a\nname\033[2J')" "$(printf 'no\xff text')"
python3 -c '
import os, socket
socket.socket(socket.AF_UNIX).bind("socket")
os.setxattr("mode.txt", "user.note", b"hello")
os.setxattr("deep", "user.overlay.opaque", b"y")
'
exec 3<>kept.txt; exec 3>&-; touch same.txt; chmod 000 same.txt; chmod 644 same.txt
"""


def fill(project: Project) -> None:
    for name in "kept mode gone moved same".split():
        project.write(f"{name}.txt", f"{name}\n")
    for name in ("old/one", "old/two/three", "folder/x/y", "file"):
        project.write(name, name)


def test_everything_that_commands_can_do_is_reported_and_the_project_is_untouched(
    project: Project,
) -> None:
    fill(project)
    before = exactly(project.path)
    project.run(EVERYTHING)
    assert exactly(project.path) == before
    assert project.changes() == {
        "kept.txt": "M",
        "hard.txt": "A",
        "mode.txt": "M",
        "gone.txt": "D",
        "moved.txt": "D",
        "elsewhere.txt": "A",
        "old/one": "D",
        "old/two": "D",
        "old/two/three": "D",
        "old/new": "A",
        "link": "A",
        "loop": "A",
        "pipe": "A",
        "socket": "A",
        "shut": "A",
        "sparse": "A",
        "deep": "A",
        "deep/er": "A",
        "deep/er/est": "A",
        "deep/er/est/leaf": "A",
        "folder": "M",
        "folder/x": "D",
        "folder/x/y": "D",
        "file": "M",
        "file/in": "A",
        "a\nname\x1b[2J": "A",
        "no\udcff text": "A",
    }


def test_what_is_applied_is_what_was_inside(project: Project) -> None:
    fill(project)
    ran, applied, after = project.do(("run", EVERYTHING), ("apply",), ("changes",))
    assert ran[0] == 0, ran
    assert [path for path, _ in applied["refused"]] == ["socket"]
    assert after == []
    path = project.path
    owner = path.stat().st_uid, path.stat().st_gid
    found = {each.name: each.lstat() for each in path.iterdir()}
    assert {(each.st_uid, each.st_gid) for each in found.values()} == {owner}
    assert (path / "kept.txt").read_text() == "kept\nmore\n"
    assert found["kept.txt"].st_ino == found["hard.txt"].st_ino
    assert stat.S_IMODE(found["mode.txt"].st_mode) == 0o755
    assert os.getxattr(path / "mode.txt", "user.note") == b"hello"
    assert os.listxattr(path / "deep") == []
    assert (path / "elsewhere.txt").read_text() == "moved\n"
    assert os.readlink(path / "link") == "/etc/passwd"
    assert stat.S_ISFIFO(found["pipe"].st_mode)
    assert stat.S_IMODE(found["shut"].st_mode) == 0
    assert found["sparse"].st_size == 3 << 30
    assert found["sparse"].st_blocks < 100
    assert (path / "folder").read_text() == "now a file\n"
    assert [each.name for each in (path / "file").iterdir()] == ["in"]
    assert {"gone.txt", "moved.txt", "socket"}.isdisjoint(found)
    assert os.path.exists(os.fsencode(path) + b"/no\xff text")


def test_what_is_discarded_leaves_no_trace(project: Project) -> None:
    fill(project)
    before = exactly(project.path)
    ran, gone, after = project.do(("run", EVERYTHING), ("discard",), ("changes",))
    assert ran[0] == 0, ran
    assert len(gone) > 20
    assert after == []
    assert exactly(project.path) == before
    (folder,) = project.overlays.iterdir()
    assert [each.name for each in folder.iterdir()] == ["lock"]


def test_a_checkpoint_is_what_one_comes_back_to(project: Project) -> None:
    project.write("a", "project\n")
    look = "cat a; ls"
    said = project.do(
        ("run", "echo one > a; touch first"),
        ("checkpoint", "one"),
        ("run", "rm a first; mkdir -p d; touch d/second"),
        ("checkpoint", "two"),
        ("run", "rm -r d; echo three > a"),
        ("run", look),
        ("checkpoints",),
        ("rollback", "two"),
        ("run", "ls; ls d"),
        ("rollback", "one"),
        ("run", look),
        ("checkpoints",),
        ("changes",),
    )
    assert said[5][1] == "three\na\n"
    assert said[6] == ["one", "two"]
    assert said[8][1] == "d\nsecond\n"
    assert said[10][1] == "one\na\nfirst\n"
    assert said[11] == ["one"]
    assert [each["path"] for each in said[12]] == ["a", "first"]
    assert (project.path / "a").read_text() == "project\n"
    assert len(list(project.layers.iterdir())) == 3  # Two, and the kernel's own.


def test_layers_are_read_as_the_kernel_reads_them(project: Project) -> None:
    """Deleted, made again and made another thing, each in a layer of its own."""
    project.write("d/kept", "1")
    project.write("d/sub/deep", "2")
    project.write("f", "3")
    look = f"{SNAPSHOT}\nimport json; print(json.dumps(snapshot('.')))"
    said = project.do(
        ("run", "rm -r d; mkdir d; echo new > d/new; rm f; mkdir f; touch f/x"),
        ("checkpoint", "a"),
        ("run", "rm -r d; echo file > d; echo y > f/y"),
        ("checkpoint", "b"),
        ("run", "rm d; mkdir -p d/sub; echo again > d/sub/deep; rm -r f; echo 3 > g; mv g f"),
        ("run", ["python3", "-c", look]),
        ("apply",),
    )
    inside = json.loads(said[5][1])
    assert said[6]["refused"] == []
    assert snapshot(project.path) == inside
    assert sorted(inside) == [".", "d", "d/sub", "d/sub/deep", "f"]


def test_commands_can_reach_neither_the_project_nor_the_layers(project: Project) -> None:
    project.write("a", "project")
    project.run(
        f"echo x > {project.path}/a; ls {project.overlays} 2>&1 | grep -q 'No such file';"
        "ls /tmp | grep -v kakoi-test | wc -l | grep -qx 0"
    )
    assert (project.path / "a").read_text() == "project"


KILLED = """
import asyncio, sys
from kakoi.overlay import Overlay
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

async def main():
    adapter = BubblewrapAdapter(sys.argv[1], overlay=Overlay(sys.argv[1], sys.argv[2]))
    running = asyncio.ensure_future(adapter.execute("echo begun > begun; sleep 600"))
    while (await adapter.execute("cat begun")).exit_code:
        pass
    print("running", flush=True)
    await running

asyncio.run(main())
"""


def name_of_mount(project: Project) -> str:
    status = (project.layers / "work").stat()
    return f"kakoi:{status.st_dev}:{status.st_ino}"


def having_mounted(name: str) -> list[str]:
    """Processes that have the overlay mounted."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and name in (each / "mountinfo").read_text():
                found.append(each.name)
        except OSError:
            continue
    return found


def test_while_a_sandbox_has_it_nobody_else_does_and_after_a_kill_all_is_well(
    project: Project,
) -> None:
    project.write("a", "project")
    argv = [*project.argv(KILLED), str(project.path), str(project.overlays)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=project.env, cwd="/") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            name = name_of_mount(project)
            assert having_mounted(name) != []
            why = f"process {process.pid} is using the overlay of {project.path}"
            for each in project.do(("run", "true"), ("apply",), ("checkpoint", "x"), ("discard",)):
                assert each["error"] == why
                assert each["hint"] == "wait until it has ended, or stop it"
            assert project.changes() == {"begun": "A"}
        finally:
            process.kill()
        process.wait(WAIT_S)
        said = project.do(("run", "cat begun"), ("apply",))
    assert said[0][1] == "begun\n"
    assert said[1]["done"] == ["begun"]
    assert having_mounted(name) == []


def said_after_mounting(project: Project, what: str, at: Path) -> dict[str, str]:
    """What a run says where something is mounted, in a namespace of its own."""
    script = f'mount -t {what} none {at} && exec "$@"'
    before = ["unshare", "-m", "bash", "-c", script, "bash", *project.argv()]
    done = subprocess.run(
        [*before, str(project.path), str(project.overlays)],
        input=json.dumps([["run", ["true"], {}]]),
        capture_output=True,
        text=True,
        env=project.env,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    (said,) = json.loads(done.stdout)
    assert isinstance(said, dict), said
    return said


@pytest.mark.parametrize("kind", ROOTS)
def test_a_mount_in_the_project_is_refused(kind: Kind) -> None:
    with a_project(kind) as project:
        (project.path / "m").mkdir()
        said = said_after_mounting(project, "tmpfs", project.path / "m")
        at = project.path / "m"
        assert said["error"] == f"{at} is mounted in the project; an overlay cannot include it"


@pytest.mark.parametrize("kind", ROOTS)
def test_a_file_system_that_can_hold_no_overlay_is_reported_with_the_way_out(kind: Kind) -> None:
    with a_project(kind) as project:
        for name in ("lower", "upper", "work"):
            (project.path.parent / name).mkdir()
        above = project.path.parent
        folders = f"lowerdir={above}/lower,upperdir={above}/upper,workdir={above}/work"
        for what in ("ramfs", f"overlay -o {folders}"):
            said = said_after_mounting(project, what, project.overlays)
            assert "copy-on-write is unavailable" in said["error"]
            assert "KAKOI_OVERLAYS" in said["hint"]
