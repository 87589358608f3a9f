"""SandboxFactory: the sandbox that was asked for, else the named fallback, else an error."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kakoi.errors import ConfigurationError, EnvironmentUnavailableError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import base_environment
from kakoi.runner.commands import check_type
from kakoi.sandbox.adapter import Availability, SandboxAdapter
from kakoi.sandbox.settings import (
    AUTO,
    CONFINED_HOST,
    NETWORKS,
    WITH_COPY_ON_WRITE,
    SandboxConfig,
)

if TYPE_CHECKING:
    from kakoi.overlay.overlay import Overlay
    from kakoi.sandbox.outlet import Outlet

_log = logging.getLogger(__name__)
Maker = Callable[[SandboxConfig], SandboxAdapter]
# What `auto` tries, the best first: bubblewrap starts faster and needs no engine. The host only if
# it can be confined, and that is said.
AUTO_ORDER: Final = ("bubblewrap", "docker", CONFINED_HOST)
_ONLY_CONFINED: Final = (
    "running on this machine, confined by Landlock only (`confined-host`): no limit on memory, "
    "processes or disk is kept (%s)"
)
# How a client finds its engine. Nothing else of our environment is the engine's business.
_OF_THE_ENGINE: Final = """PATH HOME XDG_RUNTIME_DIR SSH_AUTH_SOCK DOCKER_HOST DOCKER_CONTEXT
    DOCKER_CONFIG DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION CONTAINER_HOST
    CONTAINER_CONNECTION CONTAINERS_CONF""".split()
# container-use works with git as well, in the user's name.
_OF_CONTAINER_USE: Final = """USER LANG XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME
    CONTAINER_USE_CONFIG_DIR GIT_CONFIG_GLOBAL""".split()
# kubectl starts other programs to log in to the clusters of some providers.
_OF_KUBECTL: Final = """PATH HOME KUBECONFIG HTTPS_PROXY https_proxy HTTP_PROXY http_proxy NO_PROXY
    no_proxy AWS_PROFILE AWS_REGION AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE CLOUDSDK_CONFIG
    GOOGLE_APPLICATION_CREDENTIALS AZURE_CONFIG_DIR""".split()


def engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the program of a container engine gets to see of an environment."""
    return {name: environ[name] for name in _OF_THE_ENGINE if name in environ}


def cluster_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What kubectl gets to see of an environment."""
    return {name: environ[name] for name in _OF_KUBECTL if name in environ}


class SandboxFactory:
    """Makes sandboxes for one directory; nothing is made before it is asked for.

    `workspace`: what commands may change; every sandbox shows it at its own path.
    `environ`: our environment, of which each gets what is its business; without it, nothing.
    `clock`: the time of day, for the labels of containers.
    `programs`: what `kernel_allowlist` means: the only programs that commands may execute.
    `makers`: other ways to make a sandbox, by name.
    `outlet`: who serves the networks `open` and `allowlist`.
    """

    def __init__(
        self,
        workspace: str | Path = ".",
        *,
        executor: ProcessExecutor | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] | None = None,
        programs: Collection[str] | None = None,
        makers: Mapping[str, Maker] | None = None,
        outlet: "Outlet | None" = None,
    ) -> None:
        check_type("workspace", workspace, str, os.PathLike)
        check_type("environ", environ, Mapping, type(None))
        check_type("executor", executor, ProcessExecutor, type(None))
        check_type("makers", makers, Mapping, type(None))
        self._workspace = os.path.abspath(workspace)
        with contextlib.suppress(OSError, ValueError):  # The sandbox will say what is wrong.
            self._workspace = os.path.realpath(workspace)
        self._executor = executor or ProcessExecutor()
        self._environ = dict(environ or {})
        self._clock = clock
        self._outlet = outlet
        self._programs = None if programs is None else tuple(sorted(programs))
        self._makers: dict[str, Maker] = {
            "bubblewrap": self._bubblewrap,
            "docker": self._containers,
            "podman": self._containers,
            "container-use": self._container_use,
            "kubernetes": self._kubernetes,
            "host": self._host,
            CONFINED_HOST: self._host,
            **(makers or {}),
        }

    def make(self, name: str, config: SandboxConfig) -> SandboxAdapter:
        """The sandbox of this name, untried."""
        check_type("config", config, SandboxConfig)
        if name not in self._makers:
            raise ConfigurationError(
                f"there is no sandbox {str(name)[:80]!r} to make",
                hint=f"one of: {', '.join(self._makers)}",
            )
        if config.copy_on_write and name not in WITH_COPY_ON_WRITE:
            raise ConfigurationError(
                f"the sandbox `{name}` has no copy-on-write workspace",
                hint=f"use {WITH_COPY_ON_WRITE[0]}, or do without copy_on_write",
            )
        if name == CONFINED_HOST:
            host = replace(config.host, confine=True)
            return self._makers[name](replace(config, type="host", host=host))
        return self._makers[name](replace(config, type=name))

    async def create(
        self, config: SandboxConfig | None = None, *, unfit: Sequence[str] = ()
    ) -> SandboxAdapter:
        """The first sandbox that works, of `type` and then `fallback` (with a warning).

        `unfit`: what `auto` must not take, though it may work.

        EnvironmentUnavailableError: none does; it says why, for each, and what would help.
        """
        check_type("config", config, SandboxConfig, type(None))
        config = config or SandboxConfig()
        if config.network not in (None, *NETWORKS[CONFINED_HOST]):
            unfit = (*unfit, CONFINED_HOST)
        refused: dict[str, Availability] = {}
        if config.copy_on_write:
            unfit = [*unfit, *(name for name in AUTO_ORDER if name not in WITH_COPY_ON_WRITE)]
        for name in _candidates(config.type, unfit):
            if adapter := await self._usable(name, config, refused):
                if adapter.name == CONFINED_HOST and config.type == AUTO:
                    _log.warning(_ONLY_CONFINED, _reasons(refused))
                return adapter
        if config.fallback is not None:
            for name in _candidates(config.fallback, unfit):
                if adapter := await self._usable(name, config, refused):
                    _log.warning("falling back to `%s` (%s)", name, _reasons(refused))
                    return adapter
        raise _none_usable(config.type, refused)

    async def _usable(
        self, name: str, config: SandboxConfig, refused: dict[str, Availability]
    ) -> SandboxAdapter | None:
        adapter = self.make(name, config)
        try:
            found = await adapter.availability()
        except BaseException:
            await adapter.cleanup()  # To find it out, some make the place.
            raise
        if found:
            return adapter
        refused[name] = found
        _log.info("the sandbox `%s` cannot be used: %s", name, found.reason)
        await adapter.cleanup()
        return None

    # --- One of each -------------------------------------------------------------------------

    def _bubblewrap(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.sandbox.bubblewrap import BubblewrapAdapter

        given: tuple[Literal["open", "allowlist", "host"], ...] = ("open", "allowlist", "host")
        return BubblewrapAdapter(
            self._workspace,
            network=next((each for each in given if each == config.network), "none"),
            outlet=self._outlet,
            limits=config.docker.limits,
            programs=self._listed(config),
            executor=self._executor,
            overlay=self._overlay(config) if config.copy_on_write else None,
        )

    def _overlay(self, config: SandboxConfig) -> "Overlay":
        from kakoi.overlay.overlay import Overlay
        from kakoi.overlay.store import overlays_folder

        return Overlay(self._workspace, config.overlays or overlays_folder(self._environ))

    def _containers(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.sandbox.docker import DockerAdapter

        settings = replace(
            config.docker,
            workspace=self._workspace,
            inside=self._workspace,
            programs=self._listed(config),
        )
        return DockerAdapter(
            settings,
            self._executor,
            program="podman" if config.type == "podman" else "docker",
            lifetime="sandbox",
            clock=self._clock,
            engine_env=engine_environment(self._environ),
            outlet=self._outlet,
        )

    def _container_use(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.sandbox.container_use import ContainerAdapter

        if config.kernel_allowlist:
            raise ConfigurationError(
                "container-use cannot keep `kernel_allowlist`: kakoi limits nothing there",
                hint="use --sandbox bubblewrap or docker, or leave it out",
            )
        names = (*_OF_THE_ENGINE, *_OF_CONTAINER_USE)
        return ContainerAdapter(
            config.container_use,
            self._executor,
            workspace=self._workspace,
            engine_env={name: self._environ[name] for name in names if name in self._environ},
        )

    def _kubernetes(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.sandbox.kubernetes import KubernetesAdapter

        if config.kernel_allowlist:
            raise ConfigurationError(
                "kubernetes cannot keep `kernel_allowlist`: a pod has no mounts without programs",
                hint="use --sandbox bubblewrap or docker, or leave it out",
            )
        settings = replace(
            config.kubernetes,
            network=config.network or config.kubernetes.network,
            inside=self._workspace,
            limits=config.docker.limits,
        )
        return KubernetesAdapter(
            settings,
            self._executor,
            clock=self._clock,
            cluster_env=cluster_environment(self._environ),
        )

    def _host(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.sandbox.host import HostAdapter

        return HostAdapter(
            self._workspace,
            env=base_environment(self._environ) or None,
            timeout_s=config.host.timeout_s,
            warn_on_start=config.host.warn_on_start,
            confine=config.host.confine,
            network=config.network if config.host.confine else None,
            programs=self._listed(config),
            limits=config.docker.limits,
            executor=self._executor,
        )

    def _listed(self, config: SandboxConfig) -> tuple[str, ...] | None:
        if not config.kernel_allowlist:
            return None
        if self._programs is None:
            raise ConfigurationError(
                "`kernel_allowlist` is on, but the policy lists no programs: it allows any",
                hint="use a profile with a list, or turn sandbox.kernel_allowlist off",
            )
        return self._programs


def _candidates(name: str, unfit: Sequence[str]) -> list[str]:
    return [each for each in AUTO_ORDER if each not in unfit] if name == AUTO else [name]


def _reasons(refused: Mapping[str, Availability]) -> str:
    return "; ".join(f"{name}: {found.reason}" for name, found in refused.items())


def _none_usable(type: str, refused: Mapping[str, Availability]) -> EnvironmentUnavailableError:
    reasons = _reasons(refused)
    fix = next((found.fix for found in refused.values() if found.fix), "")
    return EnvironmentUnavailableError(
        f"no sandbox can be used here ({reasons})",
        details={"environmentType": type, **{name: why.reason for name, why in refused.items()}},
        hint=f"{fix}; `kakoi doctor` tells more" if fix else "`kakoi doctor` tells more",
    )
