"""What the names in Python code stand for.

Names are followed through imports (`from os import system as s`) and through values that are
assigned exactly once (`o = os`), so that the usual spellings of a call all resolve to `os.system`.
"""

import ast
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kakoi._support.late import dataclass, pattern

STARTS: Final = pattern(
    # A module can be reached through another one: `shutil.os.system`.
    r"(?:\w+\.)*(?:os|posix|nt)\.(?:system|popen[234]?|startfile|(?:exec|spawn)[lv]p?e?|posix_spawnp?)"
    r"|(?:\w+\.)*subprocess\.(?:run|call|check_call|check_output|Popen|getoutput|getstatusoutput)"
    r"|asyncio(?:\.subprocess)?\.create_subprocess_(?:exec|shell)|pty\.(?:spawn|fork)"
    r"|commands\.get(?:status)?output|pexpect\.(?:spawn|runu?)|_posixsubprocess\.fork_exec"
    r"|distutils\.spawn\.spawn|pip\.main|multiprocessing\.util\.spawnv_passfds"
)
STARTING_MODULES: Final = frozenset({"os", "posix", "subprocess", "pty", "commands", "shutil"})
OPENERS: Final = ("open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open")
# Other names that matter if they come from `from module import *`.
_STARRED: Final = frozenset(
    """glob.glob glob.iglob os.fwalk os.listdir os.remove os.removedirs os.rename os.replace
    os.rmdir os.scandir os.truncate os.unlink os.walk pathlib.Path pathlib.PosixPath shutil.copyfile
    shutil.move shutil.rmtree""".split()
)
_PATH_MAKERS: Final = frozenset(
    {"pathlib.Path", "pathlib.PosixPath", "os.path.join", "os.path.expanduser"}
)
# Half of a surrogate pair cannot be printed.
_SURROGATES: Final = pattern("[\ud800-\udfff]")
# Many texts that each contain one long part would cost the square of the code's length.
_MAX_JOINED: Final = 4096
# How many steps a name is followed: `a = os; b = a; b.system` takes three steps.
_FUEL: Final = 8
# Fewer where the path divides: `p = Path(p, p, p)` would multiply the work at each step.
_FUEL_AFTER_NAME: Final = 3


@dataclass(frozen=True, slots=True)
class Scope:
    """Names that were imported, and names that were assigned exactly once."""

    imports: Mapping[str, str]
    values: Mapping[str, ast.expr]
    starred: frozenset[str]

    def dotted(self, node: ast.AST | None, fuel: int = _FUEL) -> str:
        """Return `os.system`, however it is spelled; `?` for a computed part; empty if unknown."""
        match node if fuel else None:
            case ast.Name(id=name):
                return self._name(name, fuel)
            case ast.Attribute(value=value, attr=attribute):
                return _member(self.dotted(value, fuel - 1), attribute)
            case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)):
                return self._item(self.dotted(value, fuel - 1), key)
            case ast.NamedExpr(value=value):
                return self.dotted(value, fuel - 1)
            case ast.Call(func=func, args=arguments):
                function = self.dotted(func, min(fuel - 1, _FUEL_AFTER_NAME))
                return self._result(function, arguments, fuel - 1)
        return ""

    def _name(self, name: str, fuel: int) -> str:
        if name in self.imports:
            return self.imports[name]
        if name in self.values:
            return self.dotted(self.values[name], fuel - 1)
        spelled = (f"{module}.{name}" for module in self.starred)
        found = (full for full in spelled if STARTS.fullmatch(full) or full in _STARRED)
        return next(found, name)

    def _item(self, base: str, key: str) -> str:
        if base in ("sys.modules", "globals()"):
            return self.imports.get(key, key)
        namespace = base.removesuffix(".__dict__")
        return _member(namespace, key) if namespace != base or base == "__builtins__" else ""

    def _result(self, function: str, arguments: Sequence[ast.expr], fuel: int) -> str:
        match function, arguments:
            case (("__import__" | "importlib.import_module"), [name, *_]):
                return self.text(name) or "?"
            case "getattr", [value, name, *_]:
                # A name that is put together ("sys" + "tem") hides something: not followed.
                plain = self.text(name) if isinstance(name, ast.Constant | ast.Name) else None
                return _member(self.dotted(value, fuel), plain or "?")
            case "vars", [value]:
                return _member(self.dotted(value, fuel), "__dict__")
            case (("globals" | "locals" | "vars"), []):
                return "globals()"
        return ""

    def text(self, node: ast.AST | None, fuel: int = _FUEL) -> str | None:
        """Return the string that the node always is, or None."""
        match node if fuel else None:
            case ast.Constant(value=str() as text):
                return None if _SURROGATES.search(text) else text
            case ast.Name(id=name) if name in self.values:
                return self.text(self.values[name], min(fuel - 1, _FUEL_AFTER_NAME))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                joined = _joined("", (self.text(left, fuel - 1), self.text(right, fuel - 1)))
                return joined if joined is None or len(joined) <= _MAX_JOINED else None
        return None

    def path(self, node: ast.AST | None, fuel: int = _FUEL) -> str | None:
        """Return the path that the node always is, or None; the home directory is `~`."""
        match node if fuel else None:
            case ast.Name(id=name) if name in self.values:
                return self.path(self.values[name], min(fuel - 1, _FUEL_AFTER_NAME))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _joined("/", (self.path(left, fuel - 1), self.path(right, fuel - 1)))
            case ast.BinOp(left=left, op=ast.Add(), right=right) if self.text(node) is None:
                return _joined("", (self.path(left, fuel - 1), self.path(right, fuel - 1)))
            case ast.Subscript() | ast.Call() if self._is_home(node):
                return "~"
            case ast.Call(func=ast.Attribute(value=value, attr="expanduser" | "resolve"), args=[]):
                return self.path(value, fuel - 1)
            case ast.Call(func=ast.Attribute(value=value, attr="joinpath"), args=parts):
                parts = [value, *parts[:_FUEL]]
                return _joined("/", [self.path(part, fuel - 1) for part in parts])
            case ast.Call(func=func) if self.dotted(func, _FUEL_AFTER_NAME) == "pathlib.Path.home":
                return "~"
            case ast.Call(func=func, args=parts) if (
                self.dotted(func, _FUEL_AFTER_NAME) in _PATH_MAKERS
            ):
                return _joined("/", [self.path(part, fuel - 1) for part in parts[:_FUEL]])
        return self.text(node)

    def opens_for_writing(self, call: ast.Call, index: int) -> bool:
        """Tell if a call of `open` may write; `index`: of the argument with the mode."""
        modes = [*call.args[index : index + 1]]
        modes += [word.value for word in call.keywords if word.arg == "mode"]
        # A computed mode can be any mode.
        return bool(modes) and any(letter in (self.text(modes[0]) or "w") for letter in "wax+")

    def _is_home(self, node: ast.AST | None) -> bool:
        """`os.environ["HOME"]` and `os.getenv("HOME")`."""
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value="HOME")):
                return self.dotted(value, _FUEL_AFTER_NAME) == "os.environ"
            case ast.Call(func=func, args=[ast.Constant(value="HOME"), *_]):
                return self.dotted(func, _FUEL_AFTER_NAME) in ("os.getenv", "os.environ.get")
        return False

    def command_line(self, nodes: Iterable[ast.AST | None]) -> str | None:
        """Return the command that the nodes spell word by word, or None."""
        words = [
            "python3" if self.dotted(node) == "sys.executable" else self.text(node)
            for node in nodes
        ]
        known = [word for word in words if word is not None]
        return shlex.join(known) if known and len(known) == len(words) else None

    def command(self, node: ast.AST | None) -> str | None:
        """Return the command in one argument: a text, a list, or `"a b".split()`."""
        match self.values.get(node.id) if isinstance(node, ast.Name) else node:
            case ast.List(elts=words) | ast.Tuple(elts=words):
                return self.command_line(words)
            case ast.Call(func=ast.Attribute(value=value, attr="split"), args=arguments):
                # "a b".split() or shlex.split("a b")
                return self.text(value) or self.text(arguments[0] if arguments else None)
        return self.text(node)


def _member(base: str, name: str) -> str:
    if base in ("builtins", "__builtins__"):
        return name
    return f"{base}.{name}" if base else ""


def _joined(glue: str, parts: Sequence[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return glue.join(known) if known and len(known) == len(parts) else None


def scope_of(tree: ast.Module) -> Scope:
    """Return what the names in the code stand for."""
    imports: dict[str, str] = {}
    values: dict[str, ast.expr] = {}
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    top = alias.name.partition(".")[0]
                    imports[alias.asname or top] = alias.name if alias.asname else top
            case ast.ImportFrom(module=str() as module, names=aliases):
                imports |= {a.asname or a.name: f"{module}.{a.name}" for a in aliases}
                # Stored per module, so that the import of a name does not overwrite it.
                imports |= {f"*{module}": module for a in aliases if a.name == "*"}
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound[name] += 1
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
    once = {name: value for name, value in values.items() if bound[name] == 1}
    starred = frozenset(imports[name] for name in imports if name[0] == "*")
    return Scope(imports, once, starred & (STARTING_MODULES | {"glob", "pathlib"}))
