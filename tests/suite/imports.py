"""The modules that a command loads: what its start costs.

`python tests/suite/imports.py` writes imports.toml from what the commands load now.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_suffix(".toml")
_CODE: Final = """
import atexit, json, os, sys
def write(fd=int(sys.argv.pop(1))):
    os.write(fd, json.dumps(sorted(sys.modules)).encode())
atexit.register(write)
import kakoi.cli
kakoi.cli.main()
"""


@dataclass(frozen=True)
class Start:
    """A start of kakoi: its arguments, and what it reads on stdin."""

    arguments: tuple[str, ...]
    stdin: str = ""


_EVENT: Final = {
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "ls"},
    "cwd": "/",
}
STARTS: Final[Mapping[str, Start]] = {
    "check": Start(("check", "ls")),
    "hook": Start(("hook", "claude-code"), json.dumps(_EVENT)),
    "run": Start(("run", "--sandbox", "bubblewrap", "true")),
    "mcp": Start(("mcp",)),
}


def loaded(start: Start, folder: Path) -> list[str]:
    """Return our modules, and the packages of others, that are loaded when it exits.

    `folder`: the home and the working directory.
    """
    reader, writer = os.pipe()
    with open(reader, "rb") as report:
        with open(writer, "wb"):
            done = subprocess.run(
                [sys.executable, "-c", _CODE, str(writer), *start.arguments],
                input=start.stdin,
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": str(folder)},
                pass_fds=[writer],
                capture_output=True,
                text=True,
                timeout=120,
            )
        assert done.returncode == 0, done.stderr
        return sorted(_counted(json.loads(report.read())))


def warm_folder(folder: Path) -> Path:
    """Make the folder one in which the shipped policy was parsed before; return it."""
    loaded(STARTS["check"], folder)
    return folder


def _counted(modules: Iterable[str]) -> set[str]:
    found = set()
    for name in modules:
        package = name.partition(".")[0]
        if package == "kakoi":
            found.add(name)
        # Those with an underscore are of the environment, or parts of others.
        elif package not in sys.stdlib_module_names and not package.startswith("_"):
            found.add(package)
    return found - {"sitecustomize", "usercustomize"}


def _write() -> None:
    lines = ["# What each command may load: our modules, and packages of others (imports.py)."]
    with tempfile.TemporaryDirectory() as folder:
        warm = warm_folder(Path(folder))
        for name, start in STARTS.items():
            modules = loaded(start, warm)
            lines += ["", f"{name} = [", *(f'    "{each}",' for each in modules), "]"]
    LIST.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    _write()
