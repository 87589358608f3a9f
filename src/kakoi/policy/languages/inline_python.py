"""What a Python script does besides computing, read from its syntax tree."""

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from kakoi.policy.languages.embedded import HARMLESS_OUTPUTS, Effect, EmbeddedEffect, snippet
from kakoi.policy.languages.python_names import STARTING_MODULES, STARTS, Scope, scope_of
from kakoi.policy.languages.python_trees import tree_effects

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
    scope = scope_of(tree)
    lines = re.split(r"\r\n|[\r\n]", code)
    walked = tree_effects(tree, scope)
    found = sorted((*_found(tree, scope, read_code), *walked), key=lambda item: item[:2])
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


# --- What the script does --------------------------------------------------------------------


def _found(
    tree: ast.Module, scope: Scope, read_code: _ReadCode
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
    if STARTS.fullmatch(name):
        yield Effect.RUNS, None
    elif name in _TREE_REMOVERS:
        yield Effect.DELETES, None
    elif _UNREADABLE.fullmatch(name) or getattr(node, "attr", "") in _GADGETS:
        yield Effect.UNREADABLE, None


def _call_effects(call: ast.Call, scope: Scope, read_code: _ReadCode) -> _Pairs:
    name = scope.dotted(call.func)
    first = call.args[0] if call.args else None
    if STARTS.fullmatch(name):
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


def _hides_a_name(name: str, call: ast.Call, scope: Scope) -> object:
    """`getattr(os, "sys" + "tem")`, `methodcaller("system")` and `__import__("".join(…))`."""
    if name in ("operator.methodcaller", "operator.attrgetter"):
        member = scope.text(call.args[0] if call.args else None) or "system"
        return STARTS.fullmatch(f"os.{member}") or STARTS.fullmatch(f"subprocess.{member}")
    if name == "__import__":
        return not (call.args and isinstance(call.args[0], ast.Constant | ast.Name))
    module, _, member = scope.dotted(call).rpartition(".")
    return module in STARTING_MODULES and member == "?"


def _code_effects(name: str, node: ast.AST | None, scope: Scope, read_code: _ReadCode) -> _Pairs:
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
    # spawnl(mode, file, arg0, arg1 …) and execv(file, [arg0, arg1 …]): arg0 is only a title.
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


def _opens_for_writing(call: ast.Call, mode_index: int, scope: Scope) -> bool:
    modes = [*call.args[mode_index : mode_index + 1]]
    modes += [word.value for word in call.keywords if word.arg == "mode"]
    # A mode that is computed may be any.
    return bool(modes) and any(letter in (scope.text(modes[0]) or "w") for letter in "wax+")
