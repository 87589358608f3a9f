"""Code on a command line (`python -c`, `node -e`, a heredoc): what it does besides computing.

`LANGUAGES` lists every language that can be read. To add one:

1. Add an entry to `LANGUAGES`: the options that take code, how comments and literals look, and
   the word patterns that start programs, write files, remove trees or run text as code.
2. Give its interpreter `reader: NAME` in `effects/programs/*.yaml`, as `ruby` has it, and name the
   interpreter in `_INTERPRETER` of `effects/readers/shell.py` (code that `xargs` fills in).
3. Add code with and without effects to `tests/policy/test_inline_code.py`.

A language that Python can parse also gets a `parse` function, as `python` does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kakoi._support.late import dataclass
from kakoi.policy.effects.languages.code_effect import (
    CodeEffect,
    CodeEffectKind,
    ReadCode,
    snippet,
)
from kakoi.policy.effects.languages.word_rules import Lexicon, WordRule, word_effects

_MAX_CODE_IN_CODE: Final = 3


@dataclass(frozen=True, slots=True)
class InlineLanguage:
    """How to read code in one language.

    The value of one of the `options` of its interpreter is code. `lexicon` and `rules` read it by
    its words. `parse` reads it by its grammar and comes first; it returns None for code that it
    cannot parse.
    """

    options: tuple[str, ...]
    lexicon: Lexicon
    rules: tuple[WordRule, ...]
    parse: Callable[[str, ReadCode], list[CodeEffect] | None] | None = None


def inline_code_effects(language: str, code: str) -> tuple[CodeEffect, ...]:
    """Return what `code` reaches for, in the order written. Empty means that nothing was noticed.

    A seat belt, not a wall: a general-purpose language can always hide what it does. Reported is
    what a reader of the code would notice. Code in a language that `LANGUAGES` does not list is
    unreadable. Never raises.
    """
    return tuple(dict.fromkeys(_effects(language, code, depth=0)))


def _effects(name: str, code: str, *, depth: int) -> Iterable[CodeEffect]:
    unreadable = CodeEffect(CodeEffectKind.UNREADABLE, snippet(code))
    language = LANGUAGES.get(name)
    if language is None or depth > _MAX_CODE_IN_CODE:
        return [unreadable]

    def read_code(text: str) -> Iterable[CodeEffect]:
        return _effects(name, text, depth=depth + 1)

    by_words = word_effects(code, language.lexicon, language.rules, read_code)
    if language.parse is None:
        return by_words
    try:
        by_parser = language.parse(code, read_code)
    except (RecursionError, MemoryError):
        # The interpreter that will run it starts with an empty stack and can get further.
        return [unreadable, *by_words]
    return by_words if by_parser is None else by_parser


# --- Patterns that several languages share: literals and comments ----------------------------

_SINGLE = r"'[^'\\]*+(?:\\.[^'\\]*+)*'?"
_DOUBLE = r'"[^"\\]*+(?:\\.[^"\\]*+)*"?'
_TICKS = r"`[^`\\]*+(?:\\.[^`\\]*+)*`?"
_ONE_LINE = r"""'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'?|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?"""
_TRIPLE = (
    r"""\"{3}[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*(?:"{3})?"""
    r"""|'{3}[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*(?:'{3})?"""
)
_BLOCK = r"/\*[^*]*+(?:\*(?!/)[^*]*+)*(?:\*/)?"
_POD = (
    r"(?:(?<=\n)|\A)(?:=[a-z][^\n]*+(?:\n(?!=(?:end|cut))[^\n]*+)*(?:\n=(?:end|cut))?"
    r"|__(?:END|DATA)__.*)"
)
_PAIRED = r"(?:\([^()]*+\)|\[[^\[\]]*+\]|\{[^{}]*+\}|<[^<>]*+>)"
_NO_SIGIL = r"(?<![\w$@%&>-])"


def _delimited(group: str, parts: int) -> str:
    """Perl's m!…! (one part) and tr!…!…! (two)."""
    part = rf"(?:\\.|(?!(?P={group}))[^\\])*(?P={group})"
    return rf"(?:\s*{_PAIRED}{{{parts}}}|(?P<{group}>[/!#|~%@:^'\"]){part * parts})"


def _tokens(
    *, comment: str, string: str, command: str = "(?!)", substitution: str = "(?!)", word: str
) -> str:
    return (
        rf"(?P<comment>{comment})|(?P<command>{command})|(?P<substitution>{substitution})"
        rf"|(?P<string>{string})|(?P<slash>/)|(?P<word>{word})|(?P<other>\s+|.)"
    )


_BRACED = r"\{((?:[^{}]++|\{[^{}]*+\})*)"
_WORDS_BEFORE_REGEX: Final = frozenset(
    {"return", "typeof", "case", "in", "of", "void", "delete", "throw", "new", "else", "do"}
    | {"if", "unless", "while", "until", "and", "or", "not", "when", "split", "grep", "map", "join"}
)

# --- Patterns that several languages share: words ------------------------------------------

_RUNS: Final = CodeEffectKind.RUNS
_WRITES: Final = CodeEffectKind.WRITES
_READS: Final = CodeEffectKind.READS
_LOADS: Final = CodeEffectKind.LOADS
_DELETES: Final = CodeEffectKind.DELETES
_UNREADABLE: Final = CodeEffectKind.UNREADABLE

# Not a method, a variable or part of a longer word.
_FREE = r"(?<![\w.$@:>])"
_ABSOLUTE = r"[/~].*"
_PIPED = r"\s*\|.*|.*\|\s*|-\||\|-"
_CHILD = r"(?:exec(?:File)?(?:Sync)?|spawn(?:Sync)?|fork)"
# PHP ignores case here.
_PHP_STARTS = r"(?i:system|exec|shell_exec|passthru|proc_open|popen|pcntl_exec)"
_BACKTICKS = WordRule(_RUNS, "TICKS")

# --- The languages ---------------------------------------------------------------------------


def _python_effects(code: str, read_code: ReadCode) -> list[CodeEffect] | None:
    from kakoi.policy.effects.languages.python.effects import python_effects  # It needs `ast`.

    return python_effects(code, read_code)


LANGUAGES: Final[Mapping[str, InlineLanguage]] = {
    "python": InlineLanguage(
        options=("-c",),
        parse=_python_effects,
        lexicon=Lexicon(
            _tokens(
                comment=r"\#[^\n]*",
                string=rf"[rRbBuUfF]{{0,2}}(?:{_TRIPLE}|{_ONE_LINE})",
                word=r"\w+",
            )
        ),
        rules=(
            WordRule(
                _RUNS,
                r"\b(?:os|posix)\.(?:system|popen\w?|exec[lv]\w*|spawn\w+|posix_spawnp?)\bARGS",
            ),
            WordRule(_RUNS, r"\bsubprocess\.(?:run|call|check_\w+|Popen|get\w*output)\bARGS"),
            WordRule(_RUNS, r"\b(?:pty\.spawn|commands\.get\w*output|create_subprocess_\w+)\bARGS"),
            WordRule(
                _UNREADABLE, r"\b(?:from\s+(?:os|subprocess|pty|commands)\s+import|__import__)\b"
            ),
            WordRule(
                _UNREADABLE, r"\bimport\s+(?:os|subprocess|pty)\s+as\b|\b(?:ctypes|marshal)\."
            ),
            WordRule(_UNREADABLE, rf"{_FREE}(?:exec|eval)\b|\bgetattr\s*\(\s*(?:os|subprocess)\b"),
            WordRule(_DELETES, r"\b(?:shutil\.rmtree|os\.removedirs)\bARGS"),
            WordRule(_WRITES, rf"{_FREE}open\s*\(\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
        ),
    ),
    "node": InlineLanguage(
        options=("-e", "--eval", "-p", "--print", "-pe"),
        lexicon=Lexicon(
            _tokens(comment=rf"//[^\n]*|{_BLOCK}", string=rf"{_ONE_LINE}|{_TICKS}", word=r"[\w$]+"),
            interpolation=rf"\${_BRACED}",
            plain_quotes="'\"",
            before_regex=_WORDS_BEFORE_REGEX,
        ),
        rules=(
            WordRule(
                _RUNS,
                rf"(?:\.\s*{_CHILD}\b|\b{_CHILD}(?=\s*(?:\(|:|as\b))|(?<=\(){_CHILD}\b)ARGS",
                needs=r"(?:node:)?child_process",
            ),
            WordRule(
                _RUNS, r"\[\s*NAME\s*\]\s*\(", literal=_CHILD, needs=r"(?:node:)?child_process"
            ),
            # In `node -e` every built-in module is a global variable.
            WordRule(_RUNS, rf"\bchild_process\s*\.\s*{_CHILD}\bARGS"),
            WordRule(_UNREADABLE, r"\bReflect\.\w+\s*\(", needs=r"(?:node:)?child_process"),
            WordRule(_UNREADABLE, r"\)\s*\.\s*start\s*\(", needs="(?:node:)?repl"),
            WordRule(
                _READS, r"\b(?:readFile|createReadStream)(?:Sync)?\s*\(\s*LIT", literal=_ABSOLUTE
            ),
            WordRule(
                _WRITES,
                r"\[\s*STR\s*\]\s*\(\s*LIT",
                literal=_ABSOLUTE,
                needs=r"(?:write|append)File(?:Sync)?",
            ),
            WordRule(_RUNS, r"\bDeno\.(?:run|Command)\bARGS|\bBun\.(?:spawn|\$)"),
            WordRule(
                _UNREADABLE,
                r"\bprocess\.(?:binding|dlopen|_linkedBinding)\b|\beval\s*:\s*(?:true|!0)",
            ),
            WordRule(
                _UNREADABLE, r"\.(?:runIn\w+|Script|compileFunction)\s*\(", needs="(?:node:)?vm"
            ),
            WordRule(_UNREADABLE, r"(?:\[|\brequire\s*\(|\bimport\s*\()\s*STR\s*\+\s*STR"),
            WordRule(
                _UNREADABLE, r"\b(?:require|import)\s*\([^)]{0,80}(?:atob|Buffer|fromCharCode)\b"
            ),
            WordRule(
                _UNREADABLE,
                r"\bconstructor\.constructor\b|\\u|,\s*eval\s*\)|\b(?:global|globalThis)\s*\[",
            ),
            WordRule(
                _UNREADABLE,
                rf"(?:{_FREE}|\bglobal(?:This)?\.)(?:eval|Function)\s*\((?!\s*STR\s*\))",
            ),
            WordRule(_LOADS, rf"{_FREE}(?:eval|Function)\s*\(\s*CODE\s*\)"),
            WordRule(_DELETES, r"\brm(?:dir)?(?:Sync)?(?=\s*\([^;]{0,200}?\brecursive\b)ARGS"),
            WordRule(
                _DELETES,
                r"\breaddir(?:Sync)?(?=\s*\([^;]{0,80}?\brecursive\b)[^\0]{0,400}?\b(?:unlink|rm|rmdir)(?:Sync)?\s*\(",
            ),
            WordRule(
                _DELETES, r"\b(?:rimraf(?:Sync|\.sync)?|removeSync|emptyDirSync)(?=\s*\()ARGS"
            ),
            WordRule(
                _WRITES,
                r"\b(?:writeFile|appendFile|unlink|rm|rmdir|mkdir|chmod|truncate|createWriteStream)"
                r"(?:Sync)?\s*\(\s*LIT",
                literal=_ABSOLUTE,
            ),
            WordRule(
                _WRITES,
                r"\b(?:copyFile|rename|cp|symlink|link)(?:Sync)?\s*\([^,()]{0,80},\s*LIT",
                literal=_ABSOLUTE,
            ),
        ),
    ),
    "ruby": InlineLanguage(
        options=("-e",),
        lexicon=Lexicon(
            _tokens(
                comment=rf"\#[^\n]*|{_POD}",
                string=rf"{_SINGLE}|{_DOUBLE}|%[qQwWiIrs]{_PAIRED}",
                command=rf"{_TICKS}|%x{_PAIRED}",
                word=r"[@$]{0,2}\w+[?!]?",
            ),
            interpolation=rf"\#{_BRACED}",
            before_regex=_WORDS_BEFORE_REGEX
            | {"puts", "print", "p", "gsub", "sub", "match", "scan"},
            has_heredocs=True,
        ),
        rules=(
            _BACKTICKS,
            WordRule(
                _RUNS,
                rf"(?:{_FREE}(?<!def )|\b(?:Kernel|Process)(?:\.|::))(?:system|exec|spawn)\b"
                r"(?=\s*[(\[\ue000\ue003]|\s+[\w$@*:])ARGS",
            ),
            WordRule(
                _RUNS, r"\b(?:IO(?:\.|::)popen|Open3(?:\.|::)\w+|PTY\.(?:spawn|getpty))\bARGS"
            ),
            WordRule(
                _RUNS,
                r"\b(?:__send__|public_send|send|method)\s*\(?\s*:(?:system|exec|spawn|popen)\b",
            ),
            WordRule(
                _RUNS,
                r"\b(?:__send__|public_send|send|method)\s*\(?\s*NAME",
                literal="system|exec|spawn|popen|`",
            ),
            WordRule(_RUNS, r"\b(?:open|read|readlines|foreach)\s*\(?\s*LIT", literal=r"\s*\|.*"),
            WordRule(
                _UNREADABLE, r"\bsend\s*\(?\s*STR\s*\+|\bFiddle\b|\bsyscall\b|\bMarshal\.load\b"
            ),
            WordRule(
                _UNREADABLE,
                rf"{_FREE}eval\b(?!\s*\(?\s*STR|\s*=)|\.(?:instance|class|module)_eval\s*\((?!\s*STR)",
            ),
            WordRule(_UNREADABLE, r"\beval\s*\(?\s*STR\s*[+%]"),
            WordRule(_LOADS, rf"{_FREE}(?:load|require)\s*\(?\s*LIT", literal=_ABSOLUTE),
            WordRule(
                _READS,
                r"\b(?:File|IO)\.(?:read|readlines|foreach|binread)\s*\(?\s*LIT",
                literal=_ABSOLUTE,
            ),
            WordRule(_LOADS, r"\b(?:\w+_)?eval\s*\(?\s*CODE"),
            WordRule(
                _DELETES,
                r"\bDir(?:\.glob\s*\(?|\s*\[)\s*LIT[^\0]{0,400}?\b(?:delete|unlink|rm|rm_f)\b",
                literal=r".*\*\*.*",
            ),
            WordRule(_DELETES, r"\bFind\.find\b[^\0]{0,400}?\b(?:delete|unlink|rm|rm_f)\b"),
            WordRule(
                _DELETES, r"\b(?:rm_rf|rm_r|rmtree|remove_dir|remove_entry(?:_secure)?)\bARGS"
            ),
            WordRule(
                _WRITES,
                r"\b(?:File|IO|FileUtils|Dir)\.(?:write|binwrite|delete|unlink|rm|rm_f|rmdir|mkdir|mkdir_p"
                r"|touch|truncate)\s*\(?\s*LIT",
                literal=_ABSOLUTE,
            ),
            WordRule(_WRITES, r"\bFile\.(?:open|new)\s*\(?\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
        ),
    ),
    "perl": InlineLanguage(
        options=("-e", "-E"),
        lexicon=Lexicon(
            _tokens(
                comment=rf"\#[^\n]*|{_POD}",
                string=rf"{_SINGLE}|{_DOUBLE}|{_NO_SIGIL}(?:(?:qq?|qw|qr|m){_delimited('a', 1)}"
                rf"|(?:tr|y){_delimited('b', 2)})",
                command=rf"{_TICKS}|{_NO_SIGIL}qx{_delimited('c', 1)}",
                substitution=rf"{_NO_SIGIL}s{_delimited('d', 2)}[a-z]*",
                word=r"\$\#\w*|[$@%&]{0,3}\w+|\$[^\w\s{(\[]",
            ),
            interpolation=rf"[$@](?:{_BRACED}|\w)",
            before_regex=_WORDS_BEFORE_REGEX | {"print", "push", "x", "lt", "gt", "eq", "ne"},
            has_heredocs=True,
        ),
        rules=(
            _BACKTICKS,
            WordRule(
                _RUNS,
                r"(?<![\w$@%>])(?<!sub )(?:system|exec|readpipe|open[23])\b(?!\s*(?:=>|\}))ARGS",
            ),
            WordRule(_RUNS, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}LIT", literal=_PIPED),
            WordRule(_UNREADABLE, r"(?<![\w$@%>])(?:eval\b(?!\s*(?:\{|\(?\s*STR))|syscall\b)"),
            WordRule(_LOADS, r"(?<![\w$@%>])eval\s*\(?\s*CODE"),
            WordRule(_LOADS, r"(?<![\w$@%>])do\s+LIT"),
            WordRule(_DELETES, r"\bFile::Find\b[^\0]{0,400}?\bunlink\b"),
            WordRule(_DELETES, r"(?<![\w$@%>])(?:rmtree|remove_tree)\b(?!\s*[;=])ARGS"),
            WordRule(
                _WRITES, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}MODE\s*,\s*LIT", literal=_ABSOLUTE
            ),
            WordRule(
                _WRITES, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}LIT", literal=r"\+?>+\s*[/~].*"
            ),
            WordRule(
                _WRITES, r"(?<![\w$@%>])(?:unlink|rmdir|mkdir)\s*\(?\s*LIT", literal=_ABSOLUTE
            ),
        ),
    ),
    "php": InlineLanguage(
        options=("-r",),
        lexicon=Lexicon(
            _tokens(
                comment=rf"\#(?!\[)[^\n]*|//[^\n]*|{_BLOCK}",
                string=rf"{_SINGLE}|{_DOUBLE}",
                command=_TICKS,
                word=r"\$?\w+",
            ),
            interpolation=rf"\$(?:{_BRACED}|\w)",
            has_heredocs=True,
        ),
        rules=(
            _BACKTICKS,
            WordRule(_RUNS, rf"(?<![\w>:$])(?<!function ){_PHP_STARTS}(?=\s*\()ARGS"),
            WordRule(
                _RUNS,
                r"\b(?:call_user_func(?:_array)?|array_(?:map|walk|filter)|usort)\s*\([^;\ue000]{0,60}NAME",
                literal=_PHP_STARTS,
            ),
            WordRule(_UNREADABLE, r"\$\w+\s*\(", needs=_PHP_STARTS),
            WordRule(_UNREADABLE, r"STR\s*\.\s*STR[^\0]{0,400}?\$\w+\s*\("),
            WordRule(_UNREADABLE, r"\bReflectionFunction\b"),
            WordRule(
                _READS, rf"{_FREE}(?:file_get_contents|file|readfile)\s*\(\s*LIT", literal=_ABSOLUTE
            ),
            WordRule(
                _UNREADABLE, rf"{_FREE}(?:eval|assert|create_function)\s*\((?!\s*STR\s*\))|\bFFI::"
            ),
            WordRule(_LOADS, rf"{_FREE}(?:eval|assert)\s*\(\s*CODE\s*\)"),
            WordRule(
                _LOADS,
                r"\b(?:include|require)(?:_once)?\s*\(?\s*LIT",
                literal=r"(?:https?|ftp|php|data):.*",
            ),
            WordRule(
                _DELETES, r"\bRecursiveDirectoryIterator\b[^\0]{0,400}?\b(?:unlink|rmdir)\s*\("
            ),
            WordRule(
                _WRITES,
                rf"{_FREE}(?:file_put_contents|unlink|rmdir|mkdir|touch|chmod)\s*\(\s*LIT",
                literal=_ABSOLUTE,
            ),
            WordRule(_WRITES, rf"{_FREE}fopen\s*\(\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
        ),
    ),
}
