"""How a shell will read a text that is handed to it: bash, the plain shell, or one of its own kind.

`sh` is bash on some machines and dash or busybox on others. What `[[ a > b ]]`, `((x))` or `$'…'`
mean depends on which, so a text for `sh` is judged in both readings. zsh and ksh share no more than
plain words with bash.
"""

from dataclasses import dataclass
from typing import Final

from kakoi.policy.judging.files import Files
from kakoi.policy.parsing.plain import plain_script
from kakoi.policy.parsing.script import Script, Unreadable
from kakoi.policy.syntax import parse

# More texts than this in one command is nothing that anybody writes, and each is parsed.
MAX_TEXTS: Final = 100
_OWN_KIND: Final = frozenset({"zsh", "ksh"})


@dataclass
class Context:
    """What a nested text shares with the text around it."""

    files: Files
    cwd: str
    depth: int = 0
    texts: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A text as one kind of shell takes it apart; `posix` says that it is not bash."""

    script: Script
    posix: bool = False


def readings(text: str, shell: str) -> list[Reading | Unreadable]:
    """Every way in which `shell` may read `text`; the same script is not given twice."""
    scripts = [parse(text)]
    if shell != "bash" and plain_script(text) is None:
        scripts.append(parse(text, language="posix"))
    if scripts[0] == scripts[-1]:
        del scripts[1:]
    return [
        script if isinstance(script, Unreadable) else Reading(script, posix=shell != "bash")
        for script in scripts
    ]


def reads_in_its_own_way(text: str, shell: str) -> bool:
    """Whether `shell` may find something else in `text` than any reading of ours."""
    return shell in _OWN_KIND and plain_script(text) is None
