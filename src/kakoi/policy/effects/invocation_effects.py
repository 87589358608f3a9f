"""The effects of one invocation: from its spec, and from its reader if it has one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.arguments import Option
from kakoi.policy.effects.languages.chmod import mode_effects
from kakoi.policy.effects.named_paths import named_outputs, named_paths
from kakoi.policy.effects.package_sources import UNPROTECTED, host_risk, index_risk, package_risk
from kakoi.policy.effects.programs import PLAIN, Effect, Invocation
from kakoi.policy.effects.readers.code import CODE_READERS
from kakoi.policy.effects.readers.shell import SHELL_READERS, Reader, with_marks
from kakoi.policy.effects.readers.tools import TOOL_READERS, fetches_locally
from kakoi.policy.effects.unlisted_options import unlisted_options
from kakoi.policy.parsing.words import Word

_READERS: Final[Mapping[str, Reader]] = {**SHELL_READERS, **CODE_READERS, **TOOL_READERS}
_COMPRESSORS: Final = frozenset(
    "gzip pigz bzip2 pbzip2 lbzip2 xz pxz zstd zstdmt unzstd lz4 lzip lzop".split()
)
# Their operands are names or texts: no value of a variable can change what they do.
_SURE_READERS: Final = frozenset("names test set trap source kill config-words git-listing".split())
_PLAIN_OPERANDS: Final = frozenset(
    {"reads", "lists", "writes", "deletes", "package", "app-object", "interpreter"}
)
_RUNNING_OPERANDS: Final = frozenset({"runs", "runs-package", "runs-project"})
_HARMLESS_GIT_SETTINGS: Final = pattern(
    r"(?:color\.[\w.]+|core\.(?:quotepath|abbrev|autocrlf|ignorecase|safecrlf|longpaths|precomposeunicode)"
    r"|diff\.(?:renames|renamelimit|algorithm|noprefix|mnemonicprefix|context|wserrorhighlight)"
    r"|log\.\w+|advice\.\w+|user\.(?:name|email)|init\.defaultbranch|column\.\w+|status\.\w+"
    r"|safe\.directory|commit\.gpgsign|tag\.gpgsign|fetch\.prune|pull\.(?:rebase|ff)|merge\.conflictstyle"
    r"|blame\.\w+|grep\.\w+|http\.sslverify|protocol\.version|gc\.auto)(?:=.*)?|core\.pager=(?:cat)?",
    re.IGNORECASE | re.DOTALL,
)
# What code in a language that nobody reads here could do harm with.
_DOES_SOMETHING: Final = pattern(
    r"(?i)system|shell|exec|spawn|popen|pipe|proc|cmd|command|`|\brun|\bport\b|\bio\.(?!puts|inspect)|\bos\.|file|path|dir|open|write|sink|dump|save"
    r"|unlink|remove|delete|\brm\b|download|curl|url|https?:|socket|source|eval|parse|load|include|import|ccall|cglobal|\bsh\b|env|call|apply"
    r"|\bget|match\.|fun\b|field|invoke|symbol|function|->|=>|do\b|repos|develop|github|git|\\|~|/"
)
_MIRROR: Final = pattern(
    r"repos\s*=\s*['\"]https://(?:cloud\.r-project\.org|cran\.r(?:studio|-project)\.(?:com|org))/?['\"]"
)
# `app:create_app()` makes the application; `os:system("id")` is no application.
_CALLS_SOMETHING: Final = pattern(
    r"^(?:os|posix|subprocess|pty|shutil|ctypes|code|runpy|importlib|builtins|socket|asyncio|multiprocessing)\b[\w.]*:"
    r"|\(.*[^)\s=\w,'\"{}].*\)|__"
)
_HARMLESS_CMAKE: Final = frozenset(
    "capabilities cat compare_files copy copy_directory copy_if_different create_symlink echo "
    "echo_append environment make_directory md5sum sha256sum tar touch true false rename".split()
)

# Folders that builds, tests and package managers generate, by their usual names.
_GENERATED: Final = pattern(
    r"^(?!.*\.\.)(?:.*/)?(?:build|dist|target|node_modules|coverage|htmlcov|CMakeFiles|_build|__pycache__"
    r"|\.(?:pytest_cache|mypy_cache|ruff_cache|tox|nox|eggs|next|nuxt|turbo|parcel-cache|nyc_output"
    r"|gradle|svelte-kit|hypothesis|ipynb_checkpoints)|[\w.-]+\.egg-info)/?$"
)
# Programs that come from a package of another name.
_PACKAGES: Final = {
    "tsc": "typescript",
    "ng": "@angular/cli",
    "swc": "@swc/cli",
    "babel": "@babel/cli",
    "webpack": "webpack-cli",
    "tailwindcss": "@tailwindcss/cli",
    "commitlint": "@commitlint/cli",
    "markdownlint": "markdownlint-cli",
    "biome": "@biomejs/biome",
    "playwright": "@playwright/test",
    "sb": "storybook",
    "redocly": "@redocly/cli",
}
# Other folders that only hold what a run has made.
_REPLACEABLE: Final = pattern(
    r"^(?!.*\.\.)(?:/tmp/[^/]+|/var/tmp/[^/]+|(?:.*/)?(?:\.?(?:out|output|site|_site|public|html|tmp|temp|reports?)"
    r"|test-results|playwright-report|\.?v?env[\w.-]*|[\w.-]*(?:tmp|temp|build|dist|cache|report)[\w.-]*))(?:/[^/]*)*$"
)


def effects_of(invocation: Invocation) -> list[Effect]:
    """Return everything the words of the invocation do that a rule can match."""
    spec = invocation.spec
    given = invocation.arguments.options
    names_paths = any(map(_may_name_path, invocation.words[1:]))
    unlisted = spec is PLAIN or any(o.names[0] not in spec.flags for o in given)
    found = list(unlisted_options(invocation)) if unlisted else []
    for option in given:
        found.extend(_option_effects(invocation, option))
    reader = _READERS.get(spec.reader)
    if reader is not None:
        found.extend(reader(invocation))
    found.extend(_operand_effects(invocation))
    if spec.has_traps or spec.reader in _READERS.keys() - _SURE_READERS:
        found.extend(Effect("unclear-option", word) for word in invocation.arguments.unsure)
    if names_paths:
        found.extend(named_outputs(invocation))
    refined = [each for effect in found if (each := _refine(effect, invocation)) is not None]
    return [*refined, *named_paths(invocation, found)] if names_paths else refined


def _may_name_path(word: Word) -> bool:
    text = word.text
    return text is None or "/" in text or "~" in text or ".." in text


def _option_effects(invocation: Invocation, option: Option) -> list[Effect]:
    spec = invocation.spec
    found = [
        Effect(spec.flag_effects[name], option.word)
        for name in option.names
        if name in spec.flag_effects
    ]
    if option.value is not None:
        found += [
            Effect(spec.value_effects[name], option.value, option=option.word)
            for name in option.names
            if name in spec.value_effects
        ]
    if spec.strict and not found:
        known = spec.values | spec.optional | spec.flags
        if known.isdisjoint(option.names):
            found.append(Effect("unknown-option", option.word))
    return found


def _operand_kind(invocation: Invocation) -> str:
    spec = invocation.spec
    named = invocation.arguments.named
    if spec.to_stdout and named(*spec.to_stdout):
        return "reads"
    return "writes" if spec.in_place and named(*spec.in_place) else spec.operands


def _operand_effects(invocation: Invocation) -> list[Effect]:
    kind = _operand_kind(invocation)
    by_option = invocation.arguments.named(*invocation.spec.pattern_options)
    operands = invocation.arguments.operands[0 if by_option else invocation.spec.skip :]
    if kind in _PLAIN_OPERANDS:
        return [Effect(kind, word) for word in operands]
    if kind in _RUNNING_OPERANDS:
        # `timeout $x cmd`: the value of x decides which word is the command.
        before = invocation.arguments.operands[: invocation.spec.skip]
        if any(word.may_be_many for word in before):
            return [Effect("dynamic-program", before[0])]
        return [Effect("runs", operands[0], operands, kind)] if operands else []
    if kind in ("copies", "moves"):
        return _copied(invocation, kind, operands)
    if kind == "input-output":
        return [Effect("writes" if at else "reads", word) for at, word in enumerate(operands)]
    if kind == "not-a-format":
        return [Effect("changes-system", w) for w in operands if not w.prefix.startswith("+")]
    if kind.startswith("runs-script"):
        return _named_script(invocation, operands, behind_run=kind == "runs-script-named")
    if kind.startswith("code-"):
        return [Effect(kind, word) for word in operands[:1]]
    if kind == "git-urls":
        return [Effect("runs-hook", w) for w in operands if w.prefix.startswith(("ext::", "fd::"))]
    return []


def _copied(invocation: Invocation, kind: str, operands: tuple[Word, ...]) -> list[Effect]:
    into = invocation.arguments.named("-t", "--target-directory")
    sources = operands if into or len(operands) < 2 else operands[:-1]
    found = [Effect("reads", word) for word in sources]
    found += [Effect("deletes", word) for word in sources if kind == "moves"]
    gone = kind == "moves" and operands[len(sources) :]
    found += [Effect("mass-delete", word) for word in gone or () if word.static == "/dev/null"]
    # A copy of a repository is a repository whose settings are not protected.
    found += [Effect("writes-git", word) for word in sources if names_repository(word)]
    return found + [Effect("writes", word) for word in operands[len(sources) :]]


def names_repository(word: Word) -> bool:
    """Whether the path is that of git's own directory."""
    return re.search(r"(?:^|/)\.git(?:/[.*]?)?$", word.shown) is not None


def _named_script(
    invocation: Invocation, operands: tuple[Word, ...], *, behind_run: bool
) -> list[Effect]:
    """`pnpm NAME …`, `bun run NAME`: a script of the project, else the program of that name."""
    words = operands if behind_run else invocation.words
    if behind_run:
        return [Effect("runs-script", w, words, "runs-package") for w in words[:1]]
    at = next((i for i, w in enumerate(words) if w.static == invocation.subcommand), len(words))
    return [Effect("runs-script", words[at], words[at:], "runs-package")] if words[at:] else []


# ── effects that depend on the value they carry ──────────────────────────────────────────────


def _refine(effect: Effect, invocation: Invocation) -> Effect | None:
    """Return the effect as the rules know it, or None if its value makes it harmless."""
    if effect.kind == "none":
        return None
    refine = _REFINEMENTS.get(effect.kind)
    kind = refine(effect, invocation) if refine else effect.kind
    if kind is None:
        return None
    if kind == "runs-rest" and effect.option is not None:
        rest = invocation.words[invocation.words.index(effect.option) + 1 :]
        argv = rest if rest and rest[0] is effect.word else (effect.word, *rest)
        before = invocation.words[: invocation.words.index(effect.option)]
        away = [word for word in before if re.match(r"/|~|\.\./", word.prefix)]
        return Effect("runs", effect.word, with_marks(argv, away[0] if away else None), "xargs")
    if kind == "interpreter":
        return Effect("runs", effect.word, (effect.word,)) if "/" in effect.word.prefix else None
    if kind == "clears":
        operands = invocation.arguments.operands
        return (
            Effect(_replaces(Effect(kind, operands[-1]), invocation), operands[-1])
            if operands
            else None
        )
    if kind in ("after-colon-writes", "after-colon-reads"):
        cut = re.search("[:=]", effect.word.prefix)
        named = kind.removeprefix("after-colon-")
        return Effect(named, effect.word.after(cut.end())) if cut else None
    return effect if kind == effect.kind else replace(effect, kind=kind)


def _tar_folder(_: Effect, invocation: Invocation) -> str:
    """`tar -C DIR`: where files are unpacked, or where those that are packed are found."""
    letters = invocation.words[1].prefix
    named = invocation.arguments.named
    packs = bool(named("-c", "--create", "-t", "--list", "-r", "-u", "--append"))
    unpacks = bool(named("-x", "--extract", "--get"))
    if letters[:1] != "-":
        packs, unpacks = packs or bool({"c", "t"} & set(letters)), unpacks or "x" in letters
    return "reads" if packs and not unpacks else "writes"


def _cpio_archive(effect: Effect, _: Invocation) -> str:
    return "runs-hook" if ":" in effect.word.prefix else "writes"


def _pandoc_format(effect: Effect, _: Invocation) -> str | None:
    return "runs-hook" if effect.word.static is None or ".lua" in effect.word.static else None


def _cpio_extract(_: Effect, invocation: Invocation) -> str | None:
    return None if invocation.arguments.named("-t", "--list") else "leaves-tree"


def _http_method(effect: Effect, invocation: Invocation) -> str | None:
    if (effect.word.static or "").upper() in ("GET", "HEAD", "OPTIONS"):
        return None
    return "sends-locally" if fetches_locally(invocation) else "sends"


def _sends(_: Effect, invocation: Invocation) -> str:
    if fetches_locally(invocation):
        return "sends-locally"
    # With -G curl puts the data into the URL of a GET.
    return "sends-query" if invocation.arguments.named("-G", "--get") else "sends"


def _unclear_url(effect: Effect, invocation: Invocation) -> str:
    is_fetch = invocation.spec.reader == "urls"
    return "unclear-local" if is_fetch and fetches_locally(invocation) else effect.kind


def _recursive_delete(effect: Effect, invocation: Invocation) -> str:
    """`rm -r build`: what a build generated can be generated again."""
    operands = invocation.arguments.operands
    forced = invocation.arguments.named("-f", "--force", "--no-preserve-root")
    generated = all(_GENERATED.search(word.static or "") for word in operands)
    return "deletes-generated" if operands and generated and not forced else effect.kind


def _git_setting(effect: Effect, _: Invocation) -> str | None:
    text = effect.word.text if effect.word.text is not None else effect.word.prefix
    return None if _HARMLESS_GIT_SETTINGS.fullmatch(text) else "runs-hook"


def _protocol(effect: Effect, _: Invocation) -> str | None:
    return (
        None if re.fullmatch(r"[=+,]*(?:https?[=+,]*)+", effect.word.static or "") else "odd-scheme"
    )


def _mode(effect: Effect, _: Invocation) -> str | None:
    kinds = ["unclear-program"] if effect.word.static is None else mode_effects(effect.word.static)
    return kinds[0] if kinds else None


def _awk_include(effect: Effect, _: Invocation) -> str:
    return "in-place" if effect.word.static == "inplace" else "loads"


def _cmake_command(effect: Effect, invocation: Invocation) -> str | None:
    leaves = any(word.prefix.startswith(("/", "~", "..")) for word in invocation.words)
    return None if effect.word.static in _HARMLESS_CMAKE and not leaves else "runs-hook"


def _makefile(effect: Effect, _: Invocation) -> str | None:
    # Rules that arrive on a pipe or from elsewhere have not been reviewed.
    text = effect.word.text
    piped = text is None or text == "-" or text.startswith(("/dev/", "/proc/"))
    return "runs-hook" if piped else "loads-outside"


def _compressor(effect: Effect, _: Invocation) -> str | None:
    program = re.fullmatch(r"(\w+)(?: -[\w=.-]+)*", effect.word.static or "")
    return None if program and program[1] in _COMPRESSORS else "runs-hook"


def _cmake_define(effect: Effect, _: Invocation) -> str | None:
    name, value = effect.word.shown.partition("=")[::2]
    if not re.search(r"COMPILER(?:_LAUNCHER)?(?::\w+)?$|LAUNCHER|RULE_LAUNCH|MAKE_PROGRAM", name):
        return None
    known = (
        r"(?:/usr/(?:local/)?bin/)?"
        r"(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|s?ccache|ninja|make)(?:-\d+)?"
    )
    return None if re.fullmatch(known, value) else "odd-option"


def _pager(effect: Effect, _: Invocation) -> str | None:
    return None if effect.word.static in ("cat", "less", "more", "true", "") else "runs-hook"


def _linker_flags(effect: Effect, _: Invocation) -> str | None:
    return "runs-hook" if re.search(r"extld|linker|plugin|wrapper", effect.word.shown) else None


def _public_host(effect: Effect, _: Invocation) -> str | None:
    everybody = re.fullmatch(
        r"(?:tcp://)?(?:0\.0\.0\.0|::|\*|\[::\])(?::\d+)?", effect.word.static or ""
    )
    return effect.kind if everybody else None


def _global(_: Effect, invocation: Invocation) -> str | None:
    reading = ("ls", "list", "root", "bin", "prefix", "outdated", "view", "config", "get")
    return None if invocation.subcommand in reading else "global-install"


def _package(effect: Effect, invocation: Invocation) -> str | None:
    risk = package_risk(effect.word, invocation.program)
    # A package elsewhere on this machine brings code of its own.
    elsewhere = re.match(r"(?:file:)?(?:/|~)", effect.word.prefix)
    return risk or ("odd-place" if elsewhere else None)


def _index(effect: Effect, _: Invocation) -> str | None:
    return index_risk(effect.word)


def _unverified(effect: Effect, _: Invocation) -> str | None:
    return UNPROTECTED if effect.option is None else host_risk(effect.word)


def _verified(effect: Effect, _: Invocation) -> str | None:
    return None if effect.word.static in ("true", "1", "") else UNPROTECTED


def _names_files(effect: Effect, _: Invocation) -> str:
    """An expression that gives the names of the files that are written."""
    return "odd-option" if re.search("[\"'+]", effect.word.shown) else "writes"


def _unread_code(effect: Effect, _: Invocation) -> str | None:
    """`Rscript -e 'install.packages("x")'`: short code that names nothing that does harm."""
    text = _MIRROR.sub("", effect.word.static or "`")
    return "unclear-program" if len(text) > 300 or _DOES_SOMETHING.search(text) else None


def _archive(_: Effect, __: Invocation) -> None:
    return None  # read_tar knows whether it is written or read


def _replaces(effect: Effect, _: Invocation) -> str:
    """A folder that is emptied before it is written: one that a run before has generated."""
    word = effect.word
    generated = word.static is not None and bool(
        _GENERATED.search(word.static) or _REPLACEABLE.search(word.static)
    )
    return "writes" if generated else "replaces-folder"


def _brings_program(effect: Effect, invocation: Invocation) -> str | None:
    """`npx -p PACKAGE PROGRAM`: the program of that name need not be the one that is listed."""
    risk = package_risk(effect.word, invocation.program)
    package = re.sub(r"(?<=.)@[\w.^~<>=*-]+$", "", effect.word.static or "\0")
    operands = invocation.arguments.operands
    program = (
        (operands[-1] if invocation.program == "pnpm" else operands[0]).shown if operands else ""
    )
    is_own = package in (program, _PACKAGES.get(program)) or package.rpartition("/")[2] == program
    return risk or (None if is_own else "package-program")


def _renames_members(effect: Effect, _: Invocation) -> str | None:
    """`--transform 's,^,/etc/,'`: the new names may lead elsewhere, or a command makes them."""
    text = effect.word.static
    plain = text is not None and ".." not in text and not re.match(r"s(.).*?\1/|.*e[a-z]*$", text)
    return None if plain else "leaves-tree"


def _app_object(effect: Effect, _: Invocation) -> str | None:
    return "runs-hook" if _CALLS_SOMETHING.search(effect.word.shown) else None


_REFINEMENTS: Final[Mapping[str, Callable[[Effect, Invocation], str | None]]] = {
    "app-object": _app_object,
    "renames-members": _renames_members,
    "brings-program": _brings_program,
    "replaces": _replaces,
    "http-method": _http_method,
    "sends": _sends,
    "recursive-delete": _recursive_delete,
    "unclear-url": _unclear_url,
    "tar-folder": _tar_folder,
    "cpio-extract": _cpio_extract,
    "cpio-archive": _cpio_archive,
    "pandoc-format": _pandoc_format,
    "git-setting": _git_setting,
    "protocol": _protocol,
    "mode": _mode,
    "awk-include": _awk_include,
    "cmake-command": _cmake_command,
    "makefile": _makefile,
    "cmake-define": _cmake_define,
    "compressor": _compressor,
    "pager": _pager,
    "linker-flags": _linker_flags,
    "public-host": _public_host,
    "global-install": _global,
    "archive": _archive,
    "unread-code": _unread_code,
    "names-files": _names_files,
    "package": _package,
    "index": _index,
    "unverified": _unverified,
    "verified": _verified,
}
