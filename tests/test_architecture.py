"""The shape of the code, checked: who may import whom, who may start a process, how big is big.

Every rule is a function from parsed source to a list of complaints. Each is tried twice: on the
package, where it must be silent, and on a bad snippet, where it must speak.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the doors down to the words everyone uses. A module imports from lower rows only: not
# from higher ones, and not from a neighbour in its own row.
LAYERS = (
    ("cli", "mcp", "server", "integrations", "conformance"),
    ("builtin",),
    ("bash_executor", "shell", "tasks"),
    ("agents", "images", "sync"),
    ("tools",),
    ("packages",),
    ("sandbox",),
    ("settings",),
    ("gate",),
    ("backends", "approvals"),
    ("network", "audit", "overlay"),
    ("channel",),
    ("runner",),
    ("policy",),
    ("process",),
    ("results",),
    ("_support",),
    ("errors",),
)
# `kakoi` itself names what the modules offer, and `__main__` is a door mat.
EXEMPT = ("__init__", "__main__")
NO_NAMES = {"utils", "core", "common", "base", "helpers", "managers"}

PROCESS_STARTERS = (
    "subprocess",
    "multiprocessing",
    "concurrent.futures.ProcessPoolExecutor",
    "pty",
    "os.fork",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.system",
    "os.popen",
    "asyncio.subprocess",
    "asyncio.create_subprocess_",
)
# Of the runner only the part that keeps; it runs inside the sandbox. The conformance suite is a
# collection of tests: it starts neighbours of sandboxes, and clients to kill.
MAY_START_PROCESSES = (
    "process",
    "runner.keeper",
    "runner.resident_keeper",
    "runner.fork_server",
    "runner.spawn",
    # A program that is sent into the sandbox as text.
    "packages.wheels",
    "conformance",
)

# The SDK of MCP is an extra and takes long to import: the door, and the client of other servers.
MAY_IMPORT_MCP = ("mcp", "agents.servers")
MAY_MAKE_GATES = ("sandbox.opened", "gate.gate")

AMBIENT = (
    "os.environ",
    "os.environb",
    "os.getenv",
    "sys.argv",
    "time.time",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)
MAY_READ_AMBIENT = (
    *("settings", "cli", "mcp", "server", "conformance"),
    *("sandbox.opened", "sandbox.from_settings", "packages.from_settings", "agents.from_settings"),
    *("tasks.from_settings", "tasks.handler_from_settings", "network.git_credentials"),
    "builtin.git",
)
# Programs of their own: their arguments are what they were asked to do, and the environment of a
# sandbox is its own affair.
PROGRAMS = {
    # Not a program: the language of messages is that of the process, wherever one is raised.
    "errors": {"os.environ"},
    # The one place that says where a user's files are, for the doors and for the library alike.
    "_support.user_folders": {"os.environ"},
    "runner.keeper": {"sys.argv"},
    "process.mount_stage": {"sys.argv"},
    "process.name_sockets": {"sys.argv"},
    "packages.wheels": {"os.environ", "sys.argv"},
    "runner.runner": {"os.environb"},
    "runner.spool": {"os.environ"},
}

# Modules in `-ing` that are not verbs in disguise.
NOUNS_IN_ING = {"parsing", "judging"}

MODULE_LINES = 600
FRAGMENT_LINES = 60
FUNCTION_LINES = 50


@dataclass(frozen=True)
class Module:
    """A parsed file; `name` is dotted and relative to the package ("policy.decide")."""

    name: str
    source: str
    tree: ast.Module

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree, walked once for all rules."""
        return list(ast.walk(self.tree))

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        return list(dotted_uses(self))

    def within(self, names: Iterable[str]) -> bool:
        return any(self.name == name or self.name.startswith(name + ".") for name in names)


def parse(name: str, source: str) -> Module:
    return Module(name, source, ast.parse(source))


def load(folder: Path) -> list[Module]:
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        modules.append(parse(".".join(parts), path.read_text(encoding="utf-8")))
    return modules


@cache
def package() -> list[Module]:
    """Parsed when first asked for: every worker of a run collects this file."""
    return load(ROOT / "src" / "kakoi")


# --- Imports ---------------------------------------------------------------------------------


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Every absolute dotted name the module imports, wherever in the file, with its line."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def own_imports(module: Module) -> Iterator[tuple[int, str]]:
    for line, name in imported_names(module):
        package, _, rest = name.partition(".")
        if package == "kakoi":
            yield line, rest


def wrong_directions(module: Module) -> list[str]:
    rows = {name: row for row, names in enumerate(LAYERS) for name in names}
    if module.name in EXEMPT:
        return []
    if module.top not in rows:
        return [f"{module.name}: `{module.top}` has no place in LAYERS"]
    complaints = []
    for line, name in own_imports(module):
        top = name.partition(".")[0]
        if top in (module.top, "__version__"):
            continue
        if top not in rows:
            complaints.append(f"{module.name}:{line}: import the module, not `kakoi.{name}`")
        elif rows[top] <= rows[module.top]:
            way = "up" if rows[top] < rows[module.top] else "sideways"
            complaints.append(f"{module.name}:{line}: imports {way}: kakoi.{name}")
    return complaints


def import_cycle(modules: Iterable[Module]) -> list[str]:
    """A circle between single files, also within one package and from inside functions."""
    known = {module.name: module for module in modules if module.name not in EXEMPT}
    below = {
        name: {home for _, full in own_imports(module) if (home := _home(full, known)) != name}
        for name, module in known.items()
    }
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def _home(imported: str, known: Mapping[str, Module]) -> str:
    """The file that `kakoi.<imported>` comes from: the longest prefix that is a module."""
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return imported


# --- What only a few may touch ---------------------------------------------------------------


def dotted_uses(module: Module) -> Iterator[tuple[int, str]]:
    """Every dotted name that is used, with aliases undone: `from os import fork as f; f()`."""
    aliases: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
                aliases[alias.asname or target] = target
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from imported_names(module)
    for node in module.nodes:
        if isinstance(node, ast.Attribute | ast.Name):
            root, _, rest = _dotted(node).partition(".")
            if root in aliases:
                yield node.lineno, f"{aliases[root]}.{rest}" if rest else aliases[root]


def _dotted(node: ast.expr) -> str:
    """`a.b.c`, or nothing if it does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def uses_of(module: Module, forbidden: Iterable[str], *, whole: bool) -> list[str]:
    """`whole` names match with their attributes; otherwise also as a prefix (`os.exec` → execv)."""

    def hit(name: str) -> bool:
        if whole:
            return any(name == entry or name.startswith(entry + ".") for entry in forbidden)
        return name.startswith(tuple(forbidden))

    found = {(line, name) for line, name in module.uses if hit(name)}
    return [f"{module.name}:{line}: {name}" for line, name in sorted(found)]


def process_starts(module: Module) -> list[str]:
    if module.within(MAY_START_PROCESSES):
        return []
    return uses_of(module, PROCESS_STARTERS, whole=False)


def mcp_imports(module: Module) -> list[str]:
    if module.within(MAY_IMPORT_MCP):
        return []
    return [
        f"{module.name}:{line}: {name}"
        for line, name in imported_names(module)
        if name.partition(".")[0] in ("mcp", "mcp_types")
    ]


def gates_made(module: Module) -> list[str]:
    """Whoever makes a gate decides what is recorded: the object that people open, and a copy of a
    gate with another policy."""
    if module.name in MAY_MAKE_GATES:
        return []
    return [
        f"{module.name}:{node.lineno}: open a Sandbox; its `gate` is the only one"
        for node in module.nodes
        if isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] == "Gate"
    ]


def ambient_reads(module: Module) -> list[str]:
    if module.within(MAY_READ_AMBIENT):
        return []
    return uses_of(module, set(AMBIENT) - PROGRAMS.get(module.name, set()), whole=True)


def mock_imports(module: Module) -> list[str]:
    return [
        f"{module.name}:{line}: {name}; write a fake, or use the real thing"
        for line, name in imported_names(module)
        if name.startswith("unittest.mock") or name.partition(".")[0] == "mock"
    ]


# --- Size, names, state ----------------------------------------------------------------------


def long_functions(module: Module) -> list[str]:
    complaints = []
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                complaints.append(f"{module.name}:{node.lineno}: {node.name} has {lines} lines")
    return complaints


def long_modules(module: Module) -> list[str]:
    lines = len(module.source.splitlines())
    return [f"{module.name}: {lines} lines"] if lines > MODULE_LINES else []


def empty_names(module: Module) -> list[str]:
    used = NO_NAMES.intersection(module.name.split("."))
    return [f"{module.name}: `{name}` says nothing about what is inside" for name in used]


def gerunds(module: Module) -> list[str]:
    last = module.name.rpartition(".")[2]
    if not last.endswith("ing") or last in NOUNS_IN_ING or last.startswith("test_"):
        return []
    return [f"{module.name}: a module is a noun that says what is in it"]


def repeated_classes(modules: Iterable[Module]) -> list[str]:
    """Public classes whose name occurs more than once."""
    homes: dict[str, list[str]] = {}
    for module in modules:
        if module.within(["sync"]):  # The same classes, blocking.
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module.name)
    return [f"{name}: {', '.join(found)}" for name, found in homes.items() if len(found) > 1]


def fragments(modules: Iterable[Module]) -> list[str]:
    """Small modules that one neighbour alone imports: parts of that neighbour."""
    known = {module.name: module for module in modules}
    users: dict[str, set[str]] = {}
    for module in known.values():
        for _, full in own_imports(module):
            users.setdefault(_home(full, known), set()).add(module.name)
    return [
        f"{name}: {len(module.source.splitlines())} lines, for {user} alone"
        for name, module in known.items()
        if len(module.source.splitlines()) < FRAGMENT_LINES
        and len(found := users.get(name, set()) - {name}) == 1
        and (user := next(iter(found))).rpartition(".")[0] == name.rpartition(".")[0] != ""
    ]


MUTATORS = {
    *("append", "extend", "insert", "remove", "pop", "popitem", "clear"),
    *("add", "discard", "update", "setdefault", "appendleft", "popleft"),
}


def mutable_state(module: Module) -> list[str]:
    """`global` in a function, or a function that changes what a module-level name holds."""
    module_level = {
        target.id
        for statement in module.tree.body
        for target in _targets(statement)
        if isinstance(target, ast.Name)
    }
    found: set[tuple[int, str]] = set()
    for function in module.nodes:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            shared = module_level - _local_names(function)
            found |= {hit for node in ast.walk(function) for hit in _changes(node, shared)}
    return [f"{module.name}:{line}: changes module state: {name}" for line, name in sorted(found)]


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return [statement.target]
    return []


def _local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return arguments | stored


def _changes(node: ast.AST, shared: set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Global):
        yield node.lineno, f"global {', '.join(node.names)}"
    elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
        written = isinstance(node.ctx, ast.Store | ast.Del)
        mutated = isinstance(node, ast.Attribute) and node.attr in MUTATORS
        if node.value.id in shared and (written or mutated):
            yield node.lineno, ast.unparse(node)


# --- The package obeys -----------------------------------------------------------------------

Rule = Callable[[Module], list[str]]
RULES: tuple[Rule, ...] = (
    wrong_directions,
    process_starts,
    mcp_imports,
    gates_made,
    ambient_reads,
    mock_imports,
    long_functions,
    long_modules,
    empty_names,
    gerunds,
    mutable_state,
)
RULES_FOR_TESTS = (mock_imports, long_functions)


def complaints(modules: Sequence[Module], rules: Sequence[Rule]) -> list[str]:
    return [
        f"{rule.__name__}: {complaint}"
        for rule in rules
        for module in modules
        for complaint in rule(module)
    ]


# One test for all rules: to parse takes longer than to look.


@pytest.mark.requirement("B-011")
@pytest.mark.slow("parses every module, and looks at each in eight ways")
def test_the_package_obeys_every_rule() -> None:
    assert complaints(package(), RULES) == []


@pytest.mark.slow("parses every test")
def test_the_tests_obey_every_rule() -> None:
    assert complaints(load(ROOT / "tests"), RULES_FOR_TESTS) == []


def test_no_file_of_the_package_imports_itself_through_others() -> None:
    assert import_cycle(package()) == []


def test_a_class_name_occurs_once() -> None:
    assert repeated_classes(package()) == []


def test_no_module_is_a_fragment_of_its_only_user() -> None:
    assert fragments(package()) == []


# --- The rules can speak ---------------------------------------------------------------------

LONG_FUNCTION = "def f():\n" + "    pass\n" * FUNCTION_LINES

BAD = [
    (wrong_directions, "policy.decide", "from kakoi.gate import Gate"),
    (wrong_directions, "policy.decide", "import kakoi.cli"),
    (wrong_directions, "gate", "def f():\n    from kakoi.settings import Settings"),
    (wrong_directions, "audit", "from kakoi import network"),
    (wrong_directions, "gate", "from kakoi import Policy"),
    (wrong_directions, "nowhere", "pass"),
    (gates_made, "mcp.from_settings", "from kakoi.gate import Gate\nGate(policy, sandbox)"),
    (gates_made, "tasks.environments", "from kakoi import gate\ngate.Gate(policy, sandbox)"),
    (process_starts, "gate", "import subprocess"),
    (process_starts, "gate", "from asyncio import subprocess"),
    (process_starts, "gate", "from os import fork as split"),
    (process_starts, "policy.parsing.parser", "import os as o\no.posix_spawn('x', [], {})"),
    (process_starts, "policy.parsing.parser", "import os\nos.execvp('x', [])"),
    (process_starts, "cli.commands.run", "import asyncio\nasyncio.create_subprocess_exec('x')"),
    (process_starts, "channel.runner_channel", "import subprocess"),
    (mcp_imports, "tools.commands", "from mcp_types import CallToolResult"),
    (mcp_imports, "agents.loop", "def f():\n    import mcp.client"),
    (ambient_reads, "policy.rules", "import os\nos.environ['HOME']"),
    (ambient_reads, "process", "from os import environ"),
    (ambient_reads, "runner.keeper", "import os\nos.getenv('HOME')"),
    (ambient_reads, "audit", "from datetime import datetime, UTC\ndatetime.now(UTC)"),
    (ambient_reads, "audit", "import time as clock\nclock.time()"),
    (ambient_reads, "gate", "import sys\nprint(sys.argv[1])"),
    (mock_imports, "test_x", "from unittest import mock"),
    (mock_imports, "test_x", "import unittest.mock as m"),
    (long_functions, "gate", LONG_FUNCTION),
    (long_functions, "gate", "class C:\n    async " + LONG_FUNCTION.replace("\n", "\n    ")),
    (long_modules, "gate", "x = 1\n" * (MODULE_LINES + 1)),
    (empty_names, "policy.utils", "pass"),
    (gerunds, "tasks.telling", "pass"),
    (mutable_state, "gate", "cache = {}\ndef f(x):\n    cache[x] = 1"),
    (mutable_state, "gate", "seen: list[int] = []\ndef f(x):\n    seen.append(x)"),
    (mutable_state, "gate", "n = 0\ndef f():\n    global n\n    n += 1"),
]


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_rule_complains_about_a_bad_module(rule: Rule, name: str, source: str) -> None:
    assert rule(parse(name, source))


GOOD = [
    (
        wrong_directions,
        "cli.commands.check",
        "from kakoi import __version__\nfrom kakoi.policy import rules",
    ),
    (wrong_directions, "policy.decide", "from kakoi.policy.rules import Policy"),
    (gates_made, "sandbox.opened", "from kakoi.gate import Gate\nGate(policy, sandbox)"),
    (gates_made, "cli.session", "def run(gate: Gate) -> None: gate.run()"),
    (process_starts, "process", "import subprocess"),
    (process_starts, "conformance.test_x", "import subprocess"),
    (process_starts, "gate", "import os\nos.path.join('a', 'b')"),
    (mcp_imports, "mcp.server", "from mcp.server.lowlevel.server import Server"),
    (mcp_imports, "cli.commands.mcp", "from kakoi.mcp import server"),
    (ambient_reads, "runner.keeper", "import sys\nsys.argv"),
    (ambient_reads, "process", "import time\ntime.monotonic()"),
    (ambient_reads, "settings", "import os\nos.environ"),
    (gerunds, "policy.parsing", "pass"),
    (mutable_state, "gate", "seen = []\ndef f(x):\n    seen = []\n    seen.append(x)"),
]


@pytest.mark.parametrize(("rule", "name", "source"), GOOD)
def test_a_rule_lets_a_good_module_be(rule: Rule, name: str, source: str) -> None:
    assert rule(parse(name, source)) == []


def test_a_circle_within_one_package_is_found() -> None:
    modules = [
        parse("policy.a", "from kakoi.policy.b import f"),
        parse("policy.b", "def f():\n    from kakoi.policy import c"),
        parse("policy.c", "import kakoi.policy.a"),
    ]
    assert set(import_cycle(modules)) == {"policy.a", "policy.b", "policy.c"}


def test_a_straight_line_is_not_a_circle() -> None:
    modules = [
        parse("policy.a", "from kakoi.policy.b import f\nfrom kakoi.policy.c import g"),
        parse("policy.b", "from kakoi.policy.c import g"),
        parse("policy.c", "import os"),
    ]
    assert import_cycle(modules) == []


def test_a_class_name_that_occurs_twice_is_found() -> None:
    modules = [parse("gate", "class Call: ..."), parse("cli.hook", "class Call: ...")]
    assert repeated_classes(modules) == ["Call: gate, cli.hook"]
    assert repeated_classes([parse("a", "class _C: ..."), parse("b", "class _C: ...")]) == []


def test_a_fragment_is_found() -> None:
    small, user = parse("gate.small", "x = 1"), "from kakoi.gate.small import x"
    assert fragments([small, parse("gate.one", user)]) == [
        "gate.small: 1 lines, for gate.one alone"
    ]
    assert fragments([small, parse("gate.one", user), parse("gate.two", user)]) == []
    assert fragments([small, parse("cli.run", user)]) == []
    assert fragments([parse("gate.small", "x = 1\n" * 60), parse("gate.one", user)]) == []


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches `(?:a|b)*+` wrongly. A single class, as in `[ab]*+`, is fine."""
    possessive = re.compile(r"\)(?:[*+?]|\{[\d,]+\})\+")
    assert possessive.search(r"(?:a|b)*+")
    assert not possessive.search("[ab]*+")
    sources = (ROOT / "src").rglob("*.py")
    found = [path for path in sources if possessive.search(path.read_text("utf-8"))]
    assert found == []
