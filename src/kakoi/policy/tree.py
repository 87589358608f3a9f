"""The parser's syntax tree → Script. Every value of the tree is walked; what is not known is refused.

The node types and their fields are those of mvdan/sh. A type or a field without a place here is a
construct nobody judged, so it raises `UnknownConstruct` with its name.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from kakoi.policy.script import (
    Assignment,
    Binding,
    Command,
    Definition,
    Redirect,
    Script,
    Trap,
    covering,
)
from kakoi.policy.words import (
    Expands,
    Expansion,
    Literal,
    Part,
    Word,
    ansi_c_text,
    brace_words,
    double_quoted_text,
    make_word,
    unquoted_parts,
)

Node = dict[str, Any]

# Text that bash's arithmetic would run when a variable holding it is evaluated: `a[$(cmd)]`.
_HIDDEN_SUBSCRIPT: Final = re.compile(r"\[[^\]]*?(?:\$\(|`|\$\{)")
_ARITHMETIC_TESTS: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
# Positions and spelling details that carry no meaning of their own.
_LAYOUT: Final = frozenset(
    "Type Pos End ValuePos ValueEnd Left Right OpPos Position Lparen Rparen Lbrace Rbrace Semicolon "
    "Rbrack Case In Esac Coproc Time ForPos DoPos DonePos InPos WhilePos ThenPos FiPos Let Comments "
    "Last Hash Text Unsigned PosixFormat Braces Parens RsrvWord Short Until Select Negated Bracket "
    "Backquotes DoubleQuoted Lbrack Dollar".split()
)


class UnknownConstruct(Exception):
    """A node of the syntax tree that nobody taught us to judge."""

    def __init__(self, what: str, start: int, end: int) -> None:
        super().__init__(what)
        self.what, self.start, self.end = what, start, end


class _Place:
    """Where the walk stands: what feeds it, which subshell, which function."""

    __slots__ = ("background", "certain", "feeders", "function", "scope")

    def __init__(
        self,
        feeders: tuple[int, ...],
        scope: tuple[int, ...],
        function: str,
        *,
        certain: bool,
        background: bool,
    ) -> None:
        self.feeders, self.scope, self.function = feeders, scope, function
        self.certain, self.background = certain, background


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.commands: list[Command | None] = []
        self.definitions: list[Definition] = []
        self.bindings: list[Binding] = []
        self.traps: list[Trap] = []
        self.arithmetic = False
        self.hidden: list[tuple[int, int]] = []
        self.scopes = 0
        self.place = _Place((), (), "", certain=True, background=False)
        self.offsets = None if text.isascii() else _character_offsets(text)

    # ── positions ──

    def span(self, node: Node) -> tuple[int, int]:
        start, end = int(node["Pos"]["Offset"]), int(node["End"]["Offset"])
        if self.offsets is None:
            return start, end
        last = len(self.offsets) - 1
        return self.offsets[min(start, last)], self.offsets[min(end, last)]

    def refuse(self, what: str, node: Node) -> UnknownConstruct:
        start, end = self.span(node) if "Pos" in node and "End" in node else (0, len(self.text))
        return UnknownConstruct(what, start, end)

    def known(self, node: Node, fields: str) -> None:
        for key, value in node.items():
            if value and key not in _LAYOUT and key not in fields.split():
                raise self.refuse(f"{node.get('Type', 'node')}.{key}", node)

    # ── statements ──

    def inside(
        self,
        walk: Callable[[], None],
        *,
        feeders: tuple[int, ...] | None = None,
        subshell: bool = False,
        function: str | None = None,
        background: bool = False,
    ) -> tuple[int, ...]:
        """Walk a part in its own place and give the indexes of the commands found there."""
        before, first = self.place, len(self.commands)
        scope = before.scope
        if subshell:
            self.scopes += 1
            scope = (*scope, self.scopes)
        self.place = _Place(
            before.feeders if feeders is None else feeders,
            scope,
            before.function if function is None else function,
            certain=False,
            background=before.background or background,
        )
        walk()
        self.place = before
        return tuple(range(first, len(self.commands)))

    def stmts(self, stmts: Iterable[Node] | None) -> None:
        for stmt in stmts or ():
            self.stmt(stmt)

    def stmt(self, stmt: Node) -> None:
        self.known(stmt, "Cmd Redirs Background")
        redirs = stmt.get("Redirs") or []
        command = stmt.get("Cmd")
        if stmt.get("Background"):
            self.inside(
                lambda: self.stmt_body(command, redirs), subshell=True, background=True
            )
        else:
            self.stmt_body(command, redirs)

    def stmt_body(self, command: Node | None, redirs: list[Node]) -> None:
        if command is None:
            self.simple([], [], redirs)
            return
        kind = command.get("Type", "")
        if kind == "CallExpr":
            self.known(command, "Args Assigns")
            self.simple(command.get("Args") or [], command.get("Assigns") or [], redirs)
            return
        if kind == "DeclClause":
            self.declaration(command, redirs)
            return
        if redirs:
            self.simple([], [], redirs)
        handler = _COMMANDS.get(kind)
        if handler is None:
            raise self.refuse(kind or "command without a type", command)
        handler(self, command)

    def simple(self, args: list[Node], assigns: list[Node], redirs: list[Node]) -> None:
        index = self.reserve()
        place = self.place
        assignments = tuple(self.assignment(a) for a in assigns)
        words = tuple(w for arg in args for w in brace_words(self.word(arg, index)))
        redirects = tuple(self.redirect(r, index) for r in redirs)
        self.fill(index, place, words, assignments, redirects)

    def declaration(self, node: Node, redirs: list[Node]) -> None:
        self.known(node, "Variant Args")
        index, place = self.reserve(), self.place
        words = [self.lit_word(node["Variant"])]
        assignments: list[Assignment] = []
        for arg in node.get("Args") or []:
            if arg.get("Naked"):
                self.known(arg, "Naked Name Value Index")
                self.arithm(arg.get("Index"))
                words.append(self.lit_word(arg["Name"]) if "Name" in arg else self.word(arg["Value"]))
            else:
                assignments.append(self.assignment(arg))
        if any(w.prefix.startswith("-") and "i" in w.prefix for w in words[1:]):
            self.arithmetic = True
        redirects = tuple(self.redirect(r, index) for r in redirs)
        self.fill(index, place, tuple(words), tuple(assignments), redirects)

    def reserve(self) -> int:
        """A place in the order for a command whose words may hold commands themselves."""
        self.commands.append(None)
        return len(self.commands) - 1

    def fill(
        self,
        index: int,
        place: _Place,
        words: tuple[Word, ...],
        assignments: tuple[Assignment, ...],
        redirects: tuple[Redirect, ...],
    ) -> None:
        start, end = covering(words, assignments, redirects)
        self.commands[index] = Command(
            words,
            assignments,
            redirects,
            start,
            end,
            place.feeders,
            place.scope,
            place.function,
            place.certain,
            place.background,
        )

    def assignment(self, node: Node) -> Assignment:
        self.known(node, "Append Name Index Value Array")
        start, end = self.span(node)
        self.arithm(node.get("Index"))
        value = self.word(node["Value"]) if node.get("Value") else None
        elements: list[Word] = []
        for element in (node.get("Array") or {}).get("Elems") or []:
            self.known(element, "Index Value")
            self.arithm(element.get("Index"))
            if element.get("Value"):
                elements.extend(brace_words(self.word(element["Value"])))
        return Assignment(node["Name"]["Value"], value, tuple(elements), start, end)

    def redirect(self, node: Node, index: int) -> Redirect:
        self.known(node, "Op N Word Hdoc")
        start, end = self.span(node)
        target = self.word(node["Word"], index)
        operator = node["Op"]
        if operator == "<<<":
            body: Word | None = target
        else:
            body = self.heredoc(node["Hdoc"], target) if node.get("Hdoc") else None
        return Redirect(operator, (node.get("N") or {}).get("Value", ""), target, body, start, end)

    def heredoc(self, node: Node, delimiter: Word) -> Word:
        # The parser expands the body of `<<E"O"F` where bash does not: one command too many is safe.
        start, end = self.span(node)
        raw = all(type(p) is Literal and p.quoted for p in delimiter.parts)
        parts: list[Part] = []
        for part in node.get("Parts") or []:
            if part.get("Type") == "Lit":
                text = part.get("Value", "")
                self.note_hidden(text, part)
                text = text if raw else double_quoted_text(text, special="$`\\")
                parts.append(Literal(text, True))
            else:
                parts.extend(self.part(part, quoted=True))
        return make_word(tuple(parts), start, end)

    # ── compound commands ──

    def binary(self, node: Node) -> None:
        self.known(node, "Op X Y")
        if node["Op"] in ("|", "|&"):
            self.pipeline(node)
        else:
            self.stmt(node["X"])
            self.inside(lambda: self.stmt(node["Y"]))

    def pipeline(self, node: Node) -> None:
        elements: list[Node] = []
        while True:
            elements.append(node["Y"])
            left = node["X"]
            inner = left.get("Cmd") or {}
            chained = inner.get("Type") == "BinaryCmd" and inner.get("Op") in ("|", "|&")
            if not chained or left.get("Redirs") or left.get("Background"):
                elements.append(left)
                break
            self.known(left, "Cmd")
            self.known(inner, "Op X Y")
            node = inner
        feeders = self.place.feeders
        for element in reversed(elements):
            found = self.inside(lambda e=element: self.stmt(e), feeders=feeders, subshell=True)  # type: ignore[misc]
            feeders = (*feeders, *found)

    def block(self, node: Node) -> None:
        self.known(node, "Stmts")
        self.inside(lambda: self.stmts(node.get("Stmts")))

    def subshell(self, node: Node) -> None:
        self.known(node, "Stmts")
        self.inside(lambda: self.stmts(node.get("Stmts")), subshell=True)

    def conditional(self, node: Node) -> None:
        self.known(node, "Cond Then Else")

        def walk() -> None:
            self.stmts(node.get("Cond"))
            self.stmts(node.get("Then"))
            if node.get("Else"):
                self.conditional(node["Else"])

        self.inside(walk)

    def while_loop(self, node: Node) -> None:
        self.known(node, "Cond Do")
        self.inside(lambda: (self.stmts(node.get("Cond")), self.stmts(node.get("Do")))[0])

    def for_loop(self, node: Node) -> None:
        self.known(node, "Loop Do")
        loop = node["Loop"]
        start, end = self.span(loop)
        if loop.get("Type") == "WordIter":
            self.known(loop, "Name Items")
            items = [w for item in loop.get("Items") or [] for w in brace_words(self.word(item))]
            values = tuple(items) if "InPos" in loop and not node.get("Select") else None
            self.bindings.append(Binding(loop["Name"]["Value"], values, start, end))
        elif loop.get("Type") == "CStyleLoop":
            self.known(loop, "Init Cond Post")
            for name in ("Init", "Cond", "Post"):
                self.arithm(loop.get(name))
        else:
            raise self.refuse(str(loop.get("Type")), node)
        self.inside(lambda: self.stmts(node.get("Do")))

    def case(self, node: Node) -> None:
        self.known(node, "Word Items")
        self.word(node["Word"])

        def walk() -> None:
            for item in node.get("Items") or []:
                self.known(item, "Op Patterns Stmts")
                for pattern in item.get("Patterns") or []:
                    self.word(pattern)
                self.stmts(item.get("Stmts"))

        self.inside(walk)

    def function(self, node: Node) -> None:
        self.known(node, "Name Body")
        start, end = self.span(node["Name"])
        name = node["Name"]["Value"]
        self.definitions.append(
            Definition(name, start, end, len(self.commands), self.place.certain)
        )
        self.inside(lambda: self.stmt(node["Body"]), function=name)

    def coproc(self, node: Node) -> None:
        self.known(node, "Name Stmt")
        name = self.word(node["Name"]).shown if node.get("Name") else "COPROC"
        self.bindings.append(Binding(name, None, *self.span(node)))
        self.inside(lambda: self.stmt(node["Stmt"]), subshell=True)

    def timed(self, node: Node) -> None:
        self.known(node, "Stmt")
        if node.get("Stmt"):
            self.stmt(node["Stmt"])

    def let(self, node: Node) -> None:
        self.known(node, "Exprs")
        for expression in node.get("Exprs") or []:
            self.arithm(expression)

    def arithm_command(self, node: Node) -> None:
        self.known(node, "X")
        self.arithm(node.get("X"))

    def test_command(self, node: Node) -> None:
        self.known(node, "X")
        self.test(node["X"])

    # ── expressions ──

    def arithm(self, node: Node | None) -> None:
        """Arithmetic: its words may hold commands, and its variables are evaluated again."""
        if not node:
            return
        self.arithmetic = True
        kind = node.get("Type", "")
        if kind == "Word":
            self.word(node)
        elif kind in ("BinaryArithm", "UnaryArithm", "ParenArithm"):
            self.known(node, "Op Post X Y")
            self.arithm_assignment(node)
            self.arithm(node.get("X"))
            self.arithm(node.get("Y"))
        else:
            raise self.refuse(kind or "arithmetic", node)

    def arithm_assignment(self, node: Node) -> None:
        target = node.get("X") or {}
        parts = target.get("Parts") or [{}]
        if str(node.get("Op", "")).rstrip("=") == node.get("Op") or "Value" not in parts[0]:
            return
        start, end = self.span(node)
        number = make_word((Literal("0", True),), start, end)
        self.bindings.append(Binding(str(parts[0]["Value"]), (number,), start, end))

    def test(self, node: Node) -> None:
        kind = node.get("Type", "")
        if kind == "Word":
            self.word(node)
            return
        if kind not in ("BinaryTest", "UnaryTest", "ParenTest"):
            raise self.refuse(kind or "test", node)
        self.known(node, "Op X Y")
        if node.get("Op") in _ARITHMETIC_TESTS or node.get("Op") in ("-v", "-R"):
            self.arithmetic = True
        for side in ("X", "Y"):
            if node.get(side):
                self.test(node[side])

    # ── words ──

    def lit_word(self, node: Node) -> Word:
        start, end = self.span(node)
        return make_word(tuple(unquoted_parts(node["Value"])), start, end)

    def word(self, node: Node, command: int | None = None) -> Word:
        """A word; `command` is the one it belongs to, which feeds a `>(…)` in it."""
        self.known(node, "Parts")
        start, end = self.span(node)
        parts: list[Part] = []
        for part in node.get("Parts") or []:
            parts.extend(self.part(part, quoted=False, command=command))
        return make_word(tuple(parts), start, end)

    def part(self, node: Node, *, quoted: bool, command: int | None = None) -> list[Part]:
        kind = node.get("Type", "")
        if kind == "Lit":
            self.known(node, "Value")
            raw = node.get("Value", "")
            if quoted:
                text = double_quoted_text(raw)
                self.note_hidden(text, node)
                return [Literal(text, True)]
            self.note_hidden(raw, node)
            return unquoted_parts(raw)
        if kind == "SglQuoted":
            self.known(node, "Value")
            raw = node.get("Value", "")
            text = ansi_c_text(raw) if node.get("Dollar") is True else raw
            self.note_hidden(text, node)
            return [Literal(text, True)]
        if kind == "DblQuoted":
            self.known(node, "Parts")
            inner = [p for each in node.get("Parts") or [] for p in self.part(each, quoted=True)]
            return inner or [Literal("", True)]
        if kind == "ExtGlob":
            return self.extended_glob(node)
        return [self.expansion(node, quoted=quoted, command=command)]

    def extended_glob(self, node: Node) -> list[Part]:
        self.known(node, "Op Pattern")
        pattern = node["Pattern"]["Value"]
        # The parser keeps the pattern as raw text: an expansion in it would go unseen.
        if any(c in pattern for c in "$`<>"):
            raise self.refuse("an expansion inside an extended glob", node)
        return [Literal("*")]

    def expansion(self, node: Node, *, quoted: bool, command: int | None) -> Expansion:
        kind = node.get("Type", "")
        if kind == "ParamExp":
            return self.parameter(node, quoted=quoted)
        if kind == "CmdSubst":
            self.known(node, "Stmts")
            found = self.inside(lambda: self.stmts(node.get("Stmts")), feeders=(), subshell=True)
            return Expansion(Expands.COMMAND, quoted, commands=found)
        if kind == "ArithmExp":
            self.known(node, "X")
            first = len(self.commands)
            self.arithm(node.get("X"))
            found = tuple(range(first, len(self.commands)))
            return Expansion(Expands.ARITHMETIC, quoted, commands=found)
        if kind == "ProcSubst":
            self.known(node, "Op Stmts")
            feeders: tuple[int, ...] = ()
            if node["Op"] == ">(" and command is not None:
                feeders = (*self.place.feeders, command)
            found = self.inside(
                lambda: self.stmts(node.get("Stmts")), feeders=feeders, subshell=True
            )
            return Expansion(Expands.PROCESS, quoted, operator=node["Op"], commands=found)
        raise self.refuse(kind or "word part", node)

    def parameter(self, node: Node, *, quoted: bool) -> Expansion:
        self.known(node, "Excl Length Param Index Slice Repl Names Exp")
        first = len(self.commands)
        name = node["Param"]["Value"]
        operator, operand = self.parameter_operator(node)
        if node.get("Slice"):
            self.known(node["Slice"], "Offset Length")
            self.arithm(node["Slice"].get("Offset"))
            self.arithm(node["Slice"].get("Length"))
        if node.get("Repl"):
            self.known(node["Repl"], "All Orig With Anchor")
            for side in ("Orig", "With"):
                if node["Repl"].get(side):
                    self.word(node["Repl"][side])
        start, end = self.span(node)
        if operator in ("@P", "!"):
            what = "${…@P}" if operator == "@P" else "${!…}"
            self.traps.append(Trap(what, start, end, name if operator == "!" else ""))
        if operator in ("=", ":=") and operand is not None:
            self.bindings.append(Binding(name, (operand,), start, end))
        found = tuple(range(first, len(self.commands)))
        return Expansion(Expands.VARIABLE, quoted, name, operator, operand, found)

    def parameter_operator(self, node: Node) -> tuple[str, Word | None]:
        operand: Word | None = None
        index = node.get("Index")
        if index:
            self.arithm(index)
        every = bool(index) and _is_every(index)
        if node.get("Excl"):
            return ("!*" if node.get("Names") or every else "!"), None
        if node.get("Length"):
            return "#", None
        if node.get("Exp"):
            expansion = node["Exp"]
            self.known(expansion, "Op Word")
            if expansion.get("Word"):
                operand = self.word(expansion["Word"])
            operator = expansion["Op"]
            if operator == "@":
                operator = f"@{operand.shown if operand else ''}"
            return operator, operand
        if node.get("Slice"):
            return ":", None
        if node.get("Repl"):
            return "/", None
        return ("[@]" if every else "[]") if index else "", None

    def note_hidden(self, text: str, node: Node) -> None:
        if "[" in text and _HIDDEN_SUBSCRIPT.search(text):
            self.hidden.append(self.span(node))


def _is_every(index: Node) -> bool:
    parts = index.get("Parts") or [{}]
    return len(parts) == 1 and parts[0].get("Value") in ("@", "*")


def _character_offsets(text: str) -> list[int]:
    """Byte offset in UTF-8 → index of the character that covers it."""
    offsets: list[int] = []
    for index, char in enumerate(text):
        offsets.extend([index] * len(char.encode("utf-8")))
    offsets.append(len(text))
    return offsets


_COMMANDS: Final[dict[str, Callable[[_Walk, Node], None]]] = {
    "BinaryCmd": _Walk.binary,
    "Block": _Walk.block,
    "Subshell": _Walk.subshell,
    "IfClause": _Walk.conditional,
    "WhileClause": _Walk.while_loop,
    "ForClause": _Walk.for_loop,
    "CaseClause": _Walk.case,
    "FuncDecl": _Walk.function,
    "CoprocClause": _Walk.coproc,
    "TimeClause": _Walk.timed,
    "LetClause": _Walk.let,
    "ArithmCmd": _Walk.arithm_command,
    "TestClause": _Walk.test_command,
}


def script_of(text: str, tree: Node) -> Script:
    """Walk the parser's tree of `text`. Raises UnknownConstruct for what nobody can judge."""
    walk = _Walk(text)
    walk.known(tree, "Stmts Name")
    walk.stmts(tree.get("Stmts"))
    if walk.arithmetic:
        walk.traps.extend(Trap("a[$(…)]", start, end) for start, end in walk.hidden)
    commands = tuple(command for command in walk.commands if command is not None)
    return Script(
        text,
        commands,
        tuple(walk.definitions),
        tuple(walk.bindings),
        tuple(walk.traps),
        empty=not tree.get("Stmts"),
    )
