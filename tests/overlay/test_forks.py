"""Forks and checkpoints of an open sandbox, as root and as a normal user."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kakoi.overlay import Overlay
from kakoi.overlay.store import MOST_LAYERS, Store
from tests.backends.boxes import ROOTS, SOME_KINDS, WAIT_S, require_bubblewrap
from tests.overlay.driving import Project, a_project
from tests.overlay.snapshots import SNAPSHOT, exactly, snapshot

# Each step is the number of a sandbox, a method and its arguments. `fork` appends sandboxes.
DRIVER = """
import asyncio, dataclasses, json, sys
from kakoi.channel.api import Command
from kakoi.errors import KakoiError
from kakoi.overlay import Overlay
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

workspace, folder, kind = sys.argv[1:4]
boxes = []

async def step(box, name, *words):
    if name == "run":
        result = await box.execute(*words)
        return [result.exit_code, result.stdout, result.stderr]
    if name == "start":
        return await (await box.channel()).start(Command(command=words[0]))
    if name == "jobs":
        return [job.running for job in await (await box.channel()).list_jobs()]
    if name == "checkpoints":
        return box.checkpoints()
    came = await getattr(box, name)(*words)
    if name == "fork":
        boxes.extend(came)
        return len(boxes)
    if name == "diff":
        return [b"".join(each.lines).decode("latin-1") for each in came]
    if name == "apply":
        return dataclasses.asdict(came)
    return {each.path: each.kind[0].upper() for each in came} if came is not None else None

async def main():
    overlay = Overlay(workspace, folder) if kind == "overlay" else None
    private = kind == "private"
    boxes.append(BubblewrapAdapter(workspace, overlay=overlay, private_workspace=private))
    for line in sys.stdin:
        said = []
        number, *words = json.loads(line)
        many = range(len(boxes)) if number is None else [number]
        for each in many:
            try:
                said.append(await step(boxes[each], *words))
            except KakoiError as error:
                said.append({"error": error.message, "hint": error.hint, "code": error.code})
        print(json.dumps(said if number is None else said[0]), flush=True)
    for box in boxes:
        await box.cleanup()

asyncio.run(main())
"""


class Driver:
    """A process of the project's user that has sandboxes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def do(self, number: int | None, *words: Any) -> Any:
        """Do one step and return what came of it. None: with every sandbox."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([number, *words]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver has failed"
        return json.loads(line)

    def run(self, number: int, command: str | Sequence[str]) -> str:
        status, stdout, stderr = self.do(number, "run", command)
        assert status == 0, stderr
        return str(stdout)

    def end(self) -> None:
        """Clean everything up."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WAIT_S) == 0


@contextlib.contextmanager
def a_driver(project: Project, kind: str = "overlay") -> Iterator[Driver]:
    if kind == "private":  # It is in a directory of the user who made it.
        owner = project.overlays.stat()
        os.chown(project.path.parent, owner.st_uid, owner.st_gid)
    argv = [*project.argv(DRIVER), str(project.path), str(project.overlays), kind]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    env = {**project.env, "KAKOI_OVERLAYS": str(project.overlays)}
    with subprocess.Popen(argv, text=True, env=env, cwd="/", **pipes) as process:  # type: ignore[call-overload] # both are pipes
        try:
            yield Driver(process)
        finally:
            process.kill()


@pytest.fixture(scope="module", autouse=True)
def bubblewrap() -> None:
    require_bubblewrap()


@pytest.fixture(params=SOME_KINDS)
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    with a_project(request.param) as project:
        yield project


@pytest.fixture
def roots_project() -> Iterator[Project]:
    """For what does not depend on who runs it."""
    with a_project(ROOTS[0] if ROOTS else "a user") as project:
        yield project


LOOK = ["python3", "-c", f"{SNAPSHOT}\nimport json; print(json.dumps(snapshot('.')))"]


def layers_of(project: Project) -> list[str]:
    (folder,) = project.overlays.iterdir()
    return sorted(os.listdir(folder / "layers"))


# --- Forks -----------------------------------------------------------------------------------


@pytest.mark.slow("opens many sandboxes, one after another")
def test_forks_begin_where_the_sandbox_is_and_none_sees_another(project: Project) -> None:
    project.write("a", "project\n")
    project.write("d/x", "x\n")
    before = exactly(project.path)
    with a_driver(project) as driver:
        driver.run(0, "echo changed > a; rm -r d; echo new > n")
        assert driver.do(0, "fork", 3) == 4
        for number in range(4):
            assert driver.run(number, "cat a n; ls") == "changed\nnew\na\nn\n"
            driver.run(number, f"echo {number} > a; echo {number} > own{number}")
        assert driver.do(2, "fork", 1) == 5
        driver.run(4, "echo 4 > a; rm own2; touch own4")
        seen = [driver.run(number, "cat a; ls -x") for number in range(5)]
        assert seen == [f"{number}\na  n  own{number}\n" for number in range(5)]
        kept = {"a": "M", "d": "D", "d/x": "D", "n": "A"}
        for number in range(5):
            assert driver.do(number, "changes") == {**kept, f"own{number}": "A"}
        assert "+3" in driver.do(3, "diff", ["a"])[0]
        assert project.changes() == {**kept, "own0": "A"}
        assert exactly(project.path) == before
        driver.end()
    assert project.changes() == {**kept, "own0": "A"}
    assert layers_of(project) == ["1", "2", "work"]


# One script before the fork, one for the fork, one for the original.
ACROSS = {
    "deleted and made again": (
        "rm -r d; mkdir d; echo 1 > d/made",
        "rm -r d; mkdir -p d/sub; echo 2 > d/sub/deep",
        "rm d/made; rmdir d; echo now a file > d",
    ),
    "made again between forks": ("rm -r d", "mkdir d; touch d/back", "mkdir d; chmod 700 d"),
    "renamed directories": (
        "mkdir new; mv d/sub/deep new/; echo more >> new/deep",
        "mv new newer; mkdir new; mv newer/deep new/again",
        "mv new d/; rm -r d/sub",
    ),
    "types": (
        "rm f; mkdir f; touch f/in; rm -r d; ln -s f d",
        "rm -r f; echo file > f; rm d; mkfifo d",
        "rm d; mkdir d; mv f d/; ln -s d f",
    ),
    "modes": (
        "chmod 700 .; chmod 500 d; chmod 640 f",
        "chmod 755 d; chmod 600 d/kept; touch d/more",
        "chmod 1777 .; rm -f f",
    ),
    "hard links": ("ln f g; ln f h", "rm g", "rm f"),
    "holes": ("truncate -s 16M big; echo e >> big", "truncate -s 10 big", "mv big bigger"),
}


@pytest.mark.parametrize("case", ACROSS)
def test_a_fork_is_what_a_copy_would_be(roots_project: Project, case: str, tmp_path: Path) -> None:
    project = roots_project
    project.write("d/kept", "1")
    project.write("d/sub/deep", "2")
    project.write("f", "3")
    before, in_fork, in_original = ACROSS[case]
    plain = tmp_path / "plain"
    bash(tmp_path, f"cp -a {project.path} plain")
    bash(plain, before)
    bash(tmp_path, "cp -a plain fork")
    bash(plain, in_original)
    bash(tmp_path / "fork", in_fork)
    with a_driver(project) as driver:
        driver.run(0, before)
        driver.do(0, "fork", 2)
        driver.run(1, in_fork)
        driver.run(0, in_original)
        driver.run(2, in_original)
        inside = [json.loads(driver.run(number, LOOK)) for number in range(3)]
        assert inside[1] == snapshot(tmp_path / "fork")
        assert inside[0] == inside[2] == snapshot(plain)
        assert driver.do(1, "apply")["refused"] == []
        assert snapshot(project.path) == inside[1]
        assert driver.do(1, "changes") == {}
        driver.end()


def bash(folder: Path, script: str) -> None:
    subprocess.run(["bash", "-ec", script], cwd=folder, check=True, timeout=WAIT_S)


def test_commands_that_shut_their_workspace_stop_no_fork(project: Project) -> None:
    project.write("a", "1")
    with a_driver(project) as driver:
        driver.run(0, "echo 2 > a; mkdir -m 0 shut; chgrp $(id -g) .; chmod 000 a; chmod 100 .")
        driver.do(0, "checkpoint", "shut")
        driver.do(0, "fork", 1)
        for number in (0, 1):
            assert driver.run(number, "chmod 700 .; chmod 600 a; cat a; rmdir shut; ls") == "2\na\n"
        assert driver.do(1, "fork", 1) == 3
        assert driver.do(1, "rollback", "shut") is None
        assert driver.run(1, "stat -c %a .; chmod 700 .; ls") == "100\na\nshut\n"
        assert driver.run(2, "ls; chmod 000 .") == "a\n"
        assert driver.do(2, "fork", 1) == 4
        for number in (2, 3):  # Nobody can enter it any more, but it can be rolled back.
            assert "cannot be entered" in driver.do(number, "run", "true")["error"]
            assert driver.do(number, "changes")["a"] == "M"
            assert driver.do(number, "rollback", "shut") is None
            assert driver.run(number, "echo in") == "in\n"
        driver.end()
    assert [name for name in layers_of(project) if "-" in name] == []


@pytest.mark.slow("opens many sandboxes, one after another")
def test_forks_have_checkpoints_and_those_of_their_origin(project: Project) -> None:
    project.write("a", "0\n")
    with a_driver(project) as driver:
        driver.run(0, "echo 1 > a")
        driver.do(0, "checkpoint", "one")
        driver.run(0, "echo 2 > a")
        driver.do(0, "fork", 1)
        driver.run(1, "echo 3 > a")
        driver.do(1, "checkpoint", "three")
        driver.run(1, "echo 4 > a")
        assert driver.do(None, "checkpoints") == [["one"], ["one", "three"]]
        driver.do(1, "rollback", "three")
        assert driver.run(1, "cat a") == "3\n"
        driver.do(1, "rollback", "one")
        assert driver.run(1, "cat a") == "1\n"
        assert driver.do(1, "rollback", "three")["error"] == "checkpoint 'three' not found"
        # What the fork begins with stays there, even if the original no longer has it.
        driver.do(1, "fork", 1)
        driver.do(0, "rollback", "one")
        assert driver.do(0, "discard") == {"a": "M"}
        assert [driver.run(number, "cat a") for number in range(3)] == ["0\n", "1\n", "1\n"]
        driver.end()


def test_what_a_fork_applies_is_a_conflict_for_the_others(roots_project: Project) -> None:
    project = roots_project
    project.write("a", "0\n")
    with a_driver(project) as driver:
        driver.run(0, "echo 1 > a")
        driver.do(0, "fork", 2)
        driver.run(1, "echo 2 > b")
        driver.run(2, "echo 3 > a")
        assert driver.do(1, "apply") == {"done": ["a", "b"], "refused": []}
        assert (project.path / "a").read_text() == "1\n"
        changed = "it was changed in the project meanwhile"
        assert driver.do(2, "apply")["refused"] == [["a", changed]]
        assert driver.do(2, "changes") == {"a": "M"}
        assert driver.do(0, "changes") == {}
        # A fork that has applied everything begins anew with the project.
        assert driver.run(1, "cat a b; echo 4 > a") == "1\n2\n"
        assert driver.do(1, "changes") == {"a": "M"}
        assert driver.do(1, "apply")["done"] == ["a"]
        driver.end()


@pytest.mark.slow("opens sixty-five sandboxes")
@pytest.mark.extended("repetition: many forks")
def test_sixty_four_forks_are_possible_and_leave_nothing(roots_project: Project) -> None:
    project = roots_project
    project.write("a", "0\n")
    with a_driver(project) as driver:
        driver.run(0, "echo 1 > a")
        driver.do(0, "fork", 64)
        said = driver.do(None, "run", "cat a; echo $$ >> a; wc -l < a")
        assert [each[1] for each in said] == ["1\n2\n"] * 65
        driver.end()
    assert layers_of(project) == ["1", "2", "work"]


def test_a_deep_line_of_forks_works_until_the_kernel_could_not_mount_it(
    roots_project: Project,
) -> None:
    project = roots_project
    project.write("first", "first ")
    overlay = Overlay(project.path, project.overlays)
    mounts = overlay.open()
    store = Store(Path(mounts.folder).parent, str(project.path.resolve()))
    state = store.read()
    assert state is not None
    for number in range(MOST_LAYERS - 1):
        Path(mounts.folder, str(state.layers[-1]), "last").write_text(f"{number}\n")
        state = store.push(state)
    overlay.close()
    assert project.run("cat first last") == f"first {MOST_LAYERS - 2}\n"
    with a_driver(project) as driver:
        assert driver.do(0, "fork", 1) == 2
        assert driver.run(1, "cat first last") == f"first {MOST_LAYERS - 2}\n"
        driver.run(0, "touch more")
        assert "layers, from forks and checkpoints" in driver.do(0, "fork", 1)["error"]
        assert "layers, from forks and checkpoints" in driver.do(0, "checkpoint", "x")["error"]
        driver.end()


def test_a_sandbox_in_which_something_runs_is_not_forked(roots_project: Project) -> None:
    with a_driver(roots_project) as driver:
        driver.do(0, "start", "echo begun > begun; sleep 600")
        said = driver.do(0, "fork", 2)
        assert "commands or jobs are running" in said["error"]
        assert said["hint"] == "wait until they have ended, or stop them"
        assert driver.do(0, "jobs") == [True]
        # A checkpoint ends it.
        assert driver.do(0, "checkpoint", "x") is None
        assert driver.do(0, "jobs") == []
        assert driver.do(0, "fork", 2) == 3
        driver.end()


@pytest.mark.parametrize("count", [0, -1, True, "2", 1.5, None])
def test_the_number_of_forks_is_a_positive_number(roots_project: Project, count: object) -> None:
    with a_driver(roots_project) as driver:
        assert "count" in driver.do(0, "fork", count)["error"]


# --- Checkpoints of an open sandbox ----------------------------------------------------------


@pytest.mark.slow("opens many sandboxes, one after another")
def test_checkpoints_changes_and_apply_work_while_the_sandbox_is_open(project: Project) -> None:
    project.write("a", "0\n")
    with a_driver(project) as driver:
        assert driver.do(0, "checkpoint", "empty") is None
        driver.run(0, "echo 1 > a; touch b /tmp/private")
        assert driver.do(0, "changes") == {"a": "M", "b": "A"}
        driver.do(0, "checkpoint", "one")
        driver.run(0, "rm a; test ! -e /tmp/private")
        assert driver.do(0, "checkpoints") == ["empty", "one"]
        driver.do(0, "rollback", "one")
        assert driver.run(0, "cat a; ls") == "1\na\nb\n"
        assert driver.do(0, "apply", ["a"]) == {"done": ["a"], "refused": []}
        assert driver.do(0, "changes") == {"b": "A"}
        assert driver.run(0, "ls") == "a\nb\n"
        assert driver.do(0, "discard") == {"b": "A"}
        assert driver.run(0, "cat a; ls") == "1\na\n"
        assert driver.do(0, "checkpoints") == []
        driver.end()


def test_a_wrong_name_costs_neither_the_sandbox_nor_its_jobs(roots_project: Project) -> None:
    with a_driver(roots_project) as driver:
        driver.do(0, "checkpoint", "x")
        driver.do(0, "start", "sleep 600")
        for words in (("checkpoint", "x"), ("checkpoint", "a/b"), ("rollback", "y")):
            assert "error" in driver.do(0, *words)
        assert driver.do(0, "jobs") == [True]
        driver.end()


def test_nothing_is_done_to_a_sandbox_that_was_cleaned_up(roots_project: Project) -> None:
    with a_driver(roots_project) as driver:
        driver.run(0, "touch a")
        driver.do(0, "fork", 1)
        driver.do(0, "cleanup")
        for words in (("checkpoint", "x"), ("fork", 1), ("apply",), ("discard",)):
            assert driver.do(0, *words)["error"] == "the sandbox has been cleaned up"
        assert driver.run(1, "ls") == "a\n"
        driver.end()


# --- Workspaces without an overlay -----------------------------------------------------------


def test_a_private_workspace_is_forked_and_may_go_before_its_forks(project: Project) -> None:
    project.write("a", "1\n")
    project.path.chmod(0o750)
    with a_driver(project, "private") as driver:
        driver.run(0, "echo 2 > b; mkdir d; touch d/x; chmod 000 d")
        assert driver.do(0, "fork", 2) == 3
        for number in range(3):
            assert driver.run(number, "stat -c %a . d; pwd; cat a b; chmod 700 d; ls d") == (
                f"750\n0\n{project.path}\n1\n2\nx\n"
            )
            driver.run(number, f"echo {number} > a")
        assert list(project.path.iterdir()) == []
        driver.do(0, "cleanup")
        project.path.rmdir()
        for number in (1, 2):
            driver.do(number, "checkpoint", "now")
            driver.run(number, "rm a")
            driver.do(number, "rollback", "now")
            assert driver.run(number, "cat a") == f"{number}\n"
        assert driver.do(1, "fork", 1) == 4
        driver.do(1, "cleanup")
        assert driver.run(3, "cat a") == "1\n"
        driver.end()
    assert list(project.overlays.iterdir()) == []
    project.path.mkdir()


def test_a_private_workspace_has_checkpoints_but_nothing_to_compare_with(project: Project) -> None:
    with a_driver(project, "private") as driver:
        driver.run(0, "echo 1 > a; touch /tmp/kept")
        assert "error" in driver.do(0, "checkpoint", "a/b")
        assert "error" in driver.do(0, "rollback", "one")
        driver.run(0, "test -e /tmp/kept")
        driver.do(0, "checkpoint", "one")
        driver.run(0, "echo 2 > a; touch b")
        driver.do(0, "rollback", "one")
        assert driver.run(0, "cat a; ls") == "1\na\n"
        for name in ("changes", "diff", "apply", "discard"):
            said = driver.do(0, name)
            assert (said["code"], said["hint"]) == (
                "UNSUPPORTED",
                "open the sandbox with copy_on_write=True",
            )
        driver.end()
    assert list(project.overlays.iterdir()) == []


def test_what_changes_its_workspace_cannot_be_forked_and_stays_as_it_is(
    roots_project: Project,
) -> None:
    with a_driver(roots_project, "plain") as driver:
        driver.do(0, "start", "sleep 600")
        for words in (
            ("checkpoint", "x"),
            ("rollback", "x"),
            ("changes",),
            ("apply",),
            ("fork", 2),
        ):
            said = driver.do(0, *words)
            assert (said["code"], said["hint"]) == (
                "UNSUPPORTED",
                "open the sandbox with copy_on_write=True",
            )
        assert driver.do(0, "checkpoints") == []
        assert driver.do(0, "jobs") == [True]
        driver.end()


# --- Several processes -----------------------------------------------------------------------


@pytest.mark.slow("opens many sandboxes, one after another")
def test_another_process_may_do_anything_to_the_overlay_and_forks_stay(project: Project) -> None:
    project.write("a", "0\n")
    with a_driver(project) as driver:
        driver.run(0, "echo 1 > a")
        driver.do(0, "checkpoint", "one")
        driver.run(0, "echo 2 > a")
        driver.do(0, "fork", 2)
        driver.do(0, "cleanup")
        said = project.do(
            ("changes",), ("rollback", "one"), ("run", "cat a"), ("discard",), ("run", "echo 5 > a")
        )
        assert said[2][1] == "1\n"
        assert driver.run(1, "cat a; echo 3 > a") == "2\n"
        driver.do(1, "rollback", "one")
        assert [driver.run(number, "cat a") for number in (1, 2)] == ["1\n", "2\n"]
        with a_driver(project) as other:
            assert other.run(0, "cat a") == "5\n"
            other.do(0, "fork", 1)
            driver.do(1, "fork", 1)
            other.run(1, "echo 6 > a")
            assert driver.run(3, "cat a") == "1\n"
            driver.end()
            assert [other.run(number, "cat a") for number in (0, 1)] == ["5\n", "6\n"]
            other.end()
    assert project.changes() == {"a": "M"}
    # Numbers are used again, so only how many there are is known.
    assert len(layers_of(project)) == 3


@pytest.mark.slow("opens many sandboxes, one after another")
def test_what_a_killed_process_had_forked_is_removed_by_the_next(project: Project) -> None:
    project.write("a", "0\n")
    with a_driver(project) as driver:
        driver.run(0, "echo 1 > a")
        driver.do(0, "fork", 3)
        driver.run(1, "touch b")
        driver.do(2, "start", "sleep 600")
        driver.process.kill()
        driver.process.wait(WAIT_S)
    said = project.do(("run", "cat a; ls"))
    assert said[0][1] == "1\na\n"
    wait_until(lambda: project.do(("run", "true")) and layers_of(project) == ["1", "2", "work"])


def test_what_a_killed_process_had_forked_privately_is_removed_by_the_next(
    project: Project,
) -> None:
    project.write("a", "0\n")
    with a_driver(project, "private") as driver:
        driver.do(0, "fork", 1)
        driver.run(1, "touch b")
        driver.process.kill()
        driver.process.wait(WAIT_S)
    assert len(list(project.overlays.iterdir())) == 1

    def is_removed() -> bool:
        with a_driver(project, "private") as driver:
            driver.do(0, "fork", 1)
            driver.end()
        return list(project.overlays.iterdir()) == []

    wait_until(is_removed)


def wait_until(is_so: Any) -> None:
    """The sandbox of a killed process can take a moment to end."""
    for _ in range(20):
        if is_so():
            return
    raise AssertionError("it never happened")
