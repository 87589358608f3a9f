"""Where packages are installed: in a sandbox through the gate, or as root from outside of one."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.packages.allowlist import Ecosystem
from kakoi.packages.install import Ran
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.docker_engine import Engine

VENV: Final = ".venv"
_INSTALL_S: Final = 1800.0
_PIP: Final = ("install", "--isolated", "--no-input", "--disable-pip-version-check")
_NPM: Final = ("install", "--no-audit", "--no-fund")
_ROOT_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What apt and the scripts of its packages cannot do without.
_FOR_APT: Final = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}


class InSandbox:
    """pip and npm, as the sandbox's own user: every step goes through the gate.

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
        if ecosystem == "npm":
            return _answer(await self._run("npm", *_NPM, wanted))
        if (await self._run("test", "-e", f"{VENV}/pyvenv.cfg")).exit_code != 0:
            made = await self._run("python3", "-m", "venv", VENV)
            if made.exit_code != 0:
                return _answer(made)
        return _answer(await self._run(f"{VENV}/bin/pip", *_PIP, wanted))

    async def _run(self, *words: str) -> ExecutionResult:
        wanted = Command(command=words, cwd=self._folder, env=self._env, timeout_s=self._timeout_s)
        return await self._gate.run(wanted)


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


def _answer(result: ExecutionResult) -> Ran:
    if result.reason is Reason.EXITED:
        return Ran(result.exit_code, result.stdout, result.stderr)
    why = result.error or result.reason.value.replace("_", " ")
    return Ran(result.exit_code or 1, result.stdout, f"{result.stderr}\n{why}")
