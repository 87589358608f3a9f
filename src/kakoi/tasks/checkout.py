"""Clone a task's project into its environment, at the right branch, and leave no secret there.

Over HTTP git runs inside, with the credential in the environment of that one process. From ssh and
file addresses it is fetched on this machine and carried in: a sandbox has neither our keys nor our
files.
"""

import asyncio
import logging
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kakoi.errors import SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Channel, Command
from kakoi.tasks.our_git import OurGit
from kakoi.tasks.remotes import Credential, Remote, git_variables, parse_remote
from kakoi.tasks.sending import send_file
from kakoi.tasks.task import Task

_log = logging.getLogger(__name__)
PROJECT: Final = "/workspace/project"
_CARRIED_TO, _CARRIED = "/workspace/tmp", ".kakoi-project.git"
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
# How far back the histories of two branches are fetched until they meet; then, all of it.
_DEEPEN: Final = (50, 500, 5000)
_NO_GIT: Final = "the image has no git"
_CAUSES: Final = (
    (_NO_GIT, "could not begin"),
    (r"Host key verification failed|No .* host key is known", "has a host key that is not known"),
    (r"Permission denied \(|Authentication failed|could not read (Username|Password)|error: 40[13]",
     "refused us"),
    (r"Remote branch .* not found|couldn't find remote ref", "has no such branch"),
    (r"not found|does not appear to be a git repository|does not exist|error: 404", "is not there"),
    (r"No space left on device|Disk quota|unable to write file", "does not fit on the disk"),
    (r"Could not resolve|Failed to connect|Connection|timed out|too slow|early EOF|hung up"
     r"|RPC failed|error: 5\d\d|Empty reply", "could not be reached"),
    (r"was not done after", "took too long"),
)  # fmt: skip
_TRANSIENT: Final = "could not be reached"
_LONGEST_LINE: Final = 500
_LONGEST_SAID: Final = 64 * 1024


class CloneError(SandboxError):
    """A project could not be had."""

    code = "CLONE_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions:
    """`depth`: how many commits; None is all. `timeout_s`: for one git process in all;
    `stall_s`: without a byte from the server. `known_hosts`: a file of ssh's with the keys of hosts
    that we talk to; empty is the user's own."""

    depth: int | None = 1
    timeout_s: float = 1800.0
    stall_s: float = 60.0
    known_hosts: str = ""


def our_git(
    executor: ProcessExecutor, options: CloneOptions, ssh_env: Mapping[str, str] | None
) -> OurGit:
    """Git on this machine, as patient as the options say."""
    return OurGit(
        executor,
        timeout_s=options.timeout_s,
        stall_s=options.stall_s,
        known_hosts=options.known_hosts,
        ssh_env=ssh_env,
    )


class _Sleeps(Protocol):
    async def __call__(self, delay: float, /) -> object: ...


class Checkout:
    """Puts projects into one environment.

    `channel`: the runner at its end sees the secret; no command can look into its memory.
    `ssh_env`: variables of ssh on this machine, such as that of its agent.
    """

    def __init__(
        self,
        channel: Channel,
        executor: ProcessExecutor,
        options: CloneOptions,
        *,
        ssh_env: Mapping[str, str] | None = None,
        sleep: _Sleeps = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._git_here = our_git(executor, options, ssh_env)
        self._options = options
        self._sleep = sleep

    async def clone(self, task: Task, credential: Credential | None = None) -> None:
        """Clone `task`'s project to /workspace/project; CloneError says why that failed."""
        remote = parse_remote(task.repository)
        credential = remote.credential_or(credential)
        if remote.from_outside:
            await self._carry_in(remote, task)
        else:
            await self._clone_inside(remote, task, credential)
        if task.target_branch is not None and not remote.from_outside:
            await self._fetch_target(remote, task, task.target_branch, credential)

    # --- Over HTTP, inside -------------------------------------------------------------------

    async def _clone_inside(
        self, remote: Remote, task: Task, credential: Credential | None
    ) -> None:
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        depth = self._options.depth
        shallow = [] if depth is None else ["--depth", str(depth)]
        argv = ["git", "clone", "--quiet", *branch, *shallow, "--", remote.url, PROJECT]
        for attempt in range(1, _TRIES + 1):
            result = await self._git(argv, remote, credential, cwd="/workspace")
            if result.ok:
                return
            error = _failure(result, remote, credential)
            if attempt == _TRIES or error.details.get("cause") != _TRANSIENT:
                raise error
            _log.warning("trying again: %s", error)
            await self._sleep(_PAUSE_S * attempt)
            # Git takes back what it began, unless it was killed.
            empty = ["find", PROJECT, "-mindepth", "1", "-delete"]
            await self._git(empty, None, None, cwd="/workspace")

    async def _fetch_target(
        self, remote: Remote, task: Task, target: str, credential: Credential | None
    ) -> None:
        """Fetch the branch to merge into, and as much history as both have in common."""
        refspec = f"+refs/heads/{target}:refs/remotes/origin/{target}"
        depth = self._options.depth
        shallow = [] if depth is None else [f"--depth={depth}"]
        await self._must(["git", "fetch", "-q", *shallow, "origin", refspec], remote, credential)
        for more in (*(f"--deepen={count}" for count in _DEEPEN), "--unshallow"):
            common = ["git", "merge-base", f"origin/{target}", "HEAD"]
            if (await self._git(common, None, None)).ok:
                return
            if not await self._is_shallow():
                break
            argv = ["git", "fetch", "-q", more, "origin", task.source_branch or "HEAD", refspec]
            await self._must(argv, remote, credential)
        _log.warning("task %s: its branch and %s have no history in common", task.uuid, target)

    async def _is_shallow(self) -> bool:
        asked = ["git", "rev-parse", "--is-shallow-repository"]
        return (await self._git(asked, None, None)).stdout.strip() == "true"

    async def _must(
        self, argv: Sequence[str], remote: Remote, credential: Credential | None
    ) -> None:
        result = await self._git(argv, remote, credential)
        if not result.ok:
            raise _failure(result, remote, credential)

    async def _git(
        self,
        argv: Sequence[str],
        remote: Remote | None,
        credential: Credential | None,
        *,
        cwd: str = PROJECT,
    ) -> ExecutionResult:
        variables = git_variables(remote, credential, stall_s=self._options.stall_s)
        timeout_s = self._options.timeout_s
        return await self._channel.run(
            Command(command=argv, cwd=cwd, env=variables, timeout_s=timeout_s, spill_bytes=0)
        )

    # --- Fetched here, carried in ------------------------------------------------------------

    async def _carry_in(self, remote: Remote, task: Task) -> None:
        with tempfile.TemporaryDirectory(prefix="kakoi-clone-") as folder:
            archive = await self._fetch_here(remote, task, folder)
            unpack = Command(command=["tar", "-x", "-f", "-", "-C", _CARRIED_TO])
            result = await send_file(self._channel, unpack, archive)
        if not result.ok:
            raise _failure(result, remote, None)
        carried = f"{_CARRIED_TO}/{_CARRIED}"
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        steps = [
            ["git", "clone", "--quiet", *branch, "--", carried, PROJECT],
            ["git", "-C", PROJECT, "remote", "set-url", "origin", remote.url],
            ["rm", "-rf", carried],
        ]
        for argv in steps:
            result = await self._git(argv, None, None, cwd="/workspace")
            if not result.ok:
                raise _failure(result, remote, None)

    async def _fetch_here(self, remote: Remote, task: Task, folder: str) -> Path:
        """The project as an archive, fetched by our own git with our own keys.

        An archive of a repository, and no bundle: that cannot say where a short history ends.
        """
        bare = Path(folder, _CARRIED)
        only = [] if task.source_branch is None else ["--branch", task.source_branch]
        # Of two branches all of it: where they meet is known then.
        depth = self._options.depth if task.target_branch is None else None
        shallow = [] if depth is None else ["--depth", str(depth)]
        argv = ["clone", "--quiet", "--bare", *only, *shallow, "--", remote.url, str(bare)]
        done = await self._git_here.run(argv, remote)
        if done.exit_code != 0:
            raise clone_error(done.stderr, remote)
        return await asyncio.to_thread(_packed, bare)


def _packed(folder: Path) -> Path:
    """An archive of a folder, beside it. Its files are of whoever unpacks it."""

    def of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(folder, folder.name, filter=of_nobody)
    return path


def _failure(
    result: ExecutionResult, remote: Remote, credential: Credential | None
) -> SandboxError:
    said = result.stderr if credential is None else credential.hide(result.stderr)
    if result.reason is Reason.SANDBOX_LOST:
        return SandboxError(
            f"the environment was lost while its project was cloned: {result.error}"
        )
    if result.reason is Reason.TIMED_OUT:
        said = f"git was not done after {result.duration_ms // 1000} s"
    elif result.reason is Reason.NEVER_STARTED:
        said = f"{_NO_GIT}: {result.error}"
    elif result.reason is not Reason.EXITED:
        said = f"{said}\n{result.error or result.reason}"
    return clone_error(said, remote)


def clone_error(said: str, remote: Remote) -> CloneError:
    """What git said about a clone that failed, in our words."""
    # A server chooses much of it: the patterns take very long over a very long line.
    lines = [line[:_LONGEST_LINE] for line in said.strip()[-_LONGEST_SAID:].splitlines()]
    cause, told = "failed", (lines or ["git said nothing"])[-1]
    for pattern, words in _CAUSES:
        if found := re.search(f"^.*(?:{pattern}).*$", "\n".join(lines), re.MULTILINE):
            cause, told = words, found[0]
            break
    hints = {
        "refused us": "is the key in your ssh agent (ssh-add -l), and may it read this repository?"
        if remote.scheme == "ssh"
        else "is GITHUB_PERSONAL_ACCESS_TOKEN or GITLAB_PERSONAL_ACCESS_TOKEN set, and may"
        " it read this repository?",
        "has a host key that is not known": "ask its owner for the key, and add it to the file of"
        " known hosts (tasks.clone.known_hosts, else ~/.ssh/known_hosts)",
        "could not begin": "name an image with git in tasks.base_image",
        "does not fit on the disk": "raise resources.disk_limit, or clone with less depth",
    }
    return CloneError(
        f"cloning {remote.url} failed: it {cause} ({told.strip()[:300]})",
        details={"cause": cause, "repository": remote.url, "stderr": said[-2000:]},
        hint=hints.get(cause, "look at the address, and try `git ls-remote` with it"),
    )
