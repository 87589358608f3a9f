"""awk programs: what they do besides computing text.

`awk_effects` reads tokens, not a grammar: POSIX awk, gawk and mawk accept different programs, but a
pipe, a redirection and a call look the same in all of them. The difficult part is where a `/`
starts a regular expression: a wrong guess hides the rest of the line. If the awks themselves
disagree about it, the result is `CodeEffectKind.UNREADABLE`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.languages.code_effect import (
    HARMLESS_OUTPUTS,
    CodeEffect,
    CodeEffectKind,
    snippet,
)

_TOKEN: Final = pattern(
    r"""(?P<blank>[ \t]+|\\\r?\n|\r(?=\n)|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[A-Za-z_](?:[A-Za-z0-9_]|::(?=[A-Za-z_]))*)
    |(?P<sign>\|\||\|&|&&|>>|\+\+|--|\*\*=?|[-+*/%^<>=!]=|!~|[-+*/%^<>=!~?:,;$@()\[\]{}|])""",
    re.VERBOSE | re.DOTALL,
)
# Only well-formed classes: the awks disagree about where `[[:]` or `[[.a.]` ends.
_REGEX: Final = pattern(
    r"""(?P<regex>/(?:[^/\\\[\n]|\\.
    |\[\^?+\]?+(?:[^\]\\\[\n]|\\.|\[:[a-z]+:\]|\[(?![:.=]))*\])*/)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = pattern(r"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES: Final = dict(zip("ntrabfv", "\n\t\r\a\b\f\v", strict=True)) | {
    **dict(zip('\\"/', '\\"/', strict=True)),
    **{f"{code:o}".zfill(width): chr(code) for code in range(128) for width in (1, 2, 3)},
    "\n": "",
}

_BEFORE_OPERAND: Final = frozenset(
    {"print", "printf", "return", "exit", "in", "else", "do", "delete", "next", "BEGIN", "END"}
)
_HEADERS: Final = frozenset({"if", "while", "for", "switch"})
# Some awks read a division after these words, others a regular expression.
_DISPUTED: Final = frozenset({"length", "getline", "case"})
_ASSIGNS: Final = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "^=", "**=", "++", "--"})
_ENDS: Final = frozenset({"", "\n", ";", "}", ")", "&&", "||", ">", ">=", "<", "<=", "==", "!="})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def ends_operand(self) -> bool:
        if self.kind == "name":
            return self.text not in _BEFORE_OPERAND
        return self.kind in ("string", "number", "regex") or self.text in (")", "]", "++", "--")


_NOTHING: Final = _Token("end", "", 0)
_Found = Iterator[tuple[int, CodeEffectKind, str | None]]


def awk_effects(program: str) -> tuple[CodeEffect, ...]:
    """Return every program, file or further code the awk program reaches for, in order.

    An empty result means that it only turns input into output. Never raises: if the text stops
    being readable, the result ends with `CodeEffectKind.UNREADABLE`.
    """
    tokens, stop = _tokens(program)
    partners = _partners(tokens)
    found = [
        *_named_effects(tokens),
        *_pipes(tokens),
        *_output_files(tokens),
        *_input_files(tokens),
        *_new_arguments(tokens, partners),
    ]
    effects = [
        CodeEffect(effect, snippet(program[start : start + 200].partition("\n")[0]), target)
        for start, effect, target in sorted(found, key=lambda item: item[0])
    ]
    if stop < len(program):
        effects.append(CodeEffect(CodeEffectKind.UNREADABLE, snippet(program[stop:])))
    return tuple(dict.fromkeys(effects))


# --- Tokens ----------------------------------------------------------------------------------


def _tokens(program: str) -> tuple[list[_Token], int]:
    """Return the tokens, and where reading ended: at the end of the program if all went well."""
    tokens: list[_Token] = []
    # For every open parenthesis, whether it holds the condition of an `if` or a loop.
    headers: list[bool] = []
    before = _NOTHING
    disputed = False
    position = 0
    while position < len(program):
        match = _match_token(program, position, before, slash_is_disputed=disputed)
        if match is None:
            break
        start, position = position, match.end()
        kind = match.lastgroup or ""
        if kind == "blank":
            continue
        # gawk's namespaces: `awk::ARGV` is ARGV.
        token = _Token(kind, match[0].rpartition("::")[2] if kind == "name" else match[0], start)
        closes_header = _track_headers(token, before, headers)
        if kind != "newline":
            disputed = closes_header or (kind == "name" and token.text in _DISPUTED)
        tokens.append(token)
        before = token
    return tokens, position


def _match_token(
    program: str, position: int, before: _Token, *, slash_is_disputed: bool
) -> re.Match[str] | None:
    if program[position] == "/":
        if slash_is_disputed:
            return None
        if not before.ends_operand:
            return _REGEX.match(program, position)
    return _TOKEN.match(program, position)


def _track_headers(token: _Token, before: _Token, headers: list[bool]) -> bool:
    """Whether a condition ends here: gawk expects a statement after it, mawk a division."""
    if token.text == "(":
        headers.append(before.text in _HEADERS)
    return token.text == ")" and bool(headers) and headers.pop()


def _partners(tokens: Sequence[_Token]) -> dict[int, int]:
    """Return the index of the opening bracket for every closing one, and vice versa."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.text in ("(", "["):
            opened.append(index)
        elif token.text in (")", "]") and opened:
            partners[index] = opened.pop()
            partners[partners[index]] = index
    return partners


def _at(tokens: Sequence[_Token], index: int) -> _Token:
    return tokens[index] if 0 <= index < len(tokens) else _NOTHING


# --- Literals --------------------------------------------------------------------------------


def _literal_after(tokens: Sequence[_Token], index: int) -> str | None:
    """Return the string that follows, perhaps in parentheses, if nothing is joined to it."""
    first = index + 1
    last = first
    if _at(tokens, first).text == "(" and _at(tokens, first + 2).text == ")":
        first, last = first + 1, first + 2
    if _at(tokens, last + 1).text not in _ENDS:
        return None
    return _unquote(_at(tokens, first))


def _literal_before(tokens: Sequence[_Token], index: int) -> str | None:
    return None if _at(tokens, index - 2).ends_operand else _unquote(_at(tokens, index - 1))


def _unquote(token: _Token) -> str | None:
    """Return the value of the string, or None if the awks disagree about it."""
    if token.kind != "string":
        return None
    inner = token.text[1:-1]
    if not all(escape in _ESCAPES for escape in _ESCAPE.findall(inner)):
        return None
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], inner)


# --- What reaches outside --------------------------------------------------------------------


def _named_effects(tokens: Sequence[_Token]) -> _Found:
    for index, token in enumerate(tokens):
        if token.kind == "name" and token.text == "system":
            yield token.start, CodeEffectKind.RUNS, _literal_after(tokens, index)
        elif token.kind == "name" and token.text == "SYMTAB":
            # Any variable by its name, ARGV included.
            yield token.start, CodeEffectKind.UNREADABLE, None
        elif token.text == "@" and _at(tokens, index + 1).kind == "name":
            directive = tokens[index + 1].text
            if directive in ("include", "load", "nsinclude"):
                yield token.start, CodeEffectKind.LOADS, _unquote(_at(tokens, index + 2))
            elif directive != "namespace":
                # An indirect call: the variable can be "system".
                yield token.start, CodeEffectKind.UNREADABLE, None


def _pipes(tokens: Sequence[_Token]) -> _Found:
    for index, token in enumerate(tokens):
        if token.text in ("|", "|&"):
            feeds_getline = _at(tokens, index + 1).text == "getline"
            find = _literal_before if feeds_getline else _literal_after
            target = find(tokens, index)
            yield (
                token.start,
                CodeEffectKind.WRITES if _is_network(target) else CodeEffectKind.RUNS,
                target,
            )


def _output_files(tokens: Sequence[_Token]) -> _Found:
    in_print = False
    depth = 0
    before = _NOTHING
    for index, token in enumerate(tokens):
        text = token.text
        if token.kind == "name" and text in ("print", "printf"):
            in_print, depth = True, 0
        elif text in ("(", "["):
            depth += 1
        elif text in (")", "]"):
            depth -= 1
        elif text in (";", "{", "}") or (text == "\n" and depth <= 0 and _may_end(before)):
            in_print = False
        elif text == ">>" or (text == ">" and in_print and depth <= 0):
            target = _literal_after(tokens, index)
            if target not in HARMLESS_OUTPUTS:
                yield token.start, CodeEffectKind.WRITES, target
        before = token


def _may_end(token: _Token) -> bool:
    """Whether a statement can be complete after the token; if not, a newline does not end it."""
    return token.ends_operand or token.text in ("print", "printf")


def _input_files(tokens: Sequence[_Token]) -> _Found:
    pending = False
    depth = 0
    for index, token in enumerate(tokens):
        text = token.text
        if token.kind == "name" and text == "getline":
            pending, depth = True, 0
        elif text in ("(", "["):
            depth += 1
        elif text in (")", "]"):
            depth -= 1
            pending = pending and depth >= 0
        elif text in (";", "{", "}", "\n", ",", "&&", "||", "?", ":", "|", "|&") and depth == 0:
            pending = False
        elif text == "<" and pending and depth == 0:
            target = _literal_after(tokens, index)
            effect = CodeEffectKind.WRITES if _is_network(target) else CodeEffectKind.READS
            yield token.start, effect, target
            pending = False


def _is_network(target: str | None) -> bool:
    return target is not None and re.match(r"/inet[46]?/", target) is not None


def _new_arguments(tokens: Sequence[_Token], partners: dict[int, int]) -> _Found:
    """Yield assignments to ARGV, from which awk takes the names of its input files."""
    for index, token in enumerate(tokens):
        if token.kind != "name" or token.text != "ARGV":
            continue
        before = _at(tokens, index - 1).text
        if _at(tokens, index + 1).text != "[":
            measured = before == "(" and _at(tokens, index - 2).text == "length"
            if before not in ("in", "delete") and not measured:
                yield token.start, CodeEffectKind.READS, None
            continue
        last = partners.get(index + 1, index + 1)
        after = _at(tokens, last + 1).text
        if after in _ASSIGNS or before in ("++", "--", "getline"):
            target = _literal_after(tokens, last + 1)
            # `ARGV[1] = ""` skips an argument.
            if after != "=" or target != "":
                yield token.start, CodeEffectKind.READS, target
        elif before == "," and _at(tokens, partners.get(last + 1, 0) - 1).text in ("sub", "gsub"):
            yield token.start, CodeEffectKind.READS, None
