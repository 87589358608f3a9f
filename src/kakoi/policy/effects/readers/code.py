"""Readers for programs whose arguments are code: sed, awk, `python -c`.

The languages of inline code are listed in `languages/inline.py`, which says how to add one.
"""

import posixpath
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.languages.awk import awk_effects
from kakoi.policy.effects.languages.code_effect import CodeEffect
from kakoi.policy.effects.languages.inline import LANGUAGES, inline_code_effects
from kakoi.policy.effects.languages.sed import sed_effects
from kakoi.policy.effects.named_paths import code_paths
from kakoi.policy.effects.programs import Effect, Invocation
from kakoi.policy.effects.readers.shell import ASSIGNED, Reader
from kakoi.policy.parsing.words import STDIN_NAMES, Expands, Expansion, Word, literal_word

_LONGEST_SCRIPT: Final = 16 * 1024
# It reads a secret, and it sends.
_SENDS_SECRET: Final = pattern(
    r"(?s)^(?=.*(?:urlopen|requests\.|httpx|http\.client|socket\b|fetch\(|https?['\")\s.]*\.(?:get|request)|Net::HTTP|curl_"
    r"|URI\.open|file_get_contents\(\s*['\"]https?:|aiohttp|axios|LWP|dns['\")]))"
    r"(?:.*(?:environ|getenv|process\.env|\bENV)\W{0,8}(?:get\W{0,4})?\w*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL)"
    r"|.*['\"](?:[^'\"]*/)?(?:\.env(?:\.\w+)?|[^'\"]*(?:credentials|secrets?)(?:\.\w+)?|[^'\"]*\.(?:pem|key))['\"])",
)
# Something that is fetched becomes code.
_FETCHES_CODE: Final = pattern(
    r"(?s)^(?=.*(?:\bfetch\b|https?\.get|urlopen|requests\.|axios|URI\.open|open-uri|httpx|https?://))"
    r".*(?:\beval\b|\bexec\b|new Function|vm\.run|\bcompile\("
    r"|\bimport\s*\(?\s*['\"](?:https?|npm|jsr):|instance_eval)"
)
# It lists everything here and removes it.
_REMOVES_MANY: Final = pattern(
    r"""(?s)^(?=.*(?:listdir\(\s*(?:['"]\.['"])?\s*\)|r?glob\(\s*['"]\*{1,2}(?:/\*)?['"]|readdirSync\(\s*['"]\.['"]"""
    r"""|Dir\[\s*['"]\*{1,2}(?:/\*)?['"]))"""
    r".*(?:\bunlink(?:Sync)?\b|\bos\.remove\b|\brmSync\b|File\.delete)"
)
_READS_KEYS: Final = pattern(r"\bnetrc\.netrc\(\s*\)|\bkeyring\.get_(?:password|credential)\(")
_DESCRIPTOR: Final = pattern(r"^/{1,2}(?:dev|proc)/.*fd/")
# Modules that run their input, or a program that is named after them.
_RUNNING_MODULES: Final = frozenset(
    "asyncio code codeop IPython ptpython bpython idlelib pty".split()
)
# Modules that load a program from a file of any kind, open connections, or reach other machines.
_UNCLEAR_MODULES: Final = frozenset(
    "runpy trace profile pickle smtpd ftplib telnetlib nntplib poplib imaplib webbrowser "
    "antigravity fabric ansible paramiko awscli".split()
)
# `!ls` and `%system ls` of IPython.
_SHELL_MAGIC: Final = pattern(r"(?m)^\s*[!%]|=\s*[!%]|get_ipython")
# Modules that write what their operands name.
_WRITING_MODULES: Final = frozenset(
    "venv virtualenv zipfile tarfile json.tool zipapp lib2to3 gzip".split()
)
# The package that an inner module belongs to: `pip.__main__`, `pip._internal.cli.main`.
_INNER_MODULE: Final = pattern(r"([A-Za-z]\w*)\._[\w.]*")


def _at_word(found: Iterable[CodeEffect], word: Word) -> list[Effect]:
    """Return what code does as effects of the word that contains it."""
    effects: list[Effect] = []
    for each in found:
        kind = f"program-{each.kind.value}"
        target = each.target
        if each.kind.value in ("writes", "reads") and target is not None:
            effects.append(Effect(f"program-{each.kind.value}", word, text=target))
            # Below the home directory: a path that only starts with `~` would be in the workspace.
            path = re.sub(r"^~(?=/|$)", "/home/user", target)
            effects.append(Effect(each.kind.value, literal_word(path, word.start, word.end)))
        else:
            effects.append(Effect(kind, word, text=target or ""))
    return effects


def _script_effects(
    read: Callable[[str], Iterable[CodeEffect]], script: str, word: Word
) -> list[Effect]:
    """Return what a script does; one that is too long to have been typed is not read."""
    if len(script) > _LONGEST_SCRIPT:
        return [Effect("program-unreadable", word)]
    return _at_word(read(script), word)


def read_sed(invocation: Invocation) -> list[Effect]:
    """sed: its scripts are the first operand, or every `-e`."""
    arguments = invocation.arguments
    scripts = [
        option.value
        for option in arguments.options
        if option.value is not None and {"-e", "--expression"} & set(option.names)
    ]
    from_file = arguments.named("-f", "--file") is not None
    operands = arguments.operands
    if not scripts and not from_file:
        scripts, operands = list(operands[:1]), operands[1:]
    found = [Effect("reads", word) for word in operands]
    if any(word.text is None for word in scripts):
        for word in scripts:
            if word.text is None:
                found.extend(_dynamic_sed(word))
        return found
    if scripts:
        script = "\n".join(word.text or "" for word in scripts)
        found.extend(_script_effects(sed_effects, script, scripts[0]))
    return found


def _dynamic_sed(word: Word) -> list[Effect]:
    """Read a script with expansions: with a harmless word in their place, else it is unclear."""
    texts = [
        p.text if not isinstance(p, Expansion) else "1" if _is_number(p) else None
        for p in word.parts
    ]
    # A word in a replacement, or a line number in an address: one of the two must be readable.
    readings = [
        _script_effects(sed_effects, "".join(t if t is not None else inert for t in texts), word)
        for inert in ("x", "1")
    ]
    effects = min(readings, key=lambda found: any(e.kind == "program-unreadable" for e in found))
    # At the very start or end an expansion could add a command of its own.
    if texts[-1] is None or texts[0] is None:
        effects.append(Effect("unclear-script", word))
    return effects


def _is_number(part: Expansion) -> bool:
    arithmetic = part.kind is Expands.ARITHMETIC
    return arithmetic or (part.kind is Expands.SHAPE and part.name.isdigit())


def read_awk(invocation: Invocation) -> list[Effect]:
    """awk: its program is the first operand, unless `-f` names a file."""
    arguments = invocation.arguments
    if arguments.named("-f", "--file", "-E", "--exec"):
        return [Effect("reads", word) for word in arguments.operands]
    scripts = [
        option.value
        for option in arguments.options
        if option.value is not None and {"-e", "--source"} & set(option.names)
    ]
    operands = arguments.operands
    if not scripts:
        scripts, operands = list(operands[:1]), operands[1:]
    found = [Effect("reads", w) for w in operands if not ASSIGNED.match(w.prefix)]
    # Several pieces are one program.
    pieces = [
        "".join("0" if isinstance(p, Expansion) else p.text for p in w.parts) for w in scripts
    ]
    if scripts:
        found.extend(_script_effects(awk_effects, "\n".join(pieces), scripts[0]))
    return found + [Effect("unclear-script", word) for word in scripts if word.shape is None]


def code_reader(language: str) -> Reader:
    """Return a reader for `python -c CODE` and the like, `-m MODULE`, and code on stdin."""
    flags = LANGUAGES[language].options

    def read(invocation: Invocation) -> list[Effect]:
        arguments = invocation.arguments
        found: list[Effect] = []
        texts = [o.value for o in arguments.options if o.value and set(flags) & set(o.names)]
        # `node -p -e CODE`: the first option took the second as its value.
        texts += [w for before, w in pairwise(invocation.words) if before.static in flags]
        for word in dict.fromkeys(texts):
            found.append(Effect("code-text", word))
            found.extend(code_effects(language, word))
        found += _php_settings(invocation) if language == "php" else []
        module = arguments.named("-m")
        if module is not None and module.value:
            found += _module(module.value, arguments.operands)
        if texts or arguments.named(
            "-m", "--version", "-V", "-v", "--help", "-h", "--check", "--test"
        ):
            return found
        file = posixpath.normpath(arguments.operands[0].static or "") if arguments.operands else "-"
        if file in STDIN_NAMES:
            found.append(Effect("runs-stdin", invocation.words[0], text=language))
        elif _DESCRIPTOR.search(file):
            found.append(Effect("runs-input", arguments.operands[0]))
        else:
            found.append(Effect("runs-code-file", arguments.operands[0], text=language))
            found.extend(framework_code(language, arguments.operands))
        return found

    return read


def _php_settings(invocation: Invocation) -> list[Effect]:
    """`php -d NAME=VALUE`: some settings load code."""
    loading = re.compile(r"(?:zend_)?extension|auto_(?:prepend|append)_file|disable_functions")
    return [
        Effect("loads", option.value)
        for option in invocation.arguments.options
        if option.value is not None
        and {"-d", "--define"} & set(option.names)
        and loading.match(option.value.prefix)
    ]


def _module(module: Word, operands: tuple[Word, ...]) -> list[Effect]:
    """`python -m MODULE …`: many modules are programs of that name."""
    if inner := _INNER_MODULE.fullmatch(module.static or ""):
        module = literal_word(inner[1], module.start, module.end)
    if module.static in _WRITING_MODULES:
        found = [Effect("writes", word) for word in operands if word.prefix[:1] != "-"]
        clears = any(word.static == "--clear" for word in operands)
        return [*found, *(Effect("replaces", each.word) for each in found if clears)]
    if module.static in _RUNNING_MODULES:
        codes = [word for before, word in pairwise(operands) if before.static == "-c"]
        effects = [effect for word in codes for effect in code_effects("python", word)]
        effects += [Effect("unclear-program", w) for w in codes if _SHELL_MAGIC.search(w.shown)]
        return effects if codes else [Effect("runs-input", module)]
    if module.static in ("py_compile", "compileall"):
        return [Effect("odd-place", word) for word in operands if word.prefix[:1] in ("/", "~")]
    if module.static in _UNCLEAR_MODULES:
        return [Effect("unclear-program", module)]
    if module.static == "timeit":
        return [effect for word in operands for effect in code_effects("python", word)]
    return [Effect("runs-module", module, (module, *operands))]


def framework_code(language: str, operands: tuple[Word, ...]) -> list[Effect]:
    """`manage.py shell -c CODE` and `artisan tinker --execute=CODE`."""
    script = (operands[0].static or "").split("/")[-1] if operands else ""
    found: list[Effect] = []
    if script == "artisan" and any(_ARTISAN_DROPS.fullmatch(w.static or "") for w in operands[1:2]):
        found.append(Effect("database-deletes", operands[1]))
    for before, word in pairwise(operands):
        if script == "manage.py" and before.static in ("-c", "--command"):
            found.extend(code_effects(language, word))
        if script == "manage.py" and (
            word.static in ("flush", "reset_db")
            or (before.static != "manage.py" and word.static == "zero")
        ):
            found.append(Effect("database-deletes", word))
        if script == "artisan" and word.prefix.startswith("--execute="):
            found.extend(code_effects(language, word.after(len("--execute="))))
    return found


def code_effects(language: str, word: Word) -> list[Effect]:
    """Return what a piece of code does, as far as its text shows."""
    if word.text is None and len(word.parts) == 1:
        return [Effect("unclear-program", word)]
    stand_in = "".join("0" if isinstance(p, Expansion) else p.text for p in word.parts)
    if language in LANGUAGES and LANGUAGES[language].parse is not None:
        # A parser is fast, so the length of the code does not matter.
        found = _at_word(inline_code_effects(language, stand_in), word)
    else:
        found = _script_effects(partial(inline_code_effects, language), stand_in, word)
    if len(stand_in) <= _LONGEST_SCRIPT and _REMOVES_MANY.search(stand_in):
        found.append(Effect("program-deletes", word))
    if len(stand_in) <= _LONGEST_SCRIPT and _SENDS_SECRET.search(stand_in):
        found.append(Effect("sends-secret", word))
    if len(stand_in) <= _LONGEST_SCRIPT and _READS_KEYS.search(stand_in):
        found.append(Effect("reads-secret", word))
    if len(stand_in) <= _LONGEST_SCRIPT and _FETCHES_CODE.search(stand_in):
        found.append(Effect("program-unreadable", word))
    return [*found, *code_paths(word)]


def read_script_file(invocation: Invocation) -> list[Effect]:
    """An interpreter whose language nobody reads here: it runs a file, or nobody can tell what."""
    operands = invocation.arguments.operands
    named_file = invocation.arguments.named("--script", "--load", "-f", "--file")
    has_code = invocation.arguments.named("-e", "--eval", "-E", "--print")
    if operands or named_file or has_code or invocation.only_asks_about_itself:
        fed = [word for word in operands[:1] if (word.static or "") in STDIN_NAMES]
        return [Effect("unclear-program", word) for word in fed]
    return [Effect("unclear-program", invocation.words[0])]


_ARTISAN_DROPS: Final = pattern(r"migrate:(?:fresh|reset|refresh)|db:wipe")
# What starts a program of this machine: `!` and `spawn` of SIMH, `\\!` of psql and mysql.
_STARTS: Final = {
    "emulator": r"(?mi)^\s*(?:!|sp[a-z]*\s)",
    "database": (
        r"(?mi)\\[!ogw]|\\copy\b|\bprogram\b|\\i[r ]|`|^\s*(?:system|source|pager|tee|\\\.)\s"
    ),
}


DROPS: Final = pattern(
    r"(?i)\b(?:drop|truncate|flushall|flushdb|shutdown)\b|\bdelete\s+from\b(?!.*\bwhere\b)"
)


def client_reader(kind: str) -> Reader:
    """Return a reader for a program with commands of its own, on its input as well."""
    starts = pattern(_STARTS[kind])

    def read(invocation: Invocation) -> list[Effect]:
        arguments = invocation.arguments
        texts = [*(o.value for o in arguments.options if o.value), *arguments.operands]
        found = [Effect("runs-hook", word) for word in texts if starts.search(word.shown)]
        found += [Effect("unclear-program", word) for word in texts if _is_unclear(word)]
        found += [Effect("database-deletes", word) for word in texts if DROPS.search(word.shown)]
        return [*found, Effect("fed-commands", invocation.words[0], text=_STARTS[kind])]

    return read


def _is_unclear(word: Word) -> bool:
    return any(part.kind is Expands.COMMAND for part in word.expansions())


def read_drops(invocation: Invocation) -> list[Effect]:
    """dropdb removes a database, whatever its arguments are."""
    return [Effect("database-deletes", invocation.words[0])]


def read_ffmpeg(invocation: Invocation) -> list[Effect]:
    """ffmpeg: it writes its operands; one that is an address gets the result sent."""
    inputs = [o.value for o in invocation.arguments.options if o.value and "-i" in o.names]
    found = [Effect("reads", word.after(_PROTOCOL.match(word.prefix).end())) for word in inputs]  # type: ignore[union-attr]
    for word in invocation.arguments.operands:
        if word.static in ("-", "pipe:", "pipe:1"):
            continue
        if word.prefix.startswith("file:"):
            found.append(Effect("writes", word.after(5)))
        else:
            is_sent = re.match(r"\[|[a-z][\w+]*[:,]", word.prefix)
            found.append(Effect("sends" if is_sent else "writes", word))
            # `-f tee 'a|b'` writes both.
            found += [
                Effect("writes", word.after(bar.end()))
                for bar in re.finditer(r"\|(?:\[[^]]*\])?", word.prefix)
            ]
    return found


_PROTOCOL: Final = pattern(r"(?:(?:file|concat|cache|async|subfile|crypto|data)[:,])*")


def read_hosts(invocation: Invocation) -> list[Effect]:
    """dig, ping: a name that is filled in at run time can carry anything to its server."""
    return [Effect("unclear-url", w) for w in invocation.arguments.operands if w.text is None]


CODE_READERS: Final[dict[str, Reader]] = {
    "sed": read_sed,
    "awk": read_awk,
    "script-file": read_script_file,
    "emulator": client_reader("emulator"),
    "database": client_reader("database"),
    "drops": read_drops,
    "ffmpeg": read_ffmpeg,
    "hosts": read_hosts,
    **{language: code_reader(language) for language in LANGUAGES},
}
