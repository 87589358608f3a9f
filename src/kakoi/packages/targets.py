"""Where packages are installed: in a sandbox through the gate, or in a container as root."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kakoi._support.asyncio import finish
from kakoi.backends.docker.engine import Engine
from kakoi.channel.api import Channel, Command
from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.packages.allowlist import Ecosystem
from kakoi.packages.installer import SHIPPED, ManagerResult, plain
from kakoi.results import ExecutionResult, Reason

VENV: Final = ".venv"
_INSTALL_S: Final = 1800.0
# Programs that run inside the sandbox.
WHEELS: Final = Path(__file__).with_name("wheels.py")
_NPM: Final = SHIPPED.with_name("npm.sh")
# The folders of PATH outside $1. In a sandbox (not on the host, where a user's programs can be
# anywhere) folders that commands can write to are left out as well.
_PATH_OUTSIDE: Final = """
project=$(cd -P "$1" && pwd -P) || exit 1
IFS=:
for each in $PATH; do
    case $each in /*) each=$(cd -P "$each" 2>/dev/null && pwd -P) || continue ;; *) continue ;; esac
    case $each/ in "$project"/*) continue ;; esac
    if [ "$2" = host ] || [ ! -w "$each" ]; then all=${all-}:$each; fi
done
all=${all-}
echo "${all#:}"
"""
_MOST_NAMED: Final = 2000
_ROOT_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Capabilities that apt and the scripts of its packages need.
_FOR_APT: Final = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}


class SandboxTarget:
    """Installs pip and npm packages as the sandbox's own user, judged and recorded by the gate.

    Nothing of the project is used: none of its programs, settings, scripts or other dependencies.

    `folder`: the project. pip installs into its virtual environment, `.venv`.
    `env`: variables that the operator has set.
    """

    def __init__(
        self,
        gate: Gate,
        folder: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = _INSTALL_S,
    ) -> None:
        self._gate = gate
        self._folder = folder
        self._env = env or {}
        self._timeout_s = timeout_s

    async def install(self, ecosystem: Ecosystem, wanted: str) -> ManagerResult:
        """See `InstallTarget.install`."""
        if ecosystem == "apt":
            raise SandboxError(
                "apt installs system-wide, and commands in a sandbox never run as root",
                hint="use `kakoi install --container NAME apt PACKAGE`, or add the package to the "
                "image",
            )
        command = Command(command=(ecosystem, "install", wanted), cwd=self._folder)
        work = partial(self._install, ecosystem, wanted)
        result = await self._gate.perform(command, work)
        ran = _manager_result(result)
        return ran if ran.exit_code else replace(ran, installed=parse_installed(ran.stdout))

    async def _install(
        self, ecosystem: Ecosystem, wanted: str, channel: Channel
    ) -> ExecutionResult:
        where = "host" if (await self._gate.open_sandbox()).name.endswith("host") else "sandbox"
        path = await self._run(channel, "/bin/sh", "-c", _PATH_OUTSIDE, "sh", self._folder, where)
        folder = await self._run(channel, "mktemp", "-d", "-t", "kakoi-install-XXXXXX")
        for each in (path, folder):
            if not each.ok:
                return each
        try:
            env = {"PATH": path.stdout.strip(), "TMPDIR": folder.stdout.strip()}
            if ecosystem == "npm":
                return await self._run(
                    channel, "/bin/sh", "-c", _NPM.read_text(), "sh", self._folder, wanted, env=env
                )
            # No cache: a command could have put something into the one in the user's home.
            words = (f"{self._folder}/{VENV}", env["TMPDIR"], "--no-cache-dir", wanted)
            start = ("python3", "-I", "-")
            return await self._run(channel, *start, *words, env=env, stdin=WHEELS.read_bytes())
        finally:
            await finish(self._remove(channel, folder.stdout.strip()))

    async def _run(
        self,
        channel: Channel,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> ExecutionResult:
        """Run a program in /, where no file of the project can be found by name."""
        wanted = Command(
            command=words,
            cwd="/",
            env={**self._env, **(env or {})},
            stdin=stdin,
            timeout_s=self._timeout_s,
        )
        return await channel.run(wanted)

    async def _remove(self, channel: Channel, folder: str) -> None:
        with contextlib.suppress(SandboxError, OSError):
            await self._run(channel, "rm", "-rf", "--", folder)


class ContainerTarget:
    """Installs apt packages as root in a running container, from outside of it."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container

    async def install(self, ecosystem: Ecosystem, wanted: str) -> ManagerResult:
        """See `InstallTarget.install`."""
        if ecosystem != "apt":
            raise SandboxError(
                f"{ecosystem} packages belong to the user and are not installed as root",
                hint=f"in the container, run: install.sh {ecosystem} PACKAGE",
            )
        await self._check()
        updated = await self._apt("update", "-qq")
        return updated if updated.exit_code != 0 else await self._apt("install", "-y", wanted)

    async def _apt(self, *words: str) -> ManagerResult:
        # By its path, with root's own PATH, and in /, so that no file of the user is found first.
        args = ["exec", "--user", "0:0", "--workdir", "/", "--env", _ROOT_PATH]
        args += ["--env", "DEBIAN_FRONTEND=noninteractive", self._container, "/usr/bin/apt-get"]
        done = await self._engine.call(
            [*args, *words], doing="installing a package", timeout_s=_INSTALL_S
        )
        return ManagerResult(done.exit_code, done.stdout, done.stderr)

    async def _check(self) -> None:
        """Raise SandboxError if apt cannot work in the container."""
        state = await self._engine.state(self._container)
        if not state.running:
            raise SandboxError(f"the container `{self._container}` is {state}, not running")
        config = json.loads(await self._engine.host_config(self._container))
        if why := _objection(config):
            raise SandboxError(
                f"apt cannot work in the container `{self._container}`: {why}",
                hint="add the package to the image: `kakoi image build --apt NAME`",
            )


def _objection(config: Mapping[str, Any]) -> str:
    """Return why root cannot install anything in a container with this configuration, or ""."""
    if config.get("ReadonlyRootfs"):
        return "its file system is read-only"
    if config.get("NetworkMode") == "none":
        return "it has no network"
    options = config.get("SecurityOpt")
    if any("no-new-privileges" in str(each) for each in options or () if "false" not in str(each)):
        return "it was created with no-new-privileges"
    dropped, added = (_names(config.get(key)) for key in ("CapDrop", "CapAdd"))
    if dropped & (_FOR_APT | {"ALL"}) and not {"ALL"} & added and not added >= _FOR_APT:
        return "it was created without the capabilities that apt needs"
    return ""


def _names(capabilities: object) -> set[str]:
    given = capabilities if isinstance(capabilities, list) else []
    return {str(each).upper().removeprefix("CAP_") for each in given}


def parse_installed(output: str) -> tuple[str, ...]:
    """Return what was installed, as `NAME VERSION`; odd names are made printable, not dropped."""
    lines = [plain(line) for line in output.splitlines() if line.strip()]
    more = len(lines) - _MOST_NAMED
    return (*lines[:_MOST_NAMED], *([f"(and {more} more)"] if more > 0 else []))


def _manager_result(result: ExecutionResult) -> ManagerResult:
    if result.reason is Reason.EXITED:
        return ManagerResult(result.exit_code, result.stdout, result.stderr)
    why = result.error or result.reason.value.replace("_", " ")
    return ManagerResult(result.exit_code or 1, result.stdout, f"{result.stderr}\n{why}")
