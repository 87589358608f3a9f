"""Values of secret names: `password=…`, `"token": "…"`, `--api-key …`, headers."""

import re

from kakoi.redact.names import is_secret_name
from kakoi.redact.references import REDACTED, is_reference
from kakoi.redact.shapes import looks_random

# A name at the start of a run, and what stands between it and its value.
_NAME = re.compile(
    r"""(?:(?<![A-Za-z0-9_.\\-])|(?<=\\[nrt]))
    (?:
        -{0,2}([A-Za-z_][A-Za-z0-9_.-]{0,80}+)\\{0,7}["']?\]?[ \t]{0,3}+
        (?::=|=>|==?=?(?=[ \t]{0,3}["'])|=(?!=)|:|%3[AaDd])[ \t]{0,3}
      | --?([A-Za-z][A-Za-z0-9_-]{0,80}+)[ \t]{1,8}+(?=[^\s-])
    )""",
    re.VERBOSE,
)
_OPENING = re.compile(r"""\$(?=["'])["']|\\*["'`]""")
# A shell joins what stands side by side (`a'b'"c"`), and many languages what a plus joins.
_JOINED = re.compile(
    r"""(?:"(?=[^\s,;:)\]}\[+"'`])[^\s"]{1,256}+"|'(?=[^\s,;:)\]}\[+"'`])[^\s']{1,256}+'
    |[ ]{0,2}\+[ ]{0,2}(?:"[^"\n]{1,256}+"|'[^'\n]{1,256}+')|[A-Za-z0-9_]+)""",
    re.VERBOSE,
)
_INSIDE = {mark: re.compile(rf"(?:[^{mark}\\\n]++|\\.)*+") for mark in "\"'`"}
_LONGEST_VALUE = 1024
_LONGEST_WORD = 128
_PUNCTUATION = ",;.:)]}"
_BARE = re.compile(r"""[^\s"'`&|<>]+""")
_AUTH_SCHEME = re.compile(
    r"(?:bearer|basic|token|apikey|negotiate|digest|aws4-hmac-sha256)[ \t]+", re.IGNORECASE
)
_COOKIE = re.compile(r"[^\s=;,\"']{1,256}=")
_REST_OF_HEADER = re.compile(r"""[^\r\n"']+""")
_PLAIN_VALUES = frozenset(
    """any bool boolean bytes empty expired false inherit int integer invalid missing no nil none
    null number object off ok on optional prompt required str string text true undefined unset
    valid yes""".split()
)
_PROSE = re.compile(r"[a-z]+[,.]?[ \t]+[A-Za-z]")


def without_pairs(text: str) -> str:
    """Without the values of names that hold secrets."""
    kept: list[str] = []
    done = position = 0
    while found := _NAME.search(text, position):
        position = found.end()
        name = found[1] or found[2]
        start, end = _value(text, position, name, prose=text[position - 2 : position] == ": ")
        if start < end:
            kept += (text[done:start], REDACTED)
            done = position = end
    return "".join(kept) + text[done:]


def _value(text: str, start: int, name: str, *, prose: bool) -> tuple[int, int]:
    """Where the secret value of `name` begins and ends; an empty stretch if there is none."""
    if name.lower() in ("cookie", "set-cookie"):
        return _header(text, start) if _COOKIE.match(text, start) else (start, start)
    if not is_secret_name(name):
        return start, start
    opening = _OPENING.match(text, start)
    if opening:
        start = opening.end()
    if name.lower().endswith("authorization"):
        return _credentials(text, start)
    if _says_nothing(text, start, name) or (prose and not opening and _PROSE.match(text, start)):
        return start, start
    end = _closing(text, opening) if opening else _bare_end(text, start)
    return _with_joined(text, opening, start, end)


def _with_joined(text: str, opening: re.Match[str] | None, start: int, end: int) -> tuple[int, int]:
    """The whole value, with its quotes, where more pieces follow; else what was given."""
    mark = opening[0].lstrip("$") if opening else ""
    closed = len(mark) == 1 and text.startswith(mark, end)
    if opening and not closed:
        return start, end
    whole, joins = end + closed, opening is not None
    while (more := _JOINED.match(text, whole)) and whole - start < _LONGEST_VALUE:
        joins = joins or more[0][0] in "\"'"
        if not joins:
            break
        whole = more.end()
    if whole == end + closed:
        return start, end
    return (opening.start() if opening else start), whole


def _says_nothing(text: str, start: int, name: str) -> bool:
    """Judged by the head of the value alone, or a long one would be read again and again."""
    head = _BARE.match(text, start, start + _LONGEST_WORD)
    if head is None:
        return False
    value = head[0].rstrip(_PUNCTUATION)
    return value.lower() in _PLAIN_VALUES or value == name or is_reference(head[0])


def _credentials(text: str, start: int) -> tuple[int, int]:
    """What an Authorization header proves; the word before it ("Bearer") stays."""
    scheme = _AUTH_SCHEME.match(text, start)
    if scheme is None:
        end = _bare_end(text, start)
        return start, end if looks_random(text[start:end]) else start
    if scheme[0].strip().lower() in ("digest", "aws4-hmac-sha256"):
        return _header(text, scheme.end())
    return scheme.end(), _bare_end(text, scheme.end())


def _header(text: str, start: int) -> tuple[int, int]:
    rest = _REST_OF_HEADER.match(text, start)
    return rest.span() if rest else (start, start)


def _closing(text: str, opening: re.Match[str]) -> int:
    """Where a quoted value ends: at its closing mark, or with the word if there is none."""
    start, mark = opening.end(), opening[0].lstrip("$")
    if len(mark) > 1:  # Quotes inside of a quoted text are escaped, and so is the closing one.
        end = text.find(mark, start, start + _LONGEST_VALUE)
        return end if end >= 0 and "\n" not in text[start:end] else _bare_end(text, start)
    inside = _INSIDE[mark].match(text, start)
    closed = inside is not None and text.startswith(mark, inside.end())
    return inside.end() if inside and closed else _bare_end(text, start)


def _bare_end(text: str, start: int) -> int:
    """Where an unquoted value ends; the punctuation behind it is not a part of it."""
    found = _BARE.match(text, start)
    if found is None:
        return start
    punctuation = _PUNCTUATION.replace("]", "") if REDACTED in found[0] else _PUNCTUATION
    return start + len(found[0].rstrip(punctuation))
