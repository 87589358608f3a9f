"""Clone a task's project into its environment, at the right branch, without exposing a secret.

The host's git fetches the project on this machine, with the credential in the environment of that
one process, and the result is copied in as an archive. The git of the image, which a project may
have chosen, only clones from that archive. If the environment has a proxy, the host's git uses it
over HTTP, so it fetches only from allowed hosts. An environment without a network still gets its
project.
"""

import asyncio
import contextlib
import logging
import re
import shutil
import socket
import tarfile
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from kakoi._support.asyncio import cancel_and_wait, finish
from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.channel.api import Channel, Command
from kakoi.errors import SandboxError
from kakoi.network.git_remotes import GitCredential, Remote, git_variables, parse_remote
from kakoi.network.proxy import Proxy
from kakoi.process.executor import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.settings.tasks import CloneSection
from kakoi.tasks.host_git import (
    FILE_TOO_LARGE,
    MAX_MEMORY_BYTES,
    MOST_FETCHED_BYTES,
    OUT_OF_MEMORY,
    HostGit,
    scratch_folder,
)
from kakoi.tasks.task import Task
from kakoi.tasks.transfer import send_file

_log = logging.getLogger(__name__)
# The folders of every environment.
WORKSPACE: Final = "/workspace"
PROJECT: Final = "/workspace/project"
TEMPORARY: Final = "/workspace/tmp"
_ARCHIVED: Final = ".kakoi-project.git"
_CLONE_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_LONG_S: Final = "86400"
# How many more commits to fetch until the histories of two branches meet; then fetch everything.
_DEEPEN: Final = (50, 500, 5000)
_NO_GIT: Final = "the image has no git"
_CAUSES: Final = (
    (_NO_GIT, "could not start"),
    (FILE_TOO_LARGE.pattern, "is larger than the limit"),
    (OUT_OF_MEMORY.pattern, "needs more memory than the limit"),
    (r"Host key verification failed|No .* host key is known", "has an unknown host key"),
    (r"Permission denied \(|Authentication failed|could not read (Username|Password)|error: 40[13]",
     "denied access"),
    (r"Remote branch .* not found|couldn't find remote ref", "has no such branch"),
    (r"not found|does not appear to be a git repository|does not exist|error: 404",
     "does not exist"),
    (r"No space left on device|Disk quota|unable to write file", "does not fit on the disk"),
    (r"Could not resolve|Failed to connect|Connection|timed out|too slow|early EOF|hung up"
     r"|RPC failed|error: 5\d\d|Empty reply", "could not be reached"),
    (r"was not done after", "took too long"),
)  # fmt: skip
_TRANSIENT: Final = "could not be reached"
_LESS: Final = "raise resources.disk_limit, or clone with a smaller depth"
_MAX_LINE: Final = 500
_MAX_OUTPUT: Final = 64 * 1024


class CloneError(SandboxError):
    """A project could not be cloned."""

    code = "CLONE_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions:
    """How to clone.

    `depth`: number of commits; None means all. `timeout_s`: for one git process as a whole.
    `stall_s`: how long the server may send nothing. `known_hosts`: an ssh file with host keys;
    empty means the user's own. `max_bytes`: size of a project as git packs it. `memory_bytes`: for
    each git process.
    """

    depth: int | None = CloneSection().depth
    timeout_s: float = 1800.0
    stall_s: float = 60.0
    known_hosts: str = ""
    max_bytes: int = MOST_FETCHED_BYTES
    memory_bytes: int = MAX_MEMORY_BYTES


def git_from_options(
    executor: ProcessExecutor, options: CloneOptions, ssh_env: Mapping[str, str] | None
) -> HostGit:
    """Git on this machine, with the limits of `options`."""
    return HostGit(
        executor,
        timeout_s=options.timeout_s,
        stall_s=options.stall_s,
        known_hosts=options.known_hosts,
        ssh_env=ssh_env,
        file_bytes=options.max_bytes,
        memory_bytes=options.memory_bytes,
    )


class _Sleeps(Protocol):
    async def __call__(self, delay: float, /) -> object: ...


class Checkout:
    """Clones projects into one environment.

    `channel`: to the environment; no secret goes through it. `proxy`: the environment's proxy,
    which the host's git uses over HTTP as well. `ssh_env`: variables for ssh on this machine, such
    as the socket of its agent.
    """

    def __init__(
        self,
        channel: Channel,
        executor: ProcessExecutor,
        options: CloneOptions,
        *,
        proxy: Proxy | None = None,
        ssh_env: Mapping[str, str] | None = None,
        sleep: _Sleeps = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._git = git_from_options(executor, options, ssh_env)
        self._options = options
        self._proxy = proxy
        self._sleep = sleep

    async def clone(self, task: Task, credential: GitCredential | None = None) -> str:
        """Clone `task`'s project to /workspace/project, and return the commit that it is at.

        CloneError says why that failed.
        """
        remote = parse_remote(task.repository)
        async with scratch_folder("kakoi-clone-") as folder:
            bare = folder / _ARCHIVED
            async with self._proxy_for(remote) as proxy_url:
                source = _Source(remote, remote.credential_or(credential), proxy_url)
                await self._while_connected(self._fetch_all(source, task, bare))
            finding = asyncio.ensure_future(self._git.head(bare))
            try:  # Git only reads there meanwhile.
                await self._copy_in(source, task, await asyncio.to_thread(_packed, bare))
                return await finding
            finally:
                await finish(cancel_and_wait(finding))

    @contextlib.asynccontextmanager
    async def _proxy_for(self, remote: Remote) -> AsyncIterator[str]:
        """The address of the proxy for the host's git; empty if it needs none."""
        if self._proxy is None or not remote.scheme.startswith("http"):
            yield ""
            return
        listener = socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        server = self._proxy.serve(listener)
        try:
            yield f"http://{host}:{port}"
        finally:
            await finish(server.close())

    async def _while_connected(self, fetching: Coroutine[None, None, None]) -> None:
        """Fetch as long as the environment exists: a command that sleeps there notices its end."""
        sleeper = asyncio.ensure_future(self._channel.run(Command(command=["sleep", _LONG_S])))
        work = asyncio.ensure_future(fetching)
        try:
            await asyncio.wait((sleeper, work), return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done() and not work.done() and _is_lost(sleeper):
                raise SandboxError("the environment was lost while its project was cloned")
            await work
        finally:
            for each in (work, sleeper):
                await finish(cancel_and_wait(each))

    # --- On this machine: with the credential, and running nothing of the project -----------------

    async def _fetch_all(self, source: "_Source", task: Task, bare: Path) -> None:
        await self._fetch(source, task, bare)
        if task.target_branch is not None:
            await self._fetch_target(source, task, task.target_branch, bare)

    async def _fetch(self, source: "_Source", task: Task, bare: Path) -> None:
        """Clone a bare repository: no project file is written, so none of its filters run."""
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        depth = self._options.depth
        shallow = [] if depth is None else ["--depth", str(depth)]
        argv = ["clone", "--quiet", "--bare", *branch, *shallow, "--", source.url, str(bare)]
        for attempt in range(1, _CLONE_TRIES + 1):
            try:
                await self._must(argv, source)
                return
            except CloneError as error:
                if attempt == _CLONE_TRIES or error.details.get("cause") != _TRANSIENT:
                    raise
                _log.warning("trying again: %s", error)
            await self._sleep(_PAUSE_S * attempt)
            # Git removes an unfinished clone itself, unless it was killed.
            await asyncio.to_thread(shutil.rmtree, bare, ignore_errors=True)

    async def _fetch_target(self, source: "_Source", task: Task, target: str, bare: Path) -> None:
        """Fetch the branch to merge into, with enough history to find the common ancestor."""
        here = ["-C", str(bare)]
        refspec = f"+refs/heads/{target}:refs/heads/{target}"
        depth = self._options.depth
        shallow = [] if depth is None else [f"--depth={depth}"]
        await self._must([*here, "fetch", "-q", *shallow, "origin", refspec], source)
        for more in (*(f"--deepen={count}" for count in _DEEPEN), "--unshallow"):
            common = await self._git.run([*here, "merge-base", f"refs/heads/{target}", "HEAD"])
            if common.exit_code == 0:
                return
            asked = await self._git.run([*here, "rev-parse", "--is-shallow-repository"])
            if asked.stdout.strip() != "true":
                break
            branch = task.source_branch or "HEAD"
            await self._must([*here, "fetch", "-q", more, "origin", branch, refspec], source)
        _log.warning("task %s: its branch and %s have no common history", task.uuid, target)

    async def _must(self, argv: Sequence[str], source: "_Source") -> None:
        done = await self._git.run(argv, source.remote, source.credential, proxy=source.proxy)
        if done.exit_code != 0:
            raise clone_error(source.hide(done.stderr), source.remote)

    # --- In the environment: without a network and without a secret ------------------------------

    async def _copy_in(self, source: "_Source", task: Task, archive: Path) -> None:
        unpack = Command(command=["tar", "-x", "-f", "-", "-C", TEMPORARY])
        self._check(await send_file(self._channel, unpack, archive), source)
        carried = f"{TEMPORARY}/{_ARCHIVED}"
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        cloned = await self._run_inside("git", "clone", "--quiet", *branch, "--", carried, PROJECT)
        self._check(cloned, source)
        origin = ("git", "-C", PROJECT, "remote", "set-url", "origin", source.url)
        for result in await asyncio.gather(
            self._run_inside(*origin), self._run_inside("rm", "-rf", carried)
        ):
            self._check(result, source)

    async def _run_inside(self, *argv: str) -> ExecutionResult:
        command = Command(
            command=argv,
            cwd=WORKSPACE,
            env=git_variables(),
            timeout_s=self._options.timeout_s,
            spill_bytes=0,
        )
        return await self._channel.run(command)

    def _check(self, result: ExecutionResult, source: "_Source") -> None:
        if not result.ok:
            raise _failure(result, source.remote)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where to fetch a project from, with which credential and through which proxy."""

    remote: Remote
    credential: GitCredential | None
    proxy: str

    @property
    def url(self) -> str:
        return self.remote.url

    def hide(self, text: str) -> str:
        return text if self.credential is None else self.credential.hide(text)


def _is_lost(sleeper: "asyncio.Future[ExecutionResult]") -> bool:
    return sleeper.exception() is not None or sleeper.result().reason is Reason.SANDBOX_LOST


def _packed(folder: Path) -> Path:
    """An archive of a folder, beside it. Its files will belong to the user who unpacks it."""

    def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(folder, folder.name, filter=without_owner)
    return path


def _failure(result: ExecutionResult, remote: Remote) -> SandboxError:
    output = result.stderr
    if result.reason is Reason.SANDBOX_LOST:
        return SandboxError(
            f"the environment was lost while its project was cloned: {result.error}"
        )
    if result.reason is Reason.TIMED_OUT:
        output = f"git was not done after {result.duration_ms // 1000} s"
    elif result.reason is Reason.NEVER_STARTED:
        output = f"{_NO_GIT}: {result.error}"
    elif result.reason is not Reason.EXITED:
        output = f"{output}\n{result.error or result.reason}"
    return clone_error(output, remote)


def clone_error(output: str, remote: Remote) -> CloneError:
    """The error for a clone that failed with this output of git."""
    # The server controls much of the output, and the patterns are slow on very long lines.
    lines = [line[:_MAX_LINE] for line in output.strip()[-_MAX_OUTPUT:].splitlines()]
    cause, line = "failed", (lines or ["no output from git"])[-1]
    for pattern, words in _CAUSES:
        if found := re.search(f"^.*(?:{pattern}).*$", "\n".join(lines), re.MULTILINE):
            cause, line = words, found[0]
            break
    hints = {
        "denied access": "check that the key is in your ssh agent (ssh-add -l) and can read this"
        " repository"
        if remote.scheme == "ssh"
        else "check that GITHUB_PERSONAL_ACCESS_TOKEN or GITLAB_PERSONAL_ACCESS_TOKEN is set and"
        " can read this repository",
        "has an unknown host key": "ask its owner for the key, and add it to the known"
        " hosts file (tasks.clone.known_hosts, else ~/.ssh/known_hosts)",
        "could not start": "set tasks.base_image to an image that has git",
        "does not fit on the disk": _LESS,
        "is larger than the limit": _LESS,
    }
    return CloneError(
        f"cloning {remote.url} failed: it {cause} ({shown(line.strip())[:300]})",
        details={"cause": cause, "repository": remote.url, "stderr": output[-2000:]},
        hint=hints.get(cause, "check the address, and try `git ls-remote` with it"),
    )
