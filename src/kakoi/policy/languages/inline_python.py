"""What a Python script does besides computing, read from its syntax tree.

Names are followed through imports (`from os import system as s`) and through the values they get
exactly once (`o = os`), so that the usual ways of writing a call all come out as `os.system`.
"""

import ast
import re
import shlex
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kakoi.policy.languages.embedded import HARMLESS_OUTPUTS, Effect, EmbeddedEffect, snippet

_STARTS: Final = re.compile(
    # A module may be reached by way of another one: `shutil.os.system`.
    r"(?:\w+\.)*(?:os|posix|nt)\.(?:system|popen[234]?|startfile|(?:exec|spawn)[lv]p?e?|posix_spawnp?)"
    r"|(?:\w+\.)*subprocess\.(?:run|call|check_call|check_output|Popen|getoutput|getstatusoutput)"
    r"|asyncio(?:\.subprocess)?\.create_subprocess_(?:exec|shell)|pty\.(?:spawn|fork)"
    r"|commands\.get(?:status)?output|pexpect\.(?:spawn|runu?)|_posixsubprocess\.fork_exec"
    r"|distutils\.spawn\.spawn|pip\.main|multiprocessing\.util\.spawnv_passfds"
)
_UNREADABLE: Final = re.compile(
    r"exec|eval|marshal\.loads?|ctypes\.(?:CDLL|PyDLL|cdll|pydll|pythonapi)(?:\..*)?"
    # A function of a module whose name is computed.
    r"|\?\.(?:system|popen|run|call|check_\w+|Popen|spawn\w*|exec\w*)"
)
# From any object these lead to every module, past all imports.
_GADGETS: Final = frozenset({"__subclasses__", "__globals__", "load_module", "runsource"})
# They run a text that they are given as code.
_RUNNING_TEXT: Final = frozenset(
    "exec eval compile timeit.timeit timeit.repeat cProfile.run profile.run pdb.run "
    "pdb.runeval".split()
)
_TREE_REMOVERS: Final = frozenset({"shutil.rmtree", "os.removedirs"})
_LOADERS: Final = frozenset({"runpy.run_path", "runpy.run_module", "imp.load_source"})
_STARTING_MODULES: Final = frozenset({"os", "posix", "subprocess", "pty", "commands", "shutil"})
_SOCKETS: Final = frozenset({"socket.socket", "socket.create_connection"})
_OPENERS: Final = ("open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open")
# Which arguments are the paths written to.
_WRITERS: Final[Mapping[str, Sequence[int]]] = {
    **dict.fromkeys(_OPENERS, (0,)),
    **dict.fromkeys(("logging.FileHandler", "venv.create", "sqlite3.connect"), (0,)),
    "urllib.request.urlretrieve": (1,),
    **dict.fromkeys(("os.remove", "os.unlink", "os.rmdir", "os.truncate"), (0,)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.mkdir", "os.makedirs"), (0,)),
    **dict.fromkeys(("os.rename", "os.replace", "shutil.move"), (0, 1)),
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"), (1,)),
    **dict.fromkeys(("os.symlink", "os.link"), (1,)),
}
_PATH_WRITERS: Final = frozenset(
    {"write_text", "write_bytes", "open", "unlink", "rmdir", "touch", "mkdir", "rename", "chmod"}
)
_PATH_READERS: Final = frozenset({"read_text", "read_bytes"})
_PATH_KEYWORDS: Final = frozenset({"file", "filename", "path", "src", "dst"})
_PATH_MAKERS: Final = frozenset(
    {"pathlib.Path", "pathlib.PosixPath", "os.path.join", "os.path.expanduser"}
)
# Half a pair cannot be printed.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
# Many texts, each made of one long part, would cost the square of the script's length.
_MAX_JOINED: Final = 4096
# How many steps a name is followed: `a = os; b = a; b.system` takes three.
_FUEL: Final = 8
# Less where the way divides: `p = Path(p, p, p)` would multiply the work at each step.
_FUEL_AFTER_NAME: Final = 3

_Pairs = Iterator[tuple[Effect, str | None]]
_ReadCode = Callable[[str], Iterable[EmbeddedEffect]]


def python_effects(code: str, read_code: _ReadCode) -> list[EmbeddedEffect] | None:
    """What the script reaches for, in the order written; None if it is not today's Python.

    `read_code` is asked about strings that the script itself runs as code. RecursionError and
    MemoryError come from the parser when the script is nested too deeply for it.
    """
    tree = _parse(code)
    if tree is None:
        return None
    scope = _scope(tree)
    lines = re.split(r"\r\n|[\r\n]", code)
    found = sorted(_found(tree, scope, read_code), key=lambda item: item[:2])
    return [
        EmbeddedEffect(effect, _snippet_at(lines, line, column), target)
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


# --- What names stand for --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scope:
    """Names that were imported, and names that got a value exactly once."""

    imports: Mapping[str, str]
    values: Mapping[str, ast.expr]
    starred: frozenset[str]

    def dotted(self, node: ast.AST | None, fuel: int = _FUEL) -> str:
        """`os.system`, however it is spelled; `?` for what is computed; empty if unknown."""
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
        return next((full for full in spelled if _STARTS.fullmatch(full)), name)

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
                # Putting the name together ("sys" + "tem") is a way to hide it: not followed.
                plain = self.text(name) if isinstance(name, ast.Constant | ast.Name) else None
                return _member(self.dotted(value, fuel), plain or "?")
            case "vars", [value]:
                return _member(self.dotted(value, fuel), "__dict__")
            case (("globals" | "locals" | "vars"), []):
                return "globals()"
        return ""

    def text(self, node: ast.AST | None, fuel: int = _FUEL) -> str | None:
        """The string that the node always is."""
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
        """The path that the node always is; one below the home directory starts with `~`."""
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

    def _is_home(self, node: ast.AST | None) -> bool:
        """`os.environ["HOME"]` and `os.getenv("HOME")`."""
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value="HOME")):
                return self.dotted(value, _FUEL_AFTER_NAME) == "os.environ"
            case ast.Call(func=func, args=[ast.Constant(value="HOME"), *_]):
                return self.dotted(func, _FUEL_AFTER_NAME) in ("os.getenv", "os.environ.get")
        return False

    def command_line(self, nodes: Iterable[ast.AST | None]) -> str | None:
        """The command that the nodes spell word by word."""
        words = [
            "python3" if self.dotted(node) == "sys.executable" else self.text(node)
            for node in nodes
        ]
        known = [word for word in words if word is not None]
        return shlex.join(known) if known and len(known) == len(words) else None

    def command(self, node: ast.AST | None) -> str | None:
        """The command that one argument holds: a text, a list, or `"a b".split()`."""
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


def _scope(tree: ast.Module) -> _Scope:
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
                # Kept per module, where the import of a name would overwrite it.
                imports |= {f"*{module}": module for a in aliases if a.name == "*"}
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound[name] += 1
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
    once = {name: value for name, value in values.items() if bound[name] == 1}
    starred = _STARTING_MODULES.intersection(imports[name] for name in imports if name[0] == "*")
    return _Scope(imports, once, starred)


# --- What the script does --------------------------------------------------------------------


def _found(
    tree: ast.Module, scope: _Scope, read_code: _ReadCode
) -> Iterator[tuple[int, int, Effect, str | None]]:
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
        # The standard streams become a connection: a shell for someone else.
        yield 1, 0, Effect.RUNS, None


def _name_effects(node: ast.AST, name: str) -> _Pairs:
    if _STARTS.fullmatch(name):
        yield Effect.RUNS, None
    elif name in _TREE_REMOVERS:
        yield Effect.DELETES, None
    elif _UNREADABLE.fullmatch(name) or getattr(node, "attr", "") in _GADGETS:
        yield Effect.UNREADABLE, None


def _call_effects(call: ast.Call, scope: _Scope, read_code: _ReadCode) -> _Pairs:
    name = scope.dotted(call.func)
    first = call.args[0] if call.args else None
    if _STARTS.fullmatch(name):
        yield Effect.RUNS, _started_command(name, call, scope)
    elif name in _RUNNING_TEXT:
        yield from _code_effects(name, first, scope, read_code)
    elif name in _TREE_REMOVERS:
        yield Effect.DELETES, scope.path(first)
    elif name in _LOADERS:
        yield Effect.LOADS, scope.text(first)
    elif _hides_a_name(name, call, scope):
        yield Effect.UNREADABLE, None
    else:
        yield from _name_effects(call.func, name)
        yield from _written_files(name, call, scope)


def _hides_a_name(name: str, call: ast.Call, scope: _Scope) -> object:
    """`getattr(os, "sys" + "tem")`, `methodcaller("system")` and `__import__("".join(…))`."""
    if name in ("operator.methodcaller", "operator.attrgetter"):
        member = scope.text(call.args[0] if call.args else None) or "system"
        return _STARTS.fullmatch(f"os.{member}") or _STARTS.fullmatch(f"subprocess.{member}")
    if name == "__import__":
        return not (call.args and isinstance(call.args[0], ast.Constant | ast.Name))
    module, _, member = scope.dotted(call).rpartition(".")
    return module in _STARTING_MODULES and member == "?"


def _code_effects(name: str, node: ast.AST | None, scope: _Scope, read_code: _ReadCode) -> _Pairs:
    match node:
        # Only where it stands: followed through names, one long text could be read many times.
        case ast.Constant(value=str() as text):
            # The text sees the names of the code around it.
            known = (f"import {full} as {name}\n" for name, full in scope.imports.items())
            prelude = "".join(line for line in known if "*" not in line and "?" not in line)
            yield from ((inner.effect, inner.target) for inner in read_code(prelude + text))
        case ast.Call(func=ast.Attribute(value=source, attr="read" | "read_text")):
            # compile() alone is how the syntax of a file is checked.
            if name != "compile":
                opened = source.args[0] if isinstance(source, ast.Call) and source.args else source
                yield Effect.LOADS, scope.path(opened)
        case ast.Call(func=ast.Name(id="compile"), args=[inner, *_]):
            yield from _code_effects(name, inner, scope, read_code)
        case _:
            yield Effect.UNREADABLE, None


def _started_command(name: str, call: ast.Call, scope: _Scope) -> str | None:
    arguments: list[ast.expr | None] = list(call.args)
    family = re.fullmatch(
        r"(?:os|posix|nt)\.(?:(?P<spawn>spawn)|exec|posix_spawn)(?P<kind>[lv]?)p?(?P<env>e?)", name
    )
    if name.endswith("create_subprocess_exec"):
        return scope.command_line(arguments)
    if family is None:
        by_name = [word.value for word in call.keywords if word.arg in ("args", "cmd", "command")]
        return scope.command((arguments + by_name or [None])[0])
    # spawnl(mode, file, arg0, arg1 …) and execv(file, [arg0, arg1 …]): arg0 is only a title.
    file, *rest = arguments[1 if family["spawn"] else 0 :] or [None]
    if family["kind"] == "l":
        return scope.command_line([file, *rest[1 : len(rest) - len(family["env"])]])
    words = rest[0].elts[1:] if rest and isinstance(rest[0], ast.List | ast.Tuple) else [None]
    return scope.command_line([file, *words])


def _written_files(name: str, call: ast.Call, scope: _Scope) -> _Pairs:
    indexes = _WRITERS.get(name, ())
    paths = [scope.path(call.args[index]) for index in indexes if index < len(call.args)]
    if indexes:
        paths += [scope.path(word.value) for word in call.keywords if word.arg in _PATH_KEYWORDS]
    opens, mode_index = name in _OPENERS, 1
    match call.func:
        # Not for a plain string, which has methods of these names too.
        case ast.Attribute(value=receiver, attr=method) if (
            not paths
            and method in _PATH_WRITERS | _PATH_READERS
            and not isinstance(receiver, ast.Constant)
        ):
            paths = [scope.path(receiver)]
            opens, mode_index = method == "open", 0
    reads = getattr(call.func, "attr", "") in _PATH_READERS or (
        opens and not _opens_for_writing(call, mode_index, scope)
    )
    for path in paths:
        if path and path.startswith(("/", "~", "..")) and path not in HARMLESS_OUTPUTS:
            yield (Effect.READS if reads else Effect.WRITES), path


def _opens_for_writing(call: ast.Call, mode_index: int, scope: _Scope) -> bool:
    modes = [*call.args[mode_index : mode_index + 1]]
    modes += [word.value for word in call.keywords if word.arg == "mode"]
    # A mode that is computed may be any.
    return bool(modes) and any(letter in (scope.text(modes[0]) or "w") for letter in "wax+")
