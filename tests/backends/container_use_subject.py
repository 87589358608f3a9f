"""container-use as a subject of the conformance suite, with our server for it (test_container_use).

That server runs commands on this machine, so nothing is isolated.
"""

import os
from dataclasses import replace
from pathlib import Path

from kakoi.backends.container_use.adapter import ContainerAdapter
from kakoi.backends.settings import ContainerUseSettings
from kakoi.conformance.subjects import CONTAINER_USE, Subject
from tests.backends.container_use_server import install


def make(workspace: Path) -> ContainerAdapter:
    """Make an adapter, with a server beside the workspace."""
    (workspace / ".git").mkdir(exist_ok=True)
    beside = workspace.with_name(f"{workspace.name}-server")
    (beside / "environments").mkdir(parents=True, exist_ok=True)
    install(beside)
    lines = ["MODE=", f"ENVIRONMENTS={beside / 'environments'}", f"CALLS={beside / 'calls'}"]
    (beside / "settings").write_text("\n".join(lines), encoding="utf-8")
    path = f"{beside}:{os.environ['PATH']}"
    return ContainerAdapter(ContainerUseSettings(), workspace=workspace, engine_env={"PATH": path})


SUBJECT = Subject(
    "tests.backends.container_use_subject:SUBJECT",
    make,
    replace(CONTAINER_USE, isolates_processes=False, isolates_files=False, signals_nobody=False),
)
