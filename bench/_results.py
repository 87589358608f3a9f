"""Save a table of figures in bench/results/, with a description of the machine."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def save(name: str, table: str) -> None:
    """Save the table as today's results of the benchmark `name`."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    kernel = platform.release().partition("-")[0]
    machine = f"Linux {kernel}, {os.cpu_count()} cores, Python {platform.python_version()}"
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    head = f"{today}, {machine}, root: {os.getuid() == 0}"
    (folder / f"{today}-{name}.txt").write_text(f"{head}\n\n{table}\n", "utf-8")
