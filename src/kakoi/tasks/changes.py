"""The changes that a model made to a project: taken out of its environment, and published.

The model controls everything in there, including `.git` and its configuration. So git runs inside
without any secret, and only data leaves: the final files, packed by git, and the messages of the
model's own commits.

`push` pushes the work as one commit to a branch of the task's repository. The model's own history
stays in its environment: the host's git makes a commit from the model's tree in a separate
repository, with kakoi's author and message, after checking it as a server would.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.text import shown
from kakoi.channel.api import MIB, Channel, Command
from kakoi.errors import KakoiError, SandboxError
from kakoi.network.git_remotes import GitCredential, Remote, git_variables, parse_remote
from kakoi.process.options import ProcessResult
from kakoi.results import ExecutionResult, Reason
from kakoi.settings.tasks import PROTECTED, TaskSection
from kakoi.tasks.comments import disarmed_line
from kakoi.tasks.host_git import OUT_OF_MEMORY, HostGit, scratch_folder
from kakoi.tasks.transfer import read_output

MAX_PACK_BYTES: Final = 256 * MIB
MAX_CHANGES_BYTES: Final = 32 * MIB
_DEFAULTS: Final = TaskSection()
_GIT_S: Final = 600.0
_COMMIT: Final = pattern(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Limits for the messages of the model's own commits.
_MAX_COMMITS: Final = 50
_MAX_MESSAGES_BYTES: Final = 16 * 1024
_MAX_UNTRACKED: Final = 1000
# Files that programs leave behind, whether or not the project ignores them.
_NEVER: Final = "__pycache__/ *.pyc .pytest_cache/ .mypy_cache/ .ruff_cache/ node_modules/ .venv/"


class PushError(KakoiError):
    """The changes could not be taken out of the environment, or could not be pushed."""

    code = "PUSH_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of commits."""

    name: str = _DEFAULTS.author_name
    email: str = _DEFAULTS.author_email


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChange:
    """A finished change. `pack`: the files of `tree` that `base` lacks, as git packs them.

    `commit`: its name in the environment's git. `messages`: of the commits that the model made.
    """

    base: str
    commit: str
    tree: str
    pack: bytes
    messages: tuple[str, ...] = ()


class ProjectChanges:
    """Takes the changes out of `project`, a folder in one environment."""

    def __init__(self, channel: Channel, project: str, *, author: Author | None = None) -> None:
        self._channel = channel
        self._project = project
        self._author = author or Author()

    async def begin(self, commit: str) -> str:
        """Begin to work on the commit that the project was cloned at, and return it.

        Untracked files that exist now are never part of the work: installing dependencies made
        them. The environment is not asked for the commit: a script that ran there could name
        somebody else's, and get it pushed.
        """
        if not commit:
            raise PushError("the project has no commits", hint="push a first one")
        found = await self._git("ls-files", "--others", "--directory", "--exclude-standard", "-z")
        names = found.stdout.split("\0")[:_MAX_UNTRACKED] if found.ok else []
        ignored = [*_NEVER.split(), *(_pattern(name) for name in names if name.strip("/"))]
        path = f"{self._project}/.git/info/exclude"
        try:
            await self._channel.write_file(path, ("\n".join(ignored) + "\n").encode())
        except OSError as error:
            raise PushError(f"cannot write the project's {path}: {error}") from error
        return commit

    async def collect(self, base: str) -> PackedChange | None:
        """The files as they are now; None if they are the same as in `base`."""
        await self._must("add", "--all")
        tree = _object_name(await self._must("write-tree"))
        if tree == _object_name(await self._must("rev-parse", "--verify", f"{base}^{{tree}}")):
            return None
        # Only so that git can leave out what `base` has. This commit is not the one that is pushed.
        made = await self._must("commit-tree", tree, "-p", base, "-m", "work")
        commit = _object_name(made)
        return PackedChange(
            base=base,
            commit=commit,
            tree=tree,
            pack=await self._pack(base, commit),
            messages=await self._messages(base),
        )

    async def diff(self, base: str) -> bytes:
        """Everything that differs from `base`, committed or not, as a patch. Changes nothing."""
        # A separate index, so that the agent's staged files stay as they are. It is kept for speed.
        own = {"GIT_INDEX_FILE": f"{self._project}/.git/kakoi-index"}
        await self._must("add", "--all", env=own)
        shown = ["--cached", "--binary", "--full-index", "--no-color", "--no-ext-diff"]
        return await self._written(
            ["diff", *shown, "--no-textconv", "--no-renames", base],
            env=own,
            most_bytes=MAX_CHANGES_BYTES,
            too_much=PushError(f"the changes so far exceed {MAX_CHANGES_BYTES // MIB} MiB"),
        )

    async def apply(self, changes: bytes) -> bool:
        """Change the files as a patch says, and commit nothing; False if it does not fit them."""
        applied = await self._git("apply", "--whitespace=nowarn", "-", stdin=changes)
        if applied.ok:
            return True
        merged = await self._git("apply", "--whitespace=nowarn", "--3way", "-", stdin=changes)
        back = ["--quiet"] if merged.ok else ["--quiet", "--hard"]
        await self._must("reset", *back)
        return merged.ok

    async def _messages(self, base: str) -> tuple[str, ...]:
        """The messages of the model's commits; empty if its history cannot be read."""
        listed = ("--reverse", f"--max-count={_MAX_COMMITS}", "--format=%B%x00", f"{base}..HEAD")
        command = self._command(["log", "--no-color", *listed])
        found = await self._channel.run(replace(command, max_output_bytes=_MAX_MESSAGES_BYTES))
        return tuple(found.stdout.split("\0")[:-1]) if found.ok else ()

    async def _pack(self, base: str, commit: str) -> bytes:
        return await self._written(
            ["pack-objects", "--revs", "--thin", "--stdout", "--quiet"],
            stdin=f"{commit}\n^{base}\n".encode(),
            most_bytes=MAX_PACK_BYTES,
            too_much=PushError(
                f"the change exceeds {MAX_PACK_BYTES // MIB} MiB",
                hint="add generated files to .gitignore",
            ),
        )

    async def _written(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        most_bytes: int,
        too_much: PushError,
    ) -> bytes:
        command = self._command(argv, stdin=stdin, env=env)
        data, result = await read_output(
            self._channel, command, most_bytes=most_bytes, too_much=too_much
        )
        if not result.ok:
            raise _git_error(argv[0], result)
        return data

    async def _must(
        self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> ExecutionResult:
        result = await self._git(*argv, stdin=stdin, env=env)
        if not result.ok:
            raise _git_error(argv[0], result)
        return result

    async def _git(
        self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> ExecutionResult:
        return await self._channel.run(self._command(argv, stdin=stdin, env=env))

    def _command(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Command:
        # Git must read the files, regardless of their owner.
        settings = ["-c", "safe.directory=*", "-c", "commit.gpgSign=false"]
        author = self._author
        named = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", author.name), ("EMAIL", author.email))
        }
        return Command(
            command=["git", *settings, *argv],
            cwd=self._project,
            env={**git_variables(), **named, **(env or {})},
            stdin=stdin,
            timeout_s=_GIT_S,
            spill_bytes=0,
        )


def _git_error(subcommand: str, result: ExecutionResult) -> KakoiError:
    if result.reason is Reason.SANDBOX_LOST:
        return SandboxError(f"the environment was lost before its work was saved: {result.error}")
    reason = last_line(result.stderr) if result.reason is Reason.EXITED else str(result.reason)
    return PushError(f"git {subcommand} failed in the environment: {reason}")


def _object_name(result: ExecutionResult) -> str:
    found = result.stdout.strip()
    if not _COMMIT.fullmatch(found):
        raise PushError(f"git in the environment returned an invalid object name: {found!r:.80}")
    return found


def last_line(output: str) -> str:
    """The most informative line of git's output: the last error, or the last line."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "!", "remote: error"))]
    return shown((errors or lines or ["no output from git"])[-1])[:300]


def _pattern(name: str) -> str:
    """A name as a gitignore pattern."""
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name.replace("\n", "?"))


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
    work: PackedChange,
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

    async def unpack(self, work: PackedChange) -> None:
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
        for known, cause, advice in _CAUSES:
            if re.search(known, output):
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
