"""What an option that the data does not list says by its name and its value.

Nobody knows every option of every program. One that is named like a hook, that holds the address
of somebody else, or that names a place outside of what anybody may read is asked about.
"""

import re
from collections.abc import Iterator
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.arguments import Option
from kakoi.policy.effects.package_sources import names_stranger
from kakoi.policy.effects.programs import PLAIN, Effect, Invocation
from kakoi.policy.parsing.words import Word

# Variables whose values are programs that something starts: `AWK`, `TEST_RUNNER`.
CALLING_NAME: Final = pattern(
    r"\w*_?(?:BIN|BINARY|EXECUTABLE|CMD|COMMAND|RUNNER|COMPILER|LAUNCHER|WRAPPER|PROGRAM|TOOL|HOOK|CC|CXX|LD|SHELL)"
    r"(?:_PATH)?(?:_\w*linux\w*)?|RM|YACC|LEX|MAKEINFO|TEX|TEXI2DVI|C?WEAVE|C?TANGLE|GET|CO|LINT|M2C|PC|AR|AS|CPP|FC|\w+BUILD"
    r"|PYTHON\d*|PERL|RUBY|NODE|NPM|SH|BASH|SED|E?GREP|AWK|TAR|INSTALL|CURL|WGET|CMAKE|CARGO|GO|GCC|GCCGO|M4|DIFF|GIT|DOCKER"
)
_RUNNING_NAME: Final = pattern(
    r"^--?(?:.*[-_])?(?:exec|execute|pager|plugin|wrapper|cmd|hook|shell|runner|editor|browser|command|launcher)(?:[-_]|$)"
    r"|^--?(?:\w.*[-_])(?:tool|program|binary|interpreter|compiler|linker|prog|executable|preprocessor)$"
    r"|^--on-?(?:success|pass|fail|exit)"
)
# What is run if it is a path: `--python /tmp/x`.
_INTERPRETER: Final = pattern(
    r"^--?(?:[\w-]+[-_])?(?:python\d?|interpreter|java|node|ruby|perl|php|bash|sh|gcc|clang|driver|chrome|firefox|git|make)"
    r"(?:[-_]?(?:path|executable|exe|bin))?$"
)
# Options whose values are only looked at, or are addresses that programs print.
_READING_NAME: Final = pattern(
    r"^--?(?:[\w-]*[-_])?(?:include|includes|libs?|librar(?:y|ies)|sdk|sysroot|rootfs|home|prefix|with|jdk|toolchain|ca|cacert|cert|certs"
    r"|search|import|imports|class-?path|schema|input|from|source|sources|src|reference|compare|ignore|exclude|filter|match|glob|skip|pattern"
    r"|data|datasets?|models?|templates?|config|path|paths|root|(?:base|project|site|repo|repository|author|public|app)?-?(?:url|uri)|link|homepage|origin)"
    r"(?:[-_]?(?:dir|paths?|file|from|root|folder))?$|^--?(?:with|enable|disable|no|without)-"
)
_RUNNING_PROJECT: Final = frozenset(
    "playwright cypress vitest jest wdio newman k6 pytest py.test robot locust".split()
)


def unlisted_options(invocation: Invocation) -> Iterator[Effect]:
    """Yield what the unlisted options of an invocation are suspected of."""
    spec, words = invocation.spec, invocation.words
    for option in () if spec.strict else invocation.arguments.options:
        name = option.names[0]
        if len(name) < 4:
            continue
        is_hook = len(name) > 4 and _RUNNING_NAME.search(name) is not None
        value = None if is_hook else _place_or_address(invocation, option)
        if not (is_hook or value is not None) or any(map(spec.knows, option.names)):
            continue
        if value is None:
            yield Effect("odd-option", option.word)
        else:
            yield from _by_value(invocation, option, name, value)
    if spec is PLAIN:
        files = [w for w in words[1:] if re.match(r"@[\w./~-]+$", w.prefix)]
        yield from (Effect("program-file", word) for word in files if "." in word.prefix)


def _place_or_address(invocation: Invocation, option: Option) -> Word | None:
    value = option.value if option.value is not None else _next(invocation, option)
    return value if value is not None and re.search("[/~]", value.prefix) else None


def _by_value(invocation: Invocation, option: Option, name: str, value: Word) -> Iterator[Effect]:
    if _INTERPRETER.fullmatch(name):
        yield Effect("runs", value, (value,))
    elif _READING_NAME.search(name):
        return
    elif names_stranger(value) and invocation.program not in _RUNNING_PROJECT:
        yield Effect("odd-address", value, option=option.word)
    elif re.match(r"/|~|\.\./", value.prefix):
        yield Effect("odd-place", value, option=option.word)


def _next(invocation: Invocation, option: Option) -> Word | None:
    """Return the word behind an option, which can be its value."""
    at = next((i for i, word in enumerate(invocation.words) if word is option.word), None)
    if at is None or at + 1 >= len(invocation.words) or "=" in option.word.prefix:
        return None
    behind = invocation.words[at + 1]
    # A path that follows can be an operand as well: only an address is surely a value.
    return behind if behind.prefix[:1] not in ("-", "/", "~", ".") else None
