"""WHERE?  One file per place. The names are those of spec B; each is loaded at its first use."""

# Type checkers know this name and take it for true; `typing` itself is not needed here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.errors import (
        EnvironmentUnavailableError,
        ExecutionTimeoutError,
        ImagePullError,
        SandboxError,
    )
    from kakoi.process.executor import ProcessExecutor
    from kakoi.process.options import ProcessResult, SpawnOptions
    from kakoi.results import ExecutionResult as ExecuteResult
    from kakoi.sandbox.adapter import ExecuteOptions, SandboxAdapter
    from kakoi.sandbox.bubblewrap import BubblewrapAdapter
    from kakoi.sandbox.container_use import ContainerAdapter
    from kakoi.sandbox.docker import DockerAdapter
    from kakoi.sandbox.docker_cli import DockerSettings
    from kakoi.sandbox.host import HostAdapter
    from kakoi.sandbox.kubernetes import KubernetesAdapter
    from kakoi.sandbox.kubernetes_pod import KubernetesSettings
    from kakoi.sandbox.select import SandboxFactory
    from kakoi.sandbox.settings import ContainerUseSettings, HostSettings, SandboxConfig

__all__ = [
    "BubblewrapAdapter",
    "ContainerAdapter",
    "ContainerUseSettings",
    "DockerAdapter",
    "DockerSettings",
    "EnvironmentUnavailableError",
    "ExecuteOptions",
    "ExecuteResult",
    "ExecutionTimeoutError",
    "HostAdapter",
    "HostSettings",
    "ImagePullError",
    "KubernetesAdapter",
    "KubernetesSettings",
    "ProcessExecutor",
    "ProcessResult",
    "SandboxAdapter",
    "SandboxConfig",
    "SandboxError",
    "SandboxFactory",
    "SpawnOptions",
]

# Hidden from type checkers: they would take it to mean that every name exists.
if not TYPE_CHECKING:
    _HOMES = {
        "BubblewrapAdapter": "kakoi.sandbox.bubblewrap",
        "ContainerAdapter": "kakoi.sandbox.container_use",
        "ContainerUseSettings": "kakoi.sandbox.settings",
        "DockerAdapter": "kakoi.sandbox.docker",
        "DockerSettings": "kakoi.sandbox.docker_cli",
        "ExecuteOptions": "kakoi.sandbox.adapter",
        "ExecuteResult": "kakoi.results",
        "HostAdapter": "kakoi.sandbox.host",
        "HostSettings": "kakoi.sandbox.settings",
        "KubernetesAdapter": "kakoi.sandbox.kubernetes",
        "KubernetesSettings": "kakoi.sandbox.kubernetes_pod",
        "ProcessExecutor": "kakoi.process",
        "ProcessResult": "kakoi.process",
        "SandboxAdapter": "kakoi.sandbox.adapter",
        "SandboxConfig": "kakoi.sandbox.settings",
        "SandboxFactory": "kakoi.sandbox.select",
        "SpawnOptions": "kakoi.process",
    }
    _THEIR_NAMES = {"ExecuteResult": "ExecutionResult"}

    def __getattr__(name: str) -> object:
        """Load a name on first use (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module 'kakoi.sandbox' has no attribute {name!r}")
        from importlib import import_module

        home = import_module(_HOMES.get(name, "kakoi.errors"))
        return getattr(home, _THEIR_NAMES.get(name, name))
