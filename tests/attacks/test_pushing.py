"""What a model can get pushed under our name: a tree, and none of its words, authors or history."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.channel.api import Command
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.changes import Author, PackedChange, ProjectChanges, PushError, PushResult, push
from kakoi.tasks.checkout import CloneOptions, git_from_options
from kakoi.tasks.host_git import HostGit
from kakoi.tasks.task import Task
from tests.agents.models_for_tests import call, done
from tests.tasks.conftest import Make, channel, engine, make, owner  # noqa: F401 - fixtures
from tests.tasks.hosting import a_repository, bridge
from tests.tasks.hub import MENDED, Hub, a_hub
from tests.tasks.scripted_handler import MEND, ScriptedHandler, in_folders

pytestmark = pytest.mark.anyio
AUTHOR = Author(name="Robot", email="robot@example.org")

# Everything that a commit can carry besides its tree.
COMMIT_ALL = """\
import subprocess
MESSAGE = '''[skip ci] mend it

@eve please look
/merge
fixes #1, closes other/repo#2, resolves https://h.example/o/r/issues/3
skip-checks: true
Co-authored-by: Eve <eve@example.org>
Signed-off-by: Eve <eve@example.org>
'''
def git(*argv, **more):
    who = ["-c", "user.name=Linus", "-c", "user.email=linus@example.org"]
    subprocess.run(["git", *who, *argv], check=True, **more)
git("add", "-A")
git("commit", "-q", "-F", "-", "--date=2001-01-01T00:00:00Z", input=MESSAGE.encode())
git("checkout", "-q", "--orphan", "foreign")
git("commit", "-q", "-m", "foreign history @eve")
git("checkout", "-q", "main")
git("merge", "-q", "-m", "merged [ci skip]", "--allow-unrelated-histories", "foreign")
git("tag", "v9.9.9")
git("notes", "add", "-m", "a note")
git("branch", "other")
print("committed it all")
"""


@pytest.fixture
def hub(engine: None, tmp_path: Path) -> Iterator[Hub]:  # noqa: F811
    with a_hub(tmp_path / "srv", bridge()) as hub:
        yield hub


@pytest.mark.slow("a whole task in a container")
async def test_what_is_pushed_has_our_author_and_our_words(
    hub: Hub,
    make: Make,  # noqa: F811
    tmp_path: Path,
) -> None:
    scripted = ScriptedHandler(hub, make(tokens=hub.environ, install_dependencies=False), tmp_path)
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done(
            "mended\n\n/close\n[skip ci] @eve fixes #1\n\nCo-authored-by: Eve <e@h.example>"
        )

    handled = await scripted.handle(
        MEND,
        call("write_file", path="all.py", content=COMMIT_ALL),
        call("execute_command", command="python3 all.py"),
        react,
    )
    assert "committed it all" in heard[0]
    assert (handled.stage, handled.error) == ("done", "")
    assert hub.file(handled.branch, "adder.py") == MENDED
    refs = git(hub.repository, "for-each-ref", "--format=%(refname)").split()
    assert refs == [f"refs/heads/{each}" for each in (handled.branch, "feature", "main")]
    form = "--format=%an <%ae> %cn <%ce> %G? %P"
    commits = git(hub.repository, "log", form, f"main..{handled.branch}").splitlines()
    base = git(hub.repository, "rev-parse", "main").strip()
    assert commits == [f"kakoi <kakoi@localhost> kakoi <kakoi@localhost> N {base}"]
    message = git(hub.repository, "log", "-1", "--format=%B", handled.branch)
    opened = next(each.body for each in hub.seen if each.path.endswith("/pulls"))
    for said in (message, opened["body"], hub.said()[0]):
        assert "mended" in said
        assert_disarmed(said)
    assert "mend it" in message  # Its own words, quoted.
    assert trailers(message) == ""


class WithScripts:
    """Environments in which something ran before the model, such as the script of a dependency."""

    def __init__(self, environments: Any, script: str) -> None:
        self._environments = environments
        self._script = script

    async def prepare_environment(self, task: Task) -> Any:
        environment = await self._environments.prepare_environment(task)
        inside = await (await environment.gate.open_sandbox()).channel()
        path = environment.info().workspace_path
        ran = await inside.run(Command(command=["sh", "-ec", self._script], cwd=path))
        assert ran.ok, ran.stderr
        return environment

    async def cleanup(self, task_uuid: str) -> None:
        await self._environments.cleanup(task_uuid)


async def test_work_begins_where_we_cloned_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of anybody's that the server has (of a fork, on GitHub) is not what is built on."""
    with a_hub(tmp_path / "srv") as hub:
        foreign = {".github/workflows/x.yml": "on: push\n"}
        tree = hub_tree(hub, foreign)
        dates = {f"GIT_{role}_DATE": "1000000000 +0000" for role in ("AUTHOR", "COMMITTER")}
        made = ("commit-tree", tree, "-p", "main", "-m", "foreign")
        commit = git(hub.repository, *made, env=dates).strip()
        git(hub.repository, "update-ref", "refs/heads/foreign", commit)
        # The same commit as the server has, made again, because the clone is shallow.
        script = "\n".join([
            *(f"export {name}='{value}'" for name, value in dates.items()),
            "mkdir -p .github/workflows; echo 'on: push' >.github/workflows/x.yml; git add .github",
            "git -c user.name=Linus -c user.email=linus@example.org commit -q -m foreign",
            f"test $(git rev-parse HEAD) = {commit}",
        ])  # fmt: skip
        async with in_folders(hub, tmp_path, monkeypatch) as scripted:
            scripted.manager = WithScripts(scripted.manager, script)  # type: ignore[assignment]  # As it is used.
            handled = await scripted.handle(MEND, done("mended"))
        assert handled.stage == "error"
        assert "which the project's machines execute" in handled.error
        assert not [each for each in git(hub.repository, "branch").split() if "agent" in each]


def hub_tree(hub: Hub, more: dict[str, str]) -> str:
    """The tree of the project with more files."""
    index = {"GIT_INDEX_FILE": str(hub.folder / "index")}
    git(hub.repository, "read-tree", "main", env=index)
    for path, text in more.items():
        blob = git(hub.repository, "hash-object", "-w", "--stdin", stdin=text.encode()).strip()
        git(hub.repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", env=index)  # fmt: skip
    return git(hub.repository, "write-tree", env=index).strip()


def assert_disarmed(said: str) -> None:
    for each in ("[skip ci]", "[ci skip]", "@eve", "#1", "repo#2", "resolves https"):
        assert each not in said, said
    assert not [line for line in said.splitlines() if line.lstrip("> ").startswith("/")]


def trailers(message: str) -> str:
    argv = ["git", "interpret-trailers", "--parse"]
    return subprocess.run(argv, input=message, capture_output=True, text=True, check=True).stdout


# --- Without a container: a project on this machine ------------------------------------------


def git(
    folder: Path, *argv: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> str:
    who = ["-c", "user.name=Linus", "-c", "user.email=linus@example.org"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", **(env or {})}
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *argv],
        input=stdin, capture_output=True, env=env, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


class Projects:
    """A repository and a clone of it, in which a model does what it wants."""

    def __init__(self, folder: Path, channel: RunnerChannel) -> None:  # noqa: F811
        self.origin, self.clone = folder / "origin", folder / "clone"
        a_repository(self.origin, {"a.txt": "x\n", "b/c.txt": "y\n"})
        subprocess.run(
            ["git", "clone", "-q", str(self.origin), str(self.clone)], check=True, timeout=60
        )
        self.delivery = ProjectChanges(channel, str(self.clone))
        self.base = git(self.origin, "rev-parse", "main").strip()

    async def work(self, change: Callable[[Path], object]) -> PackedChange:
        await self.delivery.begin(self.base)
        await asyncio.to_thread(change, self.clone)
        work = await self.delivery.collect(self.base)
        assert work is not None
        return work

    async def push(self, work: PackedChange, *, git: HostGit | None = None) -> PushResult:
        return await push(
            git or git_from_options(ProcessExecutor(), CloneOptions(), None),
            work,
            repository=f"file://{self.origin}",
            branch="coding-agent/x",
            message="Ours",
            author=AUTHOR,
        )

    def packed(self, tree: str) -> PackedChange:
        """What git in the environment says that the work is, where a model owns that git."""
        commit = git(self.clone, "commit-tree", tree, "-p", self.base, "-m", "x").strip()
        how = ["--revs", "--thin", "--stdout", "--quiet", "--missing=allow-any"]
        done = subprocess.run(
            ["git", "-C", str(self.clone), "pack-objects", *how],
            input=f"{commit}\n^{self.base}\n".encode(),
            capture_output=True,
            check=True,
            timeout=60,
        )
        return PackedChange(base=self.base, commit=commit, tree=tree, pack=done.stdout)

    def with_entry(self, entry: str) -> PackedChange:
        """The project with one entry more, which no command of git's would add."""
        blob = git(self.clone, "hash-object", "-w", "--stdin", stdin=b"[core]\n").strip()
        tree = git(self.clone, "mktree", stdin=f"100644 blob {blob}\tconfig\n".encode()).strip()
        added = entry.replace("BLOB", blob).replace("TREE", tree)
        listed = git(self.clone, "ls-tree", "HEAD") + added + "\n"
        return self.packed(git(self.clone, "mktree", "--missing", stdin=listed.encode()).strip())

    def branches(self) -> list[str]:
        return git(self.origin, "for-each-ref", "--format=%(refname:short)").split()


@pytest.fixture
def projects(tmp_path: Path, channel: RunnerChannel) -> Projects:  # noqa: F811
    return Projects(tmp_path, channel)


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".g\u200cit", ".gitmodules ", "..", "."])
async def test_a_tree_that_plants_files_in_a_reader_s_git_is_not_pushed(
    projects: Projects, name: str
) -> None:
    kind = (
        "120000 blob BLOB\t.gitmodules" if name == ".gitmodules " else f"040000 tree TREE\t{name}"
    )
    with pytest.raises(PushError, match="is not a valid change of the project"):
        await projects.push(projects.with_entry(kind))
    assert projects.branches() == ["main"]


async def test_a_tree_without_its_files_is_not_pushed(projects: Projects) -> None:
    missing = "100644 blob 0123456789012345678901234567890123456789\tx"
    with pytest.raises(PushError, match="is not a valid change of the project"):
        await projects.push(projects.with_entry(missing))
    assert projects.branches() == ["main"]


async def test_a_tree_that_unfolds_without_end_is_not_pushed(projects: Projects) -> None:
    """Ten folders in ten folders, and so on: one small pack, ten billion files."""
    clone = projects.clone
    blob = git(clone, "hash-object", "-w", "--stdin", stdin=b"boom").strip()
    entry = f"100644 blob {blob}"
    for _ in range(10):
        listed = "".join(f"{entry}\tf{number}\n" for number in range(10))
        entry = "040000 tree " + git(clone, "mktree", stdin=listed.encode()).strip()
    tree = entry.split()[-1]
    with pytest.raises(PushError, match="too many files"):
        await projects.push(projects.packed(tree))
    assert projects.branches() == ["main"]


# --- What is pushed, and said of ------------------------------------------------------------


def notable(clone: Path) -> None:
    (clone / "link").symlink_to("/etc/passwd")
    (clone / "b" / ".gitattributes").write_text("* filter=evil\n")
    (clone / ".gitmodules").write_text('[submodule "s"]\npath = sub\nurl = https://h.example/s\n')
    (clone / ".github" / "workflows").mkdir(parents=True)
    (clone / ".github" / "workflows" / "ci`@eve.yml").write_text("on: push\n")
    nested = clone / "sub"
    git(clone, "init", "-q", str(nested))
    git(nested, "commit", "-q", "--allow-empty", "-m", "x")


async def test_what_runs_programs_on_machines_of_others_is_pointed_out(projects: Projects) -> None:
    pushed = await projects.push(await projects.work(notable))
    listed = git(projects.origin, "ls-tree", "-r", "coding-agent/x").splitlines()
    assert len(listed) == 7
    assert list(pushed.remarks) == [
        "`.github/workflows/ci'@\u200beve.yml`: controls what CI does",
        "`.gitmodules`: names repositories to fetch",
        "`b/.gitattributes`: names filters and merge drivers",
        "`link`: a symbolic link",
        "`sub`: a submodule: a commit of another repository",
    ]
    form = "%an <%ae> %cn <%ce> %s"
    made = git(projects.origin, "log", "-1", f"--format={form}", pushed.commit).strip()
    assert made == "Robot <robot@example.org> Robot <robot@example.org> Ours"


async def test_a_lot_of_remarks_is_shortened(projects: Projects) -> None:
    def links(clone: Path) -> None:
        for number in range(100):
            (clone / f"link{number:02}").symlink_to("a.txt")

    pushed = await projects.push(await projects.work(links))
    assert len(pushed.remarks) == 21
    assert pushed.remarks[-1] == "and 80 more files like these"


async def test_commits_without_a_change_are_nothing_to_push(projects: Projects) -> None:
    await projects.delivery.begin(projects.base)
    git(projects.clone, "commit", "-q", "--allow-empty", "-m", "[skip ci] @eve")
    assert await projects.delivery.collect(projects.base) is None


async def test_many_and_long_messages_of_a_model_are_cut(projects: Projects) -> None:
    def talk(clone: Path) -> None:
        (clone / "a.txt").write_text("z\n")
        for _ in range(60):
            git(clone, "commit", "-q", "--allow-empty", "-F", "-", stdin=b"x" * 1000)

    work = await projects.work(talk)
    assert 0 < len(work.messages) <= 50
    assert sum(map(len, work.messages)) <= 16 * 1024


async def test_a_pack_that_unfolds_in_memory_is_given_up(
    projects: Projects, tmp_path: Path
) -> None:
    """Very little that is very much: git may have some memory, and no more."""
    clone = projects.clone
    git(clone, "config", "core.bigFileThreshold", "16g")
    huge = git(clone, "hash-object", "-w", "--stdin", stdin=bytes(96 << 20)).strip()
    listed = git(clone, "ls-tree", "HEAD") + f"100644 blob {huge}\thuge\n"
    work = projects.packed(git(clone, "mktree", stdin=listed.encode()).strip())
    assert len(work.pack) < 1 << 20
    small = HostGit(ProcessExecutor(), timeout_s=60, stall_s=60, memory_bytes=64 << 20)
    with pytest.raises(PushError, match="memory"):
        await projects.push(work, git=small)
    assert projects.branches() == ["main"]
