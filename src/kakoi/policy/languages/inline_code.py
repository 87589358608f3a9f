"""What a script given to an interpreter (`python -c`, `node -e`, a heredoc) does besides computing.

A seat belt, not a wall: a general-purpose language can always hide what it does. Reported is what
a reader of the script would notice: programs started, trees removed, files at absolute paths
written, code made from data. Python is read by its own parser, the others by their words.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kakoi.policy.languages.embedded import Effect, EmbeddedEffect, snippet
from kakoi.policy.languages.inline_python import python_effects
from kakoi.policy.languages.inline_words import LEXICONS, Rule, word_effects

_MAX_CODE_IN_CODE: Final = 3


def inline_code_effects(language: str, code: str) -> tuple[EmbeddedEffect, ...]:
    """What `code` reaches for, in the order written; nothing means nothing was noticed.

    `language` is python, node, ruby, perl or php; code in any other is unreadable. Never raises.
    """
    return tuple(dict.fromkeys(_effects(language, code, depth=0)))


def _effects(language: str, code: str, *, depth: int) -> Iterable[EmbeddedEffect]:
    unreadable = EmbeddedEffect(Effect.UNREADABLE, snippet(code))
    if language not in _RULES or depth > _MAX_CODE_IN_CODE:
        return [unreadable]

    def read_code(text: str) -> Iterable[EmbeddedEffect]:
        return _effects(language, text, depth=depth + 1)

    by_words = word_effects(code, LEXICONS[language], _RULES[language], read_code)
    if language != "python":
        return by_words
    try:
        by_parser = python_effects(code, read_code)
    except (RecursionError, MemoryError):
        # The interpreter that will run it starts with an empty stack and may get further.
        return [unreadable, *by_words]
    return by_words if by_parser is None else by_parser


_RUNS: Final = Effect.RUNS
_WRITES: Final = Effect.WRITES
_READS: Final = Effect.READS
_DELETES: Final = Effect.DELETES
_UNREADABLE: Final = Effect.UNREADABLE

# Not a method, a variable or part of a longer word.
_FREE = r"(?<![\w.$@:>])"
_ABSOLUTE = r"[/~].*"
_PIPED = r"\s*\|.*|.*\|\s*|-\||\|-"
_CHILD = r"(?:exec(?:File)?(?:Sync)?|spawn(?:Sync)?|fork)"
# PHP takes no notice of case here.
_PHP_STARTS = r"(?i:system|exec|shell_exec|passthru|proc_open|popen|pcntl_exec)"
_BACKTICKS = Rule(_RUNS, "TICKS")

_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "python": (
        Rule(
            _RUNS, r"\b(?:os|posix)\.(?:system|popen\w?|exec[lv]\w*|spawn\w+|posix_spawnp?)\bARGS"
        ),
        Rule(_RUNS, r"\bsubprocess\.(?:run|call|check_\w+|Popen|get\w*output)\bARGS"),
        Rule(_RUNS, r"\b(?:pty\.spawn|commands\.get\w*output|create_subprocess_\w+)\bARGS"),
        Rule(_UNREADABLE, r"\b(?:from\s+(?:os|subprocess|pty|commands)\s+import|__import__)\b"),
        Rule(_UNREADABLE, r"\bimport\s+(?:os|subprocess|pty)\s+as\b|\b(?:ctypes|marshal)\."),
        Rule(_UNREADABLE, rf"{_FREE}(?:exec|eval)\b|\bgetattr\s*\(\s*(?:os|subprocess)\b"),
        Rule(_DELETES, r"\b(?:shutil\.rmtree|os\.removedirs)\bARGS"),
        Rule(_WRITES, rf"{_FREE}open\s*\(\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
    ),
    "node": (
        Rule(
            _RUNS,
            rf"(?:\.\s*{_CHILD}\b|\b{_CHILD}(?=\s*(?:\(|:|as\b))|(?<=\(){_CHILD}\b)ARGS",
            needs=r"(?:node:)?child_process",
        ),
        Rule(_RUNS, r"\[\s*NAME\s*\]\s*\(", literal=_CHILD, needs=r"(?:node:)?child_process"),
        # In `node -e` every module is there by its name.
        Rule(_RUNS, rf"\bchild_process\s*\.\s*{_CHILD}\bARGS"),
        Rule(_UNREADABLE, r"\bReflect\.\w+\s*\(", needs=r"(?:node:)?child_process"),
        Rule(_UNREADABLE, r"\)\s*\.\s*start\s*\(", needs="(?:node:)?repl"),
        Rule(_READS, r"\b(?:readFile|createReadStream)(?:Sync)?\s*\(\s*LIT", literal=_ABSOLUTE),
        Rule(
            _WRITES,
            r"\[\s*STR\s*\]\s*\(\s*LIT",
            literal=_ABSOLUTE,
            needs=r"(?:write|append)File(?:Sync)?",
        ),
        Rule(_RUNS, r"\bDeno\.(?:run|Command)\bARGS|\bBun\.(?:spawn|\$)"),
        Rule(
            _UNREADABLE, r"\bprocess\.(?:binding|dlopen|_linkedBinding)\b|\beval\s*:\s*(?:true|!0)"
        ),
        Rule(_UNREADABLE, r"\.(?:runIn\w+|Script|compileFunction)\s*\(", needs="(?:node:)?vm"),
        Rule(_UNREADABLE, r"(?:\[|\brequire\s*\(|\bimport\s*\()\s*STR\s*\+\s*STR"),
        Rule(_UNREADABLE, r"\b(?:require|import)\s*\([^)]{0,80}(?:atob|Buffer|fromCharCode)\b"),
        Rule(
            _UNREADABLE,
            r"\bconstructor\.constructor\b|\\u|,\s*eval\s*\)|\b(?:global|globalThis)\s*\[",
        ),
        Rule(_UNREADABLE, rf"(?:{_FREE}|\bglobal(?:This)?\.)(?:eval|Function)\s*\((?!\s*STR\s*\))"),
        Rule(Effect.LOADS, rf"{_FREE}(?:eval|Function)\s*\(\s*CODE\s*\)"),
        Rule(_DELETES, r"\brm(?:dir)?(?:Sync)?(?=\s*\([^;]{0,200}?\brecursive\b)ARGS"),
        Rule(
            _DELETES,
            r"\breaddir(?:Sync)?(?=\s*\([^;]{0,80}?\brecursive\b)[^\0]{0,400}?\b(?:unlink|rm|rmdir)(?:Sync)?\s*\(",
        ),
        Rule(_DELETES, r"\b(?:rimraf(?:Sync|\.sync)?|removeSync|emptyDirSync)(?=\s*\()ARGS"),
        Rule(
            _WRITES,
            r"\b(?:writeFile|appendFile|unlink|rm|rmdir|mkdir|chmod|truncate|createWriteStream)"
            r"(?:Sync)?\s*\(\s*LIT",
            literal=_ABSOLUTE,
        ),
        Rule(
            _WRITES,
            r"\b(?:copyFile|rename|cp|symlink|link)(?:Sync)?\s*\([^,()]{0,80},\s*LIT",
            literal=_ABSOLUTE,
        ),
    ),
    "ruby": (
        _BACKTICKS,
        Rule(
            _RUNS,
            rf"(?:{_FREE}(?<!def )|\b(?:Kernel|Process)(?:\.|::))(?:system|exec|spawn)\b"
            r"(?=\s*[(\[\ue000\ue003]|\s+[\w$@*:])ARGS",
        ),
        Rule(_RUNS, r"\b(?:IO(?:\.|::)popen|Open3(?:\.|::)\w+|PTY\.(?:spawn|getpty))\bARGS"),
        Rule(
            _RUNS, r"\b(?:__send__|public_send|send|method)\s*\(?\s*:(?:system|exec|spawn|popen)\b"
        ),
        Rule(
            _RUNS,
            r"\b(?:__send__|public_send|send|method)\s*\(?\s*NAME",
            literal="system|exec|spawn|popen|`",
        ),
        Rule(_RUNS, r"\b(?:open|read|readlines|foreach)\s*\(?\s*LIT", literal=r"\s*\|.*"),
        Rule(_UNREADABLE, r"\bsend\s*\(?\s*STR\s*\+|\bFiddle\b|\bsyscall\b|\bMarshal\.load\b"),
        Rule(
            _UNREADABLE,
            rf"{_FREE}eval\b(?!\s*\(?\s*STR|\s*=)|\.(?:instance|class|module)_eval\s*\((?!\s*STR)",
        ),
        Rule(_UNREADABLE, r"\beval\s*\(?\s*STR\s*[+%]"),
        Rule(Effect.LOADS, rf"{_FREE}(?:load|require)\s*\(?\s*LIT", literal=_ABSOLUTE),
        Rule(
            _READS,
            r"\b(?:File|IO)\.(?:read|readlines|foreach|binread)\s*\(?\s*LIT",
            literal=_ABSOLUTE,
        ),
        Rule(Effect.LOADS, r"\b(?:\w+_)?eval\s*\(?\s*CODE"),
        Rule(
            _DELETES,
            r"\bDir(?:\.glob\s*\(?|\s*\[)\s*LIT[^\0]{0,400}?\b(?:delete|unlink|rm|rm_f)\b",
            literal=r".*\*\*.*",
        ),
        Rule(_DELETES, r"\bFind\.find\b[^\0]{0,400}?\b(?:delete|unlink|rm|rm_f)\b"),
        Rule(_DELETES, r"\b(?:rm_rf|rm_r|rmtree|remove_dir|remove_entry(?:_secure)?)\bARGS"),
        Rule(
            _WRITES,
            r"\b(?:File|IO|FileUtils|Dir)\.(?:write|binwrite|delete|unlink|rm|rm_f|rmdir|mkdir|mkdir_p"
            r"|touch|truncate)\s*\(?\s*LIT",
            literal=_ABSOLUTE,
        ),
        Rule(_WRITES, r"\bFile\.(?:open|new)\s*\(?\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
    ),
    "perl": (
        _BACKTICKS,
        Rule(
            _RUNS, r"(?<![\w$@%>])(?<!sub )(?:system|exec|readpipe|open[23])\b(?!\s*(?:=>|\}))ARGS"
        ),
        Rule(_RUNS, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}LIT", literal=_PIPED),
        Rule(_UNREADABLE, r"(?<![\w$@%>])(?:eval\b(?!\s*(?:\{|\(?\s*STR))|syscall\b)"),
        Rule(Effect.LOADS, r"(?<![\w$@%>])eval\s*\(?\s*CODE"),
        Rule(Effect.LOADS, r"(?<![\w$@%>])do\s+LIT"),
        Rule(_DELETES, r"\bFile::Find\b[^\0]{0,400}?\bunlink\b"),
        Rule(_DELETES, r"(?<![\w$@%>])(?:rmtree|remove_tree)\b(?!\s*[;=])ARGS"),
        Rule(_WRITES, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}MODE\s*,\s*LIT", literal=_ABSOLUTE),
        Rule(_WRITES, r"(?<![\w$@%>])open\b[^;\ue000]{0,120}LIT", literal=r"\+?>+\s*[/~].*"),
        Rule(_WRITES, r"(?<![\w$@%>])(?:unlink|rmdir|mkdir)\s*\(?\s*LIT", literal=_ABSOLUTE),
    ),
    "php": (
        _BACKTICKS,
        Rule(_RUNS, rf"(?<![\w>:$])(?<!function ){_PHP_STARTS}(?=\s*\()ARGS"),
        Rule(
            _RUNS,
            r"\b(?:call_user_func(?:_array)?|array_(?:map|walk|filter)|usort)\s*\([^;\ue000]{0,60}NAME",
            literal=_PHP_STARTS,
        ),
        Rule(_UNREADABLE, r"\$\w+\s*\(", needs=_PHP_STARTS),
        Rule(_UNREADABLE, r"STR\s*\.\s*STR[^\0]{0,400}?\$\w+\s*\("),
        Rule(_UNREADABLE, r"\bReflectionFunction\b"),
        Rule(_READS, rf"{_FREE}(?:file_get_contents|file|readfile)\s*\(\s*LIT", literal=_ABSOLUTE),
        Rule(_UNREADABLE, rf"{_FREE}(?:eval|assert|create_function)\s*\((?!\s*STR\s*\))|\bFFI::"),
        Rule(Effect.LOADS, rf"{_FREE}(?:eval|assert)\s*\(\s*CODE\s*\)"),
        Rule(
            Effect.LOADS,
            r"\b(?:include|require)(?:_once)?\s*\(?\s*LIT",
            literal=r"(?:https?|ftp|php|data):.*",
        ),
        Rule(_DELETES, r"\bRecursiveDirectoryIterator\b[^\0]{0,400}?\b(?:unlink|rmdir)\s*\("),
        Rule(
            _WRITES,
            rf"{_FREE}(?:file_put_contents|unlink|rmdir|mkdir|touch|chmod)\s*\(\s*LIT",
            literal=_ABSOLUTE,
        ),
        Rule(_WRITES, rf"{_FREE}fopen\s*\(\s*LIT\s*,\s*MODE", literal=_ABSOLUTE),
    ),
}
