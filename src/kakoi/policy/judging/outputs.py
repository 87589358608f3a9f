"""What a command prints, as far as its text shows: a number, a plain name, a path below here.

A *shape* stands for one line of output: `_` is neither an option nor a path, `./_` is a path below
the working directory of the command, and `/home/user/_` is a path that is always outside. A command
has a shape only if no argument can make it print anything else: `date +-rf` prints an option, so
its format must be plain.
"""

import re
from collections.abc import Sequence
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.parsing.script import SimpleCommand
from kakoi.policy.parsing.words import Word

PATH_BELOW: Final = "./_"
NUMBER: Final = "0"
_NAME: Final = "_"
# Where the toolchain of Go keeps what it fetches.
_OF_GO: Final = "/home/user/go/_"
_PRINTED: Final = {
    **dict.fromkeys("date whoami id uname arch".split(), _NAME),
    **dict.fromkeys("nproc wc seq".split(), NUMBER),
    **dict.fromkeys(("pkg-config", "python3-config", "llvm-config"), "-I_"),
    "pwd": ".",
    "mktemp": "/tmp/_",  # noqa: S108
}
_PLAIN_WORD: Final = pattern(
    r"(?:\+(?!-))?(?:%(?![nt])|[\w.:@^~-])*(?<!\.\.)|\d+|-[a-zA-Z]|-\d+|--(?:short|abbrev)(?:=\d+)?"
    r"|--(?:format|pretty)=(?:format:)?%[hH]"
    r"|--(?:tags|always|long|abbrev-ref|verify|show-toplevel|show-current|count|exact-match|quiet|utc"
    r"|iso-8601|all|octopus|cflags|libs|no-merges|reverse)"
)
_PLAIN_REF: Final = pattern(r"--|[\w][\w./@^~-]*(?<!\.\.)")
_PLAIN_GIT: Final = frozenset(
    "rev-parse merge-base describe rev-list symbolic-ref branch log".split()
)
_PATH_GIT: Final = frozenset("ls-files diff ls-tree".split())
_FIND_PRINTS_MORE: Final = frozenset(
    "-printf -fprintf -exec -execdir -ok -okdir -ls -files0-from".split()
)
# Options that make it print anything other than file names.
_PRINTS_MORE: Final = {
    "ls": pattern(r"-[A-Za-z]*[lsignoZ]|--(?:form|time|quot|size|inode|hyper|context)"),
    "fd": pattern(r"-[A-Za-z]*[lxX]|--(?:form|exec|list|path-s|hyper)"),
    "grep": pattern(r"--lab"),
    "rg": pattern(r"--(?:path-s|hyper|json)"),
}
_GIT_PRINTS_MORE: Final = pattern(
    r"--(?!diff-filter=|exclude=|abbrev=)[\w-]+=|--(?:form|line-p|src|dst)"
)
# Programs that pass lines on as they are, if they read nothing but their input.
_SIEVES: Final = frozenset("head tail sort uniq wc".split())


def printed_by_pipeline(commands: Sequence[SimpleCommand], indexes: tuple[int, ...]) -> str | None:
    """Return the shape of a pipeline's output; None for a list of commands, or if unknown."""
    first, *rest = commands
    if _numbers_lines(first) and rest and _cuts_number(rest, indexes):
        return NUMBER
    for at, command in enumerate(rest, 1):
        if not set(indexes[:at]) <= set(command.feeders) or not _passes_on(command):
            return None
    return NUMBER if _counts(first) else printed_by(first)


def printed_by(command: SimpleCommand) -> str | None:
    """Return the shape of a line that `command` prints; None if unknown."""
    program = command.words[0].static if command.words else None
    words = command.words[1:]
    if program == "git":
        return _printed_by_git(words)
    if program == "find":
        return PATH_BELOW if _searches_below(words) else None
    if program in ("ls", "fd") or (program in ("grep", "rg") and _lists_files(words)):
        more = _PRINTS_MORE[program]
        plain = all(_stays_below(word) and not more.match(word.prefix) for word in words)
        return PATH_BELOW if plain else None
    if program == "go" and len(words) == 2 and words[0].static == "env":
        return _OF_GO if _plain(words) else None
    if program == "npm" and len(words) == 1 and words[0].static in ("root", "prefix"):
        return PATH_BELOW
    if program == "mktemp":
        return _PRINTED["mktemp"] if all(w.static in ("-d", "-t", "-q") for w in words) else None
    if program in ("which", "echo") and len(words) == 1:
        text = plain_output(words[0].static)
        return text if program == "echo" or text is None else f"/usr/bin/{text.lstrip('/')}"
    if program == "wc" and any(not word.prefix.startswith("-") for word in words):
        return None
    if program == "seq" and any(not re.fullmatch(r"\d+", word.static or "") for word in words):
        return None
    return _PRINTED.get(program or "") if _plain(words) else None


def found_below(command: SimpleCommand) -> str | None:
    """Return the folder outside this one whose files a command lists; None if it is not certain."""
    program = command.words[0].static if command.words else None
    if program not in ("find", "ls", "fd", "fdfind", "locate", "grep", "rg"):
        return None
    for word in command.words[1:]:
        known = word.text if word.text is not None else word.prefix
        if word.tilde or re.match(r"/(?!/)|~(?:/|$)|\.\./", known):
            return re.sub(r"^~", "/home/user", known)
    return None


def _counts(command: SimpleCommand) -> bool:
    """`grep -c PATTERN FILE`: one file or none, so that no name is printed."""
    return _greps_with(command, "c", r"-[ciEFwxv]+")


def _numbers_lines(command: SimpleCommand) -> bool:
    """`grep -n PATTERN FILE`: each line begins with its number and a colon."""
    return _greps_with(command, "n", r"-[niEFwxm]+\d*")


def _greps_with(command: SimpleCommand, letter: str, plain: str) -> bool:
    words = command.words[1:]
    options = [word for word in words if word.prefix[:1] == "-"]
    is_grep = bool(command.words) and command.words[0].static == "grep"
    is_plain = all(re.fullmatch(plain, word.static or "") for word in options)
    asked = any(letter in word.prefix for word in options)
    return is_grep and is_plain and asked and _one_file(words)


def _one_file(words: Sequence[Word]) -> bool:
    operands = [word for word in words if word.prefix[:1] != "-"]
    return len(operands) <= 2 and all(word.text is not None and not word.glob for word in operands)


def _cuts_number(rest: Sequence[SimpleCommand], indexes: tuple[int, ...]) -> bool:
    """`| head -1 | cut -d: -f1`: what is left of each line is its number."""
    for at, command in enumerate(rest, 1):
        if not set(indexes[:at]) <= set(command.feeders) or command.redirects:
            return False
    *before, last = rest
    texts = [word.static for word in last.words]
    cuts = texts in (
        ["cut", "-d:", "-f1"],
        ["cut", "-d", ":", "-f1"],
        ["cut", "-d", ":", "-f", "1"],
        ["cut", "-f1", "-d:"],
        ["awk", "-F:", "{print $1}"],
    )
    return cuts and all(map(_passes_on, before))


def plain_output(text: str | None) -> str | None:
    """Return `text` if it is one plain word, else None."""
    return text if re.fullmatch(r"[\w/][\w./-]*", text or "") else None


def heredoc_passed_on(commands: Sequence[SimpleCommand]) -> str | None:
    """Return the text of `$(cat <<'EOF' … EOF)`, if the commands are nothing else."""
    if len(commands) != 1 or len(commands[0].words) != 1 or commands[0].words[0].static != "cat":
        return None
    bodies = [redirect.body for redirect in commands[0].redirects if redirect.operator[:2] == "<<"]
    body = bodies[0] if len(bodies) == 1 == len(commands[0].redirects) else None
    return body.text.rstrip("\n") if body is not None and body.text is not None else None


def _passes_on(command: SimpleCommand) -> bool:
    program = command.words[0].static if command.words else None
    options = [word.static or "" for word in command.words[1:]]
    if program == "grep":
        patterns = [option for option in options if not option.startswith("-")]
        # `--label=NAME` makes it print a name that is not a file's.
        plain = not any(option.startswith("--la") for option in options)
        return len(patterns) == 1 and plain and not command.redirects
    numbers = all(re.fullmatch(r"-[\w.-]+|\d+", option) for option in options)
    return program in _SIEVES and numbers and not command.redirects


def _plain(words: Sequence[Word]) -> bool:
    """Whether no argument can put an option, a path or a second line into the output."""
    return all(word.static and _PLAIN_WORD.fullmatch(word.static) for word in words)


def _printed_by_git(words: Sequence[Word]) -> str | None:
    texts = [word.static or "" for word in words]
    sub = next((text for text in texts if not text.startswith("-")), "")
    if sub in _PATH_GIT and not any(map(_GIT_PRINTS_MORE.match, texts)):
        if "--no-index" in texts:
            return None
        # Without the option, a diff contains lines of the files.
        return PATH_BELOW if sub != "diff" or "--name-only" in texts else None
    if sub == "grep" and _lists_files(words):
        return PATH_BELOW if all(map(_stays_below, words)) else None
    refs = [word for word in words if not _PLAIN_REF.fullmatch(word.static or " ")]
    if sub not in _PLAIN_GIT or not _plain(refs):
        return None
    # It prints an unknown option unchanged.
    if sub == "rev-parse" and any(re.match(r"-[^-]", text) for text in texts):
        return None
    if sub == "log" and not any(re.search(r"=(?:format:)?%[hH]$", text) for text in texts):
        return None
    return "." if "--show-toplevel" in texts else _NAME


def _searches_below(words: Sequence[Word]) -> bool:
    texts = [word.static for word in words]
    if None in texts or not _FIND_PRINTS_MORE.isdisjoint(texts):
        return False
    roots = []
    for text in texts:
        if text is None or text[:1] in "-(!":
            break
        roots.append(text)
    return all(not root.startswith("/") and ".." not in root for root in roots)


def _stays_below(word: Word) -> bool:
    text = word.static if word.static is not None else (word.text if word.glob else None)
    return text is not None and not re.search(r"(?:^|=)[/~]|\.\.", text)


def _lists_files(words: Sequence[Word]) -> bool:
    return any(
        word.prefix.startswith("--files")
        or (word.prefix[:1] == "-" and word.prefix[1:2] != "-" and {"l", "L"} & set(word.prefix))
        for word in words
    )
