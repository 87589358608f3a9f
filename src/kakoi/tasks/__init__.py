"""FOR WHOM?  One clean environment for each task: `ExecutionEnvironmentManager`, `TaskHandler`.

async with environment_manager() as manager:
    info = await manager.prepare(Task(uuid="t-1", repository="https://example.org/p.git"))
    result = await manager.execute(info.container_id, "pytest -q")
"""

# Type checkers treat this name as true; importing `typing` is not needed.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.tasks.environment import ContainerInfo
    from kakoi.tasks.environments import ExecutionEnvironmentManager
    from kakoi.tasks.from_settings import environment_manager
    from kakoi.tasks.handler import TaskHandler
    from kakoi.tasks.task import Task

__all__ = [
    "ContainerInfo",
    "ExecutionEnvironmentManager",
    "Task",
    "TaskHandler",
    "environment_manager",
]

# Hidden from type checkers, which would otherwise assume that every name exists.
if not TYPE_CHECKING:
    _HOMES = {
        "ContainerInfo": "kakoi.tasks.environment",
        "ExecutionEnvironmentManager": "kakoi.tasks.environments",
        "Task": "kakoi.tasks.task",
        "TaskHandler": "kakoi.tasks.handler",
        "environment_manager": "kakoi.tasks.from_settings",
    }

    def __getattr__(name: str) -> object:
        """Load a name on first use (PEP 562): few callers need the libraries of an agent."""
        if name not in __all__:
            raise AttributeError(f"module 'kakoi.tasks' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
