"""The sandbox of one command that talks to a git remote: it reaches that repository and no more.

Other commands of the same workspace keep the network they have, which is none. The credential is
lent to our proxy, or to the one ssh process outside; it never enters the sandbox.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kakoi._support.text import shown
from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.settings import SandboxConfig
from kakoi.backends.workspace import is_within
from kakoi.channel.api import Command
from kakoi.errors import KakoiError, UnsupportedError
from kakoi.gate.calls import judged_text
from kakoi.gate.connections import DedicatedSandbox
from kakoi.policy.git_commands import GitTraffic, git_traffic
from kakoi.process import ProcessExecutor, SpawnOptions, base_environment

if TYPE_CHECKING:
    from kakoi.backends.outlet import Outlet
    from kakoi.network.git_access import GitAccess, GitRepository
    from kakoi.network.git_remotes import GitCredential
    from kakoi.network.proxy import Recorder

_LOG = logging.getLogger(__name__)
_BACKENDS: Final = ("auto", "bubblewrap", "docker", "podman")
_PATIENCE_MS: Final = 20_000
_MOST_ADDRESSES: Final = 16
# What ssh and the credential helpers of the user need, besides the base environment.
_OF_SSH: Final = ("SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS")
Open = Callable[[SandboxConfig, "Outlet"], Awaitable[SandboxAdapter]]


def lends_git(config: SandboxConfig, workspace: str) -> bool:
    """Whether commands that talk to a git remote get a sandbox of their own.

    Not where somebody has chosen the network, or where the workspace is not the user's own folder.
    """
    is_unset = config.network is None and config.docker.network in (None, "none")
    return is_unset and bool(workspace) and config.type in _BACKENDS


class GitSandboxes:
    """Opens sandboxes for commands that talk to a git remote.

    `open_backend`: opens one with this configuration. `record`: every decision of its proxy.
    """

    def __init__(
        self,
        config: SandboxConfig,
        workspace: str,
        *,
        open_backend: Open,
        record: "Recorder",
        environ: Mapping[str, str],
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._open_backend = open_backend
        self._record = record
        self._environ = environ

    async def dedicated_sandbox(
        self, command: Command
    ) -> contextlib.AbstractAsyncContextManager[DedicatedSandbox] | None:
        """Return the sandbox for the command; None if it needs none, or nothing can be lent.

        Raises UnsupportedError if it would not see the workspace as the other commands do.
        """
        traffic = git_traffic(judged_text(command, {}))
        if traffic is None:
            return None
        access = await self._access(traffic, command.cwd or self._workspace)
        if access and self._config.copy_on_write:
            raise UnsupportedError(
                "a copy-on-write sandbox cannot reach the git remote: that takes a second sandbox, "
                "which does not see changes that are not applied yet",
                hint="apply the changes, and run it without `copy_on_write`; or give the sandbox a "
                "network, and the remote a credential that commands can use",
            )
        if not access and (servers := access.without_credential):
            _LOG.warning(
                "git has no credential for %s, so this command has no network: store one (`git "
                "credential`, GITHUB_PERSONAL_ACCESS_TOKEN, …), or give the sandbox a network",
                shown(", ".join(servers)),
            )
        return self._opened(access) if access else None

    @contextlib.asynccontextmanager
    async def _opened(self, access: "GitAccess") -> AsyncIterator[DedicatedSandbox]:
        from kakoi.backends.outlet import Outlet, proxy_variables
        from kakoi.network.proxy import Proxy

        proxy = Proxy(
            access.domains,
            record=self._record,
            # The user has a credential for this very server, so it may be a private one.
            check_address=lambda _domains, _address: "",
            git=access,
        )
        variables = {**proxy_variables(), **access.variables()}
        config = replace(self._config, network="allowlist")
        try:
            adapter = await self._open_backend(config, Outlet(proxy.serve, variables))
            try:
                yield adapter, proxy
            finally:
                await adapter.cleanup()
        finally:
            await proxy.close()

    async def _access(self, traffic: GitTraffic, cwd: str) -> "GitAccess":
        from kakoi.network.git_access import GitAccess

        addresses = dict.fromkeys(traffic.addresses)
        for folder in (cwd, *(os.path.join(cwd, each) for each in traffic.folders)):
            addresses |= dict.fromkeys(await self._remotes(folder))
        found = [await self._repository(each) for each in list(addresses)[:_MOST_ADDRESSES]]
        return GitAccess(
            [each for each in found if each is not None],
            traffic.services,
            environ=self._variables,
        )

    @property
    def _variables(self) -> dict[str, str]:
        own = {name: self._environ[name] for name in _OF_SSH if self._environ.get(name)}
        return {**base_environment(self._environ), **own}

    async def _remotes(self, folder: str) -> list[str]:
        """Return the addresses of the remotes of the repository that the folder is in."""
        file = await asyncio.to_thread(_config_file, folder, self._workspace)
        if file is None:
            return []
        words = ("config", "--file", file, "--no-includes", "-z", "--get-regexp")
        listed = await self._git(*words, r"^remote\..*\.(url|pushurl)$")
        return [each.partition("\n")[2] for each in listed.split("\0") if each]

    async def _repository(self, address: str) -> "GitRepository | None":
        from kakoi.network.git_access import repository_at
        from kakoi.network.git_credentials import credential_for

        found = repository_at(address, credential_for(address, self._environ))
        if found is None or found.remote.scheme == "ssh":
            return found
        if found.credential is None or not found.credential.secret:
            return replace(found, credential=await self._stored(found))
        return found

    async def _stored(self, repository: "GitRepository") -> "GitCredential | None":
        """Return what the user's own git would send to this server, without asking anybody."""
        from kakoi.network.git_remotes import GitCredential

        remote = repository.remote
        asked = [f"protocol={remote.scheme}", f"host={remote.host}", f"path={repository.path[1:]}"]
        if repository.credential is not None:
            asked.append(f"username={repository.credential.username}")
        answer = await self._git("credential", "fill", stdin="\n".join([*asked, "", ""]))
        found = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
        if not found.get("password"):
            return None
        return GitCredential(found.get("username", ""), found["password"])

    async def _git(self, *argv: str, stdin: str = "") -> str:
        """Run git outside of every repository; return its output, or nothing if it failed."""
        env = {
            **self._variables,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "SSH_ASKPASS": "",
            "GIT_DIR": os.devnull,
        }
        options = SpawnOptions(cwd="/", env=env, stdin=stdin, timeout=_PATIENCE_MS)
        try:
            done = await ProcessExecutor(base_env={}).spawn("git", argv, options)
        except KakoiError:
            return ""
        return done.stdout if done.exit_code == 0 else ""


def _config_file(folder: str, workspace: str) -> str | None:
    """Return the settings of the repository that the folder is in, if it is in the workspace."""
    at = os.path.realpath(folder)
    while is_within(at, workspace):
        file = os.path.realpath(os.path.join(at, ".git", "config"))
        if os.path.isfile(file) and is_within(file, workspace):
            return file
        at, below = os.path.dirname(at), at
        if at == below:
            break
    return None
