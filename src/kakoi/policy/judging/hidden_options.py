"""Words that can turn out to be options: a quoted value whose text is in the script itself.

`cp "$1" dest` is common, and asking every time would not help. But if the text has a word such as
`--target-directory=/etc` among its values, `$1` can become that word.
"""

import re
from collections.abc import Iterator
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.programs import Invocation
from kakoi.policy.judging.program_names import program_name
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import Expands, Word

_OPTION: Final = pattern(r"--?[A-Za-z][\w-]*(?:=[^\s]*)?|-[A-Za-z]\S*")
_OPTION_LINE: Final = pattern(r"^--?[A-Za-z]\S*$", re.MULTILINE)
# Options of `echo` and `printf` themselves, not words that they pass on.
_OWN_OPTIONS: Final = pattern(r"-[neE]+|-v")


def has_option_like_values(script: Script) -> bool:
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


def _passed_on(command: SimpleCommand, functions: set[str]) -> Iterator[Word]:
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


def possible_options(invocation: Invocation) -> list[Word]:
    """Return operands that are one unknown word, if an option of the program has an effect."""
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
