"""Shell text → Script, by the parser of record (shfmt), behind guards.

`parse` never raises for what the text holds: text that cannot be read is `Unreadable`, and an
unreadable command is refused. The parser is a program of its own, started by absolute path with an
empty environment, two seconds and a bounded answer.
"""

import json
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kakoi.errors import ConfigurationError
from kakoi.policy.parsing.guards import guard
from kakoi.policy.parsing.plain import plain_script
from kakoi.policy.parsing.script import Script, Unreadable
from kakoi.policy.parsing.tree import UnknownConstruct, script_of
from kakoi.process import run_filter

PARSER_TIME_LIMIT_S: Final = 2.0
PARSER_OUTPUT_LIMIT: Final = 8 * 1024 * 1024
_REMEMBERED_TEXT: Final = 4096
_MESSAGE: Final = re.compile(r"(?:<standard input>:)?(\d+):(\d+): (.*)")


def parse(text: str, *, language: str = "bash") -> Script | Unreadable:
    """Take `text` apart, by the fast path where it is plain; `language` is bash or posix."""
    refused = guard(text) or plain_script(text)
    if refused is not None:
        return refused
    if len(text) <= _REMEMBERED_TEXT:
        return _parse_remembered(text, language)
    return _parse_with_shfmt(text, language)


def parse_by_record(text: str) -> Script | Unreadable:
    """Take `text` apart with the parser of record, whatever it looks like."""
    return guard(text) or _parse_with_shfmt(text)


@lru_cache(maxsize=64)
def _parse_remembered(text: str, language: str) -> Script | Unreadable:
    # The same text may stand in one command many times.
    return _parse_with_shfmt(text, language)


@lru_cache(maxsize=1)
def parser_path() -> str:
    """Where the shfmt of our own installation is. Never one that happens to be on PATH."""
    beside = Path(sys.executable).parent / "shfmt"
    if beside.is_file():
        return str(beside)
    # Only where the usual place does not hold it: this import takes longer than a decision.
    from importlib import metadata

    try:
        files = metadata.files("shfmt-py") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        located = Path(str(file.locate())).resolve()
        if located.name == "shfmt" and located.is_file():
            return str(located)
    raise ConfigurationError(
        "the shell parser shfmt is not installed, so no command can be judged",
        hint="install it with: pip install shfmt-py",
    )


def _parse_with_shfmt(text: str, language: str = "bash") -> Script | Unreadable:
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
        return script_of(text, tree)
    except UnknownConstruct as unknown:
        reason = f"it uses a construct that cannot be judged: {unknown.what}"
        return Unreadable(reason, unknown.start, unknown.end)
    except RecursionError:
        return Unreadable("the command is nested too deep; split it up", 0, len(text))
    except (KeyError, TypeError, ValueError) as odd:
        # A tree of a shape nobody expected is a construct nobody judged.
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
