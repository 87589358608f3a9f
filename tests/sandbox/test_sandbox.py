"""`Sandbox` as its users open it: backends by name, private workspaces, copies, other loops."""

import asyncio
import gc
import json
import math
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kakoi import (
    ConfigurationError,
    FileError,
    Sandbox,
    SandboxError,
    SecurityError,
    UnsupportedError,
    UserCancelledError,
)
from kakoi.backends.probes import new_mark
from kakoi.policy.decide import Decision
from tests.attacks.test_podman import has_podman
from tests.backends.boxes import require_bubblewrap
from tests.cli.conftest import need

pytestmark = pytest.mark.anyio
IMAGE = "kakoi-test:python"


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    async with Sandbox("bubblewrap") as box:
        yield box


# --- Opening and closing ---------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["bubblewrap", "confined-host", "host", "docker"])
async def test_a_private_workspace_goes_with_its_sandbox(backend: str, engine: None) -> None:
    image = IMAGE if backend == "docker" else None
    async with Sandbox(backend, image=image) as box:
        await box.run("echo mine > file && chmod 0 file && mkdir shut && chmod 0 shut", check=True)
        info = box.info
        assert (info.backend, info.private) == (backend, True)
        assert (await box.run("pwd")).stdout == f"{info.workspace}\n"
    if backend != "docker":
        assert not Path(info.workspace).parent.exists()


async def test_home_and_temporary_files_are_private() -> None:
    async with Sandbox("bubblewrap", policy="open") as box:
        result = await box.run("cd && pwd && ls -A && touch here /tmp/here && ls /tmp")
        own, home = Path(box.info.workspace).parent.name, "/home/agent"
        assert (result.ok, result.stdout) == (True, f"{home}\nhere\n{own}\n")


@pytest.mark.parametrize("backend", ["confined-host", "host"])
async def test_home_and_temporary_files_are_private_on_the_host(backend: str) -> None:
    async with Sandbox(backend, policy="open") as box:
        result = await box.run('cd && pwd -P && touch here && cd "$TMPDIR" && pwd -P && touch here')
        home, temporary = (Path(each) for each in result.stdout.split())
        assert (result.ok, list(home.iterdir())) == (True, [home / "here"])
        assert home != Path.home()
        assert list(temporary.iterdir()) == [temporary / "here"]
    assert not home.exists()
    assert not temporary.exists()


@pytest.mark.parametrize("backend", ["bubblewrap", "confined-host", "host"])
async def test_it_says_beforehand_whether_it_can_be_paused(backend: str) -> None:
    async with Sandbox(backend) as box:
        if box.supports("pause"):
            await box.pause()
            await box.resume()
        else:
            with pytest.raises(UnsupportedError, match="freezer"):
                await box.pause()


async def test_a_given_workspace_is_changed_in_place(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("here")
    async with Sandbox("bubblewrap", workspace=tmp_path) as box:
        await box.run("cp in out", check=True)
        assert not box.info.private
        assert box.info.workspace == str(tmp_path)
    assert (tmp_path / "out").read_text() == "here"


async def test_the_first_call_opens_it() -> None:
    box = Sandbox("bubblewrap")
    results = await asyncio.gather(*(box.run(f"echo {number}") for number in range(5)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(5)]
    await box.close()


@pytest.mark.parametrize("backend", ["auto", "bubblewrap", "docker"])
@pytest.mark.parametrize("is_private", [True, False])
async def test_a_command_that_is_refused_opens_nothing_and_is_recorded(
    backend: str, is_private: bool, tmp_path: Path, engine: None
) -> None:
    workspace, log = tmp_path / "project", tmp_path / "audit.jsonl"
    workspace.mkdir()
    box = Sandbox(
        backend,
        workspace=None if is_private else workspace,
        image=IMAGE if backend == "docker" else None,
        audit=log,
    )
    for command, error in (("rm -rf /", SecurityError), ("git init", UserCancelledError)):
        with pytest.raises(error):
            await box.run(command)
        with pytest.raises(error):
            await box.start(command)
        with pytest.raises(error):
            async for _chunk in box.stream(command):
                pass
    with pytest.raises(ConfigurationError, match="not open yet"):
        _ = box.info
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["refused"] * 3 + ["asked", "declined"] * 3
    try:
        assert (await box.run("pwd")).stdout == f"{box.info.workspace}\n"
    finally:
        await box.close()


async def test_a_failed_opening_raises_and_can_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    box = Sandbox("bubblewrap", workspace=folder)
    folder.rmdir()
    with pytest.raises(ConfigurationError, match="gone"):
        await box.open()
    folder.mkdir()
    assert (await box.run("echo back")).stdout == "back\n"
    await box.close()


async def test_a_copy_that_fails_leaves_no_cancellation_in_the_task_of_its_caller(
    box: Sandbox, tmp_path: Path
) -> None:
    """Every file fails, because there is a directory with its name."""
    local = tmp_path / "copied"
    local.mkdir()
    for number in range(16):
        (local / f"file{number}").touch()
        await box.files.make_dir(f"there/copied/file{number}")
    task = asyncio.current_task()
    assert task is not None
    for _ in range(5):
        with pytest.raises(FileError, match="not a regular file"):
            await box.files.upload(local, "there")
        assert task.cancelling() == 0


async def test_one_caller_that_gives_up_does_not_end_the_opening_of_another() -> None:
    box = Sandbox("bubblewrap")
    first, second = (asyncio.create_task(box.run("echo here")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).stdout == "here\n"
    assert first.cancelled()
    await box.close()
    alone = Sandbox("bubblewrap")
    only = asyncio.create_task(alone.run("true"))
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait([only])
    assert (await alone.run("echo again")).stdout == "again\n"
    await alone.close()


async def test_closing_while_it_opens_leaves_nothing() -> None:
    box = Sandbox("bubblewrap")
    opening = asyncio.create_task(box.open())
    await asyncio.sleep(0)
    await box.close()
    with pytest.raises((asyncio.CancelledError, SandboxError)):
        await opening
    with pytest.raises(SandboxError, match="closed"):
        await box.run("true")


async def test_auto_says_what_it_chose() -> None:
    async with Sandbox() as box:
        assert box.info.backend in ("bubblewrap", "docker", "confined-host")
        assert box.info.network == "none"
        assert box.info.policy == "coding-agent"


async def test_its_variables_and_labels_reach_commands_and_records(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    labels = {"task": "T-1", "mine": "yes"}
    async with Sandbox("bubblewrap", env={"NAME": "x"}, audit=audit, labels=labels) as box:
        assert (await box.run("echo $NAME$MORE", env={"MORE": "y"})).stdout == "xy\n"
        assert box.info.labels == labels
    assert '"task":"T-1"' in audit.read_text()


async def test_its_default_time_limit_holds() -> None:
    async with Sandbox("bubblewrap", timeout=0.2) as box:
        assert (await box.run("sleep 600")).reason == "timed_out"
        assert (await box.run("sleep 0.3", timeout=math.inf)).ok


# --- Approval and policy ---------------------------------------------------------------------


async def test_the_approver_is_asked() -> None:
    asked: list[Decision] = []

    async def approve(decision: Decision) -> bool:
        asked.append(decision)
        return "yes" in decision.command

    async with Sandbox("bubblewrap", approve=approve) as box:
        assert (await box.check("git push origin yes")).verdict == "ask"
        await box.run("git push origin yes")
        with pytest.raises(UserCancelledError):
            await box.run("git push origin no")
    assert [decision.command for decision in asked] == ["git push origin yes", "git push origin no"]


async def test_an_open_policy_lets_everything_run_and_records_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with Sandbox("bubblewrap", policy="open", audit=audit) as box:
        await box.run("mkdir d && rm -rf d", check=True)
        await box.files.write("/tmp/outside", "x")
    assert "rm -rf d" in audit.read_text()
    async with Sandbox("bubblewrap", audit=audit) as box:
        with pytest.raises(SecurityError):
            await box.run("mkdir d && rm -rf d")


# --- Copies ----------------------------------------------------------------------------------


async def test_changes_are_reviewed_and_applied(tmp_path: Path) -> None:
    project, store = tmp_path / "project", tmp_path / "overlays"
    project.mkdir()
    (project / "file").write_text("old\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAKOI_OVERLAYS", str(store))
        async with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as box:
            await box.run("echo new > file; echo more > other", check=True)
            assert [change.path for change in await box.changes()] == ["file", "other"]
            assert "-old\n+new\n" in await box.diff(["file"])
            assert (project / "file").read_text() == "old\n"
            await box.apply(["file"])
            assert (project / "file").read_text() == "new\n"
            assert not (project / "other").exists()
            assert [change.path for change in await box.discard()] == ["other"]
            assert (await box.run("ls")).stdout == "file\n"


async def test_a_wrong_path_applies_nothing_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("KAKOI_OVERLAYS", str(tmp_path / "overlays"))
    async with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as box:
        await box.run("echo new > file", check=True)
        job = await box.start("cat")
        for paths in (["nope"], ["file", "nope"], "file", [""], ["a\0b"], ["/etc/passwd"]):
            with pytest.raises(ConfigurationError, match=r"paths|nothing was changed at"):
                await box.apply(paths)
        await job.close_stdin()
        assert (await job.wait()).ok
        assert list(project.iterdir()) == []
        await box.apply(["file"])
    assert (project / "file").read_text() == "new\n"


async def test_changes_wait_for_the_next_sandbox_until_they_are_applied_or_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("KAKOI_OVERLAYS", str(tmp_path / "overlays"))
    for text in ("a", "b"):
        async with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as box:
            await box.run(f"echo {text} >> file", check=True)
    async with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as box:
        assert (await box.run("cat file")).stdout == "a\nb\n"
        await box.discard()
    async with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as box:
        assert await box.changes() == []
    with pytest.raises(ConfigurationError, match="no workspace to copy"):
        Sandbox("bubblewrap", copy_on_write=True)


@pytest.mark.parametrize("backend", ["bubblewrap", "docker"])
async def test_a_workspace_returns_to_a_checkpoint(backend: str, engine: None) -> None:
    async with Sandbox(backend, image=IMAGE if backend == "docker" else None) as box:
        assert box.supports("checkpoint")
        await box.checkpoint("empty")
        await box.run("echo one > file; mkdir d; echo x > d/.x; ln -s d l; chmod 700 d", check=True)
        await box.checkpoint("first")
        await box.run("echo two > file; touch new .hidden; rm d/.x l; chmod 500 d", check=True)
        await box.checkpoint("second")
        job = await box.start("while :; do echo late > file; done")
        for _ in range(2):  # It is kept.
            await box.rollback("first")
            assert (await box.run("cat file l/.x; ls -A")).stdout == "one\nx\nd\nfile\nl\n"
        assert job.id not in [each.id for each in await box.jobs()]
        for name in ("first", "no/name", ""):
            with pytest.raises(ConfigurationError, match=r"name|exists"):
                await box.checkpoint(name)
        for name in ("never", "second"):
            with pytest.raises(ConfigurationError, match=name):
                await box.rollback(name)
        await box.rollback("empty")
        assert (await box.run("ls -A")).stdout == ""


async def test_a_container_with_a_directory_of_this_machine_has_no_checkpoints(
    tmp_path: Path, engine: None
) -> None:
    async with Sandbox("docker", image=IMAGE, workspace=tmp_path) as box:
        assert not box.supports("checkpoint")
        with pytest.raises(UnsupportedError, match="directory of this machine"):
            await box.checkpoint("x")
        for work in (box.changes, box.diff, box.apply, box.discard):
            with pytest.raises(UnsupportedError, match="a copy of a project"):
                await work()


async def test_forks_begin_here_and_go_their_own_ways(box: Sandbox) -> None:
    await box.run("mkdir d && echo shared > d/file", check=True)
    forks = await box.fork(3)
    assert len({box.id, *(fork.id for fork in forks)}) == 4
    for number, fork in enumerate(forks):
        await fork.run(f"echo {number} >> d/file", check=True)
    await box.run("echo origin >> d/file", check=True)
    seen = [(await each.run("cat d/file")).stdout.split() for each in (box, *forks)]
    assert seen == [["shared", word] for word in ("origin", "0", "1", "2")]
    await box.close()
    (again,) = await forks[0].fork()
    assert (await again.run("cat d/file")).stdout == "shared\n0\n"
    for each in (*forks, again):
        await each.close()
    with pytest.raises(ConfigurationError, match="count is 0"):
        await Sandbox("bubblewrap").fork(0)


_CALL = "import urllib.request as u; u.urlopen('http://elsewhere.example/', timeout=20)"


@pytest.mark.parametrize(
    "backend",
    ["bubblewrap", pytest.param("podman", marks=pytest.mark.slow("four containers of Podman"))],
)
async def test_a_fork_of_a_fork_is_removed_without_a_complaint(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    image = None
    if backend == "podman":
        need("podman", is_there=has_podman())
        image = f"localhost/{IMAGE}"
    async with Sandbox(backend, image=image, disk=None) as box:
        await box.files.write("file", "x")
        first, second = await box.fork(2)
        (third,) = await first.fork()
        assert (await third.run("cat file")).stdout == "x"
        for fork in (third, first, second):
            await fork.close()
    assert caplog.messages == []


async def test_forks_keep_their_network_when_the_origin_is_closed() -> None:
    async with Sandbox("bubblewrap", network=["allowed.example"]) as origin:
        forks = await origin.fork(2)
    for fork in forks:
        result = await fork.run(["python3", "-c", _CALL])
        assert [each.host for each in result.blocked_connections] == ["elsewhere.example"]
        await fork.close()


async def test_a_paused_sandbox_waits(box: Sandbox) -> None:
    try:
        await box.pause()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert box.info.paused
    with pytest.raises(SandboxError, match="paused"):
        await box.run("true")
    await box.resume()
    assert (await box.run("echo on")).stdout == "on\n"


async def test_what_a_backend_cannot_do_names_those_that_can() -> None:
    async with Sandbox("host") as box:
        with pytest.raises(UnsupportedError) as fork:
            await box.fork()
        with pytest.raises(UnsupportedError) as copy:
            await box.checkpoint("x")
        with pytest.raises(UnsupportedError):
            await box.detach()
    assert "docker" in fork.value.hint
    assert "bubblewrap" in copy.value.hint
    with pytest.raises(UnsupportedError, match="ends with its process"):
        await Sandbox.attach("x", backend="bubblewrap")


# --- A sandbox that outlives its process -----------------------------------------------------

_ATTACH = """
import asyncio, sys
from kakoi import Sandbox
async def main():
    box = await Sandbox.attach(sys.argv[1])
    job = await box.job(sys.argv[2])
    print((await box.run("cat note")).stdout, (await job.stop()).reason, sep="")
    await box.close()
asyncio.run(main())
"""


@pytest.mark.slow("a container, and two processes")
async def test_another_process_finds_a_detached_sandbox_with_its_jobs(engine: None) -> None:
    box = Sandbox("docker", image=IMAGE, lifetime=120)
    await box.run("echo kept > note", check=True)
    job = await box.start("sleep 600")
    await box.detach()
    with pytest.raises(SandboxError, match="detached"):
        await box.run("true")
    argv = [sys.executable, "-c", _ATTACH, box.id, job.id]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("kept\ncancelled\n", "")
    with pytest.raises(SandboxError):
        await Sandbox.attach(box.id)


_LEFT = """
import asyncio
from kakoi import Sandbox
async def main():
    box = await Sandbox("docker", image="kakoi-test:python", lifetime=120).open()
    print(box.id)
asyncio.run(main())
"""


@pytest.mark.slow("a container, and two processes")
async def test_a_container_with_a_lifetime_that_nobody_closed_is_found_again(engine: None) -> None:
    argv = [sys.executable, "-c", _LEFT]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
    assert done.stderr == ""
    box = await Sandbox.attach(done.stdout.strip())
    assert (await box.run("pwd")).stdout == "/workspace\n"
    assert box.supports("attach")
    await box.detach()
    again = await Sandbox.attach(box.id)
    await again.close()
    with pytest.raises(SandboxError):
        await Sandbox.attach(box.id)


_KILLED = """
import asyncio, sys
from kakoi import Sandbox
async def main():
    box = Sandbox(sys.argv[1], image=sys.argv[3] or None, lifetime=float(sys.argv[4]) or None)
    await box.open()
    await box.start(["sleep", sys.argv[2]])
    print(box.id, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.slow("sandboxes of killed processes")
@pytest.mark.parametrize(
    ("backend", "lifetime"),
    [("bubblewrap", 0), ("confined-host", 0), ("host", 0), ("docker", 0), ("docker", 10)],
)
def test_nothing_outlives_a_killed_process_or_its_lifetime(
    backend: str, lifetime: float, engine: None
) -> None:
    mark = new_mark()
    image = IMAGE if backend == "docker" else ""
    argv = [sys.executable, "-c", _KILLED, backend, mark, image, str(lifetime)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert name
        process.send_signal(signal.SIGKILL)
    _wait_until(lambda: not _is_left(mark, name, backend))


def _wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def _is_left(mark: str, name: str, backend: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"sleep\0{mark}\0" in path.read_text(errors="replace"):
                return True
        except OSError:
            continue
    if backend != "docker":
        return False
    argv = ["docker", "ps", "-aq", "--filter", f"name={name}"]
    return bool(subprocess.run(argv, capture_output=True, check=True).stdout.strip())


async def test_a_sandbox_ends_when_its_lifetime_does() -> None:
    async with Sandbox("bubblewrap", lifetime=3) as box:
        assert (await box.run("sleep 600")).reason == "sandbox_lost"
        with pytest.raises(SandboxError, match="lifetime"):
            await box.run("true")


@pytest.mark.parametrize("backend", ["bubblewrap", "docker"])
@pytest.mark.slow("waits for the end of a lifetime")
async def test_a_lifetime_ends_a_paused_sandbox(backend: str, engine: None) -> None:
    mark = new_mark()
    box = Sandbox(backend, image=IMAGE if backend == "docker" else None, lifetime=8)
    await box.open()
    try:
        await box.start(["sleep", mark])
        await asyncio.to_thread(_wait_until, lambda: _is_left(mark, box.id, ""))
        try:
            await box.pause()
        except UnsupportedError as error:
            pytest.skip(str(error))
        await asyncio.to_thread(_wait_until, lambda: not _is_left(mark, box.id, backend))
        await box.resume()
        with pytest.raises(SandboxError, match="lifetime"):
            await box.run("true")
    finally:
        await box.close()


# --- Other loops, forks, garbage -------------------------------------------------------------


def test_another_event_loop_is_refused() -> None:
    box = Sandbox("bubblewrap")

    async def use() -> str:
        return (await box.run("echo hi")).stdout

    async def close() -> None:
        await box.close()

    assert asyncio.run(use()) == "hi\n"
    with pytest.raises(SandboxError, match="closed with its event loop"):
        asyncio.run(use())
    asyncio.run(close())


async def test_a_loop_in_another_thread_is_refused(box: Sandbox) -> None:
    with pytest.raises(SandboxError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, box.run("true"))


def test_a_sandbox_that_nobody_closes_neither_hangs_nor_warns() -> None:
    async def use() -> None:
        box = Sandbox("bubblewrap")
        await box.run("true")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use())
        gc.collect()


_FORKED = """
import asyncio, os, sys
from kakoi import Sandbox
async def main():
    async with Sandbox("bubblewrap") as box:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print((await box.run("echo parent")).stdout, end="")
asyncio.run(main())
"""


async def test_a_fork_of_the_process_leaves_the_sandbox_alone() -> None:
    argv = [sys.executable, "-W", "error::ResourceWarning", "-c", _FORKED]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("parent\n", "", 0)


@pytest.fixture(autouse=True)
def has_bubblewrap() -> None:
    require_bubblewrap()


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys; from kakoi import Sandbox; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert not {"asyncio", "dataclasses", "typing", "yaml"} & set(loaded.split())
