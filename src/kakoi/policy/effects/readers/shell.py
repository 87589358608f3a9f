"""Readers for shell builtins and for programs that start other programs.

A reader takes an invocation whose arguments are a language of their own and returns its effects.
`programs/*.yaml` names the reader of a program.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.programs import Effect, Invocation
from kakoi.policy.parsing.parser import parse
from kakoi.policy.parsing.script import Script
from kakoi.policy.parsing.words import (
    FOUND,
    STDIN_NAMES,
    Expands,
    Expansion,
    Literal,
    Part,
    Word,
    literal_word,
    make_word,
)

Reader = Callable[[Invocation], list[Effect]]

_NAME: Final = pattern(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNED: Final = pattern(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=")


def placeholder(word: Word) -> Word:
    """Return unknown words at the position of `word`."""
    return make_word((Expansion(Expands.FED),), word.start, word.end)


# ── wrappers ─────────────────────────────────────────────────────────────────────────────────


def read_env(invocation: Invocation) -> list[Effect]:
    """`env -S 'cmd args'`, and `NAME=value…` before the command."""
    found: list[Effect] = []
    operands = invocation.arguments.operands
    if operands and operands[0].static == "-":  # The same as `-i`.
        operands = operands[1:]
    split = invocation.arguments.named("-S", "--split-string")
    if split is not None and split.value is not None:
        # env reads its options again from the split text, so everything after it belongs to it.
        words = invocation.words
        at = words.index(split.word) + 1
        at += at < len(words) and words[at] is split.value
        return _split_string(split.value, words[at:])
    for at, word in enumerate(operands):
        if not ASSIGNED.match(word.prefix):
            found.append(Effect("runs", word, operands[at:]))
            break
        found.append(Effect("sets", word))
    return found


def _split_string(text: Word, rest: tuple[Word, ...]) -> list[Effect]:
    """`env -S TEXT ARG…`: the text is split into words for env itself, and the arguments follow."""
    # After a backslash env reads characters differently from the shell: `\\_` is a blank to it.
    readable = text.static is not None and "\\" not in text.static
    script = parse(text.static) if readable and text.static is not None else None
    commands = script.commands if isinstance(script, Script) else ()
    # env expands no globs and has no redirects or lists, so such a text is not what it seems.
    odd = [c for c in commands if c.redirects or any(word.text is None for word in c.words)]
    if len(commands) != 1 or odd:
        return [Effect("hidden-text", text)]
    sets = [f"{a.name}={a.value.shown if a.value else ''}" for a in commands[0].assignments]
    texts = ["env", *sets, *(word.text or "" for word in commands[0].words)]
    words = tuple(literal_word(each, text.start, text.end) for each in texts)
    return [Effect("runs", words[0], (*words, *rest))]


def read_watch(invocation: Invocation) -> list[Effect]:
    """`watch` passes its words to `sh -c`, joined by blanks, unless `-x` makes it exec them."""
    operands = invocation.arguments.operands
    if not operands:
        return []
    if invocation.arguments.named("-x", "--exec"):
        return [Effect("runs", operands[0], operands)]
    texts = [word.static for word in operands]
    if any(text is None for text in texts):
        return [Effect("hidden-text", operands[0])]
    joined = literal_word(" ".join(str(t) for t in texts), operands[0].start, operands[-1].end)
    return [Effect("runs-shell", joined)]


def read_command(invocation: Invocation) -> list[Effect]:
    """`command NAME…` runs it; `command -v NAME` only looks it up."""
    operands = invocation.arguments.operands
    if not operands or invocation.arguments.named("-v", "-V"):
        return []
    return [Effect("runs", operands[0], operands)]


def read_xargs(invocation: Invocation) -> list[Effect]:
    """xargs appends unknown words to the command, or puts them in place of `{}`."""
    operands = invocation.arguments.operands
    if not operands:
        return []
    option = invocation.arguments.named("-I", "-i", "--replace")
    if option is None:
        return [Effect("runs", operands[0], (*operands, placeholder(operands[-1])), "xargs")]
    mark = (option.value.static if option.value else None) or "{}"
    argv, found = _in_code(operands, mark)
    argv = tuple(_fill(word, mark) for word in argv)
    return [*found, Effect("runs", operands[0], argv, "xargs")]


def _fill(word: Word, mark: str) -> Word:
    """Return the word with every `mark` replaced by something unknown."""
    text = word.text
    if text is None or mark not in text:
        return word
    parts: list[Part] = []
    for at, piece in enumerate(text.split(mark)):
        if at:
            parts.append(Expansion(Expands.FED))
        if piece:
            parts.append(Literal(piece, True))
    return make_word(tuple(parts), word.start, word.end)


_FD_MARKS: Final = pattern(r"\{(?:/|//|\.|/\.)?\}")


def with_marks(argv: tuple[Word, ...], folder: Word | None = None) -> tuple[Word, ...]:
    """Return fd's command with a path below `folder` in place of `{}`, else appended."""
    found = Expansion(Expands.SHAPE, True, "./_")
    if folder is not None:
        found = Expansion(Expands.SHAPE, True, re.sub("^~", "/home/user", folder.prefix) + "/_")
    marked = [bool(word.text and _FD_MARKS.search(word.text)) for word in argv]
    if not any(marked):
        return (*argv, make_word((found,), argv[-1].start, argv[-1].end))
    words: list[Word] = []
    for word, is_marked in zip(argv, marked, strict=True):
        pieces = _FD_MARKS.split(word.text or "") if is_marked else []
        parts: list[Part] = [part for piece in pieces for part in (found, Literal(piece, True))][1:]
        filled = tuple(part for part in parts if isinstance(part, Expansion) or part.text)
        words.append(make_word(filled, word.start, word.end) if is_marked else word)
    return tuple(words)


_INTERPRETER: Final = pattern(r"(?:ba|da|z|k|a)?sh|python[\d.]*|node|ruby|perl|php")
_CODE_OPTIONS: Final = pattern(r"-[a-z]*[cer]|--eval|--print")


def _in_code(argv: tuple[Word, ...], mark: str) -> tuple[tuple[Word, ...], list[Effect]]:
    """A mark inside the code for `sh -c` or `python -c`: file names become part of the program.

    The code is judged with a placeholder, and the user is asked: a file can have any name.
    """
    words, found = list(argv), []
    if not _INTERPRETER.fullmatch((argv[0].static or "").split("/")[-1] if argv else ""):
        return argv, []
    for at, word in enumerate(argv[1:], 1):
        text = word.text
        if text and mark in text and _CODE_OPTIONS.fullmatch(argv[at - 1].static or ""):
            words[at] = literal_word(text.replace(mark, "_"), word.start, word.end)
            found.append(Effect("mark-in-code", word))
    return tuple(words), found


_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_WRITES: Final = frozenset({"-fprint", "-fprint0", "-fprintf", "-fls"})
_FIND_VALUES: Final = frozenset(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -xtype "
    "-size -mtime -atime -ctime -mmin -amin -cmin -newer -anewer -cnewer -perm -user -group -uid "
    "-gid -maxdepth -mindepth -depth-max -printf -links -inum -samefile -fstype -used -context "
    "-regextype -files0-from".split()
)


def read_find(invocation: Invocation) -> list[Effect]:
    """find: its expression can have `-exec … ;`, `-delete`, `-fprint file`."""
    words = invocation.words[1:]
    found: list[Effect] = []
    starts = _find_roots(words)
    runs = any(word.static in _FIND_RUNS for word in words)
    at = 0
    while at < len(words):
        word = words[at]
        name = word.static if word.static is not None else word.prefix
        at += 1
        if name in _FIND_RUNS:
            argv, at = _until_semicolon(words, at)
            argv, asked = _in_code(argv, "{}")
            found += asked
            filled = tuple(_found_path(each, starts) for each in argv)
            found += [Effect("runs", filled[0], filled, "find")] if filled else []
        elif name == "-delete":
            kind = "finds-generated" if _finds_generated(words) else "mass-delete"
            found.append(Effect(kind, word))
            found += [Effect("deletes", start) for start in starts]
        elif name in _FIND_WRITES and at < len(words):
            found.append(Effect("writes", words[at]))
            at += 1
        elif name in _FIND_VALUES or name.startswith("-newer"):
            if runs or name == "-files0-from":
                found += [Effect("reads", value) for value in words[at : at + 1]]
            at += 1
        elif (word.text is None and not word.prefix) or (word.glob and name[:1] == "-"):
            found.append(Effect("unclear-option", word))
    return found + [Effect("lists", start) for start in starts]


_FINDS_GENERATED: Final = pattern(
    r"(?:(?![-(!/~])(?!\S*\.\.)\S+ )*(?:-(?:maxdepth|mindepth) \d+ |-type [fd] )*"
    r"-i?name "
    r"(?:\*\.py[co]|\*\.(?:o|class|orig|rej|swp)|\*~|__pycache__|\.DS_Store)(?: -type [fd])?"
    r"(?: -print)? -delete"
)


def _finds_generated(words: tuple[Word, ...]) -> bool:
    """`find . -name '*.pyc' -delete`: only what can be generated again, and nothing else."""
    texts = [word.static or "\0" for word in words]
    return _FINDS_GENERATED.fullmatch(" ".join(texts)) is not None


def _find_roots(words: tuple[Word, ...]) -> list[Word]:
    roots: list[Word] = []
    for word in words:
        if word.static in ("-H", "-L", "-P"):
            continue
        if word.prefix[:1] in ("-", "(", "!"):
            break
        roots.append(word)
    return roots


def _until_semicolon(words: tuple[Word, ...], at: int) -> tuple[tuple[Word, ...], int]:
    for end in range(at, len(words)):
        if words[end].static == ";" or (
            words[end].static == "+" and end > at and words[end - 1].static == "{}"
        ):
            return words[at:end], end + 1
    return words[at:], len(words)


def _found_path(word: Word, starts: list[Word]) -> Word:
    """`{}` is a path below the start of the search; with one plain start its beginning is known."""
    text = word.text
    if text is None or "{}" not in text:
        return word
    known = starts[0].text if len(starts) == 1 else ("." if not starts else None)
    if known and text.startswith("{}"):
        known = re.sub(r"^~(?=/|$)", "/home/user", known) if starts and starts[0].tilde else known
        known = known.rstrip("/") + "/" if known.strip("/") else "/"
        unknown = Expansion(Expands.VARIABLE, True, FOUND)
        return make_word((*literal_word(known, 0, 0).parts, unknown), word.start, word.end)
    return _fill(word, "{}")


_ACTIVATE: Final = pattern(r"/?(?:[\w.-]+/)*bin/activate")
_SHELL_FILES: Final = frozenset({"--rcfile", "--init-file"})


def read_shell(invocation: Invocation) -> list[Effect]:
    """`sh -c TEXT`, `sh FILE`, or `sh` that reads its program from standard input."""
    words = invocation.words
    text = syntax_only = from_stdin = interactive = False
    at = 1
    while at < len(words):
        known = words[at].prefix
        if words[at].text is None and not known:
            break
        if known in _SHELL_FILES:
            return [Effect("loads", words[at])]
        if known[:1] not in "-+" or known in ("-", "--"):
            at += known in ("-", "--")
            break
        if known in ("--version", "--help"):
            return []
        if not known.startswith("--"):
            text = text or "c" in known[1:]
            from_stdin = from_stdin or "s" in known[1:]
            interactive = interactive or "i" in known[1:]
            syntax_only = known == "-n" or (syntax_only and known[:1] != "+")
        # `-euo pipefail`: an `o` or `O` at the end of a cluster takes the next word.
        at += 2 if known[-1:] in "oO" and not known.startswith("--") else 1
    rest = words[at:]
    found = [Effect("interactive-shell", words[0])] if interactive else []
    if text:
        # Arguments of the text are data, unless the text evaluates them.
        found += [Effect("arithmetic-text", w) for w in rest[1:] if re.search(r"\$\(|`", w.shown)]
        return [*found, Effect("runs-shell", rest[0])] if rest else []
    if syntax_only:
        return [Effect("reads", word) for word in rest[:1]]
    if not rest or from_stdin or rest[0].static in STDIN_NAMES:
        return [*found, Effect("runs-stdin", words[0], text="sh")]
    return [*found, Effect("runs-file", rest[0])]


# ── variables and shell state ────────────────────────────────────────────────────────────────


def read_test(invocation: Invocation) -> list[Effect]:
    """`test -v NAME` evaluates a subscript in NAME. Everything else only compares."""
    return [
        Effect("arithmetic-text", word)
        for before, word in pairwise(invocation.words)
        if (before.static in ("-v", "-R") and not _NAME.fullmatch(word.static or ""))
        # The word before it can turn out to be `-v`.
        or (before.text is None and re.search(r"\[.*(?:\$\(|`)", word.text or "", re.DOTALL))
    ]


def read_names(invocation: Invocation) -> list[Effect]:
    """Operands that name variables: `read`, `unset`, `export`, `getopts`, `mapfile`."""
    return [Effect("sets", word) for word in invocation.arguments.operands]


def read_set(invocation: Invocation) -> list[Effect]:
    """`set -euo pipefail` is harmless; `set -k`, `-o posix` and others change how text is read."""
    found: list[Effect] = []
    words = invocation.words[1:]
    at = 0
    while at < len(words):
        text = words[at].static
        if text == "--" or (text is not None and text[:1] not in "-+"):
            break
        if text is None or set(text[1:]) - set("aefhmnuvxCEHTBob"):
            found.append(Effect("shell-state", words[at]))
        if text is not None and text[-1:] == "o":
            at += 1
            if at < len(words) and words[at].static not in _SET_OPTIONS:
                found.append(Effect("shell-state", words[at]))
        at += 1
    return found


_SET_OPTIONS: Final = frozenset(
    "errexit nounset pipefail xtrace verbose noglob noclobber allexport errtrace functrace "
    "monitor notify noexec".split()
)
_SHOPTS: Final = frozenset(
    "globstar nullglob dotglob nocaseglob nocasematch failglob inherit_errexit "
    "checkwinsize globasciiranges".split()
)


def read_shopt(invocation: Invocation) -> list[Effect]:
    """`shopt -s globstar` is harmless. `expand_aliases` and unknown options are not."""
    arguments = invocation.arguments
    if not arguments.named("-s", "-u"):
        return []
    # With nullglob a pattern without matches disappears, and the next word takes its place.
    unsure = [Effect("null-glob", w) for w in arguments.operands if w.static == "nullglob"]
    odd = [w for w in arguments.operands if w.static not in _SHOPTS]
    return unsure + [Effect("shell-state", word) for word in odd]


def read_source(invocation: Invocation) -> list[Effect]:
    """`source FILE`: only the `activate` script of a virtual environment is exempt."""
    return [
        Effect("sources-activate" if _ACTIVATE.fullmatch(word.text or "") else "sources-file", word)
        for word in invocation.arguments.operands[:1]
    ]


def read_kill(invocation: Invocation) -> list[Effect]:
    """Jobs of this text (`%1`, `$!`) are its own. Other processes are not."""
    own = [
        bool(re.fullmatch(r"%\w+", word.static or ""))
        # The whole word: if `$!` is empty, `1$!` is another process.
        or [getattr(part, "name", "") for part in word.parts] == ["!"]
        for word in invocation.arguments.operands
    ]
    return [] if own and all(own) else [Effect("ends-processes", invocation.words[0])]


def read_trap(invocation: Invocation) -> list[Effect]:
    """`trap TEXT SIGNAL…`: the text is a command of its own."""
    operands = invocation.arguments.operands
    if not operands or (operands[0].static in ("-", "") and len(operands) > 1):
        return []
    # A trap on DEBUG or RETURN runs between the commands that are judged.
    signals = {w: (w.static or "").upper().removeprefix("SIG") for w in operands[1:]}
    between = [w for w, signal in signals.items() if signal in ("DEBUG", "RETURN", "")]
    found = [Effect("trap-between", word) for word in between]
    return [*found, Effect("runs-here", operands[0])] if len(operands) > 1 else []


SHELL_READERS: Final[dict[str, Reader]] = {
    "env": read_env,
    "watch": read_watch,
    "command": read_command,
    "xargs": read_xargs,
    "find": read_find,
    "shell": read_shell,
    "test": read_test,
    "names": read_names,
    "set": read_set,
    "shopt": read_shopt,
    "trap": read_trap,
    "source": read_source,
    "kill": read_kill,
}
