"""@builtin.git: commit, push and status, and pull requests with GitHub's `gh`.

Programs get arguments and input, never shell text: a message, a title or a file name is data,
whatever it contains.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from kakoi._support.parsing import wrong
from kakoi.builtin.arguments import check_branch, check_name, check_names, check_text, encode
from kakoi.builtin.shell import checked, run_checked, runner_for
from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError
from kakoi.network.git_remotes import parse_remote
from kakoi.process import ProcessExecutor, SpawnOptions, base_environment
from kakoi.results import ExecutionResult
from kakoi.sandbox.git_settings import git_settings

PROGRAMS = ("git", "gh")


async def git_commit(message: str, files: Sequence[str] | None = None, all: bool = False) -> str:
    """Commit `files`, or every change with `all`, or what is staged; return git's output."""
    text = encode("message", message)
    if not text.strip():
        raise ConfigurationError("the commit message is empty")
    runner = runner_for(programs=PROGRAMS)
    for file in check_names("files", files):
        await run_checked(runner, ["git", "--literal-pathspecs", "add", "--", file])
    if all and not files:
        await run_checked(runner, ["git", "add", "-A"])
    # The message goes in by stdin, verbatim: even lines that look like comments stay.
    result = await run_checked(
        runner,
        ["git", "commit", "--cleanup=verbatim", "-F", "-"],
        env=git_identity(),
        stdin=text,
    )
    return result.stdout


async def git_push(remote: str = "origin", branch: str | None = None) -> str:
    """Push a branch, by default the current one, to `remote`; return git's output.

    A confined push reaches its repository and nothing else, if your git or a token has a credential
    for the server; over ssh, with your keys. The credential stays outside of the sandbox.
    """
    # With the branch named: git alone would push it only if it has an upstream.
    source = "HEAD" if branch is None else check_branch("branch", branch)
    argv = ["git", "push", check_name("remote", remote), source]
    result = await run_checked(runner_for(programs=PROGRAMS), argv)
    return result.stdout or result.stderr  # Git reports a push on stderr.


async def git_status() -> str:
    """Return the output of `git status` in the current directory."""
    return (await run_checked(runner_for(programs=PROGRAMS), ["git", "status"])).stdout


async def git_create_pr(title: str, body: str, base: str = "main") -> str:
    """Open a pull request for the current branch with `gh`; return its output, which is the URL.

    The repository is that of `origin`. `gh` runs outside of the sandbox, because it needs your
    account; it sees no file of the workspace.
    """
    if not check_text("title", title).isprintable() or not title.strip():
        raise wrong("title", title, "one line of text")
    base, data = check_branch("base", base), encode("body", body)
    runner = runner_for(programs=PROGRAMS)
    asked = await run_checked(runner, ["git", "remote", "get-url", "origin"])
    host, repository = _hosted(asked.stdout.strip())
    head = await run_checked(runner, ["git", "symbolic-ref", "--short", "HEAD"])
    argv = ["gh", "pr", "create", f"--title={title}", "--body-file=-", f"--base={base}"]
    argv += [f"--head={check_branch('HEAD', head.stdout.strip())}", f"--repo={host}/{repository}"]
    command = Command(command=argv, stdin=data, timeout_s=runner.timeout)
    result = await runner.perform(command, lambda: _run_gh(command, host))
    return checked(result).stdout


def _hosted(address: str) -> tuple[str, str]:
    """Return the host and the `OWNER/NAME` of a repository's address."""
    remote = parse_remote(address)
    host, path = remote.host, urlsplit(remote.url).path
    if remote.scheme == "ssh":
        host, path = (urlsplit(remote.url).hostname or host), path or remote.url.partition(":")[2]
        path = path.partition(":")[2] if ":" in path else path
    name = path.strip("/").removesuffix(".git")
    if not host or not re.fullmatch(r"[\w.-]+(/[\w.-]+)+", name):
        raise ConfigurationError(
            "`origin` is not a repository on a server, so there is nowhere to open a pull request",
            hint="git remote set-url origin https://github.com/OWNER/NAME.git",
        )
    return host, name


async def _run_gh(command: Command, host: str) -> ExecutionResult:
    """Run `gh` on this machine, with the user's account for this host and no other."""
    names = ["XDG_CONFIG_HOME", "GH_CONFIG_DIR", "DBUS_SESSION_BUS_ADDRESS"]
    if host == "github.com" or host.endswith(".ghe.com"):
        names += ["GH_TOKEN", "GITHUB_TOKEN"]
    elif host == os.environ.get("GH_HOST"):
        names += ["GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"]
    own = {name: os.environ[name] for name in names if os.environ.get(name)}
    env = {**base_environment(os.environ), **own, "GH_PROMPT_DISABLED": "1"}
    time_ms = None if command.timeout_s is None else command.timeout_s * 1000
    options = SpawnOptions(cwd="/", env=env, stdin=command.stdin, timeout=time_ms)
    clock = asyncio.get_running_loop().time
    began = clock()
    done = await ProcessExecutor(base_env={}).spawn("gh", command.command[1:], options)
    took_ms = round((clock() - began) * 1000)
    return ExecutionResult(done.exit_code, done.stdout, done.stderr, took_ms)


_VARIABLES = (
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
)


def git_identity(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables with the name and email address that git would use for this user.

    A sandbox sees neither our variables nor our git settings. A variable is left out if nothing is
    known; then git uses the repository's own settings.
    """
    variables = os.environ if environ is None else environ
    found = {name: variables[name] for name in _VARIABLES if variables.get(name)}
    settings = git_settings(variables)
    for role in ("author", "committer"):
        for key in ("name", "email"):
            value = settings.get(f"{role}.{key}") or settings.get(f"user.{key}")
            if value:
                found.setdefault(f"GIT_{role}_{key}".upper(), value)
    return found
