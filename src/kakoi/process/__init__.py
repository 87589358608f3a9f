"""HOW DOES A PROCESS START?  Only here: `spawn` for anything, `run_filter` for our own parser."""

from kakoi.process.filter import FilterResult, run_filter

# Type checkers know this name and take it for true; `typing` itself is not needed here.
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

# Hidden from type checkers: they would take it to mean that every name exists.
if not TYPE_CHECKING:
    _HOMES = {
        "ProcessExecutor": "kakoi.process.executor",
        "ProcessResult": "kakoi.process.options",
        "SpawnOptions": "kakoi.process.options",
        "base_environment": "kakoi.process.options",
    }

    def __getattr__(name: str) -> object:
        """Load the rest on first use (PEP 562): judging a command needs the filter only."""
        if name not in _HOMES:
            raise AttributeError(f"module 'kakoi.process' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
