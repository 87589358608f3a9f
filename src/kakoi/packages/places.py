"""Where packages are installed: in a sandbox through the gate, or as root from outside of one."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.packages.allowlist import LONGEST, Ecosystem
from kakoi.packages.install import SHIPPED, Ran
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Channel, Command
from kakoi.sandbox.docker_engine import Engine
from kakoi.waiting import finish

VENV: Final = ".venv"
_INSTALL_S: Final = 1800.0
# Programs that do the work inside.
_WHEELS: Final = Path(__file__).with_name("wheels.py")
_NPM: Final = SHIPPED.with_name("npm.sh")
# The folders of PATH outside of $1. In a sandbox (not on the host, where a user's programs can be
# anywhere) also not those that commands can write to.
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
_CAME: Final = re.compile(r"(?:@[\w.-]+/)?[\w.-]+ [\w.!+-]+", re.ASCII)
_MOST_NAMED: Final = 2000
_ROOT_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What apt and the scripts of its packages cannot do without.
_FOR_APT: Final = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}


class InSandbox:
    """pip and npm, as the sandbox's own user, judged and recorded by the gate.

    Nothing of the project takes part: no program, settings, scripts or other dependencies of it.

    `folder`: the project. pip has a virtual environment of the user's in it, `.venv`.
    `env`: variables of the operator.
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

    async def install(self, ecosystem: Ecosystem, wanted: str) -> Ran:
        """See `PackagePlace.install`."""
        if ecosystem == "apt":
            raise SandboxError(
                "apt installs for the whole system, and commands in a sandbox never run as root",
                hint="name a container: `kakoi install --container NAME apt PACKAGE`; or add it to "
                "the image",
            )
        command = Command(command=(ecosystem, "install", wanted), cwd=self._folder)
        work = partial(self._install, ecosystem, wanted)
        result = await self._gate.perform(command, work)
        ran = _answer(result)
        return ran if ran.exit_code else replace(ran, came=_came(ran.stdout))

    async def _install(
        self, ecosystem: Ecosystem, wanted: str, channel: Channel
    ) -> ExecutionResult:
        where = "host" if (await self._gate.place()).name.endswith("host") else "sandbox"
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
            words = ("python3", "-I", "-", f"{self._folder}/{VENV}", env["TMPDIR"], wanted)
            return await self._run(channel, *words, env=env, stdin=_WHEELS.read_bytes())
        finally:
            await finish(self._remove(channel, folder.stdout.strip()))

    async def _run(
        self,
        channel: Channel,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> ExecutionResult:
        """In /, where no file of the project is found by its name."""
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


class AsRoot:
    """apt, as root in a container that runs, from outside. Its own user has no part in it."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container

    async def install(self, ecosystem: Ecosystem, wanted: str) -> Ran:
        """See `PackagePlace.install`."""
        if ecosystem != "apt":
            raise SandboxError(
                f"{ecosystem} packages are the user's own, and are not installed as root",
                hint=f"in the container: install.sh {ecosystem} PACKAGE",
            )
        await self._check()
        updated = await self._apt("update", "-qq")
        return updated if updated.exit_code != 0 else await self._apt("install", "-y", wanted)

    async def _apt(self, *words: str) -> Ran:
        # By its path, with root's own PATH, and in /: nothing of the user's is to be found first.
        args = ["exec", "--user", "0:0", "--workdir", "/", "--env", _ROOT_PATH]
        args += ["--env", "DEBIAN_FRONTEND=noninteractive", self._container, "/usr/bin/apt-get"]
        done = await self._engine.call(
            [*args, *words], doing="installing a package", timeout_s=_INSTALL_S
        )
        return Ran(done.exit_code, done.stdout, done.stderr)

    async def _check(self) -> None:
        """SandboxError if apt cannot do its work there."""
        state = await self._engine.state(self._container)
        if not state.running:
            raise SandboxError(f"the container `{self._container}` is {state}; it must run")
        config = json.loads(await self._engine.host_config(self._container))
        if why := _objection(config):
            raise SandboxError(
                f"apt cannot work in the container `{self._container}`: {why}",
                hint="add the package to the image: `kakoi image build --apt NAME`",
            )


def _objection(config: Mapping[str, Any]) -> str:
    """Why root in a container with this configuration could not install anything."""
    if config.get("ReadonlyRootfs"):
        return "its file system is read-only"
    if config.get("NetworkMode") == "none":
        return "it has no network"
    options = config.get("SecurityOpt")
    if any("no-new-privileges" in str(each) for each in options or () if "false" not in str(each)):
        return "it was made with no-new-privileges"
    dropped, added = (_names(config.get(key)) for key in ("CapDrop", "CapAdd"))
    if dropped & (_FOR_APT | {"ALL"}) and not {"ALL"} & added and not added >= _FOR_APT:
        return "it was made without the rights of root (capabilities)"
    return ""


def _names(capabilities: object) -> set[str]:
    given = capabilities if isinstance(capabilities, list) else []
    return {str(each).upper().removeprefix("CAP_") for each in given}


def _came(output: str) -> tuple[str, ...]:
    """What was installed, by name and version: a line of anything else is no such thing."""
    lines = output.splitlines()[:_MOST_NAMED]
    return tuple(line for line in lines if len(line) <= LONGEST and _CAME.fullmatch(line))


def _answer(result: ExecutionResult) -> Ran:
    if result.reason is Reason.EXITED:
        return Ran(result.exit_code, result.stdout, result.stderr)
    why = result.error or result.reason.value.replace("_", " ")
    return Ran(result.exit_code or 1, result.stdout, f"{result.stderr}\n{why}")
