"""Clone a task's project into its environment, at the right branch, and show no secret there.

It is fetched on this machine by our own git, with the credential in the environment of that one
process, and carried in as an archive. The git of an image, which a project may have chosen, only
copies from that archive. Where the environment has a proxy, our git goes by it as well: what is not
listed is not fetched from. Where it has no network at all, the project is fetched all the same.
"""

import asyncio
import contextlib
import logging
import re
import shutil
import socket
import tarfile
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kakoi.egress.proxy import Proxy
from kakoi.errors import SandboxError
from kakoi.printable import shown
from kakoi.process.executor import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Channel, Command
from kakoi.tasks.our_git import (
    FILE_TOO_LARGE,
    MAX_FILE_BYTES,
    MAX_MEMORY_BYTES,
    OUT_OF_MEMORY,
    OurGit,
)
from kakoi.tasks.remotes import Credential, Remote, git_variables, parse_remote
from kakoi.tasks.scratch import scratch_folder
from kakoi.tasks.sending import send_file
from kakoi.tasks.task import Task
from kakoi.waiting import cancel, finish

_log = logging.getLogger(__name__)
PROJECT: Final = "/workspace/project"
_CARRIED_TO, _CARRIED = "/workspace/tmp", ".kakoi-project.git"
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_LONG_S: Final = "86400"
# How far back the histories of two branches are fetched until they meet; then, all of it.
_DEEPEN: Final = (50, 500, 5000)
_NO_GIT: Final = "the image has no git"
_CAUSES: Final = (
    (_NO_GIT, "could not begin"),
    (FILE_TOO_LARGE.pattern, "is larger than it may be"),
    (OUT_OF_MEMORY.pattern, "takes more memory than it may"),
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
_LESS: Final = "raise resources.disk_limit, or clone with less depth"
_LONGEST_LINE: Final = 500
_LONGEST_SAID: Final = 64 * 1024


class CloneError(SandboxError):
    """A project could not be had."""

    code = "CLONE_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions:
    """`depth`: how many commits; None is all. `timeout_s`: for one git process in all;
    `stall_s`: without a byte from the server. `known_hosts`: a file of ssh's with the keys of hosts
    that we talk to; empty is the user's own. `max_bytes`: of a project as git packs it;
    `memory_bytes`: for each process of git."""

    depth: int | None = 1
    timeout_s: float = 1800.0
    stall_s: float = 60.0
    known_hosts: str = ""
    max_bytes: int = MAX_FILE_BYTES
    memory_bytes: int = MAX_MEMORY_BYTES


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
        file_bytes=options.max_bytes,
        memory_bytes=options.memory_bytes,
    )


class _Sleeps(Protocol):
    async def __call__(self, delay: float, /) -> object: ...


class Checkout:
    """Puts projects into one environment.

    `channel`: to where the project goes; no secret does. `proxy`: the way out of that environment,
    which our git takes over HTTP, too. `ssh_env`: variables of ssh on this machine, such as that of
    its agent.
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
        self._git = our_git(executor, options, ssh_env)
        self._options = options
        self._proxy = proxy
        self._sleep = sleep

    async def clone(self, task: Task, credential: Credential | None = None) -> None:
        """Clone `task`'s project to /workspace/project; CloneError says why that failed."""
        remote = parse_remote(task.repository)
        async with scratch_folder("kakoi-clone-") as folder:
            bare = folder / _CARRIED
            async with self._way_to(remote) as proxy_url:
                source = _Source(remote, remote.credential_or(credential), proxy_url)
                await self._unless_lost(self._fetch_all(source, task, bare))
            await self._carry_in(source, task, await asyncio.to_thread(_packed, bare))

    @contextlib.asynccontextmanager
    async def _way_to(self, remote: Remote) -> AsyncIterator[str]:
        """The address of the proxy for our git; empty where it needs none."""
        if self._proxy is None or not remote.scheme.startswith("http"):
            yield ""
            return
        listener = socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        door = self._proxy.serve(listener)
        try:
            yield f"http://{host}:{port}"
        finally:
            await finish(door.close())

    async def _unless_lost(self, fetching: Coroutine[None, None, None]) -> None:
        """Fetch while there is an environment to carry it into; a command there tells its end."""
        line = asyncio.ensure_future(self._channel.run(Command(command=["sleep", _LONG_S])))
        work = asyncio.ensure_future(fetching)
        try:
            await asyncio.wait((line, work), return_when=asyncio.FIRST_COMPLETED)
            if line.done() and not work.done() and _is_lost(line):
                raise SandboxError("the environment was lost while its project was cloned")
            await work
        finally:
            for each in (work, line):
                await finish(cancel(each))

    # --- Here: with our git and our credential, and with nothing that the project brought --------

    async def _fetch_all(self, source: "_Source", task: Task, bare: Path) -> None:
        await self._fetch(source, task, bare)
        if task.target_branch is not None:
            await self._fetch_target(source, task, task.target_branch, bare)

    async def _fetch(self, source: "_Source", task: Task, bare: Path) -> None:
        """A bare repository: no file of the project is written, so no filter of it is run."""
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        depth = self._options.depth
        shallow = [] if depth is None else ["--depth", str(depth)]
        argv = ["clone", "--quiet", "--bare", *branch, *shallow, "--", source.url, str(bare)]
        for attempt in range(1, _TRIES + 1):
            try:
                await self._must(argv, source)
                return
            except CloneError as error:
                if attempt == _TRIES or error.details.get("cause") != _TRANSIENT:
                    raise
                _log.warning("trying again: %s", error)
            await self._sleep(_PAUSE_S * attempt)
            # Git takes back what it began, unless it was killed.
            await asyncio.to_thread(shutil.rmtree, bare, ignore_errors=True)

    async def _fetch_target(self, source: "_Source", task: Task, target: str, bare: Path) -> None:
        """Fetch the branch to merge into, and as much history as both have in common."""
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
        _log.warning("task %s: its branch and %s have no history in common", task.uuid, target)

    async def _must(self, argv: Sequence[str], source: "_Source") -> None:
        done = await self._git.run(argv, source.remote, source.credential, proxy=source.proxy)
        if done.exit_code != 0:
            raise clone_error(source.hide(done.stderr), source.remote)

    # --- There: without a network, and without a secret ------------------------------------------

    async def _carry_in(self, source: "_Source", task: Task, archive: Path) -> None:
        unpack = Command(command=["tar", "-x", "-f", "-", "-C", _CARRIED_TO])
        self._check(await send_file(self._channel, unpack, archive), source)
        carried = f"{_CARRIED_TO}/{_CARRIED}"
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        for argv in (
            ["git", "clone", "--quiet", *branch, "--", carried, PROJECT],
            ["git", "-C", PROJECT, "remote", "set-url", "origin", source.url],
            ["rm", "-rf", carried],
        ):
            command = Command(
                command=argv,
                cwd="/workspace",
                env=git_variables(),
                timeout_s=self._options.timeout_s,
                spill_bytes=0,
            )
            self._check(await self._channel.run(command), source)

    def _check(self, result: ExecutionResult, source: "_Source") -> None:
        if not result.ok:
            raise _failure(result, source.remote)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a project is fetched from, what opens that door, and by which proxy."""

    remote: Remote
    credential: Credential | None
    proxy: str

    @property
    def url(self) -> str:
        return self.remote.url

    def hide(self, text: str) -> str:
        return text if self.credential is None else self.credential.hide(text)


def _is_lost(line: "asyncio.Future[ExecutionResult]") -> bool:
    return line.exception() is not None or line.result().reason is Reason.SANDBOX_LOST


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


def _failure(result: ExecutionResult, remote: Remote) -> SandboxError:
    said = result.stderr
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
        "does not fit on the disk": _LESS,
        "is larger than it may be": _LESS,
    }
    return CloneError(
        f"cloning {remote.url} failed: it {cause} ({shown(told.strip())[:300]})",
        details={"cause": cause, "repository": remote.url, "stderr": said[-2000:]},
        hint=hints.get(cause, "look at the address, and try `git ls-remote` with it"),
    )
