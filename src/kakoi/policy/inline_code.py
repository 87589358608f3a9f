"""What a script given to an interpreter (`python -c`, `node -e`, a heredoc) does besides computing.

A seat belt, not a wall: a general-purpose language can always hide what it does. Reported is what
a reader of the script would notice: programs started, trees removed, files at absolute paths
written, and code made from data. Python is read by its own parser, the other languages by their
words once their literals are set aside.
"""

import ast
import re
import shlex
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kakoi.policy.embedded import (
    COMMAND,
    HARMLESS_OUTPUTS,
    LITERAL,
    Effect,
    EmbeddedEffect,
    Lexicon,
    Skeleton,
    set_aside_literals,
    snippet,
)

_MAX_CODE_IN_CODE: Final = 3


def inline_code_effects(language: str, code: str) -> tuple[EmbeddedEffect, ...]:
    """What `code` reaches for, in the order written; nothing means nothing was noticed.

    `language` is python, node, ruby, perl or php; code in any other is unreadable. Never raises.
    """
    return _effects(language, code, depth=0)


def _effects(language: str, code: str, *, depth: int) -> tuple[EmbeddedEffect, ...]:
    if language not in _LEXICONS or depth > _MAX_CODE_IN_CODE:
        return (EmbeddedEffect(Effect.UNREADABLE, snippet(code)),)
    found: list[EmbeddedEffect] = []
    if language == "python":
        try:
            tree = _parse(code)
        except (RecursionError, MemoryError):
            # The interpreter that will run it starts with an empty stack and may get further.
            found.append(EmbeddedEffect(Effect.UNREADABLE, snippet(code)))
        else:
            if tree is not None:
                return _python_effects(tree, code, depth)
    return tuple(dict.fromkeys([*found, *_word_effects(language, code, depth)]))


# --- By words --------------------------------------------------------------------------------

_SINGLE = r"'(?:[^'\\]|\\.)*+'?"
_DOUBLE = r'"(?:[^"\\]|\\.)*+"?'
_TICKS = r"`(?:[^`\\]|\\.)*+`?"
_ONE_LINE = r"""'(?:[^'\\\n]|\\.)*+'?|"(?:[^"\\\n]|\\.)*+"?"""
_TRIPLE = r"""\"{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3})?|'{3}(?:[^'\\]|\\.|'(?!''))*+(?:'{3})?"""
_BLOCK = r"/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
_POD = (
    r"(?:(?<=\n)|\A)(?:=[a-z](?:[^\n]|\n(?!=(?:end|cut)))*+(?:\n=(?:end|cut))?|__(?:END|DATA)__.*)"
)
_PAIRED = r"(?:\([^()]*+\)|\[[^\[\]]*+\]|\{[^{}]*+\}|<[^<>]*+>)"
_NO_SIGIL = r"(?<![\w$@%&>-])"


def _delimited(group: str, parts: int) -> str:
    """Perl's m!…! (one part) and tr!…!…! (two)."""
    part = rf"(?:\\.|(?!(?P={group})).)*+(?P={group})"
    return rf"(?:\s*{_PAIRED}{{{parts}}}|(?P<{group}>[/!#|~%@:^'\"]){part * parts})"


def _tokens(
    *, comment: str, string: str, command: str = "(?!)", substitution: str = "(?!)", word: str
) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<comment>{comment})|(?P<command>{command})|(?P<substitution>{substitution})"
        rf"|(?P<string>{string})|(?P<slash>/)|(?P<word>{word})|(?P<other>\s+|.)",
        re.DOTALL,
    )


_BRACED = r"\{((?:[^{}]++|\{[^{}]*+\})*+)"
_WORDS_BEFORE_REGEX: Final = frozenset(
    {
        "return",
        "typeof",
        "case",
        "in",
        "of",
        "void",
        "delete",
        "throw",
        "new",
        "else",
        "do",
        "await",
    }
    | {"if", "unless", "while", "until", "and", "or", "not", "when", "split", "grep", "map", "join"}
)
_LEXICONS: Final[Mapping[str, Lexicon]] = {
    "python": Lexicon(
        _tokens(
            comment=r"\#[^\n]*", string=rf"[rRbBuUfF]{{0,2}}(?:{_TRIPLE}|{_ONE_LINE})", word=r"\w+"
        )
    ),
    "node": Lexicon(
        _tokens(comment=rf"//[^\n]*|{_BLOCK}", string=rf"{_ONE_LINE}|{_TICKS}", word=r"[\w$]+"),
        interpolation=re.compile(rf"\${_BRACED}"),
        plain_quotes="'\"",
        before_regex=_WORDS_BEFORE_REGEX,
    ),
    "ruby": Lexicon(
        _tokens(
            comment=rf"\#[^\n]*|{_POD}",
            string=rf"{_SINGLE}|{_DOUBLE}|%[qQwWiIrs]{_PAIRED}",
            command=rf"{_TICKS}|%x{_PAIRED}",
            word=r"[@$]{0,2}\w+[?!]?",
        ),
        interpolation=re.compile(rf"\#{_BRACED}"),
        before_regex=_WORDS_BEFORE_REGEX | {"puts", "print", "p", "gsub", "sub", "match", "scan"},
        has_heredocs=True,
    ),
    "perl": Lexicon(
        _tokens(
            comment=rf"\#[^\n]*|{_POD}",
            string=rf"{_SINGLE}|{_DOUBLE}|{_NO_SIGIL}(?:(?:qq?|qw|qr|m){_delimited('a', 1)}"
            rf"|(?:tr|y){_delimited('b', 2)})",
            command=rf"{_TICKS}|{_NO_SIGIL}qx{_delimited('c', 1)}",
            substitution=rf"{_NO_SIGIL}s{_delimited('d', 2)}[a-z]*",
            word=r"\$\#\w*|[$@%&]*\w+|\$[^\w\s{(\[]",
        ),
        interpolation=re.compile(rf"[$@](?:{_BRACED}|\w)"),
        before_regex=_WORDS_BEFORE_REGEX | {"print", "push", "x", "lt", "gt", "eq", "ne"},
        has_heredocs=True,
    ),
    "php": Lexicon(
        _tokens(
            comment=rf"\#(?!\[)[^\n]*|//[^\n]*|{_BLOCK}",
            string=rf"{_SINGLE}|{_DOUBLE}",
            command=_TICKS,
            word=r"\$?\w+",
        ),
        interpolation=re.compile(rf"\$(?:{_BRACED}|\w)"),
        has_heredocs=True,
    ),
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern of the skeleton; `literal` must fit its LIT, and `needs` some literal anywhere."""

    effect: Effect
    pattern: re.Pattern[str]
    literal: re.Pattern[str] | None = None
    needs: re.Pattern[str] | None = None


# A list of literals is a whole command only if nothing but options or a callback follows.
_ARGUMENTS = (
    rf"(?:\s*\(?\s*(?P<args>{LITERAL}(?:\s*,\s*\[?\s*{LITERAL})*)"
    r"(?=\s*\]?\s*(?:[);}\n]|\Z|,\s*(?:[{(]|function\b|\w+\s*=>))))?"
)


def _rule(effect: Effect, pattern: str, *, literal: str = "", needs: str = "") -> _Rule:
    pattern = pattern.replace("ARGS", _ARGUMENTS).replace("LIT", rf"(?P<lit>{LITERAL})")
    pattern = pattern.replace("MODE", rf"(?P<mode>{LITERAL})").replace("STR", LITERAL)
    flags = re.DOTALL
    return _Rule(
        effect,
        re.compile(pattern, flags),
        re.compile(literal, flags) if literal else None,
        re.compile(needs, flags) if needs else None,
    )


_RUNS, _WRITES, _DELETES, _UNREADABLE = (
    Effect.RUNS,
    Effect.WRITES,
    Effect.DELETES,
    Effect.UNREADABLE,
)
_FREE = r"(?<![\w.$@:>])"
_ABSOLUTE = r"[/~].*"
_PIPED = r"\s*\|.*|.*\|\s*|-\||\|-"
_CHILD = r"(?:exec(?:File)?(?:Sync)?|spawn(?:Sync)?|fork)"
_PHP_STARTS = r"(?:system|exec|shell_exec|passthru|proc_open|popen|pcntl_exec)"
_BACKTICKS = _rule(_RUNS, rf"(?P<args>{COMMAND})")

_RULES: Final[Mapping[str, Sequence[_Rule]]] = {
    "python": (
        _rule(
            _RUNS, r"\b(?:os|posix)\.(?:system|popen\w?|exec[lv]\w*|spawn\w+|posix_spawnp?)\bARGS"
        ),
        _rule(_RUNS, r"\bsubprocess\.(?:run|call|check_\w+|Popen|get\w*output)\bARGS"),
        _rule(_RUNS, r"\b(?:pty\.spawn|commands\.get\w*output|create_subprocess_\w+)\bARGS"),
        _rule(_UNREADABLE, r"\b(?:from\s+(?:os|subprocess|pty|commands)\s+import|__import__)\b"),
        _rule(_UNREADABLE, r"\bimport\s+(?:os|subprocess|pty)\s+as\b|\b(?:ctypes|marshal)\."),
        _rule(_UNREADABLE, rf"{_FREE}(?:exec|eval)\b|\bgetattr\s*\(\s*(?:os|subprocess)\b"),
        _rule(_DELETES, r"\b(?:shutil\.rmtree|os\.removedirs)\bARGS"),
        _rule(_WRITES, rf"{_FREE}open\s*\(\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
    ),
    "node": (
        _rule(
            _RUNS,
            rf"(?:\.\s*{_CHILD}\b|\b{_CHILD}(?=\s*(?:\(|:|as\b))|(?<=\(){_CHILD}\b)ARGS",
            needs=r"(?:node:)?child_process",
        ),
        _rule(_RUNS, r"\bDeno\.(?:run|Command)\bARGS|\bBun\.(?:spawn|\$)"),
        _rule(
            _UNREADABLE, r"\bprocess\.(?:binding|dlopen|_linkedBinding)\b|\beval\s*:\s*(?:true|!0)"
        ),
        _rule(_UNREADABLE, r"\.(?:runIn\w+|Script|compileFunction)\s*\(", needs="(?:node:)?vm"),
        _rule(_UNREADABLE, r"(?:\[|\brequire\s*\(|\bimport\s*\()\s*STR\s*\+\s*STR"),
        _rule(_UNREADABLE, r"\b(?:require|import)\s*\([^)]{0,80}(?:atob|Buffer|fromCharCode)\b"),
        _rule(
            _UNREADABLE,
            r"\bconstructor\.constructor\b|\\u|,\s*eval\s*\)|\b(?:global|globalThis)\s*\[",
        ),
        _rule(
            _UNREADABLE, rf"(?:{_FREE}|\bglobal(?:This)?\.)(?:eval|Function)\s*\((?!\s*STR\s*\))"
        ),
        _rule(Effect.LOADS, rf"{_FREE}(?:eval|Function)\s*\(\s*(?P<code>{LITERAL})\s*\)"),
        _rule(_DELETES, r"\brm(?:dir)?(?:Sync)?(?=\s*\([^;]{0,200}?\brecursive\b)ARGS"),
        _rule(_DELETES, r"\b(?:rimraf(?:Sync|\.sync)?|removeSync|emptyDirSync)(?=\s*\()ARGS"),
        _rule(
            _WRITES,
            r"\b(?:writeFile|appendFile|unlink|rm|rmdir|mkdir|chmod|truncate|createWriteStream)"
            r"(?:Sync)?\s*\(\s*LIT",
            literal=_ABSOLUTE,
        ),
        _rule(
            _WRITES,
            r"\b(?:copyFile|rename|cp|symlink|link)(?:Sync)?\s*\([^,()]{0,80},\s*LIT",
            literal=_ABSOLUTE,
        ),
    ),
    "ruby": (
        _BACKTICKS,
        _rule(
            _RUNS,
            rf"(?:{_FREE}(?<!def )|\b(?:Kernel|Process)(?:\.|::))(?:system|exec|spawn)\b"
            r"(?=\s*[(\[\ue000\ue003]|\s+[\w$@*:])ARGS",
        ),
        _rule(_RUNS, r"\b(?:IO\.popen|Open3\.\w+|PTY\.(?:spawn|getpty))\bARGS"),
        _rule(
            _RUNS, r"\b(?:__send__|public_send|send|method)\s*\(?\s*:(?:system|exec|spawn|popen)\b"
        ),
        _rule(
            _RUNS,
            r"\b(?:__send__|public_send|send|method)\s*\(?\s*LIT",
            literal="system|exec|spawn|popen|`",
        ),
        _rule(_RUNS, r"\b(?:open|read|readlines|foreach)\s*\(?\s*LIT", literal=r"\s*\|.*"),
        _rule(_UNREADABLE, r"\bsend\s*\(?\s*STR\s*\+|\bFiddle\b|\bsyscall\b|\bMarshal\.load\b"),
        _rule(
            _UNREADABLE,
            rf"{_FREE}eval\b(?!\s*\(?\s*STR|\s*=)|\.(?:instance|class|module)_eval\s*\((?!\s*STR)",
        ),
        _rule(Effect.LOADS, rf"\b(?:\w+_)?eval\s*\(?\s*(?P<code>{LITERAL})"),
        _rule(_DELETES, r"\b(?:rm_rf|rm_r|rmtree|remove_dir|remove_entry(?:_secure)?)\bARGS"),
        _rule(
            _WRITES,
            r"\b(?:File|IO|FileUtils|Dir)\.(?:write|binwrite|delete|unlink|rm|rm_f|rmdir|mkdir|mkdir_p"
            r"|touch|truncate)\s*\(?\s*LIT",
            literal=_ABSOLUTE,
        ),
        _rule(_WRITES, r"\bFile\.(?:open|new)\s*\(?\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
    ),
    "perl": (
        _BACKTICKS,
        _rule(_RUNS, r"(?<![\w$@%>])(?<!sub )(?:system|exec|readpipe|open[23])\b(?!\s*=>)ARGS"),
        _rule(_RUNS, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}LIT", literal=_PIPED),
        _rule(_UNREADABLE, r"(?<![\w$@%>])(?:eval\b(?!\s*(?:\{|\(?\s*STR))|syscall\b)"),
        _rule(Effect.LOADS, rf"(?<![\w$@%>])eval\s*\(?\s*(?P<code>{LITERAL})"),
        _rule(Effect.LOADS, r"(?<![\w$@%>])do\s+LIT"),
        _rule(_DELETES, r"(?<![\w$@%>])(?:rmtree|remove_tree)\b(?!\s*[;=])ARGS"),
        _rule(_WRITES, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}MODE\s*,\s*LIT", literal=_ABSOLUTE),
        _rule(_WRITES, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}LIT", literal=r"\+?>+\s*[/~].*"),
        _rule(_WRITES, r"(?<![\w$@%>])(?:unlink|rmdir|mkdir)\s*\(?\s*LIT", literal=_ABSOLUTE),
    ),
    "php": (
        _BACKTICKS,
        _rule(_RUNS, rf"(?<![\w>:$])(?<!function ){_PHP_STARTS}(?=\s*\()ARGS"),
        _rule(
            _RUNS,
            r"\b(?:call_user_func(?:_array)?|array_(?:map|walk|filter)|usort)\s*\([^;\ue000]{0,60}LIT",
            literal=_PHP_STARTS,
        ),
        _rule(_UNREADABLE, r"\$\w+\s*\(", needs=_PHP_STARTS),
        _rule(_UNREADABLE, rf"{_FREE}(?:eval|assert|create_function)\s*\((?!\s*STR\s*\))|\bFFI::"),
        _rule(Effect.LOADS, rf"{_FREE}eval\s*\(\s*(?P<code>{LITERAL})\s*\)"),
        _rule(
            Effect.LOADS,
            r"\b(?:include|require)(?:_once)?\s*\(?\s*LIT",
            literal=r"(?:https?|ftp|php|data):.*",
        ),
        _rule(_DELETES, r"\bRecursiveDirectoryIterator\b[^\0]{0,400}?\b(?:unlink|rmdir)\s*\("),
        _rule(
            _WRITES,
            rf"{_FREE}(?:file_put_contents|unlink|rmdir|mkdir|touch|chmod)\s*\(\s*LIT",
            literal=_ABSOLUTE,
        ),
        _rule(_WRITES, rf"{_FREE}fopen\s*\(\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
    ),
}


def _word_effects(language: str, code: str, depth: int) -> Iterator[EmbeddedEffect]:
    skeleton = set_aside_literals(code, _LEXICONS[language])
    hits = [
        (match.start(), number, match)
        for number, rule in enumerate(_RULES[language])
        if rule.needs is None or any(rule.needs.fullmatch(text) for text in skeleton.literals)
        for match in rule.pattern.finditer(skeleton.code)
        if _fits(rule, match, skeleton)
    ]
    for start, number, match in sorted(hits, key=lambda hit: hit[:2]):
        groups = match.groupdict()
        if groups.get("code"):
            for text in skeleton.texts(groups["code"]):
                yield from _effects(language, text, depth=depth + 1)
            continue
        shown = skeleton.shown(skeleton.code[start : start + 80].partition("\n")[0])
        effect = _RULES[language][number].effect
        yield EmbeddedEffect(effect, shown, _target(groups, skeleton))


def _fits(rule: _Rule, match: re.Match[str], skeleton: Skeleton) -> bool:
    groups = match.groupdict()
    if rule.literal:
        (text,) = skeleton.texts(groups["lit"])
        if text in HARMLESS_OUTPUTS or not rule.literal.fullmatch(text):
            return False
    mode = skeleton.texts(groups.get("mode") or "")
    return not mode or any(letter in mode[0] for letter in "wax+>")


def _target(groups: Mapping[str, str | None], skeleton: Skeleton) -> str | None:
    if groups.get("lit"):
        # Perl and Ruby write the direction into the name: ">/etc/motd", "|sort".
        return skeleton.texts(groups["lit"] or "")[0].lstrip("+>|- ").rstrip("| ") or None
    texts = skeleton.texts(groups.get("args") or "")
    return texts[0] if len(texts) == 1 else shlex.join(texts) or None
