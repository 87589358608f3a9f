"""What a Python script does to the files that it finds by walking through a directory.

`for p in Path("/").rglob("*"): p.unlink()` removes a tree as surely as `shutil.rmtree` does. Names
that come from such a walk are followed, through loops and assignments, to what is done with them.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kakoi.policy.languages.embedded import Effect
from kakoi.policy.languages.python_names import Scope

_RECURSIVE: Final = frozenset({"os.walk", "os.fwalk"})
_FLAT: Final = frozenset({"os.listdir", "os.scandir"})
_GLOBS: Final = frozenset({"glob.glob", "glob.iglob"})
_REMOVERS: Final = frozenset({"os.remove", "os.unlink", "os.rmdir", "os.removedirs"})
_REMOVING_METHODS: Final = frozenset({"unlink", "rmdir"})
_WRITING_METHODS: Final = frozenset({"write_text", "write_bytes", "touch", "chmod", "rename"})
# How often names are followed to names: a walk, a loop in it, a path, and a text of it.
_ROUNDS: Final = 4
# How much of a value is looked at: in a long chain each link would look at all before it.
_NODES: Final = 200


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk through the directory `root` (None: not known), with all below it or not."""

    root: str | None
    recursive: bool

    @property
    def leaves(self) -> bool:
        """Does it leave the workspace?"""
        return self.root is not None and self.root.startswith(("/", "~", ".."))


def tree_effects(tree: ast.Module, scope: Scope) -> Iterator[tuple[int, int, Effect, str | None]]:
    """What is removed or written by way of a walk, with line and column."""
    nodes = list(ast.walk(tree))
    finder = _Finder(scope, _inside_recursion(nodes))
    if not any(finder.walk_of(node) for node in nodes):
        return
    finder.follow(nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            for effect, target in finder.effects(node):
                yield node.lineno, node.col_offset, effect, target


def _inside_recursion(nodes: Iterable[ast.AST]) -> frozenset[int]:
    """The nodes of functions that call themselves: what they list, they list all the way down."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            if any(_calls(each, node.name) for each in inside):
                found.update(map(id, inside))
    return frozenset(found)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


class _Finder:
    def __init__(self, scope: Scope, recursion: frozenset[int]) -> None:
        self._scope = scope
        self._recursion = recursion
        self._names: dict[str, _Walk] = {}

    def walk_of(self, node: ast.AST) -> _Walk | None:
        """The walk that a call begins."""
        if not isinstance(node, ast.Call):
            return None
        name = self._scope.dotted(node.func)
        first = node.args[0] if node.args else None
        deep = id(node) in self._recursion
        if name in _RECURSIVE | _FLAT:
            return _Walk(self._scope.path(first), name in _RECURSIVE or deep)
        if name in _GLOBS:
            return _Walk(self._scope.path(first), self._is_deep(node) or deep)
        if isinstance(node.func, ast.Attribute) and not name.startswith(("ast.", "re.")):
            return self._walk_of_path(node, node.func, deep=deep)
        return None

    def _walk_of_path(self, call: ast.Call, method: ast.Attribute, *, deep: bool) -> _Walk | None:
        root = self._scope.path(method.value)
        match method.attr:
            case "rglob":
                return _Walk(root, recursive=True)
            case "walk" if root is not None:
                return _Walk(root, recursive=True)
            case "glob":
                return _Walk(root, self._is_deep(call) or deep)
            case "iterdir":
                return _Walk(root, deep)
        return None

    def _is_deep(self, call: ast.Call) -> bool:
        return "**" in (self._scope.text(call.args[0] if call.args else None) or "")

    def follow(self, nodes: Iterable[ast.AST]) -> None:
        """Find the names that hold what a walk has found."""
        bindings = [pair for node in nodes for pair in _bindings(node)]
        for _ in range(_ROUNDS):
            before = len(self._names)
            for target, value in bindings:
                walk = self._behind(value)
                if walk is not None:
                    names = (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
                    self._names.update((name, walk) for name in names if name not in self._names)
            if len(self._names) == before:
                return

    def _behind(self, node: ast.AST) -> _Walk | None:
        """The walk that a value comes from."""
        for each in islice(ast.walk(node), _NODES):
            walk = self._names.get(each.id) if isinstance(each, ast.Name) else self.walk_of(each)
            if walk is not None:
                return walk
        return None

    def effects(self, call: ast.Call) -> Iterator[tuple[Effect, str | None]]:
        """What one call does to what a walk has found."""
        removes, writes = self._kind(call.func)
        handed_on = [each for each in call.args if self._kind(each)[0]]  # map(os.remove, …)
        if not (removes or writes or handed_on):
            return
        method = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        found = (self._behind(each) for each in (*method, *call.args) if each not in handed_on)
        walk = next((each for each in found if each is not None), None)
        if walk is None:
            return
        if walk.recursive and not writes:
            yield Effect.DELETES, walk.root
        if walk.leaves:
            yield Effect.WRITES, walk.root

    def _kind(self, function: ast.expr) -> tuple[bool, bool]:
        """Does it remove? Does it write?"""
        attribute = function.attr if isinstance(function, ast.Attribute) else ""
        removes = self._scope.dotted(function) in _REMOVERS or attribute in _REMOVING_METHODS
        return removes, attribute in _WRITING_METHODS


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Which names get which value."""
    match node:
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            yield node.target, node.iter
        case ast.Assign():
            yield from ((target, node.value) for target in node.targets)
        case ast.AugAssign() | ast.NamedExpr():
            yield node.target, node.value
        case ast.AnnAssign(value=ast.expr() as value):
            yield node.target, value
