"""Words that look like paths, whatever the program does with them: `--config=~/x`, `-f/etc/y`.

The data of a program says which of its options name files. Nobody knows every option of every
program, so a word that plainly names a place counts as one that is read.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.programs import Effect, Invocation
from kakoi.policy.parsing.words import Word, literal_word

# Where a path can begin: at the start, behind a letter of an option, or behind `=` and others.
_BEGINS: Final = pattern(r"(?:(?:^-\w)?|(?<=[=,:@<]))(?:/(?!/)|~(?=/|$)|\.\./)")
# Where an expansion can begin one: `--file="$HOME/x"`.
_ENDS_OPEN: Final = pattern(r"(?:^-\w|[=,:@<]|^)$")
# Their words are judged by the readers themselves: wrappers, expressions, programs of one line.
_SELF_READ: Final = frozenset(
    "env watch command xargs find shell test names set shopt trap source kill sed awk links chmod"
    " hosts config-words".split()
)
# Of these, only the options are their own.
_WRAPPING: Final = frozenset(
    {"runs", "runs-project", "runs-package", "runs-script", "runs-script-named", "package"}
)
_WITH_COMMANDS: Final = frozenset({"sqlite", "database"})
# A path in code that mentions the home directory, and is joined to it: `home + "/.netrc"`.
_MENTIONS_HOME: Final = pattern(
    r"\bHOME\b|homedir|Dir\.home|expand_?(?:user|path)|Path\.home|USERPROFILE"
)
_BELOW_HOME: Final = pattern(r"""(['"`])/?([.\w-]*(?:\.[A-Za-z]|/)[\w./-]*)\1""")
# A path in a piece of code: `readfile('/etc/shadow')` of SQL, `load_str("~/x")` of yq.
_QUOTED: Final = pattern(r"""(['"`])((?:/(?!/)|~/|\.\./)[^'"`\s]*)\1""")
# The others search for their pattern, wherever it occurs.
_PATTERN_IS_CODE: Final = frozenset({"yq", "gojq", "miller"})
_LONGEST: Final = 4096


def named_paths(invocation: Invocation, found: Iterable[Effect]) -> Iterator[Effect]:
    """Yield a `names` for each path in a word that no effect in `found` is about."""
    spec = invocation.spec
    if spec.operands == "words" or spec.reader in _SELF_READ:
        return
    judged = {id(effect.word) for effect in found}
    if spec.operands in _WRAPPING:
        judged |= {id(word) for word in invocation.arguments.operands}
    judged |= {id(word) for effect in found for word in effect.argv}
    judged |= {id(effect.option) for effect in found if effect.option is not None}
    patterns = list(_patterns(invocation))
    judged |= {id(word) for word in patterns}
    if invocation.program in _PATTERN_IS_CODE:
        yield from (Effect("names", path) for word in patterns for path in _quoted_in(word))
    for word in invocation.words[1:]:
        if id(word) not in judged and len(word.prefix) <= _LONGEST:
            spaced = spec.reader in _WITH_COMMANDS
            yield from (Effect("names", path) for path in _paths_in(word, spaced=spaced))


def code_paths(word: Word) -> Iterator[Effect]:
    """Yield a `names` for each path in the strings of a piece of code."""
    yield from (Effect("names", path) for path in _quoted_in(word))
    text = word.shown
    if len(text) <= _LONGEST and _MENTIONS_HOME.search(text):
        for path in _BELOW_HOME.finditer(text):
            yield Effect("names", literal_word(f"/home/user/{path[2]}", word.start, word.end))


def _patterns(invocation: Invocation) -> Iterator[Word]:
    """Yield the words that are patterns or texts and not names of files."""
    spec, arguments = invocation.spec, invocation.arguments
    if arguments.named(*spec.pattern_options) is None:
        yield from arguments.operands[: spec.skip]
    for option in arguments.options:
        if option.value is not None and not spec.pattern_options.isdisjoint(option.names):
            yield option.value
            yield option.word


def _quoted_in(word: Word) -> Iterator[Word]:
    for quoted in _QUOTED.finditer(word.prefix):
        yield literal_word(quoted[2], word.start, word.end)


def _paths_in(word: Word, *, spaced: bool = False) -> Iterator[Word]:
    known = word.prefix
    if spaced:
        names = re.findall(r"(?<=\s)(?:/|~/|\.\./)[^\s'\";)]+", known)
        yield from (literal_word(name, word.start, word.end) for name in names)
    yield from _quoted_in(word)
    if re.search(r"\s|://", known):
        return
    if word.text is None and not known and not any(p.name == "HOME" for p in word.expansions()):
        return
    for begins in _BEGINS.finditer(known):
        at = begins.start() + (2 if begins[0].startswith("-") else 0)
        yield word.after(at) if at else word
    if word.text is None and (open_end := _ENDS_OPEN.search(known)):
        yield word.after(open_end.end()) if known else word
