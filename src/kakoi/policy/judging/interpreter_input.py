"""What an interpreter runs, as far as the text shows: its input, and scripts the text writes."""

import re
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.languages.inline import LANGUAGES
from kakoi.policy.judging.command_words import program_name
from kakoi.policy.judging.files import DOWNLOADERS
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import Expands, Word, literal_word

# sqlite3's own commands, except those that only change how results look.
_DOT_COMMAND = pattern(
    r"^\s*\.(?!(?:headers?|mode|tables?|schema|width|nullvalue|timeout|quit|exit|dump|indexes|timer"
    r"|echo|help|separator|databases|show|stats)\b)",
    re.MULTILINE,
)
_SHEBANG: Final = pattern(r"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(?:\S*/)?([A-Za-z]+)[\d.]*")
_SHELLS: Final = frozenset("sh bash dash zsh ksh ash".split())
_DECODERS = frozenset("base64 base32 xxd openssl gpg uudecode".split())


@dataclass(frozen=True, slots=True)
class InterpreterInput:
    """Texts that the script contains, a file, or an effect that says why neither is known."""

    texts: tuple[Word, ...] = ()
    file: Word | None = None
    effect: str = ""


# How code builds a name that is not in its text.
_PIECES: Final = pattern(
    r"\\\\?(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F{]|[0-7]{3})|\bchr\s*\(|fromCharCode|b64decode|base64|fromhex|unhexlify"
    r"|decode\s*\(\s*['\"](?!utf|ascii|latin)|\[::-1\]|\bgetattr\b|(?<!\.)\beval\b|\bexec\s*\(|(?<!re\.)\bcompile\s*\("
    r"|__import__|__builtins__|globals\s*\(|const_get|constructor|\bFunction\s*\(|\batob\b|rot_?13|_load\s*\("
    r"|instance_eval|assert\s*\(|builtins\.|_posixsubprocess|spawnv_passfds|['\"]\s*\+\s*['\"]"
)
# Names of programs that are ordinary words in code.
_PLAIN_WORDS: Final = frozenset(
    "at batch init view ex ed code script history complete bind screen expect enable alias perf "
    "pico snap service caller split eval".split()
)


def standard_input(command: SimpleCommand, script: Script) -> InterpreterInput:
    """Return what `command` reads: a heredoc, a file, or the output of commands piped into it."""
    for redirect in reversed(command.redirects):
        if redirect.descriptor not in ("", "0"):
            continue
        if redirect.body is not None:
            return InterpreterInput((redirect.body,))
        processed = any(p.kind is Expands.PROCESS for p in redirect.target.expansions())
        if redirect.operator == "<&" or processed:
            return InterpreterInput(
                file=redirect.target if processed else None, effect="runs-input"
            )
        if redirect.operator == "<":
            return InterpreterInput(file=redirect.target)
    feeders = [script.commands[index] for index in command.feeders]
    if not feeders:
        # A redirect of the whole group also feeds it, and so does `exec < file`.
        fed = any(
            other.redirects and (not other.words or program_name(other) == "exec")
            for other in script.commands
        )
        return InterpreterInput(effect="runs-input" if fed else "")
    return _fed_by(feeders)


def _fed_by(feeders: list[SimpleCommand]) -> InterpreterInput:
    programs = {program_name(feeder) for feeder in feeders}
    if programs & DOWNLOADERS:
        return InterpreterInput(effect="download-run")
    if len(feeders) == 1 and programs == {"cat"} and len(feeders[0].words) == 1:
        bodies = [redirect.body for redirect in feeders[0].redirects if redirect.body is not None]
        if bodies:
            return InterpreterInput((bodies[-1],))
    if len(feeders) == 1 and programs <= {"echo", "printf"}:
        return InterpreterInput(feeders[0].words[1:], effect="fed-words")
    return InterpreterInput(effect="runs-input" if programs & _DECODERS else "fed-file")


def feeds_dot_commands(command: SimpleCommand, script: Script) -> bool:
    """Whether the input of a database shell has, or can have, commands that run programs."""
    stdin = standard_input(command, script)
    runs = any(_DOT_COMMAND.search(text.shown) for text in stdin.texts)
    return runs or stdin.effect not in ("", "fed-words")


def text_written_by(command: SimpleCommand) -> Word | None:
    """Return what the command writes, if that is certain: a heredoc, or the words of `echo`."""
    program = program_name(command)
    bodies = [redirect.body for redirect in command.redirects if redirect.body is not None]
    if program in ("cat", "tee") and len(bodies) == 1 and not command.feeders:
        return bodies[0] if program == "tee" or len(command.words) == 1 else None
    words = command.words[1:]
    if program in ("echo", "printf") and words and all(word.text is not None for word in words):
        text = " ".join(word.text or "" for word in words if word.text not in ("-e", "-n", "-en"))
        return literal_word(text.replace("\\n", "\n"), words[0].start, words[-1].end)
    return None


def script_language(script: Word) -> str | None:
    """Return the language that the first line names, `sh` without one; None if it is unknown."""
    named = _SHEBANG.match(script.prefix)
    if named is None:
        return None if script.prefix.startswith("#!") else "sh"
    if named[1] in _SHELLS:
        return "sh"
    return named[1] if named[1] in LANGUAGES else None


def hides_programs(code: str, denied: frozenset[str]) -> bool:
    """Whether code that starts programs names a denied one, or builds names from pieces."""
    if _PIECES.search(code):
        return True
    named = re.findall(r"""(?:['"`]|[;&|(]\s*)([a-z][\w.-]*)(?=[\s'"`;&|)])""", code)
    return not (denied - _PLAIN_WORDS).isdisjoint(named)
