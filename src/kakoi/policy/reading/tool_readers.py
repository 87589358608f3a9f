"""Readers for tools with their own little languages: git, tar, curl, make, chmod, ln, sqlite3."""

import re
from typing import Final

from kakoi.policy.languages.modes import mode_effects
from kakoi.policy.programs import Effect, Invocation
from kakoi.policy.reading.arguments import Arguments, read_arguments
from kakoi.policy.reading.shell_readers import Reader
from kakoi.policy.words import Expands, Word, literal_word

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Options of curl and wget whose value is sent along.
_SENT: Final = frozenset(
    "-H --header -A --user-agent -e --referer -b --cookie -u --user -U --proxy-user "
    "--oauth2-bearer --request-target".split()
)
_SQLITE_RUNS: Final = re.compile(
    r"\.(?:shell|system|load|import|output|once|excel|log|archive|ar|clone|save|backup)\b"
    r"|load_extension|writefile|\bedit\s*\(|\bfts3_tokenizer",
    re.IGNORECASE,
)
_MAKE_RUNS: Final = frozenset({"SHELL", ".SHELLFLAGS", "MAKEFLAGS", "MAKE", "MAKEFILES"})
_READING: Final = {
    "stash": {"list", "show"},
    "remote": {"show", "get-url", "-v", "--verbose"},
    "worktree": {"list"},
    "notes": {"list", "show"},
    "config": {"get", "list"},
}
_READING_FLAGS: Final = {
    "tag": ("-l", "--list", "--contains", "--points-at", "--merged", "--no-merged", "-n", "--sort"),
    "config": (
        "--get",
        "--get-all",
        "--get-regexp",
        "--list",
        "-l",
        "--get-urlmatch",
        "--name-only",
    ),
}


def read_chmod(invocation: Invocation) -> list[Effect]:
    """chmod's mode, octal or symbolic, and the files it changes."""
    arguments = invocation.arguments
    operands = arguments.operands
    reference = arguments.named("--reference") is not None
    # A symbolic mode such as `-x` or `-rwx` looks like a cluster of options.
    symbolic = [
        option.word
        for option in arguments.options
        if not option.word.prefix.startswith("--") and set(option.word.prefix[1:]) & set("rwxXst")
    ]
    mode = symbolic[0] if symbolic else (operands[0] if operands and not reference else None)
    files = operands if reference or symbolic else operands[1:]
    found = [Effect("writes", word) for word in files]
    if reference:
        found.append(Effect("unclear-program", arguments.options[0].word))
    if mode is None:
        return found
    if mode.static is None:
        return [*found, Effect("unclear-program", mode)]
    return found + [Effect(kind, mode) for kind in mode_effects(mode.static)]


def read_links(invocation: Invocation) -> list[Effect]:
    """`ln -s TARGET NAME`: what is linked to, and where the link is made."""
    operands = invocation.arguments.operands
    targets = operands[:-1] if len(operands) > 1 else operands
    made = operands[-1:] if len(operands) > 1 else ()
    # A relative target is relative to the directory of the link; without -s, and with -r, to here.
    named = invocation.arguments.named
    symbolic = named("-s", "--symbolic") and not named("-r", "--relative")
    where = made[0].prefix.rpartition("/")[0] if made and symbolic else ""
    links = [Effect("links", target, text=where) for target in targets]
    return [*links, *(Effect("writes", name) for name in made)]


def read_tar(invocation: Invocation) -> list[Effect]:
    """The archive (written, read, or on another host), and the old spelling `tar xzf`."""
    arguments = invocation.arguments
    found: list[Effect] = []
    if invocation.words[1:] and invocation.words[1].prefix[:1] not in ("", "-"):
        arguments = _old_style(invocation)
        for option in arguments.options:
            for name in option.names:
                kind = invocation.spec.value_effects.get(name)
                if kind and option.value is not None and kind != "archive":
                    found.append(Effect(kind, option.value))
                elif name in invocation.spec.flag_effects:
                    found.append(Effect(invocation.spec.flag_effects[name], option.word))
    writes = arguments.named("-c", "--create", "-r", "--append", "-u", "--update", "-A")
    for option in arguments.options:
        if option.value is not None and {"-f", "--file"} & set(option.names):
            if ":" in option.value.prefix and not arguments.named("--force-local"):
                found.append(Effect("runs-hook", option.value))
            found.append(Effect("writes" if writes else "reads", option.value))
    return found + [Effect("reads", word) for word in arguments.operands]


def _old_style(invocation: Invocation) -> Arguments:
    """`tar xfC a.tar dir`: each letter that takes a value takes the next word, in order."""
    letters, rest = invocation.words[1], list(invocation.words[2:])
    words: list[Word] = []
    for letter in letters.prefix:
        words.append(literal_word(f"-{letter}", letters.start, letters.end))
        if f"-{letter}" in invocation.spec.values and rest:
            words.append(rest.pop(0))
    return read_arguments(invocation.spec, [*words, *rest])


def read_urls(invocation: Invocation) -> list[Effect]:
    """curl and wget: what they fetch, by which scheme, and what the address gives away."""
    found: list[Effect] = []
    urls = list(invocation.arguments.operands)
    for option in invocation.arguments.options:
        if option.value is None:
            continue
        if "--url" in option.names:
            urls.append(option.value)
        elif _SENT & set(option.names):
            found.extend(_sent(option.value, header=bool({"-H", "--header"} & set(option.names))))
        elif {"-w", "--write-out"} & set(option.names):
            found.extend(_write_out(option.value))
    saves = invocation.program == "wget" or invocation.arguments.named(
        "-O", "--remote-name", "--remote-name-all", "-J", "--remote-header-name"
    )
    for url in urls:
        if saves and invocation.arguments.named("--output-document") is None:
            found.append(Effect("downloads", url, text=url.prefix.partition("?")[0].split("/")[-1]))
        found.extend(_address(url))
    return found


def _address(url: Word) -> list[Effect]:
    """What is odd about an address: its scheme, or that a command fills it in."""
    scheme = _SCHEME.match(url.prefix)
    odd = scheme and scheme[0].lower() not in ("http://", "https://", "ftp://")
    # `[f-f]ile:` and `fi{l}e:` are spellings, too.
    local = re.match(r"\{?file\b[^/]*:|[^/?]*[\[{][^/?]*:/", url.prefix, re.IGNORECASE)
    found = [Effect("odd-scheme", url)] if odd or local else []
    return found + ([Effect("unclear-url", url)] if _has_command(url) else [])


def _sent(value: Word, *, header: bool) -> list[Effect]:
    """A value that goes to the other end; `-H @file` sends the file."""
    if header and value.prefix.startswith("@"):
        return [Effect("sends", value)]
    return [Effect("unclear-url", value)] if _has_command(value) else []


def _write_out(value: Word) -> list[Effect]:
    if value.prefix.startswith("@"):
        return [Effect("reads", value.after(1))]
    return [Effect("loads", value)] if "%output{" in value.shown else []


def _has_command(word: Word) -> bool:
    return any(part.kind is Expands.COMMAND for part in word.expansions())


def read_git_listing(invocation: Invocation) -> list[Effect]:
    """Subcommands that list or change, by their first word: only the listing forms are fine."""
    arguments = invocation.arguments
    sub = invocation.subcommand
    first = arguments.operands[0].static if arguments.operands else None
    if first in _READING.get(sub, ()):
        return []
    if not arguments.operands and sub != "stash":
        return _changed_by_flag(invocation)
    marks = _READING_FLAGS.get(sub, ())
    # `git tag --sort=x NAME` makes a tag all the same.
    sure = [mark for mark in marks if mark not in ("--sort", "-n")] if arguments.operands else marks
    if arguments.named(*sure):
        return []
    if sub in ("config", "symbolic-ref") and len(arguments.operands) == 1:
        return _changed_by_flag(invocation)
    return [Effect("git-changes", invocation.named_by)]


def _changed_by_flag(invocation: Invocation) -> list[Effect]:
    option = invocation.arguments.named(
        "-d", "--delete", "--unset", "--unset-all", "-e", "--edit", "--add", "--replace-all"
    )
    return [Effect("git-changes", option.word)] if option else []


def read_git_submodule(invocation: Invocation) -> list[Effect]:
    """`git submodule foreach TEXT` runs the text in every submodule."""
    operands = invocation.arguments.operands
    first = operands[0].static if operands else "status"
    if first == "foreach" and len(operands) > 1:
        rest = [w for w in operands[1:] if w.static not in ("--recursive", "--quiet")]
        changes = Effect("git-changes", invocation.named_by)
        runs = [Effect("runs-shell", rest[0])] if len(rest) == 1 else _run(tuple(rest))
        return [changes, *runs]
    return [] if first in ("status", "summary") else [Effect("git-changes", invocation.words[0])]


def read_git_bisect(invocation: Invocation) -> list[Effect]:
    """`git bisect run CMD…`."""
    operands = invocation.arguments.operands
    changes = [Effect("git-changes", invocation.words[0])]
    if operands and operands[0].static == "run":
        return changes + _run(operands[1:])
    return [] if operands and operands[0].static in ("log", "view", "visualize") else changes


def _run(argv: tuple[Word, ...]) -> list[Effect]:
    return [Effect("runs", argv[0], argv)] if argv else []


def read_config_words(invocation: Invocation) -> list[Effect]:
    """`pip config set …` and its like: settings that outlive the command."""
    first = invocation.arguments.operands[:1]
    if first and first[0].static in ("list", "ls", "get", "debug", "show"):
        return []
    if invocation.arguments.named("--list", "-l", "--show-origin"):
        return []
    return [Effect("persists", invocation.named_by)]


def read_uv_tool(invocation: Invocation) -> list[Effect]:
    """`uv tool run PACKAGE` runs it; the rest installs for the user."""
    operands = invocation.arguments.operands
    if operands and operands[0].static == "run":
        return [Effect("runs", operands[1], operands[1:], "runs-package")] if operands[1:] else []
    return [] if operands and operands[0].static in ("list", "dir") else read_global(invocation)


def read_global(invocation: Invocation) -> list[Effect]:
    """Always for the whole machine or user."""
    return [Effect("global-install", invocation.words[0])]


def read_sqlite(invocation: Invocation) -> list[Effect]:
    """sqlite3's dot-commands can run programs and write anywhere, also from its input."""
    if len(invocation.arguments.operands) < 2:
        return [Effect("runs-sql-input", invocation.words[0])]
    return [
        Effect("runs-hook", word)
        for word in invocation.words[1:]
        if _SQLITE_RUNS.search(word.shown)
    ]


def read_make(invocation: Invocation) -> list[Effect]:
    """`make NAME=value`: some names, and some values, run things."""
    found: list[Effect] = []
    for word in invocation.arguments.operands:
        name, equals, value = word.prefix.partition("=")
        if not equals:
            continue
        bare = name.rstrip(":+?!")
        evaluated = "!" in name or any(mark in value for mark in ("$(", "${", "`"))
        if evaluated or bare in _MAKE_RUNS:
            found.append(Effect("runs-hook", word))
        elif bare == name:
            found.append(Effect("sets", word))
    return found


TOOL_READERS: Final[dict[str, Reader]] = {
    "chmod": read_chmod,
    "links": read_links,
    "tar": read_tar,
    "urls": read_urls,
    "git-listing": read_git_listing,
    "git-submodule": read_git_submodule,
    "git-bisect": read_git_bisect,
    "config-words": read_config_words,
    "uv-tool": read_uv_tool,
    "always-global": read_global,
    "sqlite": read_sqlite,
    "make": read_make,
}
