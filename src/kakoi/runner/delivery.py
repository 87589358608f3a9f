"""How the runner gets into a sandbox: as the first bytes of its own stream.

The sandbox starts a Python that reads the runner's modules from its input, and runs them. Nothing
is copied or mounted, so any image with python3 will do.
"""

import marshal
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

from kakoi.errors import SandboxError

# In this order each finds what it imports. They import nothing else of kakoi.
DELIVERED = (
    "kakoi.keeper",
    "kakoi.runner.frames",
    "kakoi.runner.shells",
    "kakoi.runner.loop",
    "kakoi.runner.spool",
    "kakoi.runner.memory",
    "kakoi.runner.reports",
    "kakoi.runner.room",
    "kakoi.runner.nursery",
    "kakoi.runner.starting",
    "kakoi.runner.keepers",
    "kakoi.runner.streams",
    "kakoi.runner.jobs",
    "kakoi.runner.files",
    "kakoi.runner.clients",
    "kakoi.runner.outlet",
    "kakoi.runner.orders",
    "kakoi.runner.lingering",
    "kakoi.runner.walls",
    "kakoi.runner.allowlist",
    "kakoi.runner.runner",
)

# It says which byte code it reads, and is given source if that is not ours. Unbuffered: what
# follows on the stream is for the runner.
_BOOT = """\
import os, marshal, _frozen_importlib_external as external
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
os.write(1, b"kakoi " + external.MAGIC_NUMBER.hex().encode() + b"\\n")
LOADER, MODULES, SETTINGS = marshal.loads(take(int(take(10))))
exec(LOADER)
"""
GREETING = re.compile(rb"kakoi ([0-9a-f]{8})\n")

_LOADER = """\
import sys, types
def load(name, code, is_package=False):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, child = name.rpartition(".")
    if is_package:
        module.__path__ = []
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(compile(code, name, "exec") if isinstance(code, str) else code, module.__dict__)
    return module
load("kakoi", "", True)
load("kakoi.runner", "", True)
for name, code in MODULES:
    module = load(name, code)
module.main(SETTINGS)
"""

_ROOT = Path(__file__).parents[2]
_PYTHON = ("python3", "-I", "-S", "-c", _BOOT)
# A shell first: it finds out whether there is a Python that is new enough.
NO_PYTHON = b"kakoi: no python3"
_LAUNCHER = (
    'python3 -I -S -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
    f" && exec {shlex.join(_PYTHON)}; echo {shlex.quote(NO_PYTHON.decode())}"
)


class NoPythonError(SandboxError):
    """The sandbox works, but has no Python for the runner."""

    code = "NO_PYTHON"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How a runner behaves.

    `linger`: it stays while jobs run, though its client is gone, and later clients find it.
    `key`: what only kakoi and the runners of one place know; by it they know each other.
    `max_processes`: how many processes its user may have (RLIMIT_NPROC); None is no limit.
    `oom_counter`: where the kernel counts kills for want of memory, if not where it is usual.
    `job_groups`: control groups for commands, each by three descriptors that the runner inherits:
        its `cgroup.procs`, its count of such kills, and how much it uses.
    `cwd`: where commands start, if not where it is started itself.
    `walls`: what it raises around commands, and itself (sandbox/landlock.py).
    `rlimits`: what each process of a command may use, by the names in room.py.
    """

    linger: bool = False
    key: str = ""
    max_processes: int | None = None
    oom_counter: str = ""
    job_groups: Sequence[tuple[int, int, int]] = ()
    cwd: str = ""
    walls: Mapping[str, Any] = field(default_factory=dict)
    rlimits: Mapping[str, int] = field(default_factory=dict)


def python_argv(python: str = "python3") -> list[str]:
    """What to start inside, where there is a Python >= 3.8."""
    return [python, *_PYTHON[1:]]


def any_argv() -> list[str]:
    """What to start inside, where nobody knows; see `NoPythonError`."""
    return ["sh", "-c", _LAUNCHER]


def delivery(settings: RunnerSettings, magic: bytes) -> bytes:
    """What to send to a Python that has greeted with `magic`, the number of its byte code."""
    modules = _modules(as_code=magic == MAGIC_NUMBER)
    # Texts, numbers and tuples have had the same form since Python 3.4.
    body = marshal.dumps((_LOADER, modules, asdict(settings)), 4)
    return b"%010d" % len(body) + body


@cache
def _modules(*, as_code: bool) -> list[tuple[str, str | CodeType]]:
    modules: list[tuple[str, str | CodeType]] = []
    for name in DELIVERED:
        path = _ROOT.joinpath(*name.split(".")).with_suffix(".py")
        # The loader has byte code in its cache; to compile takes as long as to start a Python.
        loader = SourceFileLoader(name, str(path))
        code = loader.get_code(name) if as_code else loader.get_source(name)
        assert code is not None  # noqa: S101 - there is a source
        modules.append((name, code))
    return modules
