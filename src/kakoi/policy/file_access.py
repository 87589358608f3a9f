"""decide_access(policy, access) → Decision: may a file be read, listed, written, removed or moved?

The rules and sentences are those for what a command does to a file. No program is involved, so the
list of programs, and rules that name commands or options, do not apply.
"""

import shlex
from collections.abc import Iterator
from dataclasses import KW_ONLY, replace
from typing import Final, Literal, cast, get_args

from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest
from kakoi._support.text import short_repr
from kakoi.errors import ConfigurationError
from kakoi.policy.decide import DEFAULT_CWD, blocked_pattern, findings_on_all
from kakoi.policy.effects.arguments import Arguments
from kakoi.policy.effects.invocation_effects import names_repository
from kakoi.policy.effects.programs import PLAIN, Invocation
from kakoi.policy.judging.decision import Decision, Finding, Report, decision_from
from kakoi.policy.judging.files import FileRules
from kakoi.policy.judging.folders import WorkingFolder
from kakoi.policy.judging.paths import absolute, within
from kakoi.policy.parsing.words import Word, literal_word
from kakoi.policy.rules import Policy

FileAction = Literal["read", "list", "write", "remove", "move"]
_ACTIONS: Final[tuple[str, ...]] = get_args(FileAction)
# No file system accepts more. The check for secrets does not look at longer paths.
_LONGEST_PATH: Final = 4096


@dataclass(frozen=True, slots=True)
class FileAccess:
    """What is done to the file or directory at `path`, a literal path.

    `action`: `list` is for everything that only learns names and attributes (stat, exists, list,
        watch); making a directory is a `write`; `move` reads and removes `path`, and
        writes `destination`.
    `recursive`: a `remove` that takes everything below `path` along.

    Raises ConfigurationError for an empty path, a path with NUL, and an unknown action.

        FileAccess("move", "/workspace/a", "/workspace/b")
    """

    action: FileAction
    path: str
    destination: str = ""
    _: KW_ONLY
    recursive: bool = False

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ConfigurationError(
                f"`action` is {short_repr(self.action)}{nearest(str(self.action), _ACTIONS)}",
                hint=f"the actions are {', '.join(_ACTIONS)}",
            )
        _check_path("path", self.path)
        if self.action == "move":
            _check_path("destination", self.destination)
        elif self.destination:
            raise ConfigurationError(f"`destination` is for `move`, not for `{self.action}`")
        if self.recursive and self.action != "remove":
            raise ConfigurationError(f"`recursive` is for `remove`, not for `{self.action}`")

    def resolved(self, cwd: str) -> "FileAccess":
        """Return it with absolute paths without `..`, resolved from their text alone.

        Do the work on these paths: the kernel resolves `link/..` in another way.
        """
        destination = absolute(self.destination, cwd) if self.destination else ""
        return replace(self, path=absolute(self.path, cwd), destination=destination)

    @classmethod
    def parse(cls, text: str) -> "FileAccess":
        """Return the access that `text`, the `command` of a decision, describes.

        Raises ConfigurationError if it is not such a text.
        """
        try:
            action, *words = shlex.split(text)
        except ValueError:
            raise _unparsable(text) from None
        recursive = action == "remove" and len(words) == 2 and words[0] == "recursively"
        paths = words[1:] if recursive else words
        if action not in _ACTIONS or len(paths) != (2 if action == "move" else 1):
            raise _unparsable(text)
        return cls(cast("FileAction", action), *paths, recursive=recursive)

    def __str__(self) -> str:
        return " ".join((self._verb, *map(shlex.quote, self._paths)))

    @property
    def _verb(self) -> str:
        return "remove recursively" if self.recursive else self.action

    @property
    def _paths(self) -> tuple[str, ...]:
        return (self.path, self.destination) if self.destination else (self.path,)

    def words(self, cwd: str) -> Iterator[Word]:
        """Yield each path as given, as a word at its place in `str(self.resolved(cwd))`."""
        start = len(self._verb) + 1
        for given in self._paths:
            end = start + len(shlex.quote(absolute(given, cwd)))
            yield literal_word(given, start, end)
            start = end + 1


def decide_access(policy: Policy, access: FileAccess, *, cwd: str = DEFAULT_CWD) -> Decision:
    """May `access` happen under `policy`? Relative paths start in `cwd`. Never raises.

    The decision's `command` is a short text with the resolved path, such as `read /etc/hosts`.
    """
    text = str(access.resolved(cwd))
    words = tuple(access.words(cwd))
    blocked = [found for word in words for found in _blocked(policy, word, cwd)]
    if blocked:
        return decision_from(text, blocked[:1], kind="file access", cwd=cwd)
    report = Report(policy, text)
    _judge(access, words, FileRules(report, text, policy.roots or (cwd,)), WorkingFolder(cwd))
    findings = [*findings_on_all(policy, text, cwd), *report.findings]
    return decision_from(text, findings, kind="file access", cwd=cwd)


def _judge(
    access: FileAccess, words: tuple[Word, ...], files: FileRules, at: WorkingFolder
) -> None:
    path, *destination = words
    invocation = _operands_only(path, at.path or "/")
    if access.action in ("read", "list"):
        files.read(path, invocation, at, "lists" if access.action == "list" else "reads")
    elif access.action == "write":
        files.written("writes", path, invocation, [], at)
    else:
        if access.recursive:
            files.report.hit("recursive-delete", path, invocation)
        if access.action == "move":
            files.read(path, invocation, at)
        files.written("deletes", path, invocation, [], at)
    if access.action == "move":
        files.read(path, invocation, at)  # It can be read by its new name.
    for word in destination:
        if names_repository(path):
            files.report.hit("writes-git", path, invocation)
        files.written("writes", word, _operands_only(word, at.path or "/"), [], at)
        if word.static == "/dev/null":
            files.report.hit("mass-delete", word, invocation)


def _operands_only(word: Word, cwd: str) -> Invocation:
    """Return an invocation without a program, for rules with `operands`: every form of the path."""
    whole = absolute(word.shown, cwd)
    forms = [word.shown, whole]
    if within(whole, cwd) and whole != cwd:
        forms.append(whole.removeprefix(cwd.rstrip("/") + "/"))
    operands = tuple(literal_word(form, word.start, word.end) for form in dict.fromkeys(forms))
    return Invocation("", "", PLAIN, Arguments((), operands, ()), operands, word)


def _blocked(policy: Policy, word: Word, cwd: str) -> Iterator[Finding]:
    """Yield the findings about block patterns in the path, as given and resolved."""
    for path in (word.shown, absolute(word.shown, cwd)):
        found = blocked_pattern(policy, path, "path")
        if found is not None:
            yield replace(found, start=word.start, end=word.end)


def _unparsable(text: str) -> ConfigurationError:
    return ConfigurationError(f"{short_repr(text)} does not describe a file access")


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str):
        raise ConfigurationError(f"`{name}` is {short_repr(path)}; it must be text")
    if not path:
        raise ConfigurationError(f"`{name}` is empty")
    if "\0" in path:
        raise ConfigurationError(f"`{name}` contains a NUL character")
    if len(path) > _LONGEST_PATH:
        raise ConfigurationError(f"`{name}` is longer than {_LONGEST_PATH} characters")
