"""Clone a task's project into its environment, at the right branch, and leave no secret there.

Over HTTP git runs inside, with the credential in the environment of that one process. From ssh and
file addresses it is fetched on this machine and carried in: a sandbox has neither our keys nor our
files.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kakoi.errors import SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import SpawnOptions
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import SandboxAdapter
from kakoi.tasks.remotes import Credential, Remote, git_variables, parse_remote
from kakoi.tasks.task import Task

PROJECT: Final = "/workspace/project"
_BUNDLE: Final = "/workspace/tmp/.kakoi-bundle"
_CLONE_S: Final = 1800.0
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_CHUNK: Final = 1024 * 1024
# How far back the histories of two branches are fetched until they meet; then, all of it.
_DEEPEN: Final = (50, 500, 5000)
_CAUSES: Final = (
    (r"Authentication failed|could not read Username|HTTP 40[13]|error: 40[13]", "refused us"),
    (r"not found|does not appear to be a git repository|error: 404", "is not there"),
    (r"Remote branch .* not found|couldn't find remote ref", "has no such branch"),
    (r"No space left on device|Disk quota exceeded", "does not fit on the disk"),
    (r"Could not resolve|Failed to connect|Connection|timed out|early EOF|hung up|RPC failed",
     "could not be reached"),
)  # fmt: skip
_TRANSIENT: Final = "could not be reached"


class CloneError(SandboxError):
    """A project could not be had."""

    code = "CLONE_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions:
    """`depth`: how many commits; None is all."""

    depth: int | None = 1


class _Sleeps(Protocol):
    async def __call__(self, delay: float, /) -> object: ...


class Checkout:
    """Puts projects into one environment."""

    def __init__(
        self,
        sandbox: SandboxAdapter,
        executor: ProcessExecutor,
        options: CloneOptions,
        *,
        sleep: _Sleeps = asyncio.sleep,
    ) -> None:
        self._sandbox = sandbox
        self._executor = executor
        self._options = options
        self._sleep = sleep

    async def clone(self, task: Task, credential: Credential | None = None) -> None:
        """Clone `task`'s project to /workspace/project; CloneError says why that failed."""
        remote = parse_remote(task.repository)
        credential = remote.credential or credential
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
            if attempt == _TRIES or error.details["cause"] != _TRANSIENT:
                raise error
            await self._sleep(_PAUSE_S * attempt)

    async def _fetch_target(
        self, remote: Remote, task: Task, target: str, credential: Credential | None
    ) -> None:
        """Fetch the branch to merge into, and as much history as both have in common."""
        refspec = f"+refs/heads/{target}:refs/remotes/origin/{target}"
        depth = self._options.depth
        shallow = [] if depth is None else [f"--depth={depth}"]
        await self._must(["git", "fetch", "-q", *shallow, "origin", refspec], remote, credential)
        if depth is None:
            return
        for more in (*(f"--deepen={count}" for count in _DEEPEN), "--unshallow"):
            common = ["git", "merge-base", f"origin/{target}", "HEAD"]
            if (await self._git(common, None, None)).ok:
                return
            argv = ["git", "fetch", "-q", more, "origin", task.source_branch or "HEAD", refspec]
            # What is whole already cannot be deepened; that is no failure.
            await self._git(argv, remote, credential)

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
        variables = git_variables(remote, credential)
        return await self._sandbox.run(
            Command(command=argv, cwd=cwd, env=variables, timeout_s=_CLONE_S, spill_bytes=0)
        )

    # --- Fetched here, carried in ------------------------------------------------------------

    async def _carry_in(self, remote: Remote, task: Task) -> None:
        with tempfile.TemporaryDirectory(prefix="kakoi-clone-") as folder:
            bundle = await self._fetch_here(remote, task, folder)
            await self._send(bundle)
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        steps = [
            ["git", "clone", "--quiet", *branch, "--", _BUNDLE, PROJECT],
            ["git", "-C", PROJECT, "remote", "set-url", "origin", remote.url],
            ["rm", "-f", _BUNDLE],
        ]
        for argv in steps:
            result = await self._git(argv, None, None, cwd="/workspace")
            if not result.ok:
                raise _failure(result, remote, None)

    async def _fetch_here(self, remote: Remote, task: Task, folder: str) -> Path:
        """A bundle of the project, made by our own git with our own keys."""
        variables = dict(git_variables())
        if remote.scheme == "ssh":
            variables["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
        bare, bundle = Path(folder, "project.git"), Path(folder, "project.bundle")
        only = [] if task.source_branch is None else ["--branch", task.source_branch]
        for argv in (
            ["clone", "--quiet", "--bare", *only, "--", remote.url, str(bare)],
            ["-C", str(bare), "bundle", "create", "--quiet", str(bundle), "HEAD", "--branches"],
        ):
            await self._git_here(argv, variables, remote)
        return bundle

    async def _git_here(
        self, argv: Sequence[str], variables: Mapping[str, str], remote: Remote
    ) -> None:
        options = SpawnOptions(env=variables, timeout=_CLONE_S * 1000)
        done = await self._executor.spawn("git", argv, options)
        if done.exit_code != 0:
            raise _clone_error(done.stderr, remote)

    async def _send(self, bundle: Path) -> None:
        channel = await self._sandbox.channel()
        command = Command(command=["tee", _BUNDLE], stdin_open=True, max_output_bytes=0)
        file = await asyncio.to_thread(bundle.open, "rb")
        with contextlib.closing(file):
            async with channel.open(command) as running:
                while data := await asyncio.to_thread(file.read, _CHUNK):
                    await running.write(data)
                await running.close_stdin()
                result = await running.result()
        if not result.ok:
            raise CloneError(
                f"the project could not be carried into its environment: {result.stderr.strip()}",
                details={"cause": "could not be written"},
            )


def _failure(result: ExecutionResult, remote: Remote, credential: Credential | None) -> CloneError:
    said = result.stderr if credential is None else credential.hide(result.stderr)
    if result.reason is Reason.TIMED_OUT:
        said = f"git was not done after {_CLONE_S:g} s: Connection timed out\n{said}"
    elif result.reason is not Reason.EXITED:
        said = f"{result.error or result.reason}\n{said}"
    return _clone_error(said, remote)


def _clone_error(said: str, remote: Remote) -> CloneError:
    cause = next((words for pattern, words in _CAUSES if re.search(pattern, said)), "failed")
    last = said.strip().splitlines()[-1:] or ["git said nothing"]
    hints = {
        "refused us": "is GITHUB_PERSONAL_ACCESS_TOKEN or GITLAB_PERSONAL_ACCESS_TOKEN set, and may"
        " it read this repository?",
        "does not fit on the disk": "raise resources.disk_limit, or clone with less depth",
    }
    return CloneError(
        f"cloning {remote.url} failed: it {cause} ({last[0][:300]})",
        details={"cause": cause, "repository": remote.url, "stderr": said[-2000:]},
        hint=hints.get(cause, "look at the address, and try `git ls-remote` with it"),
    )
