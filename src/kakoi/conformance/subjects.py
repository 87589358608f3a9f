"""Which sandbox is under test, and what it claims to do."""

import importlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from kakoi.conformance import KNOWN
from kakoi.conformance.watching import containers_of
from kakoi.errors import ConfigurationError
from kakoi.sandbox.adapter import SandboxAdapter
from kakoi.sandbox.select import cluster_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a sandbox claims. A claim is tested; what is not claimed is left out, out loud.

    `isolates_processes`: a command sees no process of the machine.
    `isolates_files`: it writes nowhere on the machine but in its workspace.
    `isolates_network`: it has a network of its own, and in that nobody else.
    `signals_nobody`: it signals no process of the machine, be it seen or not.
    `reaches_nobody`: it reaches no service of the machine, unless it was given a network.
    `resident`: commands share a place that lasts from one to the next: an id is run once.
    `jobs`: commands in the background. `survives_client`: they outlive whoever started them, and
        another adapter on the same workspace finds them again.
    `files`, `terminal`: files over the channel; commands on a terminal.
    `usage`: results say how much processor time and memory a command took.
    `shares_workspace`: what is written in the workspace is seen on this machine.
    """

    isolates_processes: bool = True
    isolates_files: bool = True
    isolates_network: bool = True
    signals_nobody: bool = True
    reaches_nobody: bool = True
    resident: bool = True
    jobs: bool = True
    survives_client: bool = False
    files: bool = True
    terminal: bool = True
    usage: bool = True
    shares_workspace: bool = True

    def unclaimed(self) -> list[str]:
        """The names of what is not claimed."""
        return [field.name for field in fields(self) if not getattr(self, field.name)]


@dataclass(frozen=True, slots=True)
class Subject:
    """A sandbox under test.

    `resume`: an adapter for what another one, by now dead, has left on the same workspace.
    `engine`: the program that lists containers.
    """

    name: str
    make: Callable[[Path], SandboxAdapter]
    traits: Traits = Traits()
    resume: Callable[[Path], Awaitable[SandboxAdapter]] | None = None
    engine: str | None = None


def subject_named(name: str) -> Subject:
    """The sandbox for `--sandbox NAME`; ConfigurationError if there is none.

    NAME is one of KNOWN, for containers with an image (`docker:IMAGE`), or `module:attribute`:
    a function from a workspace to a SandboxAdapter, or a Subject that also says what it claims.
    """
    kind, _, rest = name.partition(":")
    if name == "host":
        return Subject(name, _host, HOST)
    if name == "confined-host":
        return Subject(name, _confined_host, CONFINED_HOST)
    if name == "bubblewrap":
        return Subject(name, _bubblewrap)
    if kind == "kubernetes":
        return Subject(name, _pods(rest), PODS)
    if kind in KNOWN and kind not in ("host", "confined-host", "bubblewrap"):
        return _containers(name, kind.removesuffix("-per-command"), rest)
    if kind and rest:
        return _imported(name, kind, rest)
    raise ConfigurationError(
        f"there is no sandbox {name!r}",
        hint=f"one of {', '.join(KNOWN)}; docker:IMAGE; or my_package.my_module:factory",
    )


def _host(workspace: Path) -> SandboxAdapter:
    from kakoi.sandbox.host import HostAdapter

    return HostAdapter(workspace)


def _confined_host(workspace: Path) -> SandboxAdapter:
    from kakoi.sandbox.host import HostAdapter

    return HostAdapter(workspace, confine=True)


def _bubblewrap(workspace: Path) -> SandboxAdapter:
    from kakoi.sandbox.bubblewrap import BubblewrapAdapter

    return BubblewrapAdapter(workspace)


def _containers(name: str, program: str, image: str) -> Subject:
    from kakoi.sandbox.docker import DockerAdapter
    from kakoi.sandbox.docker_cli import DockerSettings

    kind: Literal["docker", "podman"] = "docker" if program == "docker" else "podman"
    stays = "-per-command" not in name.partition(":")[0]

    def settings(workspace: Path) -> DockerSettings:
        given = DockerSettings(workspace=str(workspace))
        return replace(given, image=image) if image else given

    def make(workspace: Path) -> SandboxAdapter:
        lifetime: Literal["sandbox", "command"] = "sandbox" if stays else "command"
        return DockerAdapter(settings(workspace), program=kind, lifetime=lifetime)

    async def resume(workspace: Path) -> SandboxAdapter:
        (container,) = containers_of(kind, workspace)
        return await DockerAdapter.attach(container, settings(workspace), program=kind)

    # Jobs and files are always in a container that stays: they are tested there.
    traits = Traits(resident=stays, jobs=stays, files=stays, survives_client=stays)
    return Subject(name, make, traits, resume if stays else None, engine=kind)


def _pods(image: str) -> Callable[[Path], SandboxAdapter]:
    """In the current context of KUBECONFIG, which is read here and nowhere deeper."""
    from kakoi.sandbox.kubernetes import KubernetesAdapter
    from kakoi.sandbox.kubernetes_pod import KubernetesSettings

    def make(workspace: Path) -> SandboxAdapter:
        given = KubernetesSettings(inside=str(workspace))
        settings = replace(given, image=image) if image else given
        return KubernetesAdapter(settings, cluster_env=cluster_environment(os.environ))

    return make


def _imported(name: str, module: str, attribute: str) -> Subject:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"cannot take {attribute!r} from {module!r}: {error}") from error
    if isinstance(found, Subject):
        return found
    if not callable(found):
        raise ConfigurationError(f"{name} is no function from a workspace to a SandboxAdapter")
    return Subject(name, found)


HOST = Traits(
    isolates_processes=False,
    isolates_files=False,
    isolates_network=False,
    signals_nobody=False,
    reaches_nobody=False,
)
# A pod has the interface of its cluster's network, and no socket to use it with; and the workspace
# is elsewhere.
PODS = Traits(isolates_network=False, shares_workspace=False)
# There are no namespaces: processes and interfaces are seen, and cannot be used.
CONFINED_HOST = Traits(isolates_processes=False, isolates_network=False)
