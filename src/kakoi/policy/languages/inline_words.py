"""Code read by its words, for languages whose grammar is too large to follow.

`puts "system is bad"` starts nothing, `system "bad"` does. So the comments of the code are dropped
and its literals replaced by numbered marks, and rules look for words in what remains. The texts
of the literals are kept: they say which command is started and which file is written.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kakoi.policy.languages.embedded import HARMLESS_OUTPUTS, Effect, EmbeddedEffect, snippet

# The marks are characters for private use; those in the code itself are blanked first. A command
# put together at run time has no number, and a string put together there is opaque. A quote that
# never closes means that code and text have been told apart wrongly, or that it is no code.
_LITERAL: Final = "\ue000[0-9]+\ue001"
_COMMAND: Final = "\ue002[0-9]*\ue001"
_OPAQUE: Final = "\ue003"
_UNCLOSED: Final = "\ue004"
_MARKS: Final = re.compile("[\ue000-\ue004]")
_MARKED: Final = re.compile("[\ue000\ue002]([0-9]+)\ue001")

_MAX_HEREDOCS: Final = 50
_HEREDOC: Final = re.compile(r"""<<<?[ ]?[~-]?(?P<quote>["'`]?)(?P<tag>[A-Z_]\w*)(?P=quote)""")
# Bounded, so that a text full of slashes costs no more than its length.
_REGEX: Final = re.compile(
    r"/(?![*/])(?:[^/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n]){0,200}+\]){1,500}+/\w*"
)
_OPENING: Final = re.compile(r"""[%\w]*\s*("{3}|'{3}|\W)""")
_QUOTES: Final = frozenset({"'", '"', "`", '"""', "'''"})
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_ESCAPE: Final = re.compile(r"\\(?:(?:x|u\{?)([0-9a-fA-F]{2,4})\}?|([0-7]{1,3})|(.))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Where a language has its comments and literals.

    Patterns are kept as text: `re` compiles and remembers those of a language that turns up.
    `token` matches something at every place, by one of its groups `comment`, `string`, `command`
    (a literal that is run), `substitution` (Perl's s///), `slash`, `word` or `other`.
    `interpolation` finds code within a literal, except within `plain_quotes`. A slash after an
    operand divides; after the words in `before_regex` it does not.
    """

    token: str
    interpolation: str | None = None
    plain_quotes: str = "'"
    before_regex: frozenset[str] = frozenset()
    has_heredocs: bool = False


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Code without its comments and literals, and the texts of the literals by number."""

    code: str
    literals: tuple[str, ...]

    def texts(self, piece: str) -> list[str]:
        """The texts of the literals within a piece of the code."""
        return [self.literals[int(number)] for number in _MARKED.findall(piece)]

    def shown(self, piece: str) -> str:
        """The piece as a reader would want to see it."""
        filled = _MARKED.sub(lambda match: repr(self.literals[int(match[1])]), piece)
        return snippet(_MARKS.sub("…", filled))


def set_aside_literals(code: str, lexicon: Lexicon) -> Skeleton:
    """Split code into what may act and what is only text, in time linear in its length."""
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
            # One blank at most: the rules' patterns would try every way to divide a long gap.
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
        # s///e runs the replacement, s///ee also runs what that gives.
        replacement, _, flags = body.rpartition(closer)
        replacement = re.split(f"[{re.escape(delimiter + closer)}]", replacement)[-1]
        inner += [replacement, "eval $_"][: flags.count("e")]
    code = "".join(f" ({_blank(piece, lexicon, literals)}) " for piece in inner)
    # Code within a literal may have been cut short at a quote of its own.
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
    # Half a surrogate pair cannot be printed.
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


# --- The languages read by words -------------------------------------------------------------

_SINGLE = r"'(?:[^'\\]|\\.)*+'?"
_DOUBLE = r'"(?:[^"\\]|\\.)*+"?'
_TICKS = r"`(?:[^`\\]|\\.)*+`?"
_ONE_LINE = r"""'(?:[^'\\\n]|\\.)*+'?|"(?:[^"\\\n]|\\.)*+"?"""
_TRIPLE = r"""\"{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3})?|'{3}(?:[^'\\]|\\.|'(?!''))*+(?:'{3})?"""
_BLOCK = r"/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
_POD = (
    r"(?:(?<=\n)|\A)(?:=[a-z](?:[^\n]|\n(?!=(?:end|cut)))*+(?:\n=(?:end|cut))?|__(?:END|DATA)__.*)"
)
_PAIRED = r"(?:\([^()]*+\)|\[[^\[\]]*+\]|\{[^{}]*+\}|<[^<>]*+>)"
_NO_SIGIL = r"(?<![\w$@%&>-])"


def _delimited(group: str, parts: int) -> str:
    """Perl's m!…! (one part) and tr!…!…! (two)."""
    part = rf"(?:\\.|(?!(?P={group})).)*+(?P={group})"
    return rf"(?:\s*{_PAIRED}{{{parts}}}|(?P<{group}>[/!#|~%@:^'\"]){part * parts})"


def _tokens(
    *, comment: str, string: str, command: str = "(?!)", substitution: str = "(?!)", word: str
) -> str:
    return (
        rf"(?P<comment>{comment})|(?P<command>{command})|(?P<substitution>{substitution})"
        rf"|(?P<string>{string})|(?P<slash>/)|(?P<word>{word})|(?P<other>\s+|.)"
    )


_BRACED = r"\{((?:[^{}]++|\{[^{}]*+\})*+)"
_WORDS_BEFORE_REGEX: Final = frozenset(
    {"return", "typeof", "case", "in", "of", "void", "delete", "throw", "new", "else", "do"}
    | {"if", "unless", "while", "until", "and", "or", "not", "when", "split", "grep", "map", "join"}
)
LEXICONS: Final[Mapping[str, Lexicon]] = {
    "python": Lexicon(
        _tokens(
            comment=r"\#[^\n]*", string=rf"[rRbBuUfF]{{0,2}}(?:{_TRIPLE}|{_ONE_LINE})", word=r"\w+"
        )
    ),
    "node": Lexicon(
        _tokens(comment=rf"//[^\n]*|{_BLOCK}", string=rf"{_ONE_LINE}|{_TICKS}", word=r"[\w$]+"),
        interpolation=rf"\${_BRACED}",
        plain_quotes="'\"",
        before_regex=_WORDS_BEFORE_REGEX,
    ),
    "ruby": Lexicon(
        _tokens(
            comment=rf"\#[^\n]*|{_POD}",
            string=rf"{_SINGLE}|{_DOUBLE}|%[qQwWiIrs]{_PAIRED}",
            command=rf"{_TICKS}|%x{_PAIRED}",
            word=r"[@$]{0,2}\w+[?!]?",
        ),
        interpolation=rf"\#{_BRACED}",
        before_regex=_WORDS_BEFORE_REGEX | {"puts", "print", "p", "gsub", "sub", "match", "scan"},
        has_heredocs=True,
    ),
    "perl": Lexicon(
        _tokens(
            comment=rf"\#[^\n]*|{_POD}",
            string=rf"{_SINGLE}|{_DOUBLE}|{_NO_SIGIL}(?:(?:qq?|qw|qr|m){_delimited('a', 1)}"
            rf"|(?:tr|y){_delimited('b', 2)})",
            command=rf"{_TICKS}|{_NO_SIGIL}qx{_delimited('c', 1)}",
            substitution=rf"{_NO_SIGIL}s{_delimited('d', 2)}[a-z]*",
            word=r"\$\#\w*|[$@%&]{0,3}\w+|\$[^\w\s{(\[]",
        ),
        interpolation=rf"[$@](?:{_BRACED}|\w)",
        before_regex=_WORDS_BEFORE_REGEX | {"print", "push", "x", "lt", "gt", "eq", "ne"},
        has_heredocs=True,
    ),
    "php": Lexicon(
        _tokens(
            comment=rf"\#(?!\[)[^\n]*|//[^\n]*|{_BLOCK}",
            string=rf"{_SINGLE}|{_DOUBLE}",
            command=_TICKS,
            word=r"\$?\w+",
        ),
        interpolation=rf"\$(?:{_BRACED}|\w)",
        has_heredocs=True,
    ),
}


# --- Rules about words -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """What a pattern of words means.

    In `pattern`, STR is any literal; LIT (the target) and NAME (a function's) one whose text must
    fit `literal`; MODE one that says how a file is opened; CODE one that is run as code; TICKS one
    that is run as a command; ARGS the literals of a call, if it has nothing else. `needs` must
    fit some literal anywhere in the code.
    """

    effect: Effect
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
    rules: Sequence[Rule],
    read_code: Callable[[str], Iterable[EmbeddedEffect]],
) -> Iterator[EmbeddedEffect]:
    """What the rules find in the code; `read_code` is asked about literals that are run as code."""
    skeleton = set_aside_literals(code, lexicon)
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
            yield EmbeddedEffect(rules[number].effect, shown, _target(groups, skeleton))
    if _UNCLOSED in skeleton.code:
        yield EmbeddedEffect(Effect.UNREADABLE, snippet(code))


def _filled(pattern: str) -> str:
    for name, meaning in _PLACEHOLDERS.items():
        pattern = pattern.replace(name, meaning)
    return pattern


def _fits(rule: Rule, match: re.Match[str], skeleton: Skeleton) -> bool:
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
