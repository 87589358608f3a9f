"""The sandbox under test, and what it claims to do."""

import importlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.plugins import plugin_names
from kakoi.backends.select import SandboxFactory, cluster_environment, engine_environment
from kakoi.backends.settings import SandboxConfig
from kakoi.conformance import KNOWN
from kakoi.conformance.process_view import containers_of
from kakoi.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a sandbox claims. Claims are tested. Unclaimed traits are left out and reported.

    `isolates_processes`: a command cannot see processes of the machine.
    `isolates_files`: it cannot write to the machine outside its workspace.
    `isolates_network`: it has its own network, which nobody else is in.
    `signals_nobody`: it cannot signal processes of the machine, whether it can see them or not.
    `reaches_nobody`: it cannot reach services of the machine, unless it was given a network.
    `resident`: commands share an environment that persists between them, and an id runs only once.
    `channel`: a byte stream leads into it: live output and input of any size, signals, limits on
        silence, and what a shell exported. Without one, a test that it refuses is left out.
    `jobs`: commands can run in the background. `survives_client`: they outlive the client that
        started them, and another adapter on the same workspace finds them again.
    `files`, `terminal`: files over the channel; commands on a terminal.
    `watches`: changes of files are reported.
    `usage`: results contain the CPU time and memory of a command.
    `shares_workspace`: files written in the workspace appear on this machine.
    `pauses`: it can be paused and resumed (`CanPause`), if the machine allows it.
    """

    isolates_processes: bool = True
    isolates_files: bool = True
    isolates_network: bool = True
    signals_nobody: bool = True
    reaches_nobody: bool = True
    resident: bool = True
    channel: bool = True
    jobs: bool = True
    survives_client: bool = False
    files: bool = True
    watches: bool = True
    terminal: bool = True
    usage: bool = True
    shares_workspace: bool = True
    pauses: bool = False

    def unclaimed(self) -> list[str]:
        """Return the names of the unclaimed traits."""
        return [field.name for field in fields(self) if not getattr(self, field.name)]


@dataclass(frozen=True, slots=True)
class Subject:
    """A sandbox under test.

    `resume`: returns an adapter for the sandbox that a dead client left on the same workspace.
    `engine`: the program that lists containers.
    """

    name: str
    make: Callable[[Path], SandboxAdapter]
    traits: Traits = Traits()
    resume: Callable[[Path], Awaitable[SandboxAdapter]] | None = None
    engine: str | None = None


def subject_named(name: str) -> Subject:
    """Return the sandbox for `--sandbox NAME`; ConfigurationError if there is none.

    NAME is one of KNOWN, the name of a plugin, or `module:attribute`. Containers and pods accept an
    image (`docker:IMAGE`). The attribute is a function from a workspace to a SandboxAdapter, or a
    Subject, which also contains its traits.
    """
    kind, _, rest = name.partition(":")
    if name == "host":
        return Subject(name, _host, HOST)
    if name == "confined-host":
        return Subject(name, _confined_host, CONFINED_HOST)
    if name == "bubblewrap":
        return Subject(name, _bubblewrap, Traits(pauses=True))
    if kind == "kubernetes":
        return Subject(name, _pods(rest), PODS)
    if kind in KNOWN and kind not in ("host", "confined-host", "bubblewrap"):
        return _containers(name, *kind.partition("-")[::2], rest)
    if kind and rest:
        return _imported(name, kind, rest)
    if name in plugin_names():
        return Subject(name, _plugin(name), CONTAINER_USE if name == "container-use" else Traits())
    raise ConfigurationError(
        f"there is no sandbox {name!r}",
        hint=f"one of {', '.join(KNOWN)}; docker:IMAGE; or my_package.my_module:factory",
    )


def _host(workspace: Path) -> SandboxAdapter:
    from kakoi.backends.host.adapter import HostAdapter

    return HostAdapter(workspace)


def _confined_host(workspace: Path) -> SandboxAdapter:
    from kakoi.backends.host.adapter import HostAdapter

    return HostAdapter(workspace, confine=True)


def _bubblewrap(workspace: Path) -> SandboxAdapter:
    from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

    return BubblewrapAdapter(workspace)


def _containers(name: str, program: str, variant: str, image: str) -> Subject:
    from kakoi.backends.docker.adapter import DockerAdapter
    from kakoi.backends.docker.arguments import DockerSettings, Lifetime

    kind: Literal["docker", "podman"] = "docker" if program == "docker" else "podman"
    lifetimes: dict[str, Lifetime] = {"": "sandbox", "client": "client", "per-command": "command"}
    lifetime = lifetimes[variant]
    shared, stays = lifetime != "command", lifetime == "sandbox"

    def settings(workspace: Path) -> DockerSettings:
        given = DockerSettings(workspace=str(workspace))
        return replace(given, image=image) if image else given

    def make(workspace: Path) -> SandboxAdapter:
        env = engine_environment(os.environ)
        return DockerAdapter(settings(workspace), program=kind, lifetime=lifetime, engine_env=env)

    async def resume(workspace: Path) -> SandboxAdapter:
        (container,) = containers_of(kind, workspace)
        env = engine_environment(os.environ)
        return await DockerAdapter.attach(
            container, settings(workspace), program=kind, engine_env=env
        )

    # Jobs and files always use one container for all: they are tested there.
    traits = Traits(
        resident=shared,
        jobs=shared,
        files=shared,
        watches=shared,
        survives_client=stays,
        pauses=shared,
    )
    return Subject(name, make, traits, resume if stays else None, engine=kind)


def _pods(image: str) -> Callable[[Path], SandboxAdapter]:
    """Use the current context of KUBECONFIG, which is read only here."""
    from kakoi.backends.kubernetes.adapter import KubernetesAdapter
    from kakoi.backends.kubernetes.pod import KubernetesSettings

    def make(workspace: Path) -> SandboxAdapter:
        given = KubernetesSettings(inside=str(workspace))
        settings = replace(given, image=image) if image else given
        return KubernetesAdapter(settings, cluster_env=cluster_environment(os.environ))

    return make


def _plugin(name: str) -> Callable[[Path], SandboxAdapter]:
    def make(workspace: Path) -> SandboxAdapter:
        return SandboxFactory(workspace, environ=os.environ).make(name, SandboxConfig(type=name))

    return make


def _imported(name: str, module: str, attribute: str) -> Subject:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"cannot take {attribute!r} from {module!r}: {error}") from error
    if isinstance(found, Subject):
        return found
    if not callable(found):
        raise ConfigurationError(f"{name} is not a function from a workspace to a SandboxAdapter")
    return Subject(name, found)


HOST = Traits(
    isolates_processes=False,
    isolates_files=False,
    isolates_network=False,
    signals_nobody=False,
    reaches_nobody=False,
    pauses=True,
)
# A pod has an interface in the network of its cluster, but cannot open a socket to use it. Its
# workspace is not on this machine.
PODS = Traits(isolates_network=False, shares_workspace=False)
# There are no namespaces: commands can see processes and interfaces, but cannot use them. Nothing
# may be watched, because Landlock does not limit what inotify sees.
CONFINED_HOST = Traits(isolates_processes=False, isolates_network=False, watches=False, pauses=True)
# Commands run one at a time and to completion, in a copy of the last commit, on a bridge.
CONTAINER_USE = Traits(
    isolates_network=False,
    reaches_nobody=False,
    resident=False,
    channel=False,
    jobs=False,
    files=False,
    watches=False,
    terminal=False,
    usage=False,
    shares_workspace=False,
)
