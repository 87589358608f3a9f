"""What a test goes through: the command it types, the names it imports, the program it talks to.

Read from the tests' own code. A public object counts from wherever it is imported. A test uses the
names in its body, and whatever the helpers, fixtures and classes of the tests use that it names.
What cannot be seen counts as not used: a test without a visible way in is shown with the modules of
kakoi that it calls.
"""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PUBLIC = (
    *("kakoi", "kakoi.sync", "kakoi.sandbox", "kakoi.bash_executor", "kakoi.shell"),
    *("kakoi.builtin", "kakoi.tasks", "kakoi.conformance"),
)
# What only says what is expected, or makes values.
_NOT_CALLED = ("kakoi.errors", "kakoi.results", "kakoi._support")
# Helpers of the tests that start something a user starts.
_STARTERS = {
    "tests.cli.forked": "kakoi",
    "tests.packages.script": "`install.sh`",
    "tests.images.boxes.Box": "the image",
}
_MOST_SHOWN = 4
_IMPORTS = re.compile(r"^from (kakoi[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def _public_names() -> dict[int, str]:
    """Return the public name of each object that has one, by its identity."""
    found: dict[int, str] = {}
    for source in PUBLIC:
        module = importlib.import_module(source)
        for name in getattr(module, "__all__", ()):
            if callable(thing := getattr(module, name)) and _is_called(thing):
                found.setdefault(id(thing), f"{source}.{name}")
    return found


def _is_called(thing: object) -> bool:
    """Whether a test would call it: neither an error, nor a value that says what is expected."""
    return not str(getattr(thing, "__module__", "")).startswith(_NOT_CALLED)


@dataclass(frozen=True)
class Found:
    """`commands`: of the command line. `others`: other ways in. `inside`: modules of kakoi."""

    commands: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()

    def __or__(self, other: "Found") -> "Found":
        return Found(
            self.commands | other.commands, self.others | other.others, self.inside | other.inside
        )

    @property
    def is_from_inside(self) -> bool:
        return not self.commands and not self.others

    def __str__(self) -> str:
        # Where a subcommand can be seen, the bare name says nothing more.
        typed = self.commands - {"kakoi"} if len(self.commands) > 1 else self.commands
        ways = [*sorted(f"`{each}`" for each in typed), *sorted(self.others)]
        if ways:
            return ", ".join(ways)
        modules = [f"`{each}`" for each in sorted(self.inside)]
        if len(modules) > _MOST_SHOWN:
            modules[_MOST_SHOWN:] = [f"and {len(modules) - _MOST_SHOWN} more"]
        return "from inside: " + (", ".join(modules) or "files of the repository")


@dataclass
class Module:
    """A file of the tests."""

    path: Path
    tree: ast.Module

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, named):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                found |= {each.id: node for each in node.targets if isinstance(each, ast.Name)}
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Name → module and the name there."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    found[each.asname or each.name] = node.module, each.name
            elif isinstance(node, ast.Import):
                for each in node.names:
                    found[each.asname or each.name.partition(".")[0]] = each.name, ""
        return found


@dataclass
class Tests:
    """All files of the tests. `commands`: those of the command line."""

    root: Path
    commands: frozenset[str]
    public: dict[int, str] = field(default_factory=_public_names)
    _modules: dict[Path, Module | None] = field(default_factory=dict)

    def module(self, path: Path) -> Module | None:
        if path not in self._modules:
            is_there = path.is_file()
            self._modules[path] = (
                Module(path, ast.parse(path.read_text("utf-8"))) if is_there else None
            )
        return self._modules[path]

    def found_in(self, path: Path, name: str) -> Found:
        """Return the ways in of one test, or of every test of the file if it has no such name."""
        module = self.module(path)
        if module is None:
            return Found()
        if name in module.definitions:
            return self._follow(module, module.definitions[name], set())
        tests = [node for each, node in module.definitions.items() if each.startswith("test_")]
        found = Found()
        for node in tests:
            found |= self._follow(module, node, set())
        return found

    def _follow(self, module: Module, node: ast.AST, seen: set[tuple[Path, int]]) -> Found:
        if (module.path, id(node)) in seen:
            return Found()
        seen.add((module.path, id(node)))
        found = Found(commands=self._typed(node), others=self._written(node))
        for name in _names_in(node):
            if name in module.definitions:
                found |= self._follow(module, module.definitions[name], seen)
            elif name in module.imports:
                found |= self._imported(*module.imports[name], seen)
            elif name in _parameters(node):
                found |= self._fixture(module, name, seen)
        return found

    def _typed(self, node: ast.AST) -> frozenset[str]:
        """The commands in `kakoi("run", …)`, and in `[…, "-m", "kakoi", "run", …]`."""
        found = set()
        for each in ast.walk(node):
            words = each.args if isinstance(each, ast.Call) else getattr(each, "elts", [])
            texts = [word.value if isinstance(word, ast.Constant) else None for word in words]
            if texts[:2] == ["docker", "compose"]:
                found.add("docker compose")
            if "kakoi" in texts and texts[max(texts.index("kakoi") - 1, 0)] == "-m":
                texts = texts[texts.index("kakoi") + 1 :]
                found.add("kakoi")
            elif not isinstance(each, ast.Call) or not _is_kakoi(each.func):
                continue
            else:
                found.add("kakoi")
            if texts and texts[0] in self.commands:
                found.add(f"kakoi {texts[0]}")
        return frozenset(found)

    def _written(self, node: ast.AST) -> frozenset[str]:
        """The public names that a program imports whose text is in the test."""
        texts = [
            each.value
            for each in ast.walk(node)
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        imports = [found for text in texts for found in _IMPORTS.findall(text)]
        return frozenset(
            f"`{self.public[key]}`"
            for source, names in imports
            if source in PUBLIC
            for name in names.split(",")
            if (key := id(getattr(importlib.import_module(source), name.strip(), None)))
            in self.public
        )

    def _imported(self, source: str, name: str, seen: set[tuple[Path, int]]) -> Found:
        if source.startswith(_NOT_CALLED):
            return Found()
        if source.partition(".")[0] == "kakoi":
            return self._of_kakoi(source, name)
        if source.partition(".")[0] == "mcp":
            return Found(others=frozenset(["an MCP client"]))
        for starter, way in _STARTERS.items():
            if f"{source}.{name}".startswith(starter):
                one = frozenset([way])
                return Found(commands=one) if way == "kakoi" else Found(others=one)
        if source.partition(".")[0] == "tests":
            module = self.module(self.root / (source.replace(".", "/") + ".py"))
            if module is not None and name in module.definitions:
                return self._follow(module, module.definitions[name], seen)
        return Found()

    def _of_kakoi(self, source: str, name: str) -> Found:
        thing = getattr(importlib.import_module(source), name or "__name__", None)
        if id(thing) in self.public:
            return Found(others=frozenset([f"`{self.public[id(thing)]}`"]))
        if not callable(thing) or not _is_called(thing):
            return Found()
        return Found(inside=frozenset([source]))

    def _fixture(self, module: Module, name: str, seen: set[tuple[Path, int]]) -> Found:
        for folder in (module.path.parent, *module.path.parents):
            nearby = self.module(folder / "conftest.py")
            if nearby is not None and name in nearby.definitions:
                return self._follow(nearby, nearby.definitions[name], seen)
            if nearby is not None and name in nearby.imports:
                return self._imported(*nearby.imports[name], seen)
            if folder == self.root:
                break
        return Found()


def _is_kakoi(function: ast.expr) -> bool:
    name = getattr(function, "id", None) or getattr(function, "attr", None)
    return name == "kakoi"


def _names_in(node: ast.AST) -> Iterator[str]:
    yield from dict.fromkeys(
        [each.id for each in ast.walk(node) if isinstance(each, ast.Name)] + list(_parameters(node))
    )


def _parameters(node: ast.AST) -> list[str]:
    arguments = getattr(node, "args", None)
    return [each.arg for each in arguments.args] if isinstance(arguments, ast.arguments) else []


def ways_in(
    proofs: Mapping[str, list[str]], root: Path, commands: frozenset[str]
) -> dict[str, Found]:
    """Return the ways in of each row. `proofs`: row → `tests/file.py::test`."""
    tests = Tests(root, commands)
    known: dict[str, Found] = {}
    found = {}
    for row, names in proofs.items():
        total = Found()
        for each in names:
            if each not in known:
                path, _, name = each.partition("::")
                known[each] = tests.found_in(root / path, name)
            total |= known[each]
        found[row] = total
    return found
