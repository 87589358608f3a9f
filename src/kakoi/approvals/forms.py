"""Which commands can be remembered, in which form, and what they change.

Only the forms of `_FORMS` can be. Words are kept as typed, except for a few arguments whose value a
person does not care about: `git push origin fix-1` becomes `git push origin <branch>`. An option
that a form does not have (`--force`, `-C`, `--no-verify`) makes it another command.

    asked_commands(decide(policy, "make && git push origin fix-1"))
        == (AskedCommand(("git", "push", "origin", "<branch>"), "/workspace/project"),)
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.decide import Decision, Finding
from kakoi.policy.judging.folders import WorkingFolders
from kakoi.policy.judging.values import Values
from kakoi.policy.parsing.parser import Reading, readings
from kakoi.policy.parsing.script import Redirect, Script, SimpleCommand
from kakoi.policy.parsing.words import Word
from kakoi.policy.rules import REMEMBERED_RULES, Verdict

# `=`: a name, kept as typed. `<…>`: any value of that kind. A last word with `…` can be several.
_FORMS: Final = """
adds files to the next commit
    git add <path>…; git add .; git add -A; git add --all; git add -u
makes a commit in this repository
    git commit -m <text>; git commit -m <text> -m <text>; git commit -am <text>
    git commit -a -m <text>; git commit --message <text>
sends commits to the remote
    git push; git push =; git push = <branch>; git push -u = <branch>
    git push --set-upstream = <branch>; git push = =; git push -u = =
fetches commits from the remote
    git fetch; git fetch =; git fetch = <branch>; git fetch = =; git fetch --all; git fetch --prune
fetches commits from the remote, and merges them into this branch
    git pull; git pull =; git pull = <branch>; git pull = =; git pull --ff-only; git pull --rebase
    git pull --rebase = <branch>; git pull --rebase = =; git pull --ff-only = <branch>
    git pull --ff-only = =
makes a branch, or switches to one
    git checkout -b <branch>; git checkout -b <branch> =; git switch <branch>; git switch =
    git switch -c <branch>; git switch -c <branch> =
merges a branch into this one
    git merge <branch>; git merge --no-ff <branch>; git merge --ff-only <branch>
    git merge =
goes on with a merge, a rebase or a cherry-pick, or gives it up
    git merge --continue; git merge --abort; git rebase --continue; git rebase --abort
    git cherry-pick --continue; git cherry-pick --abort
puts changes aside, or brings them back
    git stash; git stash push; git stash pop
takes files out of the next commit, and keeps them
    git restore --staged <path>…; git reset HEAD <path>…; git rm --cached <path>…
makes a repository
    git init; git init =
writes to the forge under your account
    gh pr create --fill; gh pr create --title <text> --body <text>
    gh pr create --draft --title <text> --body <text>; gh pr ready <number>
    gh pr comment <number> --body <text>; gh pr checkout <number>
    gh issue create --title <text> --body <text>; gh issue comment <number> --body <text>
    gh run rerun <number>; glab mr create --fill
    glab mr create --title <text> --description <text>
    glab mr note <number> -m <text>; glab issue note <number> -m <text>
    glab issue create --title <text> --description <text>
"""
_MOST_WORDS: Final = 64
_LONGEST_TEXT: Final = 4096
_NAME: Final = pattern(r"(?=.{1,100}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]|[./](?=[A-Za-z0-9_-]))*")
_NUMBER: Final = pattern(r"[0-9]{1,10}")
# Pushing to one of these, or a tag, is more than pushing to a branch of one's own.
_SHARED_BRANCH: Final = pattern(
    r"(?i:head|main|master|trunk|dev|devel|develop|development|next|stable|staging|prod|production"
    r"|live|gh-pages|pages|(?:release|releases|hotfix|env|deploy|tags|refs|heads)(?:[/-].*)?)"
    r"|[vV]?[0-9]+(?:[.][0-9]+)*.*|[A-Z_]+"
)
_PATH_PART: Final = pattern(r"[A-Za-z0-9_][^\x00-\x1f\x7f:*?\[\]\\]*")
# After one of these, later commands of the text can mean something else.
_CHANGES_SHELL: Final = frozenset(
    ". source eval exec export unset alias unalias declare typeset local readonly set shopt hash"
    " enable trap builtin command env sudo su doas read mapfile readarray getopts printf let"
    " pushd popd dirs complete compgen bind ulimit umask coproc time function".split()
)


@dataclass(frozen=True, slots=True)
class AskedCommand:
    """One command that a person is asked about: the form to remember, and where it runs."""

    form: tuple[str, ...]
    directory: str

    @property
    def text(self) -> str:
        """The form for people: `git push origin <branch>`."""
        return form_text(self.form)


def form_text(form: Sequence[str]) -> str:
    """Return a form as people read it."""
    return " ".join(word if word[:1] == "<" else shlex.quote(word) for word in form)


def is_form(words: Sequence[str]) -> bool:
    """Whether `words` is a form of the table, with its names filled in."""
    return any(
        len(words) == len(form)
        and all(
            bool(_NAME.fullmatch(word)) if wanted == "=" else word == wanted
            for word, wanted in zip(words, form, strict=True)
        )
        for form in _forms()
    )


def asked_commands(decision: Decision) -> tuple[AskedCommand, ...]:
    """Return every command that the decision asks about; empty if one cannot be remembered."""
    if decision.verdict is not Verdict.ASK or decision.kind != "command" or not decision.cwd:
        return ()
    asking = [each for each in decision.findings if each.verdict is Verdict.ASK]
    if len(decision.command) > _LONGEST_TEXT or any(
        each.rule not in REMEMBERED_RULES for each in asking
    ):
        return ()
    found: set[tuple[AskedCommand, ...]] = set()
    # In every shell: a text that one of them reads differently is not remembered.
    for reading in readings(decision.command, "sh"):
        if not isinstance(reading, Reading) or not _is_plain(reading.script):
            return ()
        found.add(_asked_in(reading, decision.cwd, asking))
    return found.pop() if len(found) == 1 else ()


def changes_of(decision: Decision) -> tuple[str, ...]:
    """Return what the commands that the decision asks about would change, for people."""
    sentences = _sentences()
    known = dict.fromkeys(
        sentences[form]
        for command in asked_commands(decision)
        for form in _forms()
        if _form_of(form, command.form) is not None
    )
    if known:
        return tuple(known)
    asking = (each.reason for each in decision.findings if each.verdict is Verdict.ASK)
    return tuple(dict.fromkeys(asking))


def _asked_in(reading: Reading, cwd: str, asking: Sequence[Finding]) -> tuple[AskedCommand, ...]:
    script = reading.script
    values, folders = Values(script, {}, posix=reading.posix), WorkingFolders(cwd, script)
    left, commands = list(asking), []
    for index, command in enumerate(script.commands):
        about = [each for each in left if command.start <= each.start and each.end <= command.end]
        folder = folders.of(command)
        folders.follow(command, index, values)
        # `-m "$(cat <<'EOF' … EOF)"` spells its message out.
        variants = list(values.variants(command.words, index))
        if not about:
            continue
        left = [each for each in left if each not in about]
        form = _form_of_command(command, variants[0]) if len(variants) == 1 else None
        if form is None or folder.path is None or folder.others:
            return ()
        commands.append(AskedCommand(form, folder.path))
    return () if left else tuple(dict.fromkeys(commands))


def _is_plain(script: Script) -> bool:
    """Whether its commands do what their words say, and nothing changes the shell on the way."""
    if script.definitions or script.bindings or script.traps or script.evaluates or script.hidden:
        return False
    return not any(
        command.assignments
        or command.function
        or command.background
        or command.repeats
        or (command.words and (command.words[0].static or ".") in _CHANGES_SHELL)
        for command in script.commands
    )


def _form_of_command(command: SimpleCommand, variant: tuple[Word, ...]) -> tuple[str, ...] | None:
    words = [_value(word) for word in variant]
    fed = command.feeders or any(map(_opens_a_file, command.redirects))
    if fed or len(words) > _MOST_WORDS or None in words:
        return None
    typed = [word for word in words if word is not None]
    if any(word == "=" or word.startswith("<") for word in typed):
        return None  # Otherwise it could pass for a word of a form.
    return next((form for each in _forms() if (form := _form_of(each, typed)) is not None), None)


def _value(word: Word) -> str | None:
    return None if word.from_braces else word.static


def _opens_a_file(redirect: Redirect) -> bool:
    silent = redirect.writes and redirect.target.static == "/dev/null"
    return not (silent or redirect.copies_descriptor)


def _form_of(form: tuple[str, ...], words: Sequence[str]) -> tuple[str, ...] | None:
    """Return `form` with its names filled in, if the words fit; a form fits itself."""
    if not form[-1].endswith("…"):
        spread: Sequence[str] = form
    else:
        spread = (*form[:-1], *[form[-1][:-1]] * max(1, len(words) - len(form) + 1))
        if len(words) == len(form) and words[-1] == form[-1]:
            spread = form
    if len(spread) != len(words):
        return None
    for wanted, word in zip(spread, words, strict=True):
        if wanted != word and not _fits(wanted, word):
            return None
    return tuple(
        words[at] if wanted == "=" else wanted for at, wanted in enumerate(form[: len(words)])
    )


def _fits(wanted: str, word: str) -> bool:
    match wanted:
        case "=":
            return _NAME.fullmatch(word) is not None
        case "<branch>":
            return _is_own_branch(word)
        case "<number>":
            return _NUMBER.fullmatch(word) is not None
        case "<path>":
            return _is_visible_path(word)
        case "<text>":
            return bool(word) and not word.startswith(("-", "<"))
    return False


def _is_own_branch(word: str) -> bool:
    if not _NAME.fullmatch(word) or word.endswith(".lock"):
        return False
    return _SHARED_BRANCH.fullmatch(word) is None


def _is_visible_path(word: str) -> bool:
    """Whether it is a relative path without `..`, hidden names, or a pathspec of git's own."""
    return all(_PATH_PART.fullmatch(part) for part in word.removesuffix("/").split("/"))


@cache
def _sentences() -> Mapping[tuple[str, ...], str]:
    return dict(_read_forms())


@cache
def _forms() -> tuple[tuple[str, ...], ...]:
    return tuple(_sentences())


def _read_forms() -> Iterator[tuple[tuple[str, ...], str]]:
    sentence = ""
    for line in _FORMS.strip().splitlines():
        if not line.startswith(" "):
            sentence = line
            continue
        for form in re.split(r";\s*", line.strip()):
            yield tuple(form.split()), sentence
