"""The fast path: parses everyday commands without starting shfmt.

It reads one line of plain words, quotes without expansions, `&& || | ;` and file redirects, and
returns exactly the Script that shfmt's tree gives (a property test compares the two). At the first
character that could mean anything else it gives up, and shfmt parses the text.
"""

import re
from collections.abc import Iterable
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.parsing.script import Assignment, Redirect, Script, SimpleCommand, covering
from kakoi.policy.parsing.words import Word, brace_words, plain_word

_TOKEN: Final = pattern(
    r"""[ \t]*(?:
      (?P<descriptor>[0-9]+(?=[<>]))?
      (?P<redirect>&>>|&>|>>|>&|>\||>|<&|<)(?![<>(&|])[ \t]*(?=[^\s;|&<>])
    | (?P<operator>&&|\|\||\|(?!&)|;(?![;&|])|;?$)
    | (?P<word>(?:[A-Za-z0-9_./:=@%+,^~*?\[\]{}-]|[^\x00-\xa0\s]|'[^']*'|"[^"$`\\]*")+)
    )""",
    re.VERBOSE,
)
_ASSIGNMENT: Final = pattern(r"([A-Za-z_][A-Za-z0-9_]*)=")
_NOT_PLAIN: Final = frozenset(
    "if then else elif fi do done case esac while until for in select function time coproc { } ! "
    "[[ ]] let declare local export readonly typeset nameref @test".split()
)


class _GiveUp(Exception):
    """Not plain: shfmt must parse it."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.commands: list[SimpleCommand] = []
        self.scopes = 0
        self.statement = 1
        self.line: list[tuple[list[tuple[str, int, int]], list[Assignment], list[Redirect]]] = []
        self.start_command()

    def start_command(self) -> None:
        self.words: list[tuple[str, int, int]] = []
        self.assignments: list[Assignment] = []
        self.redirects: list[Redirect] = []

    def read(self) -> Script:
        text = self.text
        at, end, certain = 0, len(text), True
        while True:
            found = _TOKEN.match(text, at)
            if found is None:
                raise _GiveUp
            kind = found.lastgroup
            at = found.end()
            if kind == "word":
                self.word(found)
            elif kind == "redirect":
                at = self.redirect(found)
            else:
                operator = found["operator"]
                if not self.words and not self.assignments:
                    raise _GiveUp
                self.line.append((self.words, self.assignments, self.redirects))
                self.start_command()
                if operator != "|":
                    self.finish_pipeline(certain=certain)
                    certain = operator in ("", ";")
                    self.statement += certain
                if at >= end:
                    if operator in ("", ";") and not self.line:
                        return Script(text, tuple(self.commands))
                    raise _GiveUp
                if operator == ";" and not text[at:].strip(" \t"):
                    return Script(text, tuple(self.commands))

    def word(self, found: re.Match[str]) -> None:
        start, end = found.span("word")
        raw = found["word"]
        if self.text[end : end + 1] in "<>" and raw[0] == "{" and end < len(self.text):
            raise _GiveUp
        if not self.words:
            prefix = _ASSIGNMENT.match(raw)
            if prefix:
                self.assignment(raw, prefix, start, end)
                return
            if raw in _NOT_PLAIN or (raw != "[" and ("[" in raw or "=" in raw or raw[0] == "@")):
                raise _GiveUp
        self.words.append((raw, start, end))

    def assignment(self, raw: str, prefix: re.Match[str], start: int, end: int) -> None:
        value = raw[prefix.end() :]
        word = plain_word(value, start + prefix.end(), end) if value else None
        self.assignments.append(Assignment(prefix[1], word, (), start, end))

    def redirect(self, found: re.Match[str]) -> int:
        target = _TOKEN.match(self.text, found.end())
        if target is None or target.lastgroup != "word":
            raise _GiveUp
        start, end = target.span("word")
        first = found.start("descriptor" if found["descriptor"] else "redirect")
        word = plain_word(target["word"], start, end)
        self.redirects.append(
            Redirect(found["redirect"], found["descriptor"] or "", word, None, first, end)
        )
        return end

    def finish_pipeline(self, *, certain: bool) -> None:
        piped = len(self.line) > 1
        first = len(self.commands)
        for words, assignments, redirects in self.line:
            scope: tuple[int, ...] = ()
            if piped:
                self.scopes += 1
                scope = (self.scopes,)
            feeders = tuple(range(first, len(self.commands)))
            facts = _expanded(words), tuple(assignments), tuple(redirects)
            self.commands.append(
                SimpleCommand(
                    *facts,
                    *covering(*facts),
                    feeders,
                    scope,
                    certain=certain and not piped,
                    statement=self.statement,
                )
            )
        self.line = []


def _expanded(words: Iterable[tuple[str, int, int]]) -> tuple[Word, ...]:
    """Return the words of a command after brace expansion, from their texts and positions."""
    expanded: list[Word] = []
    for raw, start, end in words:
        word = plain_word(raw, start, end)
        several = brace_words(word) if "{" in raw else (word,)
        if not several:
            raise _GiveUp  # `{,}` expands to no word, so the next one can be the program
        expanded.extend(several)
    return tuple(expanded)


def plain_script(text: str) -> Script | None:
    """Return the Script of a plain command line, or None if it is not plain."""
    # Text that arithmetic could run must be noted by the walk over shfmt's tree.
    if "$" in text or "`" in text:
        return None
    try:
        return _Reader(text).read()
    except _GiveUp:
        return None
