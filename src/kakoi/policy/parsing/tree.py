"""shfmt's syntax tree → Script. Every value is walked, and unknown nodes are refused.

The node types and their fields are those of mvdan/sh. A type or field that is not handled here is a
construct that cannot be judged, so it raises `UnknownConstruct` with its name.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kakoi.policy.parsing.script import Assignment, Binding, Definition, Redirect, Script, Trap
from kakoi.policy.parsing.tree_words import (
    arithmetic,
    heredoc,
    note_half,
    plain_word,
    test,
    word,
)
from kakoi.policy.parsing.walk import Node, UnknownConstruct, Walk
from kakoi.policy.parsing.words import Word, brace_words

__all__ = ["UnknownConstruct", "script_from_tree"]

_DECLARING: Final = frozenset("declare local typeset readonly export".split())
_NAMING: Final = _DECLARING | frozenset("read unset wait getopts".split())


def script_from_tree(text: str, tree: Node) -> Script:
    """Return the Script of shfmt's tree of `text`. Raises UnknownConstruct for an unknown node."""
    walk = Walk(text, _statements)
    walk.known(tree, "Stmts Name")
    _statements(walk, tree.get("Stmts") or ())
    if walk.arithmetic:
        walk.traps.extend(
            Trap(what, start, end, effect="arithmetic-text") for what, start, end in walk.hidden
        )
    return Script(
        text,
        tuple(command for command in walk.commands if command is not None),
        tuple(walk.definitions),
        tuple(walk.bindings),
        tuple(walk.traps),
        evaluates=walk.arithmetic,
        hidden=tuple((start, end) for _, start, end in walk.hidden),
        empty=not tree.get("Stmts"),
    )


def _statements(walk: Walk, stmts: Iterable[Node]) -> None:
    for stmt in stmts:
        walk.next_statement()
        _statement(walk, stmt)


def _statement(walk: Walk, stmt: Node) -> None:
    walk.known(stmt, "Cmd Redirs Background")
    command, redirs = stmt.get("Cmd"), stmt.get("Redirs") or []
    if stmt.get("Background"):
        walk.inside(lambda: _body(walk, command, redirs), subshell=True, background=True)
    else:
        _body(walk, command, redirs)


def _body(walk: Walk, command: Node | None, redirs: list[Node]) -> None:
    kind = "CallExpr" if command is None else command.get("Type", "")
    command = command or {}
    if kind == "CallExpr":
        walk.known(command, "Args Assigns")
        _simple(walk, command.get("Args") or [], command.get("Assigns") or [], redirs)
        return
    if kind == "DeclClause":
        _declaration(walk, command, redirs)
        return
    if redirs:
        _simple(walk, [], [], redirs)
    handler = _COMPOUND.get(kind)
    if handler is None:
        raise walk.refuse(kind or "command without a type", command)
    handler(walk, command)


# ── simple commands ──────────────────────────────────────────────────────────────────────────


def _simple(walk: Walk, args: list[Node], assigns: list[Node], redirs: list[Node]) -> None:
    index = walk.reserve()
    assignments = tuple(_assignment(walk, each) for each in assigns)
    words = tuple(w for arg in args for w in brace_words(word(walk, arg, index)))
    redirects = tuple(_redirect(walk, each, index) for each in redirs)
    # shfmt takes `\\declare -i` for an ordinary command.
    program = words[0].static if words else None
    if program in _DECLARING:
        _note_integers(walk, words[1:])
    # A subscript in the name of a variable is also arithmetic: `read 'a[x]'`.
    prints_into = program == "printf" and words[1:2] and words[1].prefix.startswith("-v")
    if (program in _NAMING or prints_into) and any("[" in each.shown for each in words[1:]):
        walk.arithmetic = True
    walk.fill(index, words, assignments, redirects)


def _note_integers(walk: Walk, words: Iterable[Word]) -> None:
    """`declare -i` makes every value arithmetic."""
    if any(each.prefix.startswith("-") and "i" in each.prefix for each in words):
        walk.arithmetic = True


def _declaration(walk: Walk, node: Node, redirs: list[Node]) -> None:
    """`export A=1 B`: a command whose words are names, with assignments among them."""
    walk.known(node, "Variant Args")
    index = walk.reserve()
    words = [plain_word(walk, node["Variant"])]
    assignments: list[Assignment] = []
    for arg in node.get("Args") or []:
        if arg.get("Naked"):
            walk.known(arg, "Naked Name Value Index")
            arithmetic(walk, arg.get("Index"))
            named = "Name" in arg
            if named:
                words.append(plain_word(walk, arg["Name"]))
            else:
                words.extend(brace_words(word(walk, arg["Value"])))
        else:
            assignments.append(_assignment(walk, arg))
    _note_integers(walk, words[1:])
    redirects = tuple(_redirect(walk, each, index) for each in redirs)
    walk.fill(index, tuple(words), tuple(assignments), redirects)


def _assignment(walk: Walk, node: Node) -> Assignment:
    walk.known(node, "Append Name Index Value Array")
    arithmetic(walk, node.get("Index"))
    value = word(walk, node["Value"]) if node.get("Value") else None
    if value is not None:
        note_half(walk, value)
    elements: list[Word] = []
    for element in (node.get("Array") or {}).get("Elems") or []:
        walk.known(element, "Index Value")
        arithmetic(walk, element.get("Index"))
        if element.get("Value"):
            elements.extend(brace_words(word(walk, element["Value"])))
    appends = bool(node.get("Append"))
    return Assignment(node["Name"]["Value"], value, tuple(elements), *walk.span(node), appends)


def _redirect(walk: Walk, node: Node, index: int) -> Redirect:
    walk.known(node, "Op N Word Hdoc")
    operator, target = node["Op"], word(walk, node["Word"], index)
    body = target if operator == "<<<" else None
    if node.get("Hdoc"):
        body = heredoc(walk, node["Hdoc"], target, strips_tabs=operator == "<<-")
    descriptor = (node.get("N") or {}).get("Value", "")
    return Redirect(operator, descriptor, target, body, *walk.span(node))


# ── compound commands ────────────────────────────────────────────────────────────────────────


def _binary(walk: Walk, node: Node) -> None:
    walk.known(node, "Op X Y")
    if node["Op"] in ("|", "|&"):
        _pipeline(walk, node)
    else:
        _statement(walk, node["X"])
        walk.inside(lambda: _statement(walk, node["Y"]))


def _pipeline(walk: Walk, node: Node) -> None:
    """The elements of a pipeline, each in a subshell and fed by all before it."""
    elements: list[Node] = []
    while True:
        elements.append(node["Y"])
        left = node["X"]
        inner = left.get("Cmd") or {}
        chained = inner.get("Type") == "BinaryCmd" and inner.get("Op") in ("|", "|&")
        if not chained or left.get("Redirs") or left.get("Background"):
            elements.append(left)
            break
        walk.known(left, "Cmd")
        walk.known(inner, "Op X Y")
        node = inner
    feeders = walk.position.feeders
    for element in reversed(elements):
        feeders += _element(walk, element, feeders)


def _element(walk: Walk, element: Node, feeders: tuple[int, ...]) -> tuple[int, ...]:
    return walk.inside(lambda: _statement(walk, element), feeders=feeders, subshell=True)


def _block(walk: Walk, node: Node) -> None:
    walk.known(node, "Stmts")
    walk.nested(node, walk.position.feeders, subshell=False)


def _subshell(walk: Walk, node: Node) -> None:
    walk.known(node, "Stmts")
    walk.nested(node, walk.position.feeders)


def _conditional(walk: Walk, node: Node) -> None:
    walk.known(node, "Cond Then Else")

    def branches() -> None:
        _statements(walk, node.get("Cond") or ())
        _statements(walk, node.get("Then") or ())
        if node.get("Else"):
            _conditional(walk, node["Else"])

    walk.inside(branches)


def _while(walk: Walk, node: Node) -> None:
    walk.known(node, "Cond Do")
    stmts = [*(node.get("Cond") or ()), *(node.get("Do") or ())]
    walk.inside(lambda: _statements(walk, stmts), repeats=True)


def _for(walk: Walk, node: Node) -> None:
    walk.known(node, "Loop Do")
    loop, name, values = node["Loop"], "", None
    if loop.get("Type") == "WordIter":
        walk.known(loop, "Name Items")
        items = [w for item in loop.get("Items") or [] for w in brace_words(word(walk, item))]
        # Without `in` the loop iterates over the arguments; `select` asks the user.
        values = tuple(items) if "InPos" in loop and not node.get("Select") else None
        name = loop["Name"]["Value"]
    elif loop.get("Type") == "CStyleLoop":
        walk.known(loop, "Init Cond Post")
        for expression in ("Init", "Cond", "Post"):
            arithmetic(walk, loop.get(expression))
    else:
        raise walk.refuse(str(loop.get("Type")), node)
    body = walk.inside(lambda: _statements(walk, node.get("Do") or ()), repeats=True)
    if name:
        span = (body[0], body[-1] + 1) if body else (0, 0)
        walk.bindings.append(Binding(name, values, *walk.span(loop), span))


def _case(walk: Walk, node: Node) -> None:
    walk.known(node, "Word Items")
    word(walk, node["Word"])

    def branches() -> None:
        for item in node.get("Items") or []:
            walk.known(item, "Op Patterns Stmts")
            for pattern in item.get("Patterns") or []:
                word(walk, pattern)
            _statements(walk, item.get("Stmts") or ())

    walk.inside(branches)


def _function(walk: Walk, node: Node) -> None:
    walk.known(node, "Name Body")
    start, end = walk.span(node["Name"])
    name = node["Name"]["Value"]
    before = len(walk.commands)
    walk.definitions.append(Definition(name, start, end, before, walk.position.certain))
    walk.inside(lambda: _statement(walk, node["Body"]), function=name, repeats=True)


def _coproc(walk: Walk, node: Node) -> None:
    walk.known(node, "Name Stmt")
    kind = (node["Stmt"].get("Cmd") or {}).get("Type", "")
    # shfmt takes `$x` in `coproc $x 2>f` for a name, but bash for the program.
    if node.get("Name") and kind not in _COMPOUND:
        raise walk.refuse("a coprocess whose program is not clear", node)
    name = word(walk, node["Name"]).shown if node.get("Name") else "COPROC"
    walk.bindings.append(Binding(name, None, *walk.span(node)))
    walk.inside(lambda: _statement(walk, node["Stmt"]), subshell=True)


def _time(walk: Walk, node: Node) -> None:
    walk.known(node, "Stmt")
    if node.get("Stmt"):
        _statement(walk, node["Stmt"])


def _let(walk: Walk, node: Node) -> None:
    walk.known(node, "Exprs")
    for expression in node.get("Exprs") or []:
        arithmetic(walk, expression)


def _arithmetic_command(walk: Walk, node: Node) -> None:
    walk.known(node, "X")
    arithmetic(walk, node.get("X"))


def _test_command(walk: Walk, node: Node) -> None:
    walk.known(node, "X")
    test(walk, node["X"])


_COMPOUND: Final[dict[str, Callable[[Walk, Node], None]]] = {
    "BinaryCmd": _binary,
    "Block": _block,
    "Subshell": _subshell,
    "IfClause": _conditional,
    "WhileClause": _while,
    "ForClause": _for,
    "CaseClause": _case,
    "FuncDecl": _function,
    "CoprocClause": _coproc,
    "TimeClause": _time,
    "LetClause": _let,
    "ArithmCmd": _arithmetic_command,
    "TestClause": _test_command,
}
