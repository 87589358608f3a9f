"""The changes that a model made to a project, taken out of its environment.

The model controls everything in there, including `.git` and its configuration. So git runs inside
without any secret, and only data leaves: the final files, packed by git, and the messages of the
model's own commits. `publication` makes a commit from them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.text import shown
from kakoi.channel.api import MIB, Channel, Command
from kakoi.errors import KakoiError, SandboxError
from kakoi.network.git_remotes import git_variables
from kakoi.results import ExecutionResult, Reason
from kakoi.settings.tasks import TaskSection
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
class Work:
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

    async def collect(self, base: str) -> Work | None:
        """The files as they are now; None if they are the same as in `base`."""
        await self._must("add", "--all")
        tree = _object_name(await self._must("write-tree"))
        if tree == _object_name(await self._must("rev-parse", "--verify", f"{base}^{{tree}}")):
            return None
        # Only so that git can leave out what `base` has. This commit is not the one that is pushed.
        made = await self._must("commit-tree", tree, "-p", base, "-m", "work")
        commit = _object_name(made)
        return Work(
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
