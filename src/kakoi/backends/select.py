"""SandboxFactory: the sandbox that was asked for, else the fallback, else an error."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar

from kakoi._support.late import dataclass
from kakoi.backends.adapter import Availability, SandboxAdapter
from kakoi.backends.settings import (
    AUTO,
    CONFINED_HOST,
    NETWORKS,
    WITH_COPY_ON_WRITE,
    SandboxConfig,
    check_name,
)
from kakoi.channel.api import check_type
from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    LimitError,
    SandboxError,
)
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import base_environment

if TYPE_CHECKING:
    from kakoi.backends.outlet import Outlet
    from kakoi.overlay.overlay import Overlay

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)
BackendFactory = Callable[[SandboxConfig], SandboxAdapter]
# What `auto` tries, the best first: bubblewrap starts faster and needs no engine. The host comes
# last, only if it can be confined, and with a warning.
AUTO_ORDER: Final = ("bubblewrap", "docker", CONFINED_HOST)
# Sandboxes that `auto` must not fall back to if a limit was requested: only a container engine is
# sure to enforce it.
_WITHOUT_LIMITS: Final = tuple(name for name in AUTO_ORDER if name != "docker")
_ONLY_CONFINED: Final = (
    "running on this machine, confined by Landlock only (`confined-host`): no limit on memory, "
    "processes or disk is enforced (%s)"
)
# How a client finds its engine. Nothing else of our environment is passed to it.
_OF_THE_ENGINE: Final = """PATH HOME XDG_RUNTIME_DIR SSH_AUTH_SOCK DOCKER_HOST DOCKER_CONTEXT
    DOCKER_CONFIG DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION DOCKER_CLIENT_TIMEOUT
    CONTAINER_HOST CONTAINER_CONNECTION CONTAINERS_CONF CONTAINERS_STORAGE_CONF""".split()
# kubectl starts other programs to log in to the clusters of some providers.
_OF_KUBECTL: Final = """PATH HOME KUBECONFIG HTTPS_PROXY https_proxy HTTP_PROXY http_proxy NO_PROXY
    no_proxy AWS_PROFILE AWS_REGION AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE CLOUDSDK_CONFIG
    GOOGLE_APPLICATION_CREDENTIALS AZURE_CONFIG_DIR""".split()


def engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that are passed to the program of a container engine."""
    return {name: environ[name] for name in _OF_THE_ENGINE if name in environ}


def cluster_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that are passed to kubectl."""
    return {name: environ[name] for name in _OF_KUBECTL if name in environ}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """What the backend of a plug-in is made from (docs/how-to/add-a-backend.md).

    `workspace`: the directory that commands can change; a path without links.
    `config`: what the user asked for. A backend that cannot provide its `network`, cannot end
        after its `lifetime_s`, or cannot enforce a limit of `config.docker.limits` that must hold,
        raises ConfigurationError.
    `environ`: kakoi's environment. It can hold secrets: use only what the backend needs.
    """

    workspace: str
    config: SandboxConfig
    executor: ProcessExecutor
    environ: Mapping[str, str]


class _WithDefaults(Generic[_P, _R]):
    """A method that can also be called on the class, and then on an instance without arguments."""

    def __init__(self, method: Callable[Concatenate["SandboxFactory", _P], _R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__
        self.__wrapped__ = method

    def __get__(
        self, instance: "SandboxFactory | None", owner: type["SandboxFactory"]
    ) -> Callable[_P, _R]:
        method: Callable[_P, _R] = MethodType(
            self._method, owner() if instance is None else instance
        )
        return method


class SandboxFactory:
    """Makes sandboxes for one directory. Nothing is made before it is asked for.

    `workspace`: the directory that commands can change; every sandbox shows it at its own path.
        None: containers and pods have one of their own, and other sandboxes get one of `private`.
    `private`: makes a directory for one sandbox, which goes with it.
    `environ`: our environment. Each backend gets only the variables that it needs.
    `clock`: the time of day, for the labels of containers.
    `programs`: the only programs that commands can execute with `kernel_allowlist`.
    `makers`: other functions that make a sandbox, by name.
    `outlet`: serves the networks `open` and `allowlist`.
    `git_settings`: the user's settings for git in bubblewrap and containers, as a file.
    """

    def __init__(
        self,
        workspace: str | Path | None = ".",
        *,
        executor: ProcessExecutor | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] | None = None,
        programs: Collection[str] | None = None,
        makers: Mapping[str, BackendFactory] | None = None,
        outlet: "Outlet | None" = None,
        private: Callable[[], str] | None = None,
        git_settings: bytes = b"",
    ) -> None:
        check_type("workspace", workspace, str, os.PathLike, type(None))
        check_type("environ", environ, Mapping, type(None))
        check_type("executor", executor, ProcessExecutor, type(None))
        check_type("makers", makers, Mapping, type(None))
        self._given_workspace = None if workspace is None else os.path.abspath(workspace)
        if workspace is not None:
            with contextlib.suppress(OSError, ValueError):  # The sandbox will report the error.
                self._given_workspace = os.path.realpath(workspace)
        self._private = private
        self._git_settings = git_settings
        self._given_executor = executor
        self._executor = executor or ProcessExecutor()
        self._environ = dict(environ or {})
        self._clock = clock
        self._outlet = outlet
        self._programs = None if programs is None else tuple(sorted(programs))
        self._makers: dict[str, BackendFactory] = {
            "bubblewrap": self._bubblewrap,
            "docker": self._containers,
            "podman": self._containers,
            "kubernetes": self._kubernetes,
            "host": self._host,
            CONFINED_HOST: self._host,
            **(makers or {}),
        }

    @property
    def _workspace(self) -> str:
        """The directory of this machine for a sandbox that needs one."""
        if self._given_workspace is not None:
            return self._given_workspace
        if self._private is None:
            raise ConfigurationError("there is no workspace", hint="pass a directory")
        return self._private()

    def make(self, name: str, config: SandboxConfig) -> SandboxAdapter:
        """Make the sandbox of this name, without trying it."""
        check_type("config", config, SandboxConfig)
        if name not in self._makers:
            if name == AUTO:
                raise ConfigurationError("there is no sandbox `auto` to make", hint="call `create`")
            check_name("sandbox", name)
        if config.copy_on_write and name not in WITH_COPY_ON_WRITE:
            raise ConfigurationError(
                f"the sandbox `{name}` has no copy-on-write workspace",
                hint=f"use {WITH_COPY_ON_WRITE[0]}, or turn copy_on_write off",
            )
        if name == CONFINED_HOST:
            host = replace(config.host, confine=True)
            return self._makers[name](replace(config, type="host", host=host))
        return self._makers.get(name, self._plugin)(replace(config, type=name))

    @_WithDefaults
    async def create(
        self,
        config: SandboxConfig | Mapping[str, object] | None = None,
        *,
        unfit: Sequence[str] = (),
    ) -> SandboxAdapter:
        """The first sandbox that works, of `type` and then `fallback` (with a warning).

            adapter = await SandboxFactory.create({"type": "docker", "fallback": "host"})

        On the class as here, it is for the current directory, with no other arguments.
        `config`: also as a mapping, which is a configuration file or its `sandbox` section.
        `unfit`: what `auto` must not choose, even if it works.

        Raises EnvironmentUnavailableError if none works, with each reason and what would help.
        """
        check_type("config", config, SandboxConfig, Mapping, type(None))
        if isinstance(config, Mapping):
            config = SandboxConfig.parse(config.get("sandbox", config))
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
            await adapter.cleanup()  # Some create the sandbox to find out.
            raise
        if found:
            return adapter
        refused[name] = found
        _log.info("the sandbox `%s` cannot be used: %s", name, found.reason)
        await adapter.cleanup()
        return None

    # --- One method per backend --------------------------------------------------------------

    def _bubblewrap(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

        given: tuple[Literal["open", "allowlist", "host"], ...] = ("open", "allowlist", "host")
        return BubblewrapAdapter(
            self._workspace,
            network=next((each for each in given if each == config.network), "none"),
            outlet=self._outlet,
            limits=config.docker.limits,
            programs=self._listed(config),
            executor=self._executor,
            overlay=self._overlay(config) if config.copy_on_write else None,
            private_workspace=self._given_workspace is None,
            lifetime_s=config.lifetime_s,
            git_settings=self._git_settings,
        )

    def _overlay(self, config: SandboxConfig) -> "Overlay":
        from kakoi.overlay.overlay import Overlay
        from kakoi.overlay.store import overlays_folder

        return Overlay(self._workspace, config.overlays or overlays_folder(self._environ))

    def _containers(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.backends.docker.adapter import DockerAdapter

        shown = self._given_workspace
        settings = replace(
            config.docker,
            workspace=shown,
            inside=shown or config.docker.inside,
            programs=self._listed(config),
            git_settings=self._git_settings,
        )
        return DockerAdapter(
            settings,
            self._given_executor,  # Without one, it may ask the engine by its socket.
            program="podman" if config.type == "podman" else "docker",
            lifetime="sandbox" if config.outlives_us else "client",
            overlay=self._overlay(config) if config.copy_on_write else None,
            clock=self._clock,
            engine_env=engine_environment(self._environ),
            outlet=self._outlet,
            lifetime_s=config.lifetime_s,
        )

    def _plugin(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.backends.plugins import load_plugin

        if config.kernel_allowlist:
            raise ConfigurationError(
                f"{config.type} cannot enforce `kernel_allowlist`: only built-in sandboxes can",
                hint="use --sandbox bubblewrap or docker, or leave it out",
            )
        context = BackendContext(
            workspace=self._workspace,
            config=config,
            executor=self._executor,
            environ=self._environ,
        )
        return load_plugin(config.type).make(context)

    def _kubernetes(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.backends.kubernetes.adapter import KubernetesAdapter

        if config.kernel_allowlist:
            raise ConfigurationError(
                "kubernetes cannot enforce `kernel_allowlist`: a pod has no noexec mounts",
                hint="use --sandbox bubblewrap or docker, or leave it out",
            )
        settings = replace(
            config.kubernetes,
            network=config.network or config.kubernetes.network,
            inside=self._given_workspace or config.kubernetes.inside,
            limits=config.docker.limits,
        )
        return KubernetesAdapter(
            settings,
            self._executor,
            clock=self._clock,
            cluster_env=cluster_environment(self._environ),
            lifetime_s=config.lifetime_s,
        )

    def _host(self, config: SandboxConfig) -> SandboxAdapter:
        from kakoi.backends.host.adapter import HostAdapter

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
            private_workspace=self._given_workspace is None,
            lifetime_s=config.lifetime_s,
        )

    def _listed(self, config: SandboxConfig) -> tuple[str, ...] | None:
        if not config.kernel_allowlist:
            return None
        if self._programs is None:
            raise ConfigurationError(
                "`kernel_allowlist` is on, but the policy has no list of programs: it allows any",
                hint="use a profile with a list, or turn sandbox.kernel_allowlist off",
            )
        return self._programs


async def select_backend(
    factory: SandboxFactory, config: SandboxConfig, unfit: Sequence[str]
) -> SandboxAdapter:
    """Return the backend that `config` names, or the first of `auto` that works."""
    if config.type != AUTO and config.fallback is None:
        # Not tried out first: there is no alternative, and the command itself will fail.
        _log.info("using the sandbox `%s`, as requested", config.type)
        return factory.make(config.type, config)
    if unfit:
        _log.info("not suitable for this request: %s", ", ".join(f"`{name}`" for name in unfit))
    if config.type == AUTO and AUTO_ORDER[0] not in unfit:
        # Opened right away and not tried out first, which would take as long as a short command.
        first = factory.make(AUTO_ORDER[0], config)
        try:
            await first.channel()
        except LimitError as error:
            # It works, but cannot enforce a requested limit. A container engine may.
            await first.cleanup()
            try:
                return await factory.create(config, unfit=(*unfit, *_WITHOUT_LIMITS))
            except EnvironmentUnavailableError:
                raise error from None
        except SandboxError as error:
            _log.info("the sandbox `%s` cannot be used: %s", first.name, error)
            await first.cleanup()
        except BaseException:
            await first.cleanup()
            raise
        else:
            others = ", ".join(f"`{name}`" for name in AUTO_ORDER[1:])
            _log.info("using the sandbox `%s`, the first choice; not tried: %s", first.name, others)
            return first
    found = await factory.create(config, unfit=unfit)
    _log.info("using the sandbox `%s`, the first one that works", found.name)
    return found


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
        hint=f"{fix}; `kakoi doctor` shows why" if fix else "`kakoi doctor` shows why",
    )
