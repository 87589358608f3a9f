"""The public names of the backends. Each is loaded at its first use."""

# Type checkers know this name and take it for true; `typing` itself is not needed here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.backends.adapter import ExecuteOptions, SandboxAdapter
    from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
    from kakoi.backends.container_use.adapter import ContainerAdapter
    from kakoi.backends.docker.adapter import DockerAdapter
    from kakoi.backends.docker.arguments import DockerSettings
    from kakoi.backends.host.adapter import HostAdapter
    from kakoi.backends.kubernetes.adapter import KubernetesAdapter
    from kakoi.backends.kubernetes.pod import KubernetesSettings
    from kakoi.backends.select import BackendContext, SandboxFactory
    from kakoi.backends.settings import ContainerUseSettings, HostSettings, SandboxConfig
    from kakoi.errors import (
        EnvironmentUnavailableError,
        ExecutionTimeoutError,
        ImagePullError,
        SandboxError,
    )
    from kakoi.process.executor import ProcessExecutor
    from kakoi.process.options import ProcessResult, SpawnOptions
    from kakoi.results import ExecutionResult as ExecuteResult

__all__ = [
    "BackendContext",
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
        "BackendContext": "kakoi.backends.select",
        "BubblewrapAdapter": "kakoi.backends.bubblewrap.adapter",
        "ContainerAdapter": "kakoi.backends.container_use.adapter",
        "ContainerUseSettings": "kakoi.backends.settings",
        "DockerAdapter": "kakoi.backends.docker.adapter",
        "DockerSettings": "kakoi.backends.docker.arguments",
        "ExecuteOptions": "kakoi.backends.adapter",
        "ExecuteResult": "kakoi.results",
        "HostAdapter": "kakoi.backends.host.adapter",
        "HostSettings": "kakoi.backends.settings",
        "KubernetesAdapter": "kakoi.backends.kubernetes.adapter",
        "KubernetesSettings": "kakoi.backends.kubernetes.pod",
        "ProcessExecutor": "kakoi.process",
        "ProcessResult": "kakoi.process",
        "SandboxAdapter": "kakoi.backends.adapter",
        "SandboxConfig": "kakoi.backends.settings",
        "SandboxFactory": "kakoi.backends.select",
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

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
