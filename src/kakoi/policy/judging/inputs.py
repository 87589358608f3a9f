"""What an interpreter reads on its standard input, as far as the text shows."""

import re
from dataclasses import dataclass

from kakoi.policy.judging.files import DOWNLOADERS
from kakoi.policy.judging.naming import program_name
from kakoi.policy.parsing.script import Command, Script
from kakoi.policy.words import Expands, Word

# sqlite3's own commands, except those that only change how results look.
_DOT_COMMAND = re.compile(
    r"^\s*\.(?!(?:headers?|mode|tables?|schema|width|nullvalue|timeout|quit|exit|dump|indexes|timer"
    r"|echo|help|separator|databases|show|stats)\b)",
    re.MULTILINE,
)
_DECODERS = frozenset("base64 base32 xxd openssl gpg uudecode".split())


@dataclass(frozen=True, slots=True)
class Input:
    """Texts that are in plain sight, a file, or an effect that says why neither is known."""

    texts: tuple[Word, ...] = ()
    file: Word | None = None
    effect: str = ""


def standard_input(command: Command, script: Script) -> Input:
    """The program that `command` reads: from a heredoc, a file, or the commands that feed it."""
    for redirect in reversed(command.redirects):
        if redirect.descriptor not in ("", "0"):
            continue
        if redirect.body is not None:
            return Input((redirect.body,))
        processed = any(p.kind is Expands.PROCESS for p in redirect.target.expansions())
        if redirect.operator == "<&" or processed:
            return Input(file=redirect.target if processed else None, effect="runs-input")
        if redirect.operator == "<":
            return Input(file=redirect.target)
    feeders = [script.commands[index] for index in command.feeders]
    if not feeders:
        # A redirect of the whole group feeds it as well, and so does `exec < file`.
        fed = any(
            other.redirects and (not other.words or program_name(other) == "exec")
            for other in script.commands
        )
        return Input(effect="runs-input" if fed else "")
    return _fed_by(feeders)


def _fed_by(feeders: list[Command]) -> Input:
    programs = {program_name(feeder) for feeder in feeders}
    if programs & DOWNLOADERS:
        return Input(effect="download-run")
    if len(feeders) == 1 and programs == {"cat"} and len(feeders[0].words) == 1:
        bodies = [redirect.body for redirect in feeders[0].redirects if redirect.body is not None]
        if bodies:
            return Input((bodies[-1],))
    if len(feeders) == 1 and programs <= {"echo", "printf"}:
        return Input(feeders[0].words[1:], effect="fed-words")
    return Input(effect="runs-input" if programs & _DECODERS else "fed-file")


def feeds_dot_commands(command: Command, script: Script) -> bool:
    """Whether a database shell is, or may be, fed commands that run programs."""
    given = standard_input(command, script)
    runs = any(_DOT_COMMAND.search(text.shown) for text in given.texts)
    return runs or given.effect not in ("", "fed-words")
