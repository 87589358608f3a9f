"""Shell text → Script, parsed by shfmt after the guards, in every way that a shell can read it.

`parse` never raises because of the text: text that cannot be parsed is `Unreadable`, and an
unreadable command is refused. shfmt is a separate program, started by its absolute path with an
empty environment, a timeout of two seconds and a limit on its output.

`sh` is bash on some machines and dash or busybox on others, and `[[ a > b ]]`, `((x))` and `$'…'`
mean different things to them. So a text for `sh` is judged in both readings. zsh and ksh agree with
bash on plain words only.
"""

import json
import os
import re
import sys
from functools import lru_cache
from typing import Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError
from kakoi.policy.parsing.fast_path import plain_script
from kakoi.policy.parsing.script import Script, Unreadable
from kakoi.policy.parsing.tree import UnknownConstruct, script_from_tree
from kakoi.process import run_filter

MAX_BYTES: Final = 64 * 1024
MAX_NESTING: Final = 64
# Color codes such as `\\e[1m` open a bracket and never close it.
MAX_SQUARE: Final = 500
MAX_PIECES: Final = 3000
MAX_CHAIN: Final = 100
MAX_SUBSTITUTIONS: Final = 1000
MAX_OPERATORS: Final = 200

# Control characters other than tab and newline, bidirectional overrides, invisible separators.
_FORBIDDEN: Final = pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_BRACKETS: Final = pattern(r"[(){}]")
_SQUARE: Final = pattern(r"[][]")
_COMPOUND: Final = pattern(
    r"(?:^|[;\n&|({!]|\b(?:then|do|else|elif|if|while|until)\b)[ \t]*"
    r"(?:(if|while|until|for|case|select)|fi|done|esac)(?![\w-])"
)
_QUOTED: Final = pattern(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_HEREDOC: Final = pattern(r"<<-?[ \t]*\\?(['\"]?)([\w.-]+)\1")
_ARITHMETIC: Final = pattern(r"\(\(([^()]*)")
_OPERATORS: Final = pattern(r"[-+*/%&|^<>=?:,]")
# Blank lines count as one line end, together with the blanks before it.
_CHAINED: Final = pattern(r"(\|\|?|&&)|;|(?<!\s)\s*\n\s*")


def guard(text: str) -> Unreadable | None:
    """Return why `text` must not be passed to the parser, or None.

    Text that is too large, too deep, or not text at all is refused: this keeps the parser's time
    and memory small, and does not judge the command. The counts are estimates, taken on the raw
    text; a text that evades them only runs into the parser's own timeout.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        reason = f"the command is longer than {MAX_BYTES // 1024} KiB; write it to a file first"
        return Unreadable(reason, 0, 0, never_runs="\0" in text)
    bad = _FORBIDDEN.search(text)
    if bad:
        what = "invalid UTF-8" if "\ud800" <= bad[0] <= "\udfff" else "a control character"
        return Unreadable(
            f"the command holds {what} (U+{ord(bad[0]):04X}), which can hide what it does",
            bad.start(),
            bad.end(),
            never_runs="\0" in text,
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
    """Return the text without heredocs and quoted strings, roughly, and the number of strings."""
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


PARSER_TIME_LIMIT_S: Final = 2.0
PARSER_OUTPUT_LIMIT: Final = 8 * 1024 * 1024
_CACHED_TEXT: Final = 4096
_MESSAGE: Final = pattern(r"(?:<standard input>:)?(\d+):(\d+): (.*)")
_OWN_KIND: Final = frozenset({"zsh", "ksh"})


@dataclass(frozen=True, slots=True)
class Reading:
    """A text as one kind of shell parses it; `posix` means any shell other than bash."""

    script: Script
    posix: bool = False


def readings(text: str, shell: str) -> list[Reading | Unreadable]:
    """Return every way in which `shell` can read `text`, without duplicates."""
    scripts = [parse(text)]
    if shell != "bash" and plain_script(text) is None:
        other = parse(text, language="posix")
        if other != scripts[0]:
            scripts.append(other)
    return [
        script if isinstance(script, Unreadable) else Reading(script, posix=shell != "bash")
        for script in scripts
    ]


def reads_in_its_own_way(text: str, shell: str) -> bool:
    """Whether `shell` can read `text` differently from every reading that is judged."""
    return shell in _OWN_KIND and plain_script(text) is None


def parse(text: str, *, language: str = "bash") -> Script | Unreadable:
    """Parse `text`, on the fast path if it is plain; `language` is bash or posix."""
    refused = guard(text) or plain_script(text)
    if refused is not None:
        return refused
    if len(text) <= _CACHED_TEXT:
        return _run_shfmt_cached(text, language)
    return _run_shfmt(text, language)


def parse_with_shfmt(text: str) -> Script | Unreadable:
    """Parse `text` with shfmt, never on the fast path."""
    return guard(text) or _run_shfmt(text)


@lru_cache(maxsize=64)
def _run_shfmt_cached(text: str, language: str) -> Script | Unreadable:
    # The same text can occur many times in one command.
    return _run_shfmt(text, language)


@lru_cache(maxsize=1)
def parser_path() -> str:
    """Return the path of the shfmt that was installed with kakoi, never of one on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "shfmt")
    if os.path.isfile(beside):
        return beside
    # Only if it is not in the usual folder: this import takes longer than a decision.
    from importlib import metadata

    try:
        files = metadata.files("shfmt-py") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        located = os.path.realpath(str(file.locate()))
        if os.path.basename(located) == "shfmt" and os.path.isfile(located):
            return located
    raise ConfigurationError(
        "the shell parser shfmt is not installed, so no command can be judged",
        hint="install it with: pip install shfmt-py",
    )


def _run_shfmt(text: str, language: str = "bash") -> Script | Unreadable:
    result = run_filter(
        [parser_path(), "-ln", language, "--to-json"],
        text.encode("utf-8"),
        timeout_s=PARSER_TIME_LIMIT_S,
        max_output_bytes=PARSER_OUTPUT_LIMIT,
    )
    if result.timed_out or result.overflowed:
        return Unreadable("the command is too complex to be read; split it up", 0, len(text))
    if result.exit_code != 0:
        return _syntax_error(text, result.stderr)
    try:
        tree: dict[str, Any] = json.loads(result.stdout)
        return script_from_tree(text, tree)
    except UnknownConstruct as unknown:
        reason = f"it uses a construct that cannot be judged: {unknown.what}"
        return Unreadable(reason, unknown.start, unknown.end)
    except RecursionError:
        return Unreadable("the command is nested too deep; split it up", 0, len(text))
    except (KeyError, TypeError, ValueError) as odd:
        # A tree of an unexpected shape cannot be judged.
        return Unreadable(f"its syntax tree cannot be judged ({odd!r})", 0, len(text))


def _syntax_error(text: str, stderr: bytes) -> Unreadable:
    message = stderr.decode("utf-8", "replace").strip()
    found = _MESSAGE.match(message)
    if not found:
        return Unreadable(f"the shell parser failed: {message or 'no message'}", 0, len(text))
    lines = text.split("\n")
    line = min(int(found[1]), len(lines)) - 1
    column = len(lines[line].encode()[: int(found[2]) - 1].decode("utf-8", "replace"))
    start = min(sum(len(each) + 1 for each in lines[:line]) + column, len(text))
    return Unreadable(f"it is not valid shell: {found[3]}", start, min(start + 1, len(text)))
