"""What was done in an environment, brought out of it.

A model has had its way in there, also with `.git` and what it configures. So git runs inside
without any secret, and what leaves is data: the files as they are in the end, packed by git, and
what the model wrote to commits of its own. `publication` makes a commit of ours of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kakoi.errors import KakoiError, SandboxError
from kakoi.printable import shown
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Channel, Command
from kakoi.tasks.collecting import written_by
from kakoi.tasks.remotes import git_variables

MAX_PACK_BYTES: Final = 256 * MIB
MAX_CHANGES_BYTES: Final = 32 * MIB
_GIT_S: Final = 600.0
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Of what the model wrote to commits of its own.
_MOST_COMMITS: Final = 50
_MOST_WORDS_BYTES: Final = 16 * 1024
_MOST_UNTRACKED: Final = 1000
# What programs leave behind where they run, whether a project ignores it or not.
_NEVER: Final = "__pycache__/ *.pyc .pytest_cache/ .mypy_cache/ .ruff_cache/ node_modules/ .venv/"


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
    """The files of `tree`, as far as `base` has not got them, as git packs them.

    `commit`: what git in the environment calls it. `messages`: of commits that the model made.
    """

    base: str
    commit: str
    tree: str
    pack: bytes
    messages: tuple[str, ...] = ()


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

    async def collect(self, base: str) -> Work | None:
        """Take out the files as they are by now; None if `base` has the same."""
        await self._must("add", "--all")
        tree = _object_name(await self._must("write-tree"))
        if tree == _object_name(await self._must("rev-parse", "--verify", f"{base}^{{tree}}")):
            return None
        # Only so that git finds what `base` has already. It is not what is pushed.
        made = await self._must("commit-tree", tree, "-p", base, "-m", "work")
        commit = _object_name(made)
        return Work(
            base=base,
            commit=commit,
            tree=tree,
            pack=await self._pack(base, commit),
            messages=await self._messages(base),
        )

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
        return _object_name(await self._must("rev-parse", "--verify", "HEAD"))

    async def _messages(self, base: str) -> tuple[str, ...]:
        """What the model wrote to its commits; nothing where its history cannot be read."""
        listed = ("--reverse", f"--max-count={_MOST_COMMITS}", "--format=%B%x00", f"{base}..HEAD")
        command = self._command(["log", "--no-color", *listed])
        found = await self._channel.run(replace(command, max_output_bytes=_MOST_WORDS_BYTES))
        return tuple(found.stdout.split("\0")[:-1]) if found.ok else ()

    async def _pack(self, base: str, commit: str) -> bytes:
        return await self._written(
            ["pack-objects", "--revs", "--thin", "--stdout", "--quiet"],
            stdin=f"{commit}\n^{base}\n".encode(),
            most_bytes=MAX_PACK_BYTES,
            too_much=PushError(
                f"the change has more than {MAX_PACK_BYTES // MIB} MiB",
                hint="should .gitignore name what was made there?",
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


def _inside(doing: str, result: ExecutionResult) -> KakoiError:
    if result.reason is Reason.SANDBOX_LOST:
        return SandboxError(f"the environment was lost before its work was saved: {result.error}")
    said = last_line(result.stderr) if result.reason is Reason.EXITED else str(result.reason)
    return PushError(f"git {doing} failed in the environment: {said}")


def _object_name(result: ExecutionResult) -> str:
    found = result.stdout.strip()
    if not _COMMIT.fullmatch(found):
        raise PushError(f"git in the environment names an object {found!r:.80}")
    return found


def last_line(said: str) -> str:
    """The line of git's that says most: errors come before advice."""
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("fatal:", "error:", "!", "remote: error"))
    ]
    return shown((telling or lines or ["git said nothing"])[-1])[:300]


def _pattern(name: str) -> str:
    """A name as git's lists of ignored files have it."""
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name.replace("\n", "?"))
