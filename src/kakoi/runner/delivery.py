"""How the runner gets into a sandbox: as the first bytes of its own stream.

The sandbox starts a Python that reads a length and then that much source, and runs it. Nothing is
copied or mounted, so any image with python3 will do.
"""

import json
import shlex
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from kakoi.errors import SandboxError

# In this order each finds what it imports. They import nothing else of kakoi.
DELIVERED = (
    "kakoi.keeper",
    "kakoi.runner.frames",
    "kakoi.runner.shells",
    "kakoi.runner.loop",
    "kakoi.runner.spool",
    "kakoi.runner.memory",
    "kakoi.runner.keepers",
    "kakoi.runner.jobs",
    "kakoi.runner.files",
    "kakoi.runner.clients",
    "kakoi.runner.orders",
    "kakoi.runner.lingering",
    "kakoi.runner.runner",
)

# Unbuffered: what follows the source on the stream is for the runner.
_BOOT = """\
import os
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
exec(take(int(take(10))))
"""

_LOADER = """\
import sys, types
def load(name, source, is_package=False):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, child = name.rpartition(".")
    if is_package:
        module.__path__ = []
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
    return module
load("kakoi", "", True)
load("kakoi.runner", "", True)
for name, source in SOURCES:
    module = load(name, source)
del SOURCES
module.main(SETTINGS)
"""

_PYTHON = ("python3", "-I", "-S", "-c", _BOOT)
# A shell first: it finds out whether there is a Python that is new enough.
NO_PYTHON = "kakoi: no python3"
_LAUNCHER = (
    'python3 -I -S -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
    f" && exec {shlex.join(_PYTHON)}; echo {shlex.quote(NO_PYTHON)}"
)


class NoPythonError(SandboxError):
    """The sandbox works, but has no Python for the runner."""

    code = "NO_PYTHON"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How a runner behaves.

    `linger`: it stays while jobs run, though its client is gone, and later clients find it.
    `max_processes`: how many processes its user may have (RLIMIT_NPROC); None is no limit.
    """

    linger: bool = False
    max_processes: int | None = None


def python_argv(python: str = "python3") -> list[str]:
    """What to start inside, where there is a Python >= 3.8."""
    return [python, *_PYTHON[1:]]


def any_argv() -> list[str]:
    """What to start inside, where nobody knows; see `NoPythonError`."""
    return ["sh", "-c", _LAUNCHER]


def delivery(settings: RunnerSettings) -> bytes:
    """The first bytes to send."""
    body = f"SETTINGS = {asdict(settings)!r}\n{_sources()}\n{_LOADER}".encode()
    return b"%010d" % len(body) + body


@cache
def _sources() -> str:
    root = Path(__file__).parents[2]
    sources = [
        (name, root.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
        for name in DELIVERED
    ]
    return f"SOURCES = {json.dumps(sources)}"
