"""Words that may turn out to be options: a quoted value whose text the script itself holds.

`cp "$1" dest` is everyday, and asking each time would help nobody. But where the text has a word
such as `--target-directory=/etc` among its values, that word may be what `$1` becomes.
"""

import re
from collections.abc import Iterator
from typing import Final

from kakoi.policy.judging.naming import program_name
from kakoi.policy.parsing.script import Command, Script
from kakoi.policy.programs import Invocation
from kakoi.policy.words import Expands, Word

_OPTION: Final = re.compile(r"--?[A-Za-z][\w-]*(?:=[^\s]*)?|-[A-Za-z]\S*")
_OPTION_LINE: Final = re.compile(r"^--?[A-Za-z]\S*$", re.MULTILINE)
# Options of these are their own, and not words that they pass on.
_OWN_OPTIONS: Final = re.compile(r"-[neE]+|-v")


def offers_options(script: Script) -> bool:
    """Whether a value in the script looks like an option."""
    functions = {definition.name for definition in script.definitions}
    return any(
        _OPTION.fullmatch(word.static or "")
        for command in script.commands
        for word in _passed_on(command, functions)
    ) or any(
        redirect.body is not None and _OPTION_LINE.search(redirect.body.shown)
        for command in script.commands
        for redirect in command.redirects
    )


def _passed_on(command: Command, functions: set[str]) -> Iterator[Word]:
    for assignment in command.assignments:
        yield from assignment.elements
        if assignment.value is not None:
            yield assignment.value
    program = program_name(command)
    if program in functions or program == "getopts":
        yield from command.words[1:]
    elif program in ("echo", "printf"):
        yield from (w for w in command.words[1:] if not _OWN_OPTIONS.fullmatch(w.static or ""))
    elif program == "set":
        behind = [at for at, word in enumerate(command.words) if word.static == "--"]
        yield from command.words[behind[0] + 1 :] if behind else ()


def disguised(invocation: Invocation) -> list[Word]:
    """Operands of a program with telling options that are one unknown word, dash or not."""
    spec = invocation.spec
    if not (spec.value_effects or spec.flag_effects):
        return []
    return [
        word
        for word in invocation.arguments.operands
        if word.text is None
        and not word.prefix
        and not word.may_be_many
        and any(part.kind is Expands.VARIABLE for part in word.expansions())
    ]
