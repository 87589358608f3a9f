"""Which program a word names: a plain name, a path of the system, a program of the project."""

import posixpath
import re
from dataclasses import dataclass
from typing import Final

from kakoi.policy.judging.paths import SCRATCH, absolute, within
from kakoi.policy.parsing.script import Command, Script

_SYSTEM_FOLDERS: Final = frozenset(
    "/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin /opt/conda/bin "
    "/usr/local/go/bin".split()
)
# Where a package manager puts the programs of a project's dependencies.
_PACKAGE_FOLDER: Final = re.compile(
    r"(?:.*/)?(?:node_modules/\.bin|\.?v?env/bin|\.venv/bin|vendor/bin|\.(?:tox|nox)/[\w.-]+/bin)"
)
_CONDA_FOLDER: Final = re.compile(
    r"/opt/(?:(?:mini|ana)?conda3?|miniforge3?)/(?:envs/[\w.-]+/)?bin"
)
# `python3.11` and `g++-13` are the program of that name.
_VERSIONED: Final = re.compile(
    r"(python|pip|pypy|php|ruby|node|gcc|g\+\+|clang|clang\+\+|clang-format|clang-tidy|cpp)"
    r"(?:3?-?\d+(?:\.\d+)*)"
)
DELETERS: Final = frozenset({"rm", "unlink", "shred", "rmdir"})
# A project's own copy of its build tool, by the name of the tool.
_BUILD_WRAPPERS: Final = frozenset({"gradlew", "mvnw"})


@dataclass(frozen=True, slots=True)
class Named:
    """`program` is the name to judge by; `effect` says what the path is if it is no system's."""

    program: str = ""
    effect: str = ""
    from_package: bool = False


def named(text: str, folder: str | None, roots: tuple[str, ...], known: frozenset[str]) -> Named:
    """What the program word `text` names. `known` are names that rules refuse or restrict."""
    directory, name = posixpath.split(text)
    versioned = _VERSIONED.fullmatch(name)
    name = versioned[1] if versioned else name
    system = directory in _SYSTEM_FOLDERS or _CONDA_FOLDER.fullmatch(directory)
    if not directory or system or (name in _BUILD_WRAPPERS and directory in (".", "..")):
        return Named(name)
    path = absolute(text, folder or "/")
    inside = any(within(path, root) for root in (*roots, *SCRATCH))
    if inside and _PACKAGE_FOLDER.fullmatch(directory):
        return Named(name, from_package=True)
    # A file that is named like a restricted program may be that program, or anything else.
    known_name = name if name in known else ""
    return Named(known_name, effect="runs-file" if inside else "runs-elsewhere")


def program_name(command: Command) -> str:
    """The bare name of a command's program, empty when it is not known."""
    text = command.words[0].static if command.words else None
    return posixpath.basename(text or "")


def callable_functions(script: Script) -> dict[str, int]:
    """Functions that are defined for certain, with the first command that may call them.

    A definition in a branch may never happen, and the call would then reach a program of that name;
    so it would if `unset` took the function away, or a trap went off before it was there.
    """
    functions: dict[str, int] = {}
    for definition in script.definitions:
        if definition.certain:
            functions.setdefault(definition.name, definition.before)
    calls = [
        index
        for index, command in enumerate(script.commands)
        if program_name(command) == "trap"
        or (not command.function and program_name(command) in functions)
    ]
    first_use = min(calls, default=len(script.commands))
    gone = {
        word.static
        for command in script.commands
        if program_name(command) == "unset"
        for word in command.words[1:]
    }
    if None in gone:
        return {}
    return {n: before for n, before in functions.items() if before <= first_use and n not in gone}


def starts_itself_without_end(name: str, command: Command, script: Script) -> bool:
    """Whether a function calls itself in the background or in a pipe."""
    piped = any(program_name(script.commands[index]) == name for index in command.feeders)
    return command.function == name and (piped or command.background)
