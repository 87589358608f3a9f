"""Projects come over real HTTP into real containers, and the token stays nowhere."""

import asyncio
import base64
import logging
import os
import subprocess
import traceback
from pathlib import Path

import pytest

from kakoi.errors import SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.checkout import CloneError, CloneOptions
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.task import Task, container_name
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import TOKEN, GitServer, a_task, docker, start_server

pytestmark = pytest.mark.anyio

FORMS = [TOKEN, *(base64.b64encode(f"{user}:{TOKEN}".encode()).decode() for user in ("x-access-token", "oauth2"))]  # fmt: skip
# As the agent, in all files, variables, words and memories of others that it can read. The words
# come backwards, so that it does not find them in its own caller.
HUNT = r"""
import os, sys
wanted = [word[::-1].encode() for word in sys.argv[1:]]
me, found = str(os.getpid()), []
def look(name, path, start=0, size=-1):
    try:
        with open(path, "rb", 0) as file:
            file.seek(start)
            data = file.read(size)
    except OSError:
        return
    found.extend(name for word in wanted if word in data)
for top in ("/", "/dev/shm"):
    for folder, folders, files in os.walk(top):
        folders[:] = [each for each in folders if os.path.join(folder, each) not in ("/proc", "/sys", "/dev", "/usr")]
        for path in (os.path.join(folder, file) for file in files):
            if os.path.isfile(path) and not os.path.islink(path):
                look(path, path)
for pid in (each for each in os.listdir("/proc") if each.isdigit() and each != me):
    look(f"{pid}-environ", f"/proc/{pid}/environ")
    look(f"{pid}-cmdline", f"/proc/{pid}/cmdline")
    try:
        maps = open(f"/proc/{pid}/maps").readlines()
    except OSError:
        continue
    for line in maps:
        span, rights = line.split()[:2]
        start, end = (int(each, 16) for each in span.split("-"))
        if rights.startswith("rw"):
            look(f"{pid}-memory", f"/proc/{pid}/mem", start, end - start)
print(*found)
"""


def hub(git: GitServer, token: str = TOKEN) -> dict[str, str]:
    return {"GITHUB_PERSONAL_ACCESS_TOKEN": token, "GITHUB_HOST": f"http://{git.host}"}


def lab(git: GitServer) -> dict[str, str]:
    return {"GITLAB_PERSONAL_ACCESS_TOKEN": TOKEN, "GITLAB_HOST": f"http://{git.host}"}


def inside(task: Task, script: str) -> str:
    name = container_name(task.uuid)
    return docker("exec", "-u", "65533", "-w", "/workspace/project", name, "sh", "-ec", script)


def hunt(name: str) -> list[str]:
    """Where in a container the token is."""
    words = [form[::-1] for form in FORMS]
    args = ["exec", "-u", "65533", name, "python3", "-c", HUNT, *words]
    return docker(*args).split()


def assert_untold(*texts: str) -> None:
    for text in texts:
        assert not [form for form in FORMS if form in text], text


# --- Branches --------------------------------------------------------------------------------


@pytest.mark.requirement("A-034", "A-035", "A-042", "A-043")
@pytest.mark.slow("three environments")
async def test_an_issue_starts_from_the_default_branch_with_one_commit_or_all(
    git: GitServer, make: Make
) -> None:
    cases = [("trunk", 1, 1, "trunk"), ("project", 3, 3, "main"), ("project", None, 7, "main")]
    assert CloneOptions().depth == 1
    for name, depth, count, branch in cases:
        task = a_task(git.url(f"open/{name}"))
        manager = make(clone=CloneOptions(depth=depth), install_dependencies=False)
        async with manager.open(task):
            asked = "git rev-list --count HEAD; git rev-parse --abbrev-ref HEAD; git status -s"
            assert inside(task, asked).split() == [str(count), branch]


@pytest.mark.requirement("A-036", "A-037")
@pytest.mark.parametrize(("name", "apart"), [("sixty", 60), ("sixhundred", 600)])
async def test_a_pull_request_shows_its_difference_to_the_target_however_far_apart(
    git: GitServer, make: Make, name: str, apart: int
) -> None:
    task = a_task(git.url(f"private/{name}"), source="feature", target="main")
    async with make(tokens=hub(git)).open(task):
        assert inside(task, "git rev-parse --abbrev-ref HEAD") == "feature"
        changed = inside(task, "git diff --name-only origin/main...HEAD").split()
        assert sorted(changed) == sorted(f"feature-{each + 1}.txt" for each in range(apart))
        assert hunt(container_name(task.uuid)) == []


async def test_branches_without_a_common_history_are_told_of_and_no_failure(
    git: GitServer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    task = a_task(git.url("open/strangers"), source="feature", target="main")
    async with make().open(task):
        assert inside(task, "git rev-parse origin/main HEAD | wc -l") == "2"
    assert "no common history" in caplog.text


# --- Secrets ---------------------------------------------------------------------------------


@pytest.mark.requirement("A-038", "A-039", "A-040", "A-041")
async def test_a_token_opens_the_door_and_is_nowhere_afterwards(
    git: GitServer, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    task = a_task(git.url("private/project"))
    manager = make(tokens=lab(git))
    info = await manager.prepare(task)
    assert hunt(info.name) == []
    result = await manager.execute(info.container_id, "git config -l; git remote -v; env")
    assert_untold(
        result.stdout,
        docker("inspect", info.name),
        caplog.text,
        (tmp_path / "audit.jsonl").read_text(),
        repr(info),
        inside(task, "cat .git/config; cat .git/FETCH_HEAD .git/logs/HEAD 2>&1 || true"),
    )
    assert f"oauth2:{TOKEN}" in base64.b64decode(git.seen().split("Basic ")[-1].split()[0]).decode()
    await manager.cleanup(task.uuid)


async def test_the_hunt_would_find_a_token(git: GitServer, make: Make) -> None:
    task = a_task(git.url("open/project"))
    async with make().open(task) as info:
        as_agent = ["-u", "65533", info.name]
        docker("exec", "-i", *as_agent, "sh", "-c", "cat >/workspace/tmp/x", stdin=FORMS[1])
        docker("exec", "-d", "-e", f"LEAK={TOKEN}", *as_agent, "sleep", "600")
        found = " ".join(hunt(info.name))
        assert "/workspace/tmp/x" in found
        assert "environ" in found
        assert "memory" in found


@pytest.mark.requirement("A-040")
@pytest.mark.slow("three environments, and a second server")
async def test_a_redirect_to_another_host_does_not_take_the_token_along(
    git: GitServer, make: Make, owner: str
) -> None:
    other = start_server(owner)
    manager = make(tokens=hub(git))
    try:
        task = a_task(git.url(f"away/{other.host}/open/project"))
        async with manager.open(task):
            assert inside(task, "git rev-list --count HEAD") == "1"
        # Also where the other one asks for it.
        with pytest.raises(CloneError, match="denied access"):
            await manager.prepare(a_task(git.url(f"away/{other.host}/private/project")))
        seen = other.seen()
        assert "git-upload-pack" in seen
        assert "Basic" not in seen
        # On the way back it is ours again: a repository that has moved on its own host.
        task = a_task(git.url(f"away/{git.host}/private/project"))
        async with manager.open(task):
            assert inside(task, "git rev-list --count HEAD") == "1"
    finally:
        docker("rm", "-f", other.name)


async def test_a_token_in_the_address_is_used_and_goes_no_further(
    git: GitServer, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    task = a_task(git.url("private/project").replace("//", f"//oauth2:{TOKEN}@"))
    async with make().open(task) as info:
        assert hunt(info.name) == []
        assert_untold(docker("inspect", info.name), inside(task, "cat .git/config"))
    assert_untold(caplog.text, (tmp_path / "audit.jsonl").read_text())


# --- Failures --------------------------------------------------------------------------------

FAILURES = [
    ("private/project", None, "wr0ng-5ecret", "denied access"),
    ("private/project", None, "", "denied access"),
    ("private/nothing", None, TOKEN, "does not exist"),
    ("nowhere/project", None, TOKEN, "does not exist"),
    ("private/project", "gone", TOKEN, "has no such branch"),
    ("broken/project", None, TOKEN, "could not be reached"),
    ("hang/project", None, TOKEN, "could not be reached"),
    ("cut/project", None, TOKEN, "could not be reached"),
]


@pytest.mark.requirement("A-008", "A-041")
@pytest.mark.parametrize(("path", "branch", "token", "why"), FAILURES)
@pytest.mark.slow("waits for a silence, three times")
async def test_a_clone_that_fails_says_why_without_the_token_and_leaves_nothing(
    git: GitServer,
    make: Make,
    owner: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    path: str,
    branch: str | None,
    token: str,
    why: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    manager = make(tokens=hub(git, token), clone=CloneOptions(stall_s=1))
    with pytest.raises(CloneError, match=why) as caught:
        await manager.prepare(a_task(git.url(path), source=branch))
    error = caught.value
    told = [str(error), repr(error), str(error.details), error.hint, caplog.text]
    told += traceback.format_exception(error)
    told.append((tmp_path / "audit.jsonl").read_text())
    assert_untold(*told)
    assert not [text for text in told if "wr0ng-5ecret" in text]
    assert error.hint
    assert manager.counters.clone_failures == 1
    assert manager.active() == []
    assert containers(owner) == []


@pytest.mark.slow("waits between three tries")
async def test_a_server_that_is_not_there_is_tried_three_times(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CloneError, match="could not be reached"):
        await make().prepare(a_task("http://127.0.0.1:9/x.git"))
    assert caplog.text.count("trying again: cloning") == 2


async def test_a_clone_that_takes_too_long_is_ended(git: GitServer, make: Make) -> None:
    with pytest.raises(CloneError, match="took too long"):
        await make(clone=CloneOptions(timeout_s=1)).prepare(a_task(git.url("hang/project")))


async def test_an_image_without_git_is_told_as_that(git: GitServer, make: Make) -> None:
    with pytest.raises(CloneError, match="the image has no git") as caught:
        await make(image="kakoi-test:busybox").prepare(a_task(git.url("open/project")))
    assert "base_image" in caught.value.hint


class SmallDisk(ExecutionEnvironmentManager):
    """Puts a file system of one megabyte where the project goes, from outside."""

    async def _create_container(self, task: Task) -> str:
        made = await super()._create_container(task)
        process = docker("inspect", "--format", "{{.State.Pid}}", made)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m,uid=65533", "tmpfs", "/workspace/project"]
        argv = ["nsenter", "-t", process, "-m", *mount]
        await asyncio.to_thread(subprocess.run, argv, check=True)
        return made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_a_project_that_does_not_fit_is_told_as_that(git: GitServer, make: Make) -> None:
    with pytest.raises(CloneError, match="does not fit on the disk") as caught:
        await make(kind=SmallDisk).prepare(a_task(git.url("open/heavy")))
    assert "disk_limit" in caught.value.hint


class Vanishing(ExecutionEnvironmentManager):
    """Somebody takes the container away just before the clone."""

    async def _clone_project(self, container_id: str, task: Task) -> None:
        docker("rm", "-f", container_id)
        await super()._clone_project(container_id, task)


async def test_a_container_that_goes_before_the_clone_is_no_failure_of_the_clone(
    git: GitServer, make: Make
) -> None:
    manager = make(kind=Vanishing)
    with pytest.raises(SandboxError) as caught:
        await manager.prepare(a_task(git.url("open/project")))
    assert not isinstance(caught.value, CloneError)
    assert (manager.counters.clone_failures, manager.counters.create_failures) == (0, 1)


# --- From this machine -----------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "a project.git".replace(" ", "-")
    work = tmp_path / "work"
    script = """
git init -q -b main work; cd work
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
git checkout -q -b feature; echo new >new.txt; git add .
git -c user.name=a -c user.email=a@b commit -q -m two
git checkout -q main
git clone -q --bare . "$1"
"""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["sh", "-ec", script, "sh", str(path)], cwd=tmp_path, env=env, check=True)
    assert work.is_dir()
    return path


@pytest.mark.slow("three environments")
async def test_a_file_address_is_fetched_here_and_carried_in(repository: Path, make: Make) -> None:
    task = a_task(f"file://{repository}", source="feature", target="main")
    async with make().open(task):
        assert inside(task, "git rev-parse --abbrev-ref HEAD") == "feature"
        assert inside(task, "git diff --name-only origin/main...HEAD") == "new.txt"
        assert inside(task, "git remote get-url origin; ls -A /workspace/tmp | grep -v kakoi-65533 || true") == f"file://{repository}"  # fmt: skip
    task = a_task(str(repository))
    async with make().open(task):
        assert inside(task, "git rev-parse --abbrev-ref HEAD") == "main"
    with pytest.raises(CloneError, match="does not exist"):
        await make().prepare(a_task(f"file://{repository}-gone"))


@pytest.mark.requirement("A-042", "A-043")
@pytest.mark.parametrize(("depth", "count"), [(1, "1"), (None, "2")])
async def test_what_is_carried_in_has_no_more_history_than_was_asked_for(
    repository: Path, make: Make, depth: int | None, count: str
) -> None:
    task = a_task(f"file://{repository}", source="feature")
    async with make(clone=CloneOptions(depth=depth)).open(task):
        assert inside(task, "git rev-list --count HEAD") == count
        assert inside(task, "git fsck && git status -s && cat new.txt") == "new"


async def test_an_ssh_address_is_fetched_here_without_a_prompt(
    repository: Path, make: Make, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@ $SSH_AUTH_SOCK" >>{tmp_path}/asked\nfor last; do :; done\neval "$last"\n'
    )
    program.chmod(0o755)
    executor = ProcessExecutor(base_env={"PATH": f"{program.parent}:{os.environ['PATH']}"})
    task = a_task(f"git@host.example:{repository}", source="feature")
    async with make(executor=executor, ssh_env={"SSH_AUTH_SOCK": "/agent"}).open(task):
        assert inside(task, "git rev-parse --abbrev-ref HEAD") == "feature"
    asked = (tmp_path / "asked").read_text()
    assert "BatchMode=yes" in asked
    assert "git@host.example" in asked
    assert asked.endswith(" /agent\n")
