"""What the words of a command are: the program that one names, and values that can be options.

A program is a plain name, a system path, or a program of the project. `cp "$1" dest` is common, and
asking every time would not help. But if the text has a word such as `--target-directory=/etc`
among its values, `$1` can become that word.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.programs import Invocation
from kakoi.policy.judging.paths import SCRATCH, absolute, within
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import Expands, Word

_SYSTEM_FOLDERS: Final = frozenset(
    "/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin /opt/conda/bin "
    "/usr/local/go/bin".split()
)
# Where package managers install the programs of a project's dependencies.
_PACKAGE_FOLDER: Final = pattern(
    r"(?:.*/)?(?:node_modules/\.bin|\.?v?env/bin|\.venv/bin|vendor/bin|\.(?:tox|nox)/[\w.-]+/bin)"
)
_CONDA_FOLDER: Final = pattern(r"/opt/(?:(?:mini|ana)?conda3?|miniforge3?)/(?:envs/[\w.-]+/)?bin")
# `python3.11` and `g++-13` count as `python` and `g++`.
_VERSIONED: Final = pattern(
    r"(python|pip|pypy|php|ruby|node|gcc|g\+\+|clang|clang\+\+|clang-format|clang-tidy|cpp)"
    r"(?:3?-?\d+(?:\.\d+)*)"
)
DELETERS: Final = frozenset({"rm", "unlink", "shred", "rmdir", "truncate"})
# Programs that scripts keep in variables: `$PYTHON -m pytest`.
_KEPT_IN_VARIABLES: Final = frozenset(
    "python python3 pytest pip pip3 node npm npx yarn pnpm go cargo make gmake cmake ninja gcc g++ "
    "cc c++ clang clang++ java mvn ruby rg ls".split()
)
_EVERYTHING: Final = pattern(r"(?:\./)*\.?\*+")
# Programs by which the text is followed: what they download, remove, start or print.
_FOLLOWED: Final = DELETERS | frozenset(
    "curl wget aria2c http https fetch lynx w3m ftp scp nc cp mv ln cat tee echo printf env sudo "
    "xargs find sh bash dash zsh ksh base64 openssl gpg git mktemp".split()
)
# A project's own copy of its build tool, by the name of the tool.
_BUILD_WRAPPERS: Final = frozenset({"gradlew", "mvnw"})
_OPTION: Final = pattern(r"--?[A-Za-z][\w-]*(?:=[^\s]*)?|-[A-Za-z]\S*")
_OPTION_LINE: Final = pattern(r"^--?[A-Za-z]\S*$", re.MULTILINE)
# Options of `echo` and `printf` themselves, not words that they pass on.
_OWN_OPTIONS: Final = pattern(r"-[neE]+|-v")


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """`program` is the name to judge by; `effect` describes a path that is not the system's."""

    program: str = ""
    effect: str = ""
    from_package: bool = False


def find_program(
    text: str, folder: str | None, roots: tuple[str, ...], known: frozenset[str]
) -> NamedProgram:
    """Return the program that `text` names. `known` are names that rules refuse or restrict."""
    directory, name = posixpath.split(text)
    versioned = _VERSIONED.fullmatch(name)
    name = versioned[1] if versioned else name
    system = directory in _SYSTEM_FOLDERS or _CONDA_FOLDER.fullmatch(directory)
    if not directory or system or (name in _BUILD_WRAPPERS and directory in (".", "..")):
        return NamedProgram(name)
    path = absolute(text, folder or "/")
    inside = any(within(path, root) for root in (*roots, *SCRATCH))
    if inside and _PACKAGE_FOLDER.fullmatch(directory):
        return NamedProgram(name, from_package=True)
    # A file with the name of a restricted program can be that program, or anything else.
    known_name = name if name in known else ""
    return NamedProgram(known_name, effect="runs-file" if inside else "runs-elsewhere")


def program_name(command: SimpleCommand) -> str:
    """Return the bare name of a command's program, empty if it is unknown."""
    text = command.words[0].static if command.words else None
    return posixpath.basename(text or "")


def names_known_program(word: Word) -> bool:
    """Whether the program is the value of variables, perhaps behind them: `"$BIN/probe"`."""
    return word.text is None and all(p.kind is Expands.VARIABLE for p in word.expansions())


def may_name_program(word: Word) -> bool:
    """Whether a value may name the program.

    What follows the text (downloads, `cd`, variables that builtins set) looks at the names that
    are written out. So a value may only name what is not followed: a program by its path, or one
    of a few that people keep in variables.
    """
    folder, name = posixpath.split(word.static or "")
    return name in _KEPT_IN_VARIABLES or (bool(folder) and name not in _FOLLOWED)


def callable_functions(script: Script) -> dict[str, int]:
    """Return functions that are certainly defined, with the first command that can call them.

    A definition in a branch may never run, and then the call starts a program of that name. The
    same happens if `unset` removes the function, or if a trap fires before its definition.
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


def starts_itself_without_end(name: str, command: SimpleCommand, script: Script) -> bool:
    """Whether a function calls itself in the background or in a pipe."""
    piped = any(program_name(script.commands[index]) == name for index in command.feeders)
    return command.function == name and (piped or command.background)


# ── values that can be options ──


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


def names_everything(word: Word) -> bool:
    """Whether a deleter gets what is only named when it runs: `$(ls)`, or everything here."""
    found = any(part.kind is Expands.COMMAND for part in word.expansions())
    return found or (word.glob and _EVERYTHING.fullmatch(word.text or "") is not None)
