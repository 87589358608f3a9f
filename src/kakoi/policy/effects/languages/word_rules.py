"""Reads code by its words, for languages whose grammar is too large to follow.

`puts "system is bad"` starts nothing, but `system "bad"` does. So comments are dropped, literals
are replaced by numbered marks, and the rules look for words in the rest. The texts of the literals
are kept: they say which command is started and which file is written.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.languages.code_effect import (
    HARMLESS_OUTPUTS,
    CodeEffect,
    CodeEffectKind,
    ReadCode,
    snippet,
)

# The marks are private-use characters; any in the code itself are blanked first. A command that is
# built at run time has no number, and a string that is built at run time is opaque. A quote that
# never closes means that code and text were separated wrongly, or that this is not code.
_LITERAL: Final = "\ue000[0-9]+\ue001"
_COMMAND: Final = "\ue002[0-9]*\ue001"
_OPAQUE: Final = "\ue003"
_UNCLOSED: Final = "\ue004"
_MARKS: Final = pattern("[\ue000-\ue004]")
_MARKED: Final = pattern("[\ue000\ue002]([0-9]+)\ue001")

_MAX_HEREDOCS: Final = 50
_HEREDOC: Final = pattern(r"""<<<?[ ]?[~-]?(?P<quote>["'`]?)(?P<tag>[A-Z_]\w*)(?P=quote)""")
# Bounded, so that a text full of slashes takes time linear in its length.
_REGEX: Final = pattern(
    r"/(?![*/])(?:[^/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n]){0,200}\]){1,500}/\w*"
)
_OPENING: Final = pattern(r"""[%\w]*\s*("{3}|'{3}|\W)""")
_QUOTES: Final = frozenset({"'", '"', "`", '"""', "'''"})
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_ESCAPE: Final = pattern(r"\\(?:(?:x|u\{?)([0-9a-fA-F]{2,4})\}?|([0-7]{1,3})|(.))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lexicon:
    """How to find the comments and literals of a language.

    Patterns are kept as text: `re` compiles and caches those of a language when it is first read.
    `token` matches at every position, with one of its groups `comment`, `string`, `command` (a
    literal that is run), `substitution` (Perl's s///), `slash`, `word` or `other`. `interpolation`
    finds code inside a literal, except inside `plain_quotes`. A slash after an operand divides;
    after one of the words in `before_regex` it starts a regular expression.
    """

    token: str
    interpolation: str | None = None
    plain_quotes: str = "'"
    before_regex: frozenset[str] = frozenset()
    has_heredocs: bool = False


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Code without comments and literals, and the texts of the literals by number."""

    code: str
    literals: tuple[str, ...]

    def texts(self, piece: str) -> list[str]:
        """Return the texts of the literals in a piece of the code."""
        return [self.literals[int(number)] for number in _MARKED.findall(piece)]

    def shown(self, piece: str) -> str:
        """Return the piece with its literals filled in, short enough to show."""
        filled = _MARKED.sub(lambda match: repr(self.literals[int(match[1])]), piece)
        return snippet(_MARKS.sub("…", filled))


def skeleton_from_code(code: str, lexicon: Lexicon) -> Skeleton:
    """Separate code from comments and literals, in time linear in its length."""
    code = _MARKS.sub(" ", code)
    if lexicon.has_heredocs:
        code = _with_quoted_heredocs(code)
    literals: list[str] = []
    return Skeleton(_blank(code, lexicon, literals), tuple(literals))


def _with_quoted_heredocs(code: str) -> str:
    for _ in range(_MAX_HEREDOCS):
        opening = _HEREDOC.search(code)
        if opening is None:
            break
        rest, _, below = code[opening.end() :].partition("\n")
        closing = re.search(rf"^[ \t]*{opening['tag']}\b", below, re.MULTILINE)
        if closing is None:
            break
        quote = opening["quote"] or '"'
        body = below[: closing.start()].replace("\\", "\\\\").replace(quote, "\\" + quote)
        before, after = code[: opening.start()], below[closing.end() :]
        code = f"{before}{quote}{body}{quote}{rest}\n{after}"
    return code


def _blank(code: str, lexicon: Lexicon, literals: list[str]) -> str:
    pieces: list[str] = []
    after_operand = False
    position = 0
    token = re.compile(lexicon.token, re.DOTALL)
    while match := token.match(code, position):
        kind = match.lastgroup
        if kind == "slash" and not after_operand and (regex := _REGEX.match(code, position)):
            match, kind = regex, "string"
        position = match.end()
        text = match[0]
        if kind in ("string", "command", "substitution"):
            pieces.append(_mark(text, kind, lexicon, literals))
            after_operand = True
        elif kind == "comment" or text.isspace():
            # One blank at most: the patterns of the rules would try every way to divide a long gap.
            if pieces and pieces[-1].isspace():
                text += pieces.pop()
            pieces.append("\n" if "\n" in text else " ")
        else:
            pieces.append(text)
            is_operand = kind == "word" and text not in lexicon.before_regex
            after_operand = is_operand or text in (")", "]", "}")
    return "".join(pieces)


def _mark(literal: str, kind: str, lexicon: Lexicon, literals: list[str]) -> str:
    opening = _OPENING.match(literal)
    delimiter = opening[1] if opening else ""
    closer = _CLOSERS.get(delimiter, delimiter)
    body = literal[opening.end() if opening else 0 :]
    inner: list[str] = []
    if lexicon.interpolation and delimiter not in lexicon.plain_quotes:
        inner += re.findall(lexicon.interpolation, body)
    if kind == "substitution":
        # s///e runs the replacement, and s///ee also runs its result.
        replacement, _, flags = body.rpartition(closer)
        replacement = re.split(f"[{re.escape(delimiter + closer)}]", replacement)[-1]
        inner += [replacement, "eval $_"][: flags.count("e")]
    code = "".join(f" ({_blank(piece, lexicon, literals)}) " for piece in inner)
    # Code inside a literal can have been cut off at a quote of its own.
    code = code.replace(_UNCLOSED, "")
    if delimiter in _QUOTES and kind != "substitution" and not body.endswith(closer):
        code += _UNCLOSED
    start = "\ue002" if kind == "command" else "\ue000"
    if code:
        return (f"{start}\ue001" if kind == "command" else _OPAQUE) + code
    literals.append(_ESCAPE.sub(_unescape, body.removesuffix(closer)))
    return f"{start}{len(literals) - 1}\ue001"


def _unescape(match: re.Match[str]) -> str:
    hexadecimal, octal, character = match.groups()
    if character is not None:
        return {"n": "\n", "t": "\t", "\n": ""}.get(character, character)
    code = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
    # Half of a surrogate pair cannot be printed.
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


# --- Rules about words -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WordRule:
    """A pattern of words, and the kind of effect it means.

    In `pattern`, STR stands for any literal; LIT (the target) and NAME (of a function) for one
    whose text must match `literal`; MODE for one that says how a file is opened; CODE for one that
    is run as code; TICKS for one that is run as a command; ARGS for the literals of a call that has
    no other arguments. Some literal anywhere in the code must match `needs`.
    """

    kind: CodeEffectKind
    pattern: str
    literal: str | None = None
    needs: str | None = None


_PLACEHOLDERS: Final[Mapping[str, str]] = {
    # A list of literals is the whole command only if nothing but options or a callback follows.
    "ARGS": rf"(?:\s*\(?\s*\[?\s*(?P<args>{_LITERAL}(?:\s*,\s*\[?\s*{_LITERAL})*)"
    r"(?=\s*\]?\s*(?:[);}\n]|\Z|,\s*(?:[{(]|function\b|\w+\s*=>))))?",
    "TICKS": rf"(?P<args>{_COMMAND})",
    "CODE": rf"(?P<code>{_LITERAL})",
    "MODE": rf"(?P<mode>{_LITERAL})",
    "NAME": rf"(?P<name>{_LITERAL})",
    "LIT": rf"(?P<lit>{_LITERAL})",
    "STR": _LITERAL,
}


def word_effects(
    code: str,
    lexicon: Lexicon,
    rules: Sequence[WordRule],
    read_code: ReadCode,
) -> Iterator[CodeEffect]:
    """Yield the effects that the rules find; `read_code` reads literals that are run as code."""
    skeleton = skeleton_from_code(code, lexicon)
    hits = [
        (match.start(), number, match)
        for number, rule in enumerate(rules)
        if rule.needs is None or any(re.fullmatch(rule.needs, text) for text in skeleton.literals)
        for match in re.finditer(_filled(rule.pattern), skeleton.code, re.DOTALL)
        if _fits(rule, match, skeleton)
    ]
    for start, number, match in sorted(hits, key=lambda hit: hit[:2]):
        groups = match.groupdict()
        if groups.get("code"):
            yield from read_code(skeleton.texts(groups["code"])[0])
        else:
            shown = skeleton.shown(skeleton.code[start : start + 80].partition("\n")[0])
            yield CodeEffect(rules[number].kind, shown, _target(groups, skeleton))
    if _UNCLOSED in skeleton.code:
        yield CodeEffect(CodeEffectKind.UNREADABLE, snippet(code))


def _filled(pattern: str) -> str:
    for name, meaning in _PLACEHOLDERS.items():
        pattern = pattern.replace(name, meaning)
    return pattern


def _fits(rule: WordRule, match: re.Match[str], skeleton: Skeleton) -> bool:
    groups = match.groupdict()
    if rule.literal:
        (text,) = skeleton.texts(groups.get("lit") or groups["name"])
        if text in HARMLESS_OUTPUTS or not re.fullmatch(rule.literal, text, re.DOTALL):
            return False
    mode = skeleton.texts(groups.get("mode") or "")
    return not mode or any(letter in mode[0] for letter in "wax+>")


def _target(groups: Mapping[str, str | None], skeleton: Skeleton) -> str | None:
    if groups.get("lit"):
        # Perl and Ruby write the direction into the name: ">/etc/motd", "|sort".
        return skeleton.texts(groups["lit"] or "")[0].lstrip("+>|- ").rstrip("| ") or None
    texts = skeleton.texts(groups.get("args") or "")
    return texts[0] if len(texts) == 1 else shlex.join(texts) or None
