"""Readers for programs that carry a program of another language: sed, awk, `python -c`."""

import posixpath
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Final

from kakoi.policy.languages.awk import awk_effects
from kakoi.policy.languages.embedded import EmbeddedEffect
from kakoi.policy.languages.inline_code import inline_code_effects
from kakoi.policy.languages.sed import sed_effects
from kakoi.policy.programs import Effect, Invocation
from kakoi.policy.reading.shell_readers import ASSIGNED, Reader
from kakoi.policy.words import STDIN_NAMES, Expansion, Word, literal_word

_LONGEST_SCRIPT: Final = 16 * 1024
_DESCRIPTOR: Final = re.compile(r"^/{1,2}(?:dev|proc)/.*fd/")
# Modules that run what they are fed, or a program that is named behind them.
_RUNNING_MODULES: Final = frozenset("asyncio code codeop IPython ptpython bpython idlelib".split())


def _embedded(found: Iterable[EmbeddedEffect], word: Word) -> list[Effect]:
    """What an embedded program does, at the place where it stands."""
    effects: list[Effect] = []
    for each in found:
        kind = f"program-{each.effect.value}"
        target = each.target
        if each.effect.value in ("writes", "reads") and target is not None:
            effects.append(Effect(f"program-{each.effect.value}", word, text=target))
            # Below the home directory: a path that only starts with `~` would be one of ours.
            path = re.sub(r"^~(?=/|$)", "/home/user", target)
            effects.append(Effect(each.effect.value, literal_word(path, word.start, word.end)))
        else:
            effects.append(Effect(kind, word, text=target or ""))
    return effects


def _script_effects(
    read: Callable[[str], Iterable[EmbeddedEffect]], script: str, word: Word
) -> list[Effect]:
    """What a script does; one longer than anybody types is not read at all."""
    if len(script) > _LONGEST_SCRIPT:
        return [Effect("program-unreadable", word)]
    return _embedded(read(script), word)


def read_sed(invocation: Invocation) -> list[Effect]:
    """sed's scripts: the first operand, or every `-e`."""
    arguments = invocation.arguments
    given = [
        option.value
        for option in arguments.options
        if option.value is not None and {"-e", "--expression"} & set(option.names)
    ]
    from_file = arguments.named("-f", "--file") is not None
    operands = arguments.operands
    if not given and not from_file:
        given, operands = list(operands[:1]), operands[1:]
    found = [Effect("reads", word) for word in operands]
    if any(word.text is None for word in given):
        for word in given:
            if word.text is None:
                found.extend(_dynamic_sed(word))
        return found
    if given:
        script = "\n".join(word.text or "" for word in given)
        found.extend(_script_effects(sed_effects, script, given[0]))
    return found


def _dynamic_sed(word: Word) -> list[Effect]:
    """A script with expansions in it: judged with an inert word in their place, else unclear."""
    texts = [p.text if not isinstance(p, Expansion) else None for p in word.parts]
    # A word in a replacement or a line number in an address: one of the two must be readable.
    readings = [
        _script_effects(sed_effects, "".join(t if t is not None else inert for t in texts), word)
        for inert in ("x", "1")
    ]
    effects = min(readings, key=lambda found: any(e.kind == "program-unreadable" for e in found))
    # At the very start or end an expansion could add a command of its own.
    if isinstance(word.parts[-1], Expansion) or isinstance(word.parts[0], Expansion):
        effects.append(Effect("unclear-script", word))
    return effects


def read_awk(invocation: Invocation) -> list[Effect]:
    """awk's program: the first operand, unless `-f` names a file."""
    arguments = invocation.arguments
    if arguments.named("-f", "--file", "-E", "--exec"):
        return [Effect("reads", word) for word in arguments.operands]
    given = [
        option.value
        for option in arguments.options
        if option.value is not None and {"-e", "--source"} & set(option.names)
    ]
    operands = arguments.operands
    if not given:
        given, operands = list(operands[:1]), operands[1:]
    found = [Effect("reads", w) for w in operands if not ASSIGNED.match(w.prefix)]
    # Several pieces are one program.
    pieces = ["".join("0" if isinstance(p, Expansion) else p.text for p in w.parts) for w in given]
    if given:
        found.extend(_script_effects(awk_effects, "\n".join(pieces), given[0]))
    return found + [Effect("unclear-script", word) for word in given if word.shape is None]


_CODE_FLAGS: Final = {
    "python": ("-c",), "node": ("-e", "--eval", "-p", "--print", "-pe"), "ruby": ("-e",),
    "perl": ("-e", "-E"), "php": ("-r",),
}  # fmt: skip


def code_reader(language: str) -> Reader:
    """A reader for `python -c CODE` and its like, `-m MODULE`, and programs on standard input."""
    flags = _CODE_FLAGS[language]

    def read(invocation: Invocation) -> list[Effect]:
        arguments = invocation.arguments
        found: list[Effect] = []
        texts = [o.value for o in arguments.options if o.value and set(flags) & set(o.names)]
        # `node -p -e CODE`: the first option took the second for its value.
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
    if module.static in ("venv", "virtualenv", "zipfile", "tarfile", "json.tool"):
        return [Effect("writes", word) for word in operands if word.prefix[:1] != "-"]
    if module.static in _RUNNING_MODULES:
        codes = [word for before, word in pairwise(operands) if before.static == "-c"]
        given = [effect for word in codes for effect in code_effects("python", word)]
        return given if codes else [Effect("runs-input", module)]
    if module.static in ("runpy", "trace", "profile"):
        return [Effect("unclear-program", module)]
    if module.static == "timeit":
        return [effect for word in operands for effect in code_effects("python", word)]
    return [Effect("runs-module", module, (module, *operands))]


def framework_code(language: str, operands: tuple[Word, ...]) -> list[Effect]:
    """`manage.py shell -c CODE` and `artisan tinker --execute=CODE`."""
    script = (operands[0].static or "").split("/")[-1] if operands else ""
    found: list[Effect] = []
    for before, word in pairwise(operands):
        if script == "manage.py" and before.static in ("-c", "--command"):
            found.extend(code_effects(language, word))
        if script == "artisan" and word.prefix.startswith("--execute="):
            found.extend(code_effects(language, word.after(len("--execute="))))
    return found


def code_effects(language: str, word: Word) -> list[Effect]:
    """What a piece of code does, as far as its text shows."""
    if word.text is None and len(word.parts) == 1:
        return [Effect("unclear-program", word)]
    stand_in = "".join("0" if isinstance(p, Expansion) else p.text for p in word.parts)
    if language == "python":  # read by Python's own parser, which is fast
        return _embedded(inline_code_effects(language, stand_in), word)
    return _script_effects(partial(inline_code_effects, language), stand_in, word)


CODE_READERS: Final[dict[str, Reader]] = {
    "sed": read_sed,
    "awk": read_awk,
    **{language: code_reader(language) for language in _CODE_FLAGS},
}
