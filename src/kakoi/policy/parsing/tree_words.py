"""Words and expressions of shfmt's tree: quotes, expansions, arithmetic, tests."""

from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.parsing.script import Binding, Trap
from kakoi.policy.parsing.walk import Node, Walk
from kakoi.policy.parsing.words import (
    Expands,
    Expansion,
    Literal,
    Part,
    Word,
    ansi_c_text,
    double_quoted_text,
    make_word,
    unquoted_parts,
)

# Text that bash's arithmetic would run when a variable holding it is evaluated: `a[$(cmd)]`.
_HIDDEN: Final = pattern(
    r"\$\(|`|\$\{|\\(?:x24|x60|0*44|0*140|[uU]0*(?:24|60)(?![0-9a-fA-F]))|^\$$"
)
_ASSIGNED_IN_TEXT: Final = pattern(
    r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|([A-Za-z_]\w*)(?:\+\+|--)"
)
_COMPARING: Final = frozenset("== != <= >=".split())
_EVALUATING_TESTS: Final = frozenset("-eq -ne -lt -le -gt -ge -v -R".split())


def plain_word(walk: Walk, node: Node) -> Word:
    """Return a bare literal that is not a word node: a name, a keyword."""
    return make_word(tuple(unquoted_parts(node.get("Value", ""))), *walk.span(node))


def word(walk: Walk, node: Node, command: int | None = None) -> Word:
    """Return a word; `command` is the command it belongs to, which feeds a `>(…)` in it."""
    walk.known(node, "Parts")
    parts: list[Part] = []
    for each in node.get("Parts") or []:
        parts.extend(part(walk, each, quoted=False, command=command))
    made = make_word(tuple(parts), *walk.span(node))
    _note_hidden(walk, made)
    return made


def heredoc(walk: Walk, node: Node, delimiter: Word, *, strips_tabs: bool) -> Word:
    """Return the body of a heredoc; with a quoted delimiter it is only text."""
    _check_end(walk, node, delimiter, strips_tabs=strips_tabs)
    # shfmt expands the body of `<<E"O"F` but bash does not: one command too many is safe.
    raw = all(type(each) is Literal and each.quoted for each in delimiter.parts)
    parts: list[Part] = []
    for each in node.get("Parts") or []:
        if each.get("Type") == "Lit":
            text = each.get("Value", "")
            text = text if raw else double_quoted_text(text, special="$`\\")
            parts.append(Literal(text, True))
        else:
            parts.extend(part(walk, each, quoted=True))
    return make_word(tuple(parts), *walk.span(node))


def _check_end(walk: Walk, node: Node, delimiter: Word, *, strips_tabs: bool) -> None:
    """Refuse a body that bash would end earlier than shfmt: at any line like the delimiter."""
    start, end = walk.span(node)
    lines = walk.text[start:end].replace("\\\n", "").split("\n")
    lines += walk.text[start:end].split("\n")
    lines = [line.lstrip("\t") if strips_tabs else line for line in lines]
    ends = lines.count(delimiter.text or "")
    # The delimiter itself can be part of the span, once in each of the two readings.
    if ends > 2 * (lines[-1] == delimiter.text):
        raise walk.refuse("a heredoc that may end earlier than it seems", node)


def part(walk: Walk, node: Node, *, quoted: bool, command: int | None = None) -> list[Part]:
    """Return the parts of one node of a word."""
    kind = node.get("Type", "")
    if kind == "Lit":
        walk.known(node, "Value")
        text = node.get("Value", "")
        return [Literal(double_quoted_text(text), True)] if quoted else unquoted_parts(text)
    if kind == "SglQuoted":
        walk.known(node, "Value")
        text = node.get("Value", "")
        if walk.quotes_are_plain and _HIDDEN.search(text):
            raise walk.refuse("single quotes that do not quote here", node)
        text = ansi_c_text(text) if node.get("Dollar") is True else text
        return [Literal(text, True)]
    if kind == "DblQuoted":
        walk.known(node, "Parts")
        inner = [p for each in node.get("Parts") or [] for p in part(walk, each, quoted=True)]
        return inner or [Literal("", True)]
    if kind == "ExtGlob":
        return [_extended_glob(walk, node)]
    return [_expansion(walk, node, quoted=quoted, command=command)]


def _extended_glob(walk: Walk, node: Node) -> Part:
    walk.known(node, "Op Pattern")
    # shfmt keeps the pattern as raw text: an expansion in it would not be seen.
    if any(char in node["Pattern"].get("Value", "") for char in "$`<>"):
        raise walk.refuse("an expansion inside an extended glob", node)
    return Literal("*")


def _expansion(walk: Walk, node: Node, *, quoted: bool, command: int | None) -> Expansion:
    kind = node.get("Type", "")
    if kind == "ParamExp":
        return _parameter(walk, node, quoted=quoted)
    if kind == "CmdSubst":
        walk.known(node, "Stmts")
        return Expansion(Expands.COMMAND, quoted, commands=walk.nested(node))
    if kind == "ArithmExp":
        walk.known(node, "X")
        first = len(walk.commands)
        arithmetic(walk, node.get("X"))
        found = tuple(range(first, len(walk.commands)))
        return Expansion(Expands.ARITHMETIC, quoted, commands=found)
    if kind == "ProcSubst":
        walk.known(node, "Op Stmts")
        feeders: tuple[int, ...] = ()
        if command is not None and node["Op"] == ">(":
            feeders = (*walk.position.feeders, command)
        found = walk.nested(node, feeders)
        return Expansion(Expands.PROCESS, quoted, operator=node["Op"], commands=found)
    raise walk.refuse(kind or "word part", node)


def _parameter(walk: Walk, node: Node, *, quoted: bool) -> Expansion:
    walk.known(node, "Excl Length Param Index Slice Repl Names Exp")
    first = len(walk.commands)
    name = node["Param"]["Value"]
    walk.quotes_are_plain += quoted
    operator, operand = _operator(walk, node)
    walk.quotes_are_plain -= quoted
    start, end = walk.span(node)
    if operator in ("@P", "!", "!…"):
        what = "${…@P}" if operator == "@P" else "${!…}"
        walk.traps.append(Trap(what, start, end, name if operator == "!" else ""))
    if operator in ("=", ":=") and operand is not None:
        walk.bindings.append(Binding(name, (operand,), start, end))
    found = tuple(range(first, len(walk.commands)))
    return Expansion(Expands.VARIABLE, quoted, name, operator, operand, found)


def _operator(walk: Walk, node: Node) -> tuple[str, Word | None]:
    """Return what `${…}` does to its variable; everything inside it is walked."""
    index = node.get("Index")
    arithmetic(walk, index)
    every = index is not None and _is_every(index)
    _slice_and_replacement(walk, node)
    expansion = node.get("Exp") or {}
    walk.known(expansion, "Op Word")
    operand = word(walk, expansion["Word"]) if expansion.get("Word") else None
    if node.get("Excl"):
        listed = not expansion and (node.get("Names") or every)
        return ("!*" if listed else "!…" if expansion else "!"), None
    if node.get("Length"):
        return "length", None
    if expansion:
        shown = operand.shown if operand else ""
        return (f"@{shown}" if expansion["Op"] == "@" else expansion["Op"]), operand
    if node.get("Slice"):
        return ":", None
    if node.get("Repl"):
        return "/", None
    return ("[@]" if every else "[]") if index else "", None


def _slice_and_replacement(walk: Walk, node: Node) -> None:
    if node.get("Slice"):
        walk.known(node["Slice"], "Offset Length")
        arithmetic(walk, node["Slice"].get("Offset"))
        arithmetic(walk, node["Slice"].get("Length"))
    if node.get("Repl"):
        walk.known(node["Repl"], "All Orig With Anchor")
        for side in ("Orig", "With"):
            if node["Repl"].get(side):
                word(walk, node["Repl"][side])


def _is_every(index: Node) -> bool:
    parts = index.get("Parts") or [{}]
    return len(parts) == 1 and parts[0].get("Value") in ("@", "*")


def _note_hidden(walk: Walk, made: Word) -> None:
    """Record text that arithmetic would run if it evaluated a variable with this value."""
    text = made.shown
    if ("$" in text or "`" in text or "\\" in text) and _HIDDEN.search(text):
        walk.hidden.append((text[:40], made.start, made.end))


def note_half(walk: Walk, value: Word) -> None:
    """Record a value that can become such a text next to another one: `x='a[$'`."""
    if any(type(part) is Literal and part.text.endswith("$") for part in value.parts):
        walk.hidden.append((value.shown[:40], value.start, value.end))


# ── expressions ──────────────────────────────────────────────────────────────────────────────


def arithmetic(walk: Walk, node: Node | None) -> None:
    """Walk arithmetic: its words can contain commands, and its variables are evaluated again."""
    if not node:
        return
    walk.arithmetic = True
    kind = node.get("Type", "")
    if kind == "Word":
        walk.quotes_are_plain += 1
        _evaluated(walk, word(walk, node))
        walk.quotes_are_plain -= 1
    elif kind in ("BinaryArithm", "UnaryArithm", "ParenArithm"):
        walk.known(node, "Op Post X Y")
        _arithmetic_assignment(walk, node)
        arithmetic(walk, node.get("X"))
        arithmetic(walk, node.get("Y"))
    else:
        raise walk.refuse(kind or "arithmetic", node)


def _arithmetic_assignment(walk: Walk, node: Node) -> None:
    operator = str(node.get("Op", ""))
    parts = (node.get("X") or {}).get("Parts") or [{}]
    assigns = operator in ("++", "--") or (operator.endswith("=") and operator not in _COMPARING)
    if assigns and "Value" in parts[0]:
        _number(walk, str(parts[0]["Value"]), *walk.span(node))


def _evaluated(walk: Walk, made: Word) -> None:
    """A text that is evaluated as arithmetic can also assign: `let 'x=1'`."""
    for found in _ASSIGNED_IN_TEXT.finditer(made.shown):
        _number(walk, found[1] or found[2], made.start, made.end)


def _number(walk: Walk, name: str, start: int, end: int) -> None:
    number = make_word((Literal("0", True),), start, end)
    walk.bindings.append(Binding(name, (number,), start, end))


def test(walk: Walk, node: Node) -> None:
    """Walk the expression of `[[ … ]]`."""
    kind = node.get("Type", "")
    if kind == "Word":
        word(walk, node)
        return
    if kind not in ("BinaryTest", "UnaryTest", "ParenTest"):
        raise walk.refuse(kind or "test", node)
    walk.known(node, "Op X Y")
    evaluates = node.get("Op") in _EVALUATING_TESTS
    walk.arithmetic = walk.arithmetic or evaluates
    for side in ("X", "Y"):
        if node.get(side) and evaluates and node[side].get("Type") == "Word":
            arithmetic(walk, node[side])
        elif node.get(side):
            test(walk, node[side])
