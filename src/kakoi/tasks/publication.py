"""Push the work of a model as one commit, to a branch of the task's repository.

The model's own history stays in its environment. The host's git makes a commit from the model's
tree in a separate repository, with kakoi's author and message, after checking it as a server would.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi.channel.api import MIB
from kakoi.network.git_remotes import GitCredential, Remote, parse_remote
from kakoi.process.options import ProcessResult
from kakoi.settings.tasks import PROTECTED
from kakoi.tasks.changes import MAX_PACK_BYTES, Author, PushError, Work, last_line
from kakoi.tasks.comments import disarmed_line
from kakoi.tasks.host_git import OUT_OF_MEMORY, HostGit, scratch_folder

_BASE: Final = "refs/kakoi/base"
_MAX_LISTING_BYTES: Final = 32 * MIB
_LISTING_MEMORY_BYTES: Final = 256 * MIB
_MAX_REMARKS: Final = 20
_SUBMODULE, _LINK = "160000", "120000"
# Files that make git run programs, or fetch from elsewhere, on other people's machines.
_RISKY_NAMES: Final = {
    ".gitattributes": "names filters and merge drivers",
    ".gitmodules": "names repositories to fetch",
    ".lfsconfig": "names a server to fetch from",
}
_CAUSES: Final = (
    (r"non-fast-forward|fetch first|stale info|failed to lock|cannot lock ref",
     "someone else pushed to the branch meanwhile",
     "run the task again: it starts from the current branch"),
    (r"protected branch|pre-receive hook declined|not allowed to push|GH006",
     "the server does not allow pushes to this branch",
     "check that the token can push to it"),
    (r"Authentication failed|could not read (Username|Password)|error: 40[13]|Permission denied",
     "the server denied access",
     "check that the token can push to this repository"),
    (r"Could not resolve|Failed to connect|Connection|timed out|too slow|early EOF|hung up"
     r"|RPC failed|error: 5\d\d|was not done after", "the server could not be reached", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PushResult:
    """`commit`: the pushed commit. `remarks`: what its reviewer should examine closely."""

    commit: str
    remarks: tuple[str, ...] = ()


async def push(
    git: HostGit,
    work: Work,
    *,
    repository: str,
    branch: str,
    message: str,
    author: Author,
    credential: GitCredential | None = None,
    protected: Sequence[str] = (),
) -> PushResult:
    """Push `work` as one commit to a branch, by fast-forward only. PushError says why it failed.

    `credential`: for fetching the base of the work, and for the push.
    `protected`: files and folders that must not change.
    """
    remote = parse_remote(repository)
    credential = remote.credential_or(credential)
    async with scratch_folder("kakoi-push-") as folder:
        steps = _Steps(git, folder, remote, credential)
        await steps.here("init", "--quiet", "--bare", ".")
        await steps.fetch_base(work.base)
        await steps.unpack(work)
        await steps.check_protected(protected, work.tree)
        remarks = await steps.remarks(work.tree)
        commit = await steps.commit(work.tree, message, author)
        await steps.there(
            "push", "--quiet", "--no-verify", remote.url, f"{commit}:refs/heads/{branch}"
        )
    return PushResult(commit, remarks)


class _Steps:
    def __init__(
        self, git: HostGit, folder: Path, remote: Remote, credential: GitCredential | None
    ) -> None:
        self._git = git
        self._folder = folder
        self._in = ("-C", str(folder))
        self._remote = remote
        self._credential = credential

    async def here(
        self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> ProcessResult:
        """Run git without the network and without any secret."""
        done = await self._git.run([*self._in, *argv], stdin=stdin, env=env)
        if done.exit_code != 0:
            raise _no_change(done)
        return done

    async def unpack(self, work: Work) -> None:
        """Unpack the objects and check each one: git does not check those of a bundle."""
        most = f"--max-input-size={MAX_PACK_BYTES}"
        await self.here("index-pack", "--stdin", "--fix-thin", "--strict", most, stdin=work.pack)
        await self.here("rev-parse", "--quiet", "--verify", f"{work.tree}^{{tree}}")

    async def commit(self, tree: str, message: str, author: Author) -> str:
        named = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", author.name), ("EMAIL", author.email))
        }
        argv = ("commit-tree", tree, "-p", _BASE, "-F", "-")
        return (await self.here(*argv, stdin=message.encode(), env=named)).stdout.strip()

    async def check_protected(self, protected: Sequence[str], tree: str) -> None:
        """Raise PushError if the work changes one of these paths, in any letter case."""
        kept = [f":(top,icase,literal){path.strip('/')}" for path in protected if path.strip("/")]
        for changed in await self._changed(tree, *kept) if kept else ():
            raise PushError(
                f"the change touches {changed.path!r:.200}, which the project's machines execute"
                " before a person has reviewed it",
                hint="ask a person to change it; tasks.protected_paths lists the protected paths",
            )

    async def remarks(self, tree: str) -> tuple[str, ...]:
        """What a reviewer should examine closely, each as a line of Markdown."""
        found = [
            f"`{_in_code(each.path)}`: {why}"
            for each in await self._changed(tree)
            if (why := _remark(each))
        ]
        if len(found) > _MAX_REMARKS:
            found[_MAX_REMARKS:] = [f"and {len(found) - _MAX_REMARKS} more files like these"]
        return tuple(found)

    async def _changed(self, tree: str, *paths: str) -> "list[_Changed]":
        # With lower limits than usual: a small pack can hold a tree of billions of files.
        listing = self._folder / "kakoi-listing"
        argv = ["diff-tree", "-r", "--raw", "-z", "--no-renames", f"--output={listing}"]
        done = await self._git.run(
            [*self._in, *argv, _BASE, tree, "--", *paths],
            file_bytes=_MAX_LISTING_BYTES,
            memory_bytes=_LISTING_MEMORY_BYTES,
        )
        found = await asyncio.to_thread(listing.read_bytes) if listing.exists() else b""
        # Git does not always report a failed write.
        if len(found) >= _MAX_LISTING_BYTES or OUT_OF_MEMORY.search(done.stderr):
            raise PushError("the change has too many files to check")
        if done.exit_code != 0:
            raise _no_change(done)
        return _listed(found)

    async def there(self, *argv: str) -> None:
        """Run git with the remote and its credential."""
        done = await self._run(*argv)
        if done.exit_code != 0:
            raise self._refused(done)

    async def fetch_base(self, base: str) -> None:
        """Fetch only that commit if the server allows it, else all branches."""
        one = await self._run("fetch", "--quiet", "--depth=1", self._remote.url, f"{base}:{_BASE}")
        if one.exit_code != 0:
            await self.there("fetch", "--quiet", self._remote.url, "+refs/heads/*:refs/heads/*")
            await self.here("update-ref", _BASE, base)

    async def _run(self, *argv: str) -> ProcessResult:
        return await self._git.run([*self._in, *argv], self._remote, self._credential)

    def _refused(self, done: ProcessResult) -> PushError:
        output = done.stderr if self._credential is None else self._credential.hide(done.stderr)
        fact, hint = "git failed", ""
        for pattern, cause, advice in _CAUSES:
            if re.search(pattern, output):
                fact, hint = cause, advice
                break
        return PushError(
            f"pushing to {self._remote.url} failed: {fact} ({last_line(output)})",
            details={"repository": self._remote.url, "stderr": output[-2000:]},
            hint=hint,
        )


@dataclass(frozen=True, slots=True)
class _Changed:
    """A file that differs. `mode`: its git mode now; zeros if it was deleted."""

    path: str
    mode: str


def _listed(data: bytes) -> list[_Changed]:
    """Parse `diff-tree --raw -z`, which alternates modes and names."""
    parts = data.decode("utf-8", "replace").split("\0")[:-1]
    heads, names = parts[::2], parts[1::2]
    return [_Changed(name, head.split(" ")[1]) for head, name in zip(heads, names, strict=True)]


def _remark(changed: _Changed) -> str:
    if changed.mode == _SUBMODULE:
        return "a submodule: a commit of another repository"
    if changed.mode == _LINK:
        return "a symbolic link"
    path = changed.path.casefold()
    if any(path == each or path.startswith(f"{each}/") for each in map(str.casefold, PROTECTED)):
        return "controls what CI does"
    return _RISKY_NAMES.get(path.rsplit("/", 1)[-1], "")


def _in_code(path: str) -> str:
    return disarmed_line(path).replace("`", "'")[:200]


def _no_change(done: ProcessResult) -> PushError:
    return PushError(
        f"the work is not a valid change of the project: {last_line(done.stderr)}",
        details={"stderr": done.stderr[-2000:]},
        hint="was git in the environment replaced? Its objects are checked as a server would",
    )
