"""@builtin.git: commit, push, status, and a pull request by GitHub's `gh`.

Programs get arguments and input, never a shell's text: a message, a title or a file name is data,
whatever it contains.
"""

from collections.abc import Sequence

from kakoi.builtin.arguments import branch as branch_name
from kakoi.builtin.arguments import encoded, name, names, text
from kakoi.builtin.running import executor_for, must
from kakoi.config.identity import git_identity
from kakoi.errors import ConfigurationError
from kakoi.sections import wrong

PROGRAMS = ("git", "gh")


async def git_commit(message: str, files: Sequence[str] | None = None, all: bool = False) -> str:
    """Commit `files`, or with `all` every change, or else what is staged; returns what git said."""
    said = encoded("message", message)
    if not said.strip():
        raise ConfigurationError("message is empty; a commit needs one")
    executor = executor_for(programs=PROGRAMS)
    for file in names("files", files):
        await must(executor, ["git", "--literal-pathspecs", "add", "--", file])
    if all and not files:
        await must(executor, ["git", "add", "-A"])
    # By its input, and verbatim: not even lines that look like comments are touched.
    result = await must(
        executor,
        ["git", "commit", "--cleanup=verbatim", "-F", "-"],
        env=git_identity(),
        stdin=said,
    )
    return result.stdout


async def git_push(remote: str = "origin", branch: str | None = None) -> str:
    """Push to `remote`, the given branch or the current one; returns what git said."""
    # By its name too: git alone would push the current branch only where it has been before.
    source = "HEAD" if branch is None else branch_name("branch", branch)
    argv = ["git", "push", name("remote", remote), source]
    result = await must(executor_for(programs=PROGRAMS), argv)
    return result.stdout or result.stderr  # Git tells people about a push on stderr.


async def git_status() -> str:
    """The status of the repository in the current directory, as git tells it."""
    return (await must(executor_for(programs=PROGRAMS), ["git", "status"])).stdout


async def git_create_pr(title: str, body: str, base: str = "main") -> str:
    """Open a pull request by `gh`; returns what it said, which is the address."""
    if not text("title", title).isprintable() or not title.strip():
        raise wrong("title", title, "one line of text")
    argv = ["gh", "pr", "create", f"--title={title}", "--body-file=-"]
    result = await must(
        executor_for(programs=PROGRAMS),
        [*argv, f"--base={branch_name('base', base)}"],
        stdin=encoded("body", body),
    )
    return result.stdout
