"""Words that look like paths, whatever the program does with them: `--config=~/x`, `-f/etc/y`.

The data of a program says which of its options name files. Nobody knows every option of every
program, so a word that plainly names a place counts as one that is read.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.programs import PLAIN, Effect, Invocation
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
# Effects of words that may name a path, which these say nothing about.
_ABOUT_NO_PATH: Final = frozenset(
    "package index unverified program-file loads-outside loads-code loads-file runs-hook "
    "odd-option app-object none runs-module".split()
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
# Options, and names before `=`, whose values are written, in whatever way they are spelled.
_WRITTEN: Final = (
    r"(?:out|outputs?|dest|destination|dist|logs?|reports?|cache|baseline|badge|pstats|prof|profile|trace|dump|save|write"
    r"|archive|filename|image|diag|artifacts?|coverage|junit|results?|screenshots?|videos?|downloads?|snapshots?|stats)"
)
_KIND: Final = (
    r"(?:dirs?|directory|files?|path|paths|name|location|folder|prefix|base|root|xml|html|json)"
)
_OUTPUT: Final = pattern(
    rf"--?(?:[\w.-]*[-_.]|[\w.]*(?=[A-Z]))?(?i:{_WRITTEN}[-_.]?{_KIND}?)(?:[.-]\w+)*(?:=|$)"
    rf"|-[DP][\w.-]*(?i:{_WRITTEN}|build|target)[-_.]?(?i:{_KIND})?="
    rf"|(?i:\w*{_WRITTEN}[-_.]?{_KIND}?|mochafile|\w*folder|destdir|outdir)="
)
_LONGEST: Final = 4096


def named_paths(invocation: Invocation, found: Iterable[Effect]) -> Iterator[Effect]:
    """Yield a `names` for each path in a word that no effect in `found` is about."""
    spec = invocation.spec
    if spec.operands == "words" or spec.reader in _SELF_READ:
        return
    if invocation.program in _PATTERN_IS_CODE:
        words = invocation.words[1:]
        yield from (Effect("names", path) for word in words for path in _quoted_in(word))
    candidates = [
        word
        for word in invocation.words[1:]
        if word.text is None
        or (("/" in word.text or "~" in word.text) and len(word.text) <= _LONGEST)
    ]
    if not candidates:
        return
    judged = set(map(id, _judged(invocation, found)))
    spaced = spec.reader in _WITH_COMMANDS
    for word in candidates:
        if id(word) not in judged and len(word.prefix) <= _LONGEST:
            yield from (Effect("names", path) for path in _paths_in(word, spaced=spaced))


def _judged(invocation: Invocation, found: Iterable[Effect]) -> Iterator[Word]:
    """Yield the words that effects are about, and those that name no file of this program."""
    for effect in found:
        if effect.kind not in _ABOUT_NO_PATH:
            yield effect.word
            yield from effect.argv
            if effect.option is not None:
                yield effect.option
    if invocation.spec.operands in _WRAPPING:
        yield from invocation.arguments.operands
    yield from _patterns(invocation)


def named_outputs(invocation: Invocation) -> Iterator[Effect]:
    """Yield a `writes` for each path behind a name that says so: `--report-dir=/x`, `output=/x`."""
    spec, words = invocation.spec, invocation.words
    if spec.operands in ("words", "runs") or spec.reader in _SELF_READ:
        return
    # `-o` of a program without data, or of a subcommand of another program than git.
    short_is_output = spec is PLAIN or (bool(invocation.subcommand) and invocation.program != "git")
    for at, word in enumerate(words):
        known = word.prefix if word.text is None else word.text
        # No name is shorter, but for `-o`.
        if not at or not (
            "=" in known or known[:2] == "-o" or (known[:1] == "-" and len(known) > 3)
        ):
            continue
        named = _OUTPUT.match(known) if len(known) <= _LONGEST else None
        if short_is_output and known[:2] == "-o" and not known[2:].strip("="):
            named = re.match("-o=?", known)
        if named is None or spec.knows(known.partition("=")[0]):
            continue
        if named[0].endswith("="):
            value = word.after(named.end())
            behind = re.match(r"[\w.-]*:(?=[/~])", value.prefix)  # `--x_out=plugins:/path`
            yield from _output(value.after(behind.end()) if behind else value, word)
        elif word.static == named[0] and at + 1 < len(words):
            yield from _output(words[at + 1], word)


def _output(value: Word, option: Word) -> Iterator[Effect]:
    # `--log-level`, `--output json`: only what looks like a path is one.
    if value.tilde or re.match(r"/|~|\.\.|.*/\.\./", value.prefix):
        yield Effect("writes", value, option=option)


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
