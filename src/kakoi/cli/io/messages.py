"""Messages and errors of kakoi: for people on stderr, for programs as JSON on stdout."""

import contextlib
import json
from collections.abc import Mapping
from typing import Final

from kakoi._support.text import shown
from kakoi.cli.io.streams import OutputClosed, write_all, write_stderr
from kakoi.errors import KakoiError

# kakoi or the sandbox failed, not the command whose exit code is forwarded.
FAILED: Final = 125


def print_message(text: str, *, hint: str = "") -> None:
    """Print a message of kakoi's on stderr; dropped if stderr is closed."""
    lines = [f"kakoi: {shown(text)}", *([f"  hint: {shown(hint)}"] if hint else [])]
    write_stderr("\n".join(lines) + "\n")


def print_error(error: KakoiError) -> None:
    """Print the error, its hint, and the next command to type."""
    more = "" if "`kakoi " in error.hint else f"  next: kakoi explain {error.code}\n"
    print_message(str(error), hint=error.hint)
    write_stderr(more)


def print_json(value: Mapping[str, object]) -> None:
    """Print one object on stdout; dropped if its reader is gone."""
    with contextlib.suppress(OutputClosed):
        write_all(1, json.dumps(value, indent=2).encode("ascii") + b"\n")
