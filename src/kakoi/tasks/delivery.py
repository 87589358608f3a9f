"""What was done in an environment, brought out of it and pushed.

A model has had its way in there, also with `.git` and what it configures. So git runs inside
without any secret, and what leaves is data: a bundle of commits. Our own git checks them in a
repository of ours and pushes from there, to the address that we know.
"""

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kakoi.errors import KakoiError, SandboxError
from kakoi.process.options import ProcessResult
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Channel, Command
from kakoi.tasks.collecting import written_by
from kakoi.tasks.our_git import OurGit
from kakoi.tasks.remotes import Credential, Remote, git_variables, parse_remote

MAX_BUNDLE_BYTES: Final = 256 * MIB
MAX_CHANGES_BYTES: Final = 32 * MIB
_GIT_S: Final = 600.0
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BASE, _WORK = "refs/kakoi/base", "refs/kakoi/work"
_MOST_UNTRACKED: Final = 1000
# What programs leave behind where they run, whether a project ignores it or not.
_NEVER: Final = "__pycache__/ *.pyc .pytest_cache/ .mypy_cache/ .ruff_cache/ node_modules/ .venv/"
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


class PushError(KakoiError):
    """What was done could not be brought out, or not be pushed."""

    code = "PUSH_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who commits."""

    name: str = "kakoi"
    email: str = "kakoi@localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Commits on top of `base`, as git packs them."""

    base: str
    commit: str
    bundle: bytes


class Delivery:
    """Brings the work of one environment out of the folder `project` in it."""

    def __init__(self, channel: Channel, project: str, *, author: Author | None = None) -> None:
        self._channel = channel
        self._project = project
        self._author = author or Author()

    async def begin(self) -> str:
        """The commit that work begins from. What is there besides is never part of the work:
        that is what the installation of dependencies has made."""
        base = await self._head()
        found = await self._git("ls-files", "--others", "--directory", "--exclude-standard", "-z")
        names = found.stdout.split("\0")[:_MOST_UNTRACKED] if found.ok else []
        ignored = [*_NEVER.split(), *(_pattern(name) for name in names if name.strip("/"))]
        path = f"{self._project}/.git/info/exclude"
        try:
            await self._channel.write_file(path, ("\n".join(ignored) + "\n").encode())
        except OSError as error:
            raise PushError(f"the project's {path} cannot be written: {error}") from error
        return base

    async def collect(self, base: str, message: str) -> Work | None:
        """Commit what is not committed, and take out all that `base` has not; None if nothing."""
        await self._must("add", "--all")
        changed = await self._git("diff", "--cached", "--quiet")
        if changed.exit_code != 0:
            await self._must("commit", "--quiet", "--no-verify", "--file=-", stdin=message.encode())
        commit = await self._head()
        if commit == base:
            return None
        return Work(base=base, commit=commit, bundle=await self._bundle(base))

    async def changes(self, base: str) -> bytes:
        """All that differs from `base`, committed or not, as a patch; the project is left alone."""
        # An index of our own: what is staged is the agent's affair. It is kept, and so fast.
        own = {"GIT_INDEX_FILE": f"{self._project}/.git/kakoi-index"}
        await self._must("add", "--all", env=own)
        shown = ["--cached", "--binary", "--full-index", "--no-color", "--no-ext-diff"]
        return await self._written(
            ["diff", *shown, "--no-textconv", "--no-renames", base],
            env=own,
            most_bytes=MAX_CHANGES_BYTES,
            too_much=PushError(f"the changes so far have over {MAX_CHANGES_BYTES // MIB} MiB"),
        )

    async def bring_back(self, changes: bytes) -> bool:
        """Change the files as a patch says, and commit nothing; False if it does not fit them."""
        applied = await self._git("apply", "--whitespace=nowarn", "-", stdin=changes)
        if applied.ok:
            return True
        merged = await self._git("apply", "--whitespace=nowarn", "--3way", "-", stdin=changes)
        back = ["--quiet"] if merged.ok else ["--quiet", "--hard"]
        await self._must("reset", *back)
        return merged.ok

    async def _head(self) -> str:
        found = (await self._must("rev-parse", "--verify", "HEAD")).stdout.strip()
        if not _COMMIT.fullmatch(found):
            raise PushError(f"git in the environment says that HEAD is {found!r:.80}")
        return found

    async def _bundle(self, base: str) -> bytes:
        return await self._written(
            ["bundle", "create", "-", f"^{base}", "HEAD"],
            most_bytes=MAX_BUNDLE_BYTES,
            too_much=PushError(
                f"the change has more than {MAX_BUNDLE_BYTES // MIB} MiB",
                hint="should .gitignore name what was made there?",
            ),
        )

    async def _written(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        most_bytes: int,
        too_much: PushError,
    ) -> bytes:
        command = self._command(argv, env=env)
        data, result = await written_by(
            self._channel, command, most_bytes=most_bytes, too_much=too_much
        )
        if not result.ok:
            raise _inside(argv[0], result)
        return data

    async def _must(
        self, *argv: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> ExecutionResult:
        result = await self._git(*argv, stdin=stdin, env=env)
        if not result.ok:
            raise _inside(argv[0], result)
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
        # Whoever owns the files there: git is to look at them all the same.
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


async def push(
    git: OurGit,
    work: Work,
    *,
    repository: str,
    branch: str,
    credential: Credential | None = None,
    protected: Sequence[str] = (),
) -> None:
    """Push `work` to a branch, which may only move forward; PushError says why it did not.

    `credential` is for fetching what the work is based on, and for the push.
    `protected`: files, and folders, that must be as they were.
    """
    remote = parse_remote(repository)
    credential = remote.credential_or(credential)
    with tempfile.TemporaryDirectory(prefix="kakoi-push-") as folder:
        bare, bundle = str(Path(folder, "project.git")), Path(folder, "work.bundle")
        await asyncio.to_thread(bundle.write_bytes, work.bundle)
        steps = _Steps(git, bare, remote, credential)
        await steps.here("init", "--quiet", "--bare", bare)
        await steps.fetch_base(work.base)
        # Checked as a server would: nothing in there may be dressed as something else.
        await steps.here(
            *("-C", bare, "-c", "fetch.fsckObjects=true", "fetch", "--quiet", "--no-tags"),
            *(str(bundle), f"+HEAD:{_WORK}"),
        )
        await steps.here("-C", bare, "merge-base", "--is-ancestor", _BASE, _WORK)
        await steps.spare(protected)
        await steps.there(
            "push", "--quiet", "--no-verify", remote.url, f"{_WORK}:refs/heads/{branch}"
        )


class _Steps:
    def __init__(
        self, git: OurGit, bare: str, remote: Remote, credential: Credential | None
    ) -> None:
        self._git = git
        self._bare = bare
        self._remote = remote
        self._credential = credential

    async def here(self, *argv: str) -> ProcessResult:
        """Without the network, and without any secret."""
        done = await self._git.run(argv)
        if done.exit_code != 0:
            raise PushError(
                f"what was done is no change of the project: {_last_line(done.stderr)}",
                details={"stderr": done.stderr[-2000:]},
                hint="was its history rewritten? Commits may only be added",
            )
        return done

    async def spare(self, protected: Sequence[str]) -> None:
        """See that the work leaves these files and folders as they were, however they are spelt."""
        kept = [f":(top,icase,literal){path.strip('/')}" for path in protected if path.strip("/")]
        if not kept:
            return
        listed = ("diff", "--name-only", "--no-renames", "-z", _BASE, _WORK, "--", *kept)
        touched = (await self.here("-C", self._bare, *listed)).stdout.split("\0")[0]
        if touched:
            raise PushError(
                f"the change touches {touched!r:.200}, which machines of the project obey before"
                " a person has read it",
                hint="have a person change it; tasks.protected_paths says what is kept from us",
            )

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
            await self.here("-C", self._bare, "update-ref", _BASE, base)

    async def _run(self, *argv: str) -> ProcessResult:
        return await self._git.run(["-C", self._bare, *argv], self._remote, self._credential)

    def _refused(self, done: ProcessResult) -> PushError:
        said = done.stderr if self._credential is None else self._credential.hide(done.stderr)
        fact, hint = "git failed", ""
        for pattern, words, way in _CAUSES:
            if re.search(pattern, said):
                fact, hint = words, way
                break
        return PushError(
            f"pushing to {self._remote.url} failed: {fact} ({_last_line(said)})",
            details={"repository": self._remote.url, "stderr": said[-2000:]},
            hint=hint,
        )


def _inside(doing: str, result: ExecutionResult) -> KakoiError:
    if result.reason is Reason.SANDBOX_LOST:
        return SandboxError(f"the environment was lost before its work was saved: {result.error}")
    said = _last_line(result.stderr) if result.reason is Reason.EXITED else str(result.reason)
    return PushError(f"git {doing} failed in the environment: {said}")


def _last_line(said: str) -> str:
    """The line that says most: errors come before advice."""
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("fatal:", "error:", "!", "remote: error"))
    ]
    return (telling or lines or ["git said nothing"])[-1][:300]


def _pattern(name: str) -> str:
    """A name as git's lists of ignored files have it."""
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name.replace("\n", "?"))
