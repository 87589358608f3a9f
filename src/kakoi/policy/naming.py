"""Which program a word names: a plain name, a path of the system, a program of the project."""

import posixpath
import re
from dataclasses import dataclass
from typing import Final

from kakoi.policy.paths import SCRATCH, absolute, within
from kakoi.policy.script import Command, Script

_SYSTEM_FOLDERS: Final = frozenset(
    "/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin /opt/conda/bin "
    "/usr/local/go/bin".split()
)
# Where a package manager puts the programs of a project's dependencies.
_PACKAGE_FOLDER: Final = re.compile(
    r"(?:\./)?(?:[\w.-]+/)*"
    r"(?:node_modules/\.bin|\.?v?env/bin|\.venv/bin|vendor/bin|\.(?:tox|nox)/[\w.-]+/bin)"
)
# A project's own copy of its build tool, by the name of the tool.
_BUILD_WRAPPERS: Final = frozenset({"gradlew", "mvnw"})


@dataclass(frozen=True, slots=True)
class Named:
    """`program` is the name to judge by; without one, `effect` says what the path is."""

    program: str = ""
    effect: str = ""
    from_package: bool = False


def named(text: str, folder: str | None, roots: tuple[str, ...], known: frozenset[str]) -> Named:
    """What the program word `text` names. `known` are names that rules refuse or restrict."""
    directory, name = posixpath.split(text)
    if not directory:
        return Named(text)
    if directory in _SYSTEM_FOLDERS:
        return Named(name)
    if _PACKAGE_FOLDER.fullmatch(directory):
        return Named(name, from_package=True)
    if name in known or (name in _BUILD_WRAPPERS and directory in (".", "..")):
        return Named(name)
    path = absolute(text, folder or "/")
    inside = any(within(path, root) for root in (*roots, *SCRATCH))
    return Named(effect="runs-file" if inside else "runs-elsewhere")


def program_name(command: Command) -> str:
    """The bare name of a command's program, empty when it is not known."""
    text = command.words[0].static if command.words else None
    return posixpath.basename(text or "")


def callable_functions(script: Script) -> dict[str, int]:
    """Functions that are defined for certain, with the first command that may call them.

    A definition in a branch may never happen, and the call would then reach a program of that name.
    """
    functions: dict[str, int] = {}
    for definition in script.definitions:
        if definition.certain:
            functions.setdefault(definition.name, definition.before)
    first_use = min(
        (
            index
            for index, command in enumerate(script.commands)
            if not command.function and program_name(command) in functions
        ),
        default=len(script.commands),
    )
    return {name: before for name, before in functions.items() if before <= first_use}
