"""HOW DOES A PROCESS START?  Only here: `spawn` for anything, `run_filter` for our own parser."""

from kakoi.process.executor import ProcessExecutor
from kakoi.process.filter import FilterResult, run_filter
from kakoi.process.options import ProcessResult, SpawnOptions, base_environment

__all__ = [
    "FilterResult",
    "ProcessExecutor",
    "ProcessResult",
    "SpawnOptions",
    "base_environment",
    "run_filter",
]
