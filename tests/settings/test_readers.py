"""Every setting is read by some part of the program: one that nobody reads cannot be obeyed.

The source is searched for expressions of a section's type and the fields that are read from them. The
types are found as a reader finds them: from annotations, assignments and attributes of that name.
"""

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kakoi.settings.model import Settings

SOURCE = Path(__file__).parents[2] / "src" / "kakoi"
# They handle every setting alike, and so use none.
ALIKE = ("_support/fields.py", "settings/model.py", "settings/loader.py", "settings/schema.py")
# Nobody reads these yet: they are accepted and not obeyed. A new reader removes its line here.
UNREAD: set[str] = set()

Types = frozenset[type[Any]]
NONE: Types = frozenset()


def settings_fields(model: Any = Settings, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every setting: its path, and the class and field that state it."""
    for field in dataclasses.fields(model):
        if "section" in field.metadata:
            yield from settings_fields(field.metadata["section"], f"{prefix}{field.name}.")
        elif "same_as" in field.metadata:
            yield f"{prefix}{field.name}", *field.metadata["same_as"]
        else:
            yield f"{prefix}{field.name}", model, field.name


def sections(model: Any) -> Iterator[Any]:
    """A section, those below it, and the dataclasses that its fields refer to."""
    yield model
    for field in dataclasses.fields(model):
        if "section" in field.metadata:
            yield from sections(field.metadata["section"])
        if "same_as" in field.metadata:
            yield from sections(field.metadata["same_as"][0])


SECTIONS: dict[str, type[Any]] = {each.__name__: each for each in sections(Settings)}


class Reading:
    """The fields that a program reads."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._scopes = [scope for tree in trees for scope in scopes(tree)]
        self._attributes: dict[str, Types] = defaultdict(frozenset)
        self._results: dict[str, Types] = defaultdict(frozenset)
        for node in (node for scope in self._scopes for node in scope):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    self._attributes[name] |= annotated(annotation)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self._results[name] |= annotated(node.returns)
                    if "property" in map(ast.unparse, node.decorator_list):
                        self._attributes[name] |= annotated(node.returns)
        for scope in self._scopes:  # What a constructor stores is read in other scopes.
            self._names(scope)
        self.found = {read for scope in self._scopes for read in self._reads(scope)}

    def _names(self, scope: list[ast.AST]) -> dict[str, Types]:
        """The sections that the names of a scope can be; those of attributes are kept."""
        names: dict[str, Types] = defaultdict(frozenset)
        for node in scope:
            if isinstance(node, ast.arg):
                names[node.arg] |= annotated(node.annotation)
        for node in scope:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.NamedExpr(target=ast.Name(id=name), value=value)
                ):
                    names[name] |= self._types(value, names)
                case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                    self._attributes[name] |= self._types(value, names)
        return names

    def _reads(self, scope: list[ast.AST]) -> Iterator[tuple[type[Any], str]]:
        names = self._names(scope)
        for node in scope:
            match node:
                case ast.Attribute(value=value, attr=name, ctx=ast.Load()):
                    yield from ((each, name) for each in self._types(value, names))
                case ast.Call(func=ast.Name(id="asdict"), args=[value]):
                    for each in self._types(value, names):
                        yield from ((each, field.name) for field in dataclasses.fields(each))

    def _types(self, node: ast.expr, names: dict[str, Types]) -> Types:
        """The sections that the value of an expression can be."""
        match node:
            case ast.Name(id=name):
                return names[name]
            case ast.Attribute(value=value, attr=name):
                owners = self._types(value, names)
                below = [each.__dataclass_fields__.get(name) for each in owners]
                kept = {
                    each.metadata["section"]
                    for each in below
                    if each and "section" in each.metadata
                }
                return frozenset(kept) if owners else self._attributes[name]
            case ast.Call(func=ast.Name(id="replace"), args=[first, *_]):
                return self._types(first, names)
            case ast.Call(func=ast.Name(id="model_from"), args=[ast.Name(id=name), *_]):
                return frozenset({SECTIONS[name]} if name in SECTIONS else ())
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in SECTIONS:
                return NONE  # The defaults, and not what anyone has set.
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return frozenset({SECTIONS[name]}) if name in SECTIONS else self._results[name]
            case ast.BoolOp(values=values):
                return NONE.union(*(self._types(each, names) for each in values))
            case ast.IfExp(body=body, orelse=orelse):
                return self._types(body, names) | self._types(orelse, names)
            case ast.Await(value=value):
                return self._types(value, names)
        return NONE


def scopes(tree: ast.AST) -> Iterator[list[ast.AST]]:
    """The nodes of each function that is in no other, and the rest of a module or class."""
    rest: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield list(ast.walk(node))
        elif isinstance(node, ast.ClassDef):
            yield from scopes(node)
        else:
            rest += ast.walk(node)
    yield rest


def annotated(annotation: ast.expr | None) -> Types:
    """The sections that an annotation names, alone or beside None."""
    if annotation is None:
        return NONE
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    parts = ast.unparse(annotation).split(" | ")
    return frozenset(SECTIONS[each] for each in parts if each in SECTIONS)


def unread(reading: Reading) -> set[str]:
    return {path for path, model, name in settings_fields() if (model, name) not in reading.found}


def test_every_setting_is_read() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if str(path.relative_to(SOURCE)) not in ALIKE]
    assert unread(Reading(ast.parse(path.read_text("utf-8")) for path in paths)) == UNREAD


def test_a_setting_counts_as_read_only_where_its_own_section_is_read() -> None:
    source = """
def make(settings: Settings, other: Path) -> None:
    queue = settings.tasks.queue
    use(queue.url, other.lease_seconds)
    config = model_from(SandboxConfig, settings.sandbox)
    use(config.docker.image)
"""
    found = unread(Reading([ast.parse(source)]))
    assert not {"tasks.queue.url", "sandbox.docker.image"} & found
    assert {"tasks.queue.lease_seconds", "sandbox.kubernetes.image", "sandbox.type"} <= found
