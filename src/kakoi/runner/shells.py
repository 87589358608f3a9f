"""Which variables change what a shell does with a text that was judged without them.

Standard library only, Python >= 3.8: both ends of a channel need to know.
"""

from __future__ import annotations

import re

_CHANGES_THE_SHELL = re.compile(
    "BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|PS4|BASH_XTRACEFD|BASH_COMPAT|POSIXLY_CORRECT"
    "|GLOBIGNORE|EXECIGNORE|CDPATH|BASH_FUNC_.*|BASH_LOADABLES_PATH",
    re.DOTALL,
)


def changes_the_shell(name: str) -> bool:
    """Would a variable of this name change the meaning of a command that was already judged?"""
    return _CHANGES_THE_SHELL.fullmatch(name) is not None
