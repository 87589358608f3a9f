"""The only package that starts processes: `spawn` for any program, `run_filter` for our parser."""

from kakoi.process.filter import FilterResult, run_filter

# Type checkers treat this name as true, so `typing` need not be imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.process.executor import ProcessExecutor
    from kakoi.process.options import ProcessResult, SpawnOptions, base_environment

__all__ = [
    "FilterResult",
    "ProcessExecutor",
    "ProcessResult",
    "SpawnOptions",
    "base_environment",
    "run_filter",
]

# Hidden from type checkers: with a module `__getattr__`, they would accept any name.
if not TYPE_CHECKING:
    _HOMES = {
        "ProcessExecutor": "kakoi.process.executor",
        "ProcessResult": "kakoi.process.options",
        "SpawnOptions": "kakoi.process.options",
        "base_environment": "kakoi.process.options",
    }

    def __getattr__(name: str) -> object:
        """Load the rest on first use (PEP 562): judging a command needs only the filter."""
        if name not in _HOMES:
            raise AttributeError(f"module 'kakoi.process' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
