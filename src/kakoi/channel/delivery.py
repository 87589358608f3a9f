"""Sends the runner into a sandbox, as the first bytes of its own stream.

The sandbox starts a Python that reads the runner's modules from its input and runs them. Nothing
is copied or mounted, so any image with python3 works.
"""

import marshal
import os
import shlex
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any

from kakoi._support.late import dataclass, pattern
from kakoi.errors import SandboxError

# In import order: each module imports only earlier ones, and nothing else from kakoi.
DELIVERED = (
    "kakoi.runner.keeper",
    "kakoi.runner.contexts",
    "kakoi.runner.rights",
    "kakoi.runner.frames",
    "kakoi.runner.loop",
    "kakoi.runner.spool",
    "kakoi.runner.memory",
    "kakoi.runner.shell_report",
    "kakoi.runner.rlimits",
    "kakoi.runner.fork_server",
    "kakoi.runner.spawn",
    "kakoi.runner.resident_keeper",
    "kakoi.runner.streams",
    "kakoi.runner.jobs",
    "kakoi.runner.files",
    "kakoi.runner.plain_json",
    "kakoi.runner.file_trees",
    "kakoi.runner.file_watch",
    "kakoi.runner.runner_socket",
    "kakoi.runner.clients",
    "kakoi.runner.outlet",
    "kakoi.runner.orders",
    "kakoi.runner.restrictions",
    "kakoi.runner.allowlist",
    "kakoi.runner.runner",
)

# It reports its bytecode version, and receives source if that differs from ours. Unbuffered reads:
# the rest of the stream is for the runner.
_BOOT = """\
import os, marshal, _frozen_importlib_external as external
def take(size):
    data, taken = bytearray(size), 0
    while taken < size:
        part = os.readv(0, [memoryview(data)[taken:]])
        if not part:
            os._exit(0)
        taken += part
    return data
os.write(1, b"kakoi " + external.MAGIC_NUMBER.hex().encode() + b"\\n")
BODY = take(int(take(10)))
LOADER, MODULES, SETTINGS = marshal.loads(BODY)
exec(LOADER)
"""
GREETING = pattern(rb"kakoi ([0-9a-f]{8})\n")

_LOADER = """\
import sys
def load(name, code, is_package=False):
    module = sys.modules[name] = type(sys)(name)
    parent, _, child = name.rpartition(".")
    if is_package:
        module.__path__ = []
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(code, module.__dict__)
    return module
load("kakoi", "", True)
load("kakoi.runner", "", True)
# Read where they are: copies would stay in the memory of each sandbox.
at = len(BODY) - sum(size for name, size, is_code in MODULES)
for name, size, is_code in MODULES:
    with memoryview(BODY) as body, body[at : at + size] as part:
        code = marshal.loads(part) if is_code else compile(bytes(part), name, "exec")
    module = load(name, code)
    at += size
del BODY, MODULES, body, part, code
module.main(SETTINGS)
os._exit(0)  # Without destroying the modules first.
"""

_ROOT = Path(__file__).parents[2]
_32_BITS = 0xFFFFFFFF
_PYTHON = ("python3", "-I", "-S", "-c", _BOOT)
# A shell first, to find out whether there is a Python that is new enough.
NO_PYTHON = b"kakoi: no python3"
_LAUNCHER = (
    'python3 -I -S -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
    f" && exec {shlex.join(_PYTHON)}; echo {shlex.quote(NO_PYTHON.decode())}"
)


class NoPythonError(SandboxError):
    """The sandbox works, but has no suitable Python for the runner."""

    code = "NO_PYTHON"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How a runner behaves.

    `linger`: the runner stays while jobs run after its client has gone, and later clients find it.
    `key`: a secret of kakoi and the runners of one sandbox, by which they authenticate each other.
    `max_processes`: how many processes its user can have (RLIMIT_NPROC); None means no limit.
    `oom_counter`: the file in which the kernel counts OOM kills, if not the usual one.
    `job_groups`: control groups for commands, each as three descriptors that the runner inherits:
        its `cgroup.procs`, its count of OOM kills, and its memory usage.
    `cwd`: where commands start, if not in the runner's own working directory.
    `restrictions`: of the commands and of the runner (backends/landlock.py).
    `rlimits`: the limits of each process of a command, by the names in runner/rlimits.py.
    `lifetime_s`: the runner ends everything and exits after this time, whatever its clients do;
        None means no limit. A runner that clients find again keeps the time it was started with.
    """

    linger: bool = False
    key: str = ""
    max_processes: int | None = None
    oom_counter: str = ""
    job_groups: Sequence[tuple[int, int, int]] = ()
    cwd: str = ""
    restrictions: Mapping[str, Any] = field(default_factory=dict)
    rlimits: Mapping[str, int] = field(default_factory=dict)
    lifetime_s: float | None = None


def python_argv(python: str = "python3") -> list[str]:
    """Return what to start in a sandbox that has a Python >= 3.8."""
    return [python, *_PYTHON[1:]]


def any_argv() -> list[str]:
    """Return what to start in a sandbox that may have no Python; see `NoPythonError`."""
    return ["sh", "-c", _LAUNCHER]


def delivery(settings: RunnerSettings, magic: bytes) -> bytes:
    """Return what to send to a Python that has greeted with `magic`, its bytecode version."""
    is_code = magic == MAGIC_NUMBER
    modules = _modules(as_code=is_code)
    sizes = [(name, len(data), is_code) for name, data in modules]
    # Texts, numbers and tuples have had the same marshal format since Python 3.4.
    head = marshal.dumps((_LOADER, sizes, asdict(settings)), 4)
    # `marshal` ignores what follows.
    body = b"".join((head, *(data for _, data in modules)))
    return b"%010d" % len(body) + body


@cache
def _modules(*, as_code: bool) -> list[tuple[str, bytes]]:
    """Return the source of each module, or its marshalled bytecode."""
    modules: list[tuple[str, bytes]] = []
    for name in DELIVERED:
        path = f"{_ROOT}/{name.replace('.', '/')}.py"
        data = _bytecode(name, path) if as_code else SourceFileLoader(name, path).get_data(path)
        modules.append((name, data))
    return modules


def _bytecode(name: str, path: str) -> bytes:
    """Return the cached bytecode as it is in its file: it takes a while to load and dump it again.

    Where there is none of exactly this source, the module is compiled, and cached if possible.
    """
    source = os.stat(path)
    stamps = struct.pack("<III", 0, int(source.st_mtime) & _32_BITS, source.st_size & _32_BITS)
    try:
        with open(cache_from_source(path), "rb") as file:
            cached = file.read()
        if cached.startswith(MAGIC_NUMBER + stamps):
            return cached[len(MAGIC_NUMBER) + len(stamps) :]
    except (OSError, NotImplementedError):  # There is no cache, or none is wanted.
        pass
    return marshal.dumps(SourceFileLoader(name, path).get_code(name))
