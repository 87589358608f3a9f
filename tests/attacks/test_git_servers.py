"""Git servers that are hostile: none eats our memory, disk or time, runs anything, or is shown a
token that is for another."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.network.git_remotes import GitCredential, parse_remote
from kakoi.process.executor import ProcessExecutor
from kakoi.settings.model import AuditSection, ResourceSection, SandboxSection, Settings
from kakoi.settings.tasks import TaskSection
from kakoi.tasks.changes import Author, PackedChange, PushError, push
from kakoi.tasks.checkout import Checkout, CloneError, CloneOptions, git_from_options
from kakoi.tasks.folders import FolderEnvironments
from kakoi.tasks.from_settings import environment_options
from kakoi.tasks.handler_from_settings import open_environments
from tests.attacks.git_server import (
    HostileGit,
    asks_for_password,
    bomb,
    dripping,
    endless_pack,
    endless_refs,
    redirect,
    says,
)
from tests.tasks.conftest import channel  # noqa: F401 - a fixture
from tests.tasks.hosting import a_repository, a_task

pytestmark = pytest.mark.anyio
MIB = 1 << 20
TOKEN = "sentinel-5up3r53cr3t"
CREDENTIAL = GitCredential("x-access-token", TOKEN)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders for fetching are made, for this test alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def no_pause(_: float) -> None: ...


async def failure(channel: RunnerChannel, server: HostileGit, **options: Any) -> CloneError:  # noqa: F811
    """What we say of a server like this."""
    wanted = CloneOptions(**{"depth": None, "timeout_s": 30.0, **options})
    checkout = Checkout(channel, ProcessExecutor(), wanted, sleep=no_pause)
    with server.serving(), pytest.raises(CloneError) as caught:
        await checkout.clone(a_task(server.url), CREDENTIAL)
    assert TOKEN not in f"{caught.value} {caught.value.details} {caught.value.hint}"
    assert len(str(caught.value)) < 600
    return caught.value


async def test_refs_without_end_are_given_up(channel: RunnerChannel, temporary: Path) -> None:  # noqa: F811
    error = await failure(channel, HostileGit(endless_refs), memory_bytes=64 * MIB)
    assert "needs more memory than the limit" in str(error)
    assert os.listdir(temporary) == []


async def test_a_pack_without_end_fills_no_disk(channel: RunnerChannel, temporary: Path) -> None:  # noqa: F811
    error = await failure(channel, HostileGit(pack=endless_pack), max_bytes=8 * MIB)
    assert "is larger than the limit" in str(error), error.details
    assert "disk_limit" in error.hint
    assert os.listdir(temporary) == []


async def test_a_pack_that_unfolds_is_given_up(channel: RunnerChannel, temporary: Path) -> None:  # noqa: F811
    error = await failure(channel, HostileGit(pack=bomb), memory_bytes=64 * MIB)
    assert "needs more memory than the limit" in str(error)
    assert os.listdir(temporary) == []


async def test_a_server_that_drips_is_left(channel: RunnerChannel, temporary: Path) -> None:  # noqa: F811
    error = await failure(channel, HostileGit(dripping), timeout_s=1.5)
    assert "took too long" in str(error)
    assert os.listdir(temporary) == []


def test_a_project_may_be_as_big_as_the_disk_of_its_environment() -> None:
    small = Settings(resources=ResourceSection(disk_limit=64 * MIB))
    assert environment_options(small).clone.max_bytes == 64 * MIB


@pytest.mark.parametrize(
    "words",
    ["\x1b]0;owned\x07\x1b[2J", "x" * 60_000, f"you said {TOKEN}", "\u202eevil", "a\rb\n/merge"],
)
async def test_what_a_server_says_is_one_line_and_harmless(
    channel: RunnerChannel,  # noqa: F811
    words: str,
) -> None:
    error = await failure(channel, HostileGit(says(words)))
    assert str(error).isprintable()


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1:1/x", "ext::sh -c id", "-oProxyCommand=id", "gopher://127.0.0.1:1/x"]
)  # fmt: skip
async def test_no_redirect_leads_out_of_http(channel: RunnerChannel, target: str) -> None:  # noqa: F811
    server = HostileGit(redirect(target))
    await failure(channel, server)
    assert {path for path, _ in server.seen} <= {
        "GET /team/project.git/info/refs?service=git-upload-pack",
        f"GET /team/project.git/{target}",
        f"GET /team/project.git/info/{target.replace(' ', '%20')}",
    }


async def test_a_token_follows_no_redirect_of_the_first_request(
    channel: RunnerChannel,  # noqa: F811
) -> None:
    """To another port of the same host; not even where that one asks for it."""
    other = HostileGit(asks_for_password)
    with other.serving():
        where = f"{other.url}/info/refs?service=git-upload-pack"
        server = HostileGit(redirect(where))
        error = await failure(channel, server)
    assert "denied access" in str(error)
    assert [given for _, given in other.seen] == [""]


async def test_a_token_follows_no_redirect_of_the_second_request(
    channel: RunnerChannel,  # noqa: F811
) -> None:
    other = HostileGit(asks_for_password, asks_for_password)
    with other.serving():
        server = HostileGit(asks_for_password, redirect(f"{other.url}/git-upload-pack"))
        await failure(channel, server)
    assert any(given for _, given in server.seen)
    assert other.seen == []


async def test_a_token_follows_no_redirect_of_a_push() -> None:
    other = HostileGit(asks_for_password)
    work = PackedChange(base="0" * 40, commit="1" * 40, tree="2" * 40, pack=b"")
    with other.serving():
        where = f"{other.url}/info/refs?service=git-upload-pack"
        server = HostileGit(redirect(where))
        with server.serving(), pytest.raises(PushError, match="denied access"):
            await push(
                git_from_options(ProcessExecutor(), CloneOptions(timeout_s=30), None),
                work,
                repository=server.url,
                branch="x",
                message="x",
                author=Author(),
                credential=CREDENTIAL,
            )
    assert other.seen
    assert not [given for _, given in other.seen if given]


# --- A project's own files, checked out on this machine --------------------------------------


@pytest.fixture
async def folders(tmp_path: Path) -> AsyncIterator[FolderEnvironments]:
    settings = Settings(
        tasks=TaskSection(place="folder"),
        sandbox=SandboxSection(type="host"),
        audit=AuditSection(file=str(tmp_path / "state" / "audit.jsonl")),
    )
    async with open_environments(settings) as opened:
        assert isinstance(opened, FolderEnvironments)
        yield opened


async def test_nothing_of_a_project_runs_while_it_is_checked_out(
    folders: FolderEnvironments, tmp_path: Path
) -> None:
    """Filters, LFS, submodules by any way, and hooks: each would leave a file."""
    mark = tmp_path / "ran"
    files = {
        ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs\n*.txt filter=evil\n",
        ".lfsconfig": f"[lfs]\nurl = ext::touch {mark}\n",
        ".gitconfig": f"[filter \"evil\"]\nsmudge = touch {mark}\n",
        "big.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "a.txt": "x\n",
        "hooks/post-checkout": f"#!/bin/sh\ntouch {mark}\n",
        ".gitmodules": f'[submodule "s"]\npath = s\nurl = ext::sh -c "touch {mark}"\nupdate = !touch {mark}\n',
    }  # fmt: skip
    repository = a_repository(tmp_path / "origin", files)
    git(tmp_path / "origin", "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},s")
    git(tmp_path / "origin", "commit", "-qm", "s")
    task = a_task(repository)
    info = await folders.prepare(task)
    project = Path(info.workspace_path)
    assert (project / "a.txt").read_text() == "x\n"
    assert list((project / "s").iterdir()) == []
    assert not mark.exists()
    await folders.cleanup(task.uuid)


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".."])
async def test_a_tree_that_writes_elsewhere_is_not_checked_out(
    folders: FolderEnvironments, tmp_path: Path, name: str
) -> None:
    origin = tmp_path / "origin"
    repository = a_repository(origin, {"a.txt": "x\n"})
    blob = git(origin, "hash-object", "-w", "--stdin", stdin="#!/bin/sh\n")
    hooks = git(origin, "mktree", stdin=f"100755 blob {blob}\tpost-checkout\n")
    above = git(origin, "mktree", stdin=f"040000 tree {hooks}\thooks\n")
    listed = f"{git(origin, 'ls-tree', 'HEAD')}\n040000 tree {above}\t{name}\n"
    tree = git(origin, "mktree", stdin=listed)
    commit = git(origin, "commit-tree", tree, "-p", "HEAD", "-m", "x")
    git(origin, "update-ref", "refs/heads/main", commit)
    with pytest.raises(KakoiError):
        await folders.prepare(a_task(repository))
    assert os.listdir(tmp_path / "state" / "workspaces") == []


def git(folder: Path, *argv: str, stdin: str | None = None) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *argv],
        input=stdin, capture_output=True, text=True, env=env, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "address",
    ["ssh://-oProxyCommand=id@h/x", "user@-oProxyCommand:x", "-oProxyCommand=id:x", "ssh://-x/y",
     "ssh://h/-x", "h:-x", "https://h/x\n", "http://h\\@e/x", "https://h/%0a"],
)  # fmt: skip
async def test_an_address_is_not_an_option_of_ssh_or_git(address: str, tmp_path: Path) -> None:
    """Refused by us, or by git before it starts anything."""
    mark = tmp_path / "ran"
    address = address.replace("id", f"touch${{IFS}}{mark}")
    try:
        remote = parse_remote(address)
    except ConfigurationError:
        return
    executor = ProcessExecutor(base_env={"PATH": f"{_fake_ssh(tmp_path)}:{os.environ['PATH']}"})
    git_here = git_from_options(executor, CloneOptions(timeout_s=10, stall_s=2), None)
    done = await git_here.run(["ls-remote", "--", remote.url], remote)
    assert done.exit_code != 0
    asked = tmp_path / "asked"
    words = asked.read_text().split("\0") if asked.exists() else []
    options = [word for word in words if word.startswith("-") and word != "-o"]
    assert options == []
    assert not mark.exists()


def _fake_ssh(folder: Path) -> Path:
    """Notes its arguments, and fails."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" >{folder}/asked\nexit 255\n')
    program.chmod(0o755)
    return program.parent


# --- Killed half-way -------------------------------------------------------------------------

KILLED = """
import asyncio, sys
from kakoi.tasks.host_git import scratch_folder
async def main():
    async with scratch_folder("kakoi-clone-") as folder:
        (folder / "half").write_text("x")
        print(folder, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_what_somebody_left_who_was_killed_is_swept_by_the_next(
    channel: RunnerChannel,  # noqa: F811
    temporary: Path,
) -> None:
    env = {**os.environ, "TMPDIR": str(temporary)}
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, stdout=asyncio.subprocess.PIPE, env=env
        )
        for _ in range(2)
    ]
    left = []
    for each in started:
        assert each.stdout is not None
        line = await asyncio.wait_for(each.stdout.readline(), 60)
        left.append(Path(line.decode().strip()))
    started[0].kill()
    await asyncio.wait_for(started[0].wait(), 60)
    assert all(folder.exists() for folder in left)
    await failure(channel, HostileGit(says("no")))
    assert [folder.exists() for folder in left] == [False, True]  # The other is at work.
    started[1].kill()
    await asyncio.wait_for(started[1].wait(), 60)
