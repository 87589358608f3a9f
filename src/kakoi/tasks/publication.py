"""Work of a model, published: one commit of ours, on a branch, at the address that we know.

A model's history stays where it was made. Of its tree our own git makes a commit in a repository
of ours, with our author and our message, after checking it as a server would.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kakoi.process.options import ProcessResult
from kakoi.runner.commands import MIB
from kakoi.tasks.delivery import MAX_PACK_BYTES, Author, PushError, Work, last_line
from kakoi.tasks.our_git import OUT_OF_MEMORY, OurGit
from kakoi.tasks.quotation import one_disarmed_line
from kakoi.tasks.remotes import Credential, Remote, parse_remote
from kakoi.tasks.scratch import scratch_folder
from kakoi.tasks.task import PROTECTED

_BASE: Final = "refs/kakoi/base"
_MOST_LISTED_BYTES: Final = 32 * MIB
_LISTING_MEMORY_BYTES: Final = 256 * MIB
_MOST_REMARKS: Final = 20
_SUBMODULE, _LINK = "160000", "120000"
# What git, on machines of others, runs programs or fetches from elsewhere for.
_TELLING_NAMES: Final = {
    ".gitattributes": "names filters and merge drivers",
    ".gitmodules": "names repositories to fetch",
    ".lfsconfig": "names a server to fetch from",
}
_CAUSES: Final = (
    (r"non-fast-forward|fetch first|stale info|failed to lock|cannot lock ref",
     "somebody else has pushed to the branch meanwhile",
     "have it done again: it begins from what is there by then"),
    (r"protected branch|pre-receive hook declined|not allowed to push|GH006",
     "the server does not let this branch be pushed to", "may the token push there?"),
    (r"Authentication failed|could not read (Username|Password)|error: 40[13]|Permission denied",
     "the server refused us", "may the token push to this repository?"),
    (r"Could not resolve|Failed to connect|Connection|timed out|too slow|early EOF|hung up"
     r"|RPC failed|error: 5\d\d|was not done after", "the server could not be reached", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pushed:
    """`commit`: ours. `remarks`: what a reader of it should look at closely."""

    commit: str
    remarks: tuple[str, ...] = ()


async def push(
    git: OurGit,
    work: Work,
    *,
    repository: str,
    branch: str,
    message: str,
    author: Author,
    credential: Credential | None = None,
    protected: Sequence[str] = (),
) -> Pushed:
    """Push `work` as one commit to a branch, which may only move forward; PushError says why not.

    `credential` is for fetching what the work is based on, and for the push.
    `protected`: files, and folders, that must be as they were.
    """
    remote = parse_remote(repository)
    credential = remote.credential_or(credential)
    async with scratch_folder("kakoi-push-") as folder:
        steps = _Steps(git, folder, remote, credential)
        await steps.here("init", "--quiet", "--bare", ".")
        await steps.fetch_base(work.base)
        await steps.unpack(work)
        await steps.spare(protected, work.tree)
        remarks = await steps.remarks(work.tree)
        commit = await steps.commit(work.tree, message, author)
        await steps.there(
            "push", "--quiet", "--no-verify", remote.url, f"{commit}:refs/heads/{branch}"
        )
    return Pushed(commit, remarks)


class _Steps:
    def __init__(
        self, git: OurGit, folder: Path, remote: Remote, credential: Credential | None
    ) -> None:
        self._git = git
        self._folder = folder
        self._in = ("-C", str(folder))
        self._remote = remote
        self._credential = credential

    async def here(
        self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> ProcessResult:
        """Without the network, and without any secret."""
        done = await self._git.run([*self._in, *argv], stdin=stdin, env=env)
        if done.exit_code != 0:
            raise _no_change(done)
        return done

    async def unpack(self, work: Work) -> None:
        """Take the objects in, each checked: git checks none of those that a bundle brings."""
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

    async def spare(self, protected: Sequence[str], tree: str) -> None:
        """See that the work leaves these files and folders as they were, however they are spelt."""
        kept = [f":(top,icase,literal){path.strip('/')}" for path in protected if path.strip("/")]
        for changed in await self._changed(tree, *kept) if kept else ():
            raise PushError(
                f"the change touches {changed.path!r:.200}, which machines of the project obey"
                " before a person has read it",
                hint="have a person change it; tasks.protected_paths says what is kept from us",
            )

    async def remarks(self, tree: str) -> tuple[str, ...]:
        """What a reader should look at closely, each as a line of Markdown."""
        found = [
            f"`{_in_code(each.path)}`: {why}"
            for each in await self._changed(tree)
            if (why := _remark(each))
        ]
        if len(found) > _MOST_REMARKS:
            found[_MOST_REMARKS:] = [f"and {len(found) - _MOST_REMARKS} more files like these"]
        return tuple(found)

    async def _changed(self, tree: str, *paths: str) -> "list[_Changed]":
        # With less room than usual: a small pack can hold a tree of billions of files.
        listing = self._folder / "kakoi-listing"
        argv = ["diff-tree", "-r", "--raw", "-z", "--no-renames", f"--output={listing}"]
        done = await self._git.run(
            [*self._in, *argv, _BASE, tree, "--", *paths],
            file_bytes=_MOST_LISTED_BYTES,
            memory_bytes=_LISTING_MEMORY_BYTES,
        )
        found = await asyncio.to_thread(listing.read_bytes) if listing.exists() else b""
        # Git does not always notice that it could not write.
        if len(found) >= _MOST_LISTED_BYTES or OUT_OF_MEMORY.search(done.stderr):
            raise PushError("the change has too many files to be looked at")
        if done.exit_code != 0:
            raise _no_change(done)
        return _listed(found)

    async def there(self, *argv: str) -> None:
        """With the remote, and what is secret between us."""
        done = await self._run(*argv)
        if done.exit_code != 0:
            raise self._refused(done)

    async def fetch_base(self, base: str) -> None:
        """Only that commit, if the server lets us; else all branches."""
        one = await self._run("fetch", "--quiet", "--depth=1", self._remote.url, f"{base}:{_BASE}")
        if one.exit_code != 0:
            await self.there("fetch", "--quiet", self._remote.url, "+refs/heads/*:refs/heads/*")
            await self.here("update-ref", _BASE, base)

    async def _run(self, *argv: str) -> ProcessResult:
        return await self._git.run([*self._in, *argv], self._remote, self._credential)

    def _refused(self, done: ProcessResult) -> PushError:
        said = done.stderr if self._credential is None else self._credential.hide(done.stderr)
        fact, hint = "git failed", ""
        for pattern, words, way in _CAUSES:
            if re.search(pattern, said):
                fact, hint = words, way
                break
        return PushError(
            f"pushing to {self._remote.url} failed: {fact} ({last_line(said)})",
            details={"repository": self._remote.url, "stderr": said[-2000:]},
            hint=hint,
        )


@dataclass(frozen=True, slots=True)
class _Changed:
    """A file that differs. `mode`: as git has it by now; zeros if it is gone."""

    path: str
    mode: str


def _listed(data: bytes) -> list[_Changed]:
    """What `diff-tree --raw -z` has written: the modes and more, and the name, in turns."""
    parts = data.decode("utf-8", "replace").split("\0")[:-1]
    heads, names = parts[::2], parts[1::2]
    return [_Changed(name, head.split(" ")[1]) for head, name in zip(heads, names, strict=True)]


def _remark(changed: _Changed) -> str:
    if changed.mode == _SUBMODULE:
        return "a commit of another repository"
    if changed.mode == _LINK:
        return "a symbolic link"
    path = changed.path.casefold()
    if any(path == each or path.startswith(f"{each}/") for each in map(str.casefold, PROTECTED)):
        return "says what CI does"
    return _TELLING_NAMES.get(path.rsplit("/", 1)[-1], "")


def _in_code(path: str) -> str:
    return one_disarmed_line(path).replace("`", "'")[:200]


def _no_change(done: ProcessResult) -> PushError:
    return PushError(
        f"what was done is no change of the project: {last_line(done.stderr)}",
        details={"stderr": done.stderr[-2000:]},
        hint="was git in the environment replaced? Its files are checked as a server would",
    )
