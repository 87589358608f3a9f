"""What is refused before any parser sees it: text too large, too deep, or not text at all.

The limits keep the parser's time and memory small; they are no judgement of the command. The
counts are taken on the raw text, so they are estimates: a count that a clever text defeats costs
it the parser's own time limit, nothing more.
"""

import re
from typing import Final

from kakoi.policy.parsing.script import Unreadable

MAX_BYTES: Final = 64 * 1024
MAX_NESTING: Final = 64
# Colour codes such as `\\e[1m` open a bracket and never close it.
MAX_SQUARE: Final = 500
MAX_PIECES: Final = 3000
MAX_CHAIN: Final = 100
MAX_SUBSTITUTIONS: Final = 1000
MAX_OPERATORS: Final = 200

# Controls other than tab and newline, bidirectional overrides, separators that look like blanks.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_BRACKETS: Final = re.compile(r"[(){}]")
_SQUARE: Final = re.compile(r"[][]")
_COMPOUND: Final = re.compile(
    r"(?:^|[;\n&|({!]|\b(?:then|do|else|elif|if|while|until)\b)[ \t]*"
    r"(?:(if|while|until|for|case|select)|fi|done|esac)(?![\w-])"
)
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_HEREDOC: Final = re.compile(r"<<-?[ \t]*\\?(['\"]?)([\w.-]+)\1")
_ARITHMETIC: Final = re.compile(r"\(\(([^()]*)")
_OPERATORS: Final = re.compile(r"[-+*/%&|^<>=?:,]")
# Blank lines are one end of a line, and blanks before it belong to it.
_CHAINED: Final = re.compile(r"(\|\|?|&&)|;|(?<!\s)\s*\n\s*")


def guard(text: str) -> Unreadable | None:
    """Why `text` must not be handed to the parser, or None."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return Unreadable(
            f"the command is longer than {MAX_BYTES // 1024} KiB; write it to a file first", 0, 0
        )
    bad = _FORBIDDEN.search(text)
    if bad:
        what = "invalid UTF-8" if "\ud800" <= bad[0] <= "\udfff" else "a control character"
        return Unreadable(
            f"the command holds {what} (U+{ord(bad[0]):04X}), which can hide what it does",
            bad.start(),
            bad.end(),
        )
    deep = _too_deep(_BRACKETS, text, "({") or _too_deep(_SQUARE, text, "[", MAX_SQUARE)
    if deep is None and len(text) > 2 * MAX_NESTING:
        deep = _too_large(text)
    return deep


def _too_deep(
    pattern: re.Pattern[str], text: str, openers: str, most: int = MAX_NESTING
) -> Unreadable | None:
    depth = 0
    for found in pattern.finditer(text):
        opens = found[0] in openers if openers else found[1] is not None
        depth = depth + 1 if opens else max(0, depth - 1)
        if depth > most:
            reason = f"the command is nested more than {most} deep; split it up"
            return Unreadable(reason, found.start(), found.end())
    return None


def _too_large(text: str) -> Unreadable | None:
    bare, quoted = _without_texts(text)
    if len(bare.split()) + quoted + sum(map(bare.count, ";|&()$`")) > MAX_PIECES:
        reason = (
            f"the command has more than {MAX_PIECES} words and operators; write it to a file first"
        )
        return Unreadable(reason, 0, 0)
    if text.count("$(") + text.count("`") > MAX_SUBSTITUTIONS or _long_arithmetic(bare):
        return Unreadable("the command has too many substitutions or operators; split it up", 0, 0)
    chain = 0
    joined = False
    for found in _CHAINED.finditer(bare):
        if found[1]:
            chain, joined = chain + 1, True
        elif not (joined and found[0][0] == "\n" and not bare[found.start() - 1].isalnum()):
            chain, joined = 0, False
        if chain > MAX_CHAIN:
            return Unreadable(f"more than {MAX_CHAIN} commands in one chain; split it up", 0, 0)
    return _too_deep(_COMPOUND, bare, "")


def _long_arithmetic(bare: str) -> bool:
    return any(
        len(_OPERATORS.findall(found[1])) > MAX_OPERATORS for found in _ARITHMETIC.finditer(bare)
    )


def _without_texts(text: str) -> tuple[str, int]:
    """The text less heredoc bodies and quoted strings, roughly; and how many strings there were."""
    kept: list[str] = []
    at = 0
    for _ in range(MAX_NESTING):
        found = _HEREDOC.search(text, at)
        line_end = text.find("\n", found.end()) if found else -1
        if found is None or line_end < 0:
            break
        closing = re.compile(rf"^\t*{re.escape(found[2])}$", re.MULTILINE).search(text, line_end)
        if closing is None:
            break
        kept.append(text[at:line_end])
        at = closing.end()
    kept.append(text[at:])
    return _QUOTED.subn("_", "".join(kept))
