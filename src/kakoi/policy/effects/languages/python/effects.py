"""Python code: what it does besides computing, read from its syntax tree."""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.languages.code_effect import (
    HARMLESS_OUTPUTS,
    CodeEffect,
    CodeEffectKind,
    ReadCode,
    snippet,
)
from kakoi.policy.effects.languages.python.names import (
    OPENERS,
    STARTING_MODULES,
    STARTS,
    Scope,
    scope_of,
)

_RECURSIVE: Final = frozenset({"os.walk", "os.fwalk"})
_FLAT: Final = frozenset({"os.listdir", "os.scandir"})
_GLOBS: Final = frozenset({"glob.glob", "glob.iglob"})
_REMOVERS: Final = frozenset({"os.remove", "os.unlink", "os.rmdir", "os.removedirs"})
_REMOVING_METHODS: Final = frozenset({"unlink", "rmdir"})
_WRITING_METHODS: Final = frozenset({"write_text", "write_bytes", "touch", "chmod", "rename"})
# How many times names are followed to names: a walk, a loop in it, a path, and its text.
_ROUNDS: Final = 4
# How many nodes of a value are examined: in a long chain each link would examine all before it.
_NODES: Final = 200


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk through the directory `root` (None: unknown), recursive or not."""

    root: str | None
    recursive: bool

    @property
    def leaves(self) -> bool:
        """Whether it leaves the workspace."""
        return self.root is not None and self.root.startswith(("/", "~", ".."))


def tree_effects(
    tree: ast.Module, scope: Scope
) -> Iterator[tuple[int, int, CodeEffectKind, str | None]]:
    """Yield what is removed or written while code walks a directory, with line and column.

    `for p in Path("/").rglob("*"): p.unlink()` removes a tree just as `shutil.rmtree` does. Names
    that come from such a walk are followed, through loops and assignments, to the calls that use
    them.
    """
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
    """Return the nodes of functions that call themselves: their listings are recursive."""
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
        """Return the walk that a call begins, or None."""
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
        """Find the names that hold paths from a walk."""
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
        """Return the walk that a value comes from, or None."""
        for each in islice(ast.walk(node), _NODES):
            walk = self._names.get(each.id) if isinstance(each, ast.Name) else self.walk_of(each)
            if walk is not None:
                return walk
        return None

    def effects(self, call: ast.Call) -> Iterator[tuple[CodeEffectKind, str | None]]:
        """Yield what one call does to paths from a walk."""
        removes, writes = self._kind(call.func)
        writes = writes or self._opens_for_writing(call)
        handed_on = [each for each in call.args if self._kind(each)[0]]  # map(os.remove, …)
        if not (removes or writes or handed_on):
            return
        method = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        found = (self._behind(each) for each in (*method, *call.args) if each not in handed_on)
        walk = next((each for each in found if each is not None), None)
        if walk is None:
            return
        if walk.recursive and not writes:
            yield CodeEffectKind.DELETES, walk.root
        if walk.leaves:
            yield CodeEffectKind.WRITES, walk.root

    def _opens_for_writing(self, call: ast.Call) -> bool:
        if self._scope.dotted(call.func) in OPENERS:
            return self._scope.opens_for_writing(call, 1)
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
        return is_method and self._scope.opens_for_writing(call, 0)

    def _kind(self, function: ast.expr) -> tuple[bool, bool]:
        """Return whether it removes, and whether it writes."""
        attribute = function.attr if isinstance(function, ast.Attribute) else ""
        removes = self._scope.dotted(function) in _REMOVERS or attribute in _REMOVING_METHODS
        return removes, attribute in _WRITING_METHODS


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield the targets that the node assigns, each with its value."""
    match node:
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            yield node.target, node.iter
        case ast.Assign():
            yield from ((target, node.value) for target in node.targets)
        case ast.AugAssign() | ast.NamedExpr():
            yield node.target, node.value
        case ast.AnnAssign(value=ast.expr() as value):
            yield node.target, value


_UNREADABLE: Final = pattern(
    r"exec|eval|marshal\.loads?|ctypes\.(?:CDLL|PyDLL|cdll|pydll|pythonapi)(?:\..*)?"
    # A function of a module whose name is computed.
    r"|\?\.(?:system|popen|run|call|check_\w+|Popen|spawn\w*|exec\w*)"
)
# These lead from any object to every module, without an import.
_GADGETS: Final = frozenset({"__subclasses__", "__globals__", "load_module", "runsource"})
# These run their argument as code.
_RUNNING_TEXT: Final = frozenset(
    "exec eval compile timeit.timeit timeit.repeat cProfile.run profile.run pdb.run "
    "pdb.runeval".split()
)
_TREE_REMOVERS: Final = frozenset({"shutil.rmtree", "os.removedirs"})
_LOADERS: Final = frozenset({"runpy.run_path", "runpy.run_module", "imp.load_source"})
_SOCKETS: Final = frozenset({"socket.socket", "socket.create_connection"})
# Which arguments are paths that are written.
_WRITERS: Final[Mapping[str, Sequence[int]]] = {
    **dict.fromkeys(OPENERS, (0,)),
    **dict.fromkeys(("logging.FileHandler", "venv.create", "sqlite3.connect"), (0,)),
    "urllib.request.urlretrieve": (1,),
    **dict.fromkeys(("os.remove", "os.unlink", "os.rmdir", "os.truncate"), (0,)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.mkdir", "os.makedirs"), (0,)),
    **dict.fromkeys(("os.rename", "os.replace", "shutil.move"), (0, 1)),
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"), (1,)),
    **dict.fromkeys(("os.symlink", "os.link"), (0, 1)),
}
_PATH_WRITERS: Final = frozenset(
    {"write_text", "write_bytes", "open", "unlink", "rmdir", "touch", "mkdir", "rename", "chmod"}
)
_PATH_READERS: Final = frozenset({"read_text", "read_bytes"})
_PATH_KEYWORDS: Final = frozenset({"file", "filename", "path", "src", "dst"})
_Pairs = Iterator[tuple[CodeEffectKind, str | None]]


def python_effects(code: str, read_code: ReadCode) -> list[CodeEffect] | None:
    """Return what the code reaches for, in the order written; None if it is not today's Python.

    `read_code` reads strings that the code itself runs as code. Raises RecursionError or
    MemoryError if the code is nested too deeply for the parser.
    """
    tree = _parse(code)
    if tree is None:
        return None
    scope = scope_of(tree)
    lines = re.split(r"\r\n|[\r\n]", code)
    walked = tree_effects(tree, scope)
    found = sorted((*_found(tree, scope, read_code), *walked), key=lambda item: item[:2])
    return [
        CodeEffect(effect, _snippet_at(lines, line, column), target)
        for line, column, effect, target in found
    ]


def _parse(code: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Python 3.14 accepts `-c` code that is indented as a whole.
        for text in (code, textwrap.dedent(code)):
            try:
                return ast.parse(text)
            except (SyntaxError, ValueError):
                continue
    return None


def _snippet_at(lines: Sequence[str], line: int, column: int) -> str:
    # The parser counts columns in bytes.
    line_bytes = lines[line - 1].encode("utf-8", "replace") if line <= len(lines) else b""
    return snippet(line_bytes[column : column + 400].decode("utf-8", "replace"))


# --- What the code does ----------------------------------------------------------------------


def _found(
    tree: ast.Module, scope: Scope, read_code: ReadCode
) -> Iterator[tuple[int, int, CodeEffectKind, str | None]]:
    called: set[int] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            pairs = _call_effects(node, scope, read_code)
            names.add(scope.dotted(node.func))
        elif isinstance(node, ast.Attribute | ast.Name | ast.Subscript):
            is_read = isinstance(node.ctx, ast.Load) and id(node) not in called
            pairs = _name_effects(node, scope.dotted(node) if is_read else "")
        else:
            continue
        for effect, target in pairs:
            yield node.lineno, node.col_offset, effect, target
    if "os.dup2" in names and names & _SOCKETS:
        # The standard streams become a connection: a remote shell.
        yield 1, 0, CodeEffectKind.RUNS, None


def _name_effects(node: ast.AST, name: str) -> _Pairs:
    if STARTS.fullmatch(name):
        yield CodeEffectKind.RUNS, None
    elif name in _TREE_REMOVERS:
        yield CodeEffectKind.DELETES, None
    elif _UNREADABLE.fullmatch(name) or getattr(node, "attr", "") in _GADGETS:
        yield CodeEffectKind.UNREADABLE, None


def _call_effects(call: ast.Call, scope: Scope, read_code: ReadCode) -> _Pairs:
    name = scope.dotted(call.func)
    first = call.args[0] if call.args else None
    if STARTS.fullmatch(name):
        yield CodeEffectKind.RUNS, _started_command(name, call, scope)
    elif name in _RUNNING_TEXT:
        yield from _code_effects(name, first, scope, read_code)
    elif name in _TREE_REMOVERS:
        yield CodeEffectKind.DELETES, scope.path(first)
    elif name in _LOADERS:
        yield CodeEffectKind.LOADS, scope.text(first)
    elif _hides_a_name(name, call, scope):
        yield CodeEffectKind.UNREADABLE, None
    else:
        yield from _name_effects(call.func, name)
        yield from _written_files(name, call, scope)


def _hides_a_name(name: str, call: ast.Call, scope: Scope) -> object:
    """`getattr(os, "sys" + "tem")`, `methodcaller("system")` and `__import__("".join(…))`."""
    if name in ("operator.methodcaller", "operator.attrgetter"):
        member = scope.text(call.args[0] if call.args else None) or "system"
        return STARTS.fullmatch(f"os.{member}") or STARTS.fullmatch(f"subprocess.{member}")
    if name == "__import__":
        return not (call.args and isinstance(call.args[0], ast.Constant | ast.Name))
    module, _, member = scope.dotted(call).rpartition(".")
    return module in STARTING_MODULES and member == "?"


def _code_effects(name: str, node: ast.AST | None, scope: Scope, read_code: ReadCode) -> _Pairs:
    match node:
        # Not followed through names: one long text could be read many times.
        case ast.Constant(value=str() as text):
            # The text can use the names of the code around it.
            known = (f"import {full} as {name}\n" for name, full in scope.imports.items())
            prelude = "".join(line for line in known if "*" not in line and "?" not in line)
            yield from ((inner.kind, inner.target) for inner in read_code(prelude + text))
        case ast.Call(func=ast.Attribute(value=source, attr="read" | "read_text")):
            # compile() alone only checks the syntax of a file.
            if name != "compile":
                opened = source.args[0] if isinstance(source, ast.Call) and source.args else source
                yield CodeEffectKind.LOADS, scope.path(opened)
        case ast.Call(func=ast.Name(id="compile"), args=[inner, *_]):
            yield from _code_effects(name, inner, scope, read_code)
        case _:
            yield CodeEffectKind.UNREADABLE, None


def _started_command(name: str, call: ast.Call, scope: Scope) -> str | None:
    arguments: list[ast.expr | None] = list(call.args)
    family = re.fullmatch(
        r"(?:os|posix|nt)\.(?:(?P<spawn>spawn)|exec|posix_spawn)(?P<kind>[lv]?)p?(?P<env>e?)", name
    )
    if name.endswith("create_subprocess_exec"):
        return scope.command_line(arguments)
    if family is None:
        by_name = [word.value for word in call.keywords if word.arg in ("args", "cmd", "command")]
        return scope.command((arguments + by_name or [None])[0])
    # spawnl(mode, file, arg0, arg1 …) and execv(file, [arg0, arg1 …]): arg0 is only a label.
    file, *rest = arguments[1 if family["spawn"] else 0 :] or [None]
    if family["kind"] == "l":
        return scope.command_line([file, *rest[1 : len(rest) - len(family["env"])]])
    words = rest[0].elts[1:] if rest and isinstance(rest[0], ast.List | ast.Tuple) else [None]
    return scope.command_line([file, *words])


def _written_files(name: str, call: ast.Call, scope: Scope) -> _Pairs:
    indexes = _WRITERS.get(name, ())
    paths = [scope.path(call.args[index]) for index in indexes if index < len(call.args)]
    if indexes:
        paths += [scope.path(word.value) for word in call.keywords if word.arg in _PATH_KEYWORDS]
    opens, mode_index = name in OPENERS, 1
    match call.func:
        # Not for a plain string: it has methods with these names too.
        case ast.Attribute(value=receiver, attr=method) if (
            not paths
            and method in _PATH_WRITERS | _PATH_READERS
            and not isinstance(receiver, ast.Constant)
        ):
            paths = [scope.path(receiver)]
            opens, mode_index = method == "open", 0
    reads = getattr(call.func, "attr", "") in _PATH_READERS or (
        opens and not scope.opens_for_writing(call, mode_index)
    )
    for path in paths:
        if path and path.startswith(("/", "~", "..")) and path not in HARMLESS_OUTPUTS:
            yield (CodeEffectKind.READS if reads else CodeEffectKind.WRITES), path
