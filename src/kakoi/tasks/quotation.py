"""Words of a model, or of strangers, as they may stand in a text of ours.

Trackers, CI servers, robots and git act on what they read there: a mention calls a person, `/merge`
merges, `[skip ci]` skips the tests, `fixes #1` closes an issue, `Co-authored-by:` names an author.
Such a text keeps its look and loses its power: a space of no width stands where the machine looks.
"""

import re
import unicodedata
from typing import Final

_BREAK: Final = "\u200b"
# They end a line for some readers, and must do so before lines are looked at.
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control characters, and what has no look of its own or turns the direction of a text around.
_UNSEEN: Final = ("Cc", "Cf", "Cs")
# The last two join letters of some scripts, and parts of an emoji.
_KEPT: Final = "\n\t\u200c\u200d"
# GitLab does what a line such as "/merge" says, and so do robots on GitHub.
_ORDER: Final = re.compile(r"^([ \t>*+-]*)/(?=[A-Za-z])", re.MULTILINE)
# A letter before it makes it an address of mail, for GitHub and GitLab alike.
_MENTION: Final = re.compile(r"(?<![A-Za-z0-9_])@(?=[A-Za-z0-9_])")
# `&#64;eve` is `@eve` once it is rendered.
_ENTITY: Final = re.compile(r"&(?=#?[A-Za-z0-9]{1,32};)")
# Issues, merge requests and epics: in any project, whatever word stands before.
_REFERENCE: Final = re.compile(r"([#!&]|\bGH-)(?=[0-9])", re.IGNORECASE)
_CLOSING: Final = re.compile(
    r"\b(clos|fix|resolv|implement|reopen)(e[sd]?|ing|s|ed)?"
    r"(?=[\s:]{1,20}(?:issues?[\s:]{1,20})?[<(\[*_`\"']{0,4}"
    r"(?:https?://|[A-Z][A-Z0-9_]{1,30}-[0-9]|[\w./-]{0,200}[#!&][0-9]|GH-[0-9]))",
    re.IGNORECASE,
)
# `ABC-1 #done` moves an issue of Jira's.
_SMART: Final = re.compile(r"\b[A-Z][A-Z0-9_]{1,30}-[0-9]")
_COMMAND: Final = re.compile(r"#(?=[A-Za-z])")
# Each CI has a name of its own to be skipped by; all stand in brackets.
_SKIP: Final = re.compile(
    r"\[([^\[\]\n]{0,60}?(?<![A-Za-z])(?:skip|no[ _-]?(?:ci|actions|build|deploy))(?![A-Za-z])"
    r"[^\[\]\n]{0,60})\]",
    re.IGNORECASE,
)
_NO_CI: Final = re.compile(r"\*{3}(NO_CI)\*{3}", re.IGNORECASE)
_TRAILER: Final = re.compile(
    r"^([ \t]*(?:skip-checks|[a-z]+(?:-[a-z]+)*-by))(?=[ \t]*:)", re.IGNORECASE | re.MULTILINE
)
_CUT: Final = "…"


def disarmed(text: str) -> str:
    """`text` as it reads, that orders nobody about and hides nothing."""
    text = _visible(_LINE_ENDS.sub("\n", text))
    text = _CLOSING.sub(lambda found: f"{found[1]}{_BREAK}{found[2] or ''}", text)
    text = "\n".join(map(_without_commands, text.split("\n")))
    text = _ENTITY.sub(f"&{_BREAK}", text)
    text = _REFERENCE.sub(rf"\1{_BREAK}", text)
    text = _ORDER.sub(r"\1\\/", text)
    text = _MENTION.sub(f"@{_BREAK}", text)
    text = _SKIP.sub(r"(\1)", text)
    text = _NO_CI.sub(r"\1", text)
    return _TRAILER.sub(rf"\1{_BREAK}", text)


def quoted(text: str, *, most_lines: int = 1000) -> str:
    """`text`, disarmed, as a quotation: no line of it begins where a line of ours would."""
    lines = disarmed(text).strip().split("\n")
    shown = lines[:most_lines] + ([_CUT] if len(lines) > most_lines else [])
    return "\n".join(f"> {line}".rstrip() for line in shown) if any(lines) else ""


def one_disarmed_line(text: str) -> str:
    """`text`, disarmed, in one line."""
    return disarmed(" ".join(text.split()))


def _visible(text: str) -> str:
    return "".join(
        char for char in text if char in _KEPT or unicodedata.category(char) not in _UNSEEN
    )


def _without_commands(line: str) -> str:
    return _COMMAND.sub(f"#{_BREAK}", line) if _SMART.search(line) else line
