"""Readers for tools with small languages of their own: git, tar, curl, make, chmod, ln, sqlite3."""

import re
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.arguments import Arguments, Option, read_arguments
from kakoi.policy.effects.languages.chmod import mode_effects
from kakoi.policy.effects.programs import Effect, Invocation
from kakoi.policy.effects.readers.shell import Reader
from kakoi.policy.effects.unlisted_options import CALLING_NAME
from kakoi.policy.parsing.words import Expands, Word, literal_word

_SCHEME: Final = pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Options of curl and wget whose value is sent to the server.
_SENT: Final = frozenset(
    "-H --header -A --user-agent -e --referer -b --cookie -u --user -U --proxy-user "
    "--oauth2-bearer --request-target".split()
)
_LOCAL: Final = pattern(
    r"(?:https?://)?(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]|0\.0\.0\.0)(?::\d+)?(?=[/?]|$)"
)
# A file that is sent: `-d @file`, `-F name=@file`.
_SENT_FILE: Final = pattern(r"(?:[^=@]*=)?[@<]")
_SENDING: Final = frozenset(
    "-d --data --data-ascii --data-binary --data-raw --data-urlencode --json -F --form".split()
)
_SQLITE_RUNS: Final = pattern(
    r"\.(?:shell|system|load|import|output|once|excel|log|archive|ar|clone|save|backup)\b"
    r"|load_extension|writefile|\bedit\s*\(|\bfts3_tokenizer",
    re.IGNORECASE,
)
_DATABASE_ELSEWHERE: Final = pattern(r"(?:~|/(?:etc|usr|opt|root|home|boot|srv|var/(?!tmp/))).*")
_SELECTS: Final = pattern(
    r"(?:select|explain|values)\b(?![\s\S]*\binto\b)"
    r"|pragma\s+(?:\w+\.)?(?:(?:table|index|foreign_key|database|function|module|pragma|collation)_x?(?:info|list)"
    r"|(?:integrity|quick|foreign_key)_check|schema_version|user_version|compile_options|page_count|page_size"
    r"|encoding)\s*(?:\([\w'\"]*\))?$"
    r"|\.(?:tables|schema|indexes|databases|dump|headers?|mode|fullschema|show|width)\b",
    re.IGNORECASE,
)
_MAKE_RUNS: Final = frozenset({"SHELL", ".SHELLFLAGS", "MAKEFLAGS", "MAKE", "MAKEFILES"})
_INSTALLED_INTO: Final = frozenset(("prefix", "exec_prefix", "bindir", "libdir", "sysconfdir"))
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
    """chmod: its mode, octal or symbolic, and the files it changes."""
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


_INTO: Final = ("-t", "--target-directory")


def read_links(invocation: Invocation) -> list[Effect]:
    """`ln -s TARGET NAME`: the target, and where the link is created."""
    targets = _sources(invocation)
    made = invocation.arguments.operands[len(targets) :]
    # A relative target is relative to the link's directory; without -s or with -r, to this one.
    named = invocation.arguments.named
    symbolic = named("-s", "--symbolic") and not named("-r", "--relative")
    where = made[0].prefix.rpartition("/")[0] if made and symbolic else ""
    into = named(*_INTO)
    if symbolic and into is not None and into.value is not None:
        where = into.value.prefix
    links = [Effect("links", target, text=where) for target in targets]
    return [*links, *(Effect("writes", name) for name in made)]


def read_installed(invocation: Invocation) -> list[Effect]:
    """`install SOURCE… TARGET`: the files that it copies. With -d there are none."""
    if invocation.arguments.named("-d", "--directory"):
        return []
    return [Effect("reads", word) for word in _sources(invocation)]


def _sources(invocation: Invocation) -> tuple[Word, ...]:
    """Return the operands before the last one, or all if an option names the target directory."""
    operands = invocation.arguments.operands
    is_target = len(operands) > 1 and not invocation.arguments.named(*_INTO)
    return operands[:-1] if is_target else operands


def read_tar(invocation: Invocation) -> list[Effect]:
    """tar: the archive (written, read, or on another host), and the old spelling `tar xzf`."""
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
    """curl and wget: what they fetch, by which scheme, and what the URL reveals."""
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
        elif _SENDING & set(option.names) and (file := _SENT_FILE.match(option.value.prefix)):
            found.append(Effect("reads", option.value.after(file.end())))
        elif {"-T", "--upload-file", "--post-file", "--body-file"} & set(option.names):
            found.append(Effect("reads", option.value))
    saves = invocation.program == "wget" or invocation.arguments.named(
        "-O", "--remote-name", "--remote-name-all", "-J", "--remote-header-name"
    )
    for url in urls:
        if saves and invocation.arguments.named("--output-document") is None:
            found.append(Effect("downloads", url, text=url.prefix.partition("?")[0].split("/")[-1]))
        found.extend(_address(url))
    return found


def fetches_locally(invocation: Invocation) -> bool:
    """Whether curl or wget can only talk to this machine itself."""
    arguments = invocation.arguments
    urls = [*arguments.operands, *(o.value for o in arguments.options if "--url" in o.names)]
    leads_away = arguments.named(
        *("-L", "--location", "--location-trusted", "-x", "--proxy", "--preproxy", "--connect-to"),
        *("--resolve", "--socks4", "--socks4a", "--socks5", "--socks5-hostname", "-K", "--config"),
        *("--input-file", "--execute", "--doh-url", "--unix-socket"),
        # curl's are the headers of the answer, and a referer.
        *(("-i", "-e") if invocation.program == "wget" else ()),
    )
    return (
        bool(urls)
        and not leads_away
        and all(url is not None and _LOCAL.match(url.prefix) is not None for url in urls)
    )


def _address(url: Word) -> list[Effect]:
    """Return what is unusual about a URL: its scheme, or that a command fills it in."""
    scheme = _SCHEME.match(url.prefix)
    odd = scheme and scheme[0].lower() not in ("http://", "https://", "ftp://")
    # curl also accepts the spellings `[f-f]ile:` and `fi{l}e:`.
    local = re.match(r"\{?file\b[^/]*:|[^/?]*[\[{][^/?]*:/", url.prefix, re.IGNORECASE)
    found = [Effect("odd-scheme", url)] if odd or local else []
    return found + ([Effect("unclear-url", url)] if _has_command(url) else [])


def _sent(value: Word, *, header: bool) -> list[Effect]:
    """A value that is sent to the server; `-H @file` sends the file."""
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
    """git subcommands that list or change, by their first word: only the listing forms are fine."""
    arguments = invocation.arguments
    sub = invocation.subcommand
    first = arguments.operands[0].static if arguments.operands else None
    if first in _READING.get(sub, ()):
        return []
    if not arguments.operands and sub != "stash":
        return _changed_by_flag(invocation)
    marks = _READING_FLAGS.get(sub, ())
    # `git tag --sort=x NAME` still creates a tag.
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


_SHOWING_CONFIG: Final = (
    *("--list", "-l", "--show-origin", "--show", "--show-sources", "--get", "--describe"),
)


def read_config_words(invocation: Invocation) -> list[Effect]:
    """`pip config set …` and the like: settings that outlive the command."""
    first = invocation.arguments.operands[:1]
    if first and first[0].static in ("list", "ls", "get", "debug", "show"):
        return []
    if invocation.arguments.named(*_SHOWING_CONFIG):
        return []
    return [Effect("persists", invocation.named_by)]


def read_uv_tool(invocation: Invocation) -> list[Effect]:
    """`uv tool run PACKAGE` runs it. The others install for the user."""
    operands = invocation.arguments.operands
    if operands and operands[0].static == "run":
        return [Effect("runs", operands[1], operands[1:], "runs-package")] if operands[1:] else []
    return [] if operands and operands[0].static in ("list", "dir") else read_global(invocation)


def read_global(invocation: Invocation) -> list[Effect]:
    """Always installs for the whole machine or user."""
    return [Effect("global-install", invocation.words[0])]


def read_sqlite(invocation: Invocation) -> list[Effect]:
    """sqlite3: its dot-commands can run programs and write anywhere, from its input as well."""
    operands = invocation.arguments.operands
    found = [Effect("reads", file) for file in operands[:1]]
    found += [Effect("code-text", word) for word in operands[1:] if word.text is None]
    if operands and _DATABASE_ELSEWHERE.match(operands[0].shown):
        reads = invocation.arguments.named("-readonly") or all(map(_only_selects, operands[1:]))
        found += [] if reads and operands[1:] else [Effect("database-elsewhere", operands[0])]
    if len(operands) < 2:
        return [*found, Effect("runs-sql-input", invocation.words[0])]
    return found + [
        Effect("runs-hook", word)
        for word in invocation.words[1:]
        if _SQLITE_RUNS.search(word.shown)
    ]


def _only_selects(statements: Word) -> bool:
    """Whether every statement only reads; `;` in a text counts as the end of one."""
    parts = [part.strip() for part in (statements.static or "?").split(";")]
    return all(not part or _SELECTS.match(part) for part in parts)


_FIELDS: Final = frozenset({"-f", "--raw-field", "-F", "--field"})
_QUERY: Final = pattern(r"query=\s*(?:query\b|\{)(?![\s\S]*\bmutation\b)")


_MSBUILD: Final = pattern(
    r"(?:--?|/)(?:p|property|l|logger|dl|distributedlogger|fl\w*|bl|binarylogger|restoreproperty|rp"
    r"|testadapterpath|collect|diag)[:=](.*)",
    re.IGNORECASE | re.DOTALL,
)
_TAME_PROPERTIES: Final = pattern(
    r"(?!.*(?:event|command|exe|tool|import|targets|props|before|after)\w*=)"
    r"\w+=[\w.*-]*(?:[;,]\w+=[\w.*-]*)*",
    re.IGNORECASE,
)
_MSBUILD_LOGS: Final = pattern(
    r"(?:--?|/)(?:l|logger|collect)[:=](?:console|trx|html|junit|\"?(?:XPlat )?Code Coverage)",
    re.IGNORECASE,
)


def read_archive(invocation: Invocation) -> list[Effect]:
    """`zip X.zip a`, `7z a X.7z a`, `jar cf X.jar a`: the archive that they write."""
    operands, named = invocation.arguments.operands, invocation.arguments.named
    if invocation.program == "zip":
        return [Effect("writes", word) for word in operands[:1]]
    first = operands[0].shown if operands else ""
    if invocation.program.startswith("7z"):
        return [Effect("writes", w) for w in operands[1:2] if first in ("a", "u", "d", "rn")]
    file = named("-f", "--file")
    if named("-c", "--create", "-u", "--update") and file and file.value:
        return [Effect("writes", file.value)]
    packs = re.fullmatch(
        r"-?[A-Za-z0]*[cu][A-Za-z0]*", invocation.words[1].shown if invocation.words[1:] else ""
    )
    return [Effect("writes", w) for w in invocation.words[2:4] if packs and w.prefix[:1] != "-"]


def read_dotnet(invocation: Invocation) -> list[Effect]:
    """dotnet: properties that run commands or import other files, and loggers."""
    found = []
    for word in invocation.words[1:]:
        given = _MSBUILD.fullmatch(word.shown)
        if given and not (_TAME_PROPERTIES.fullmatch(given[1]) or _MSBUILD_LOGS.match(word.shown)):
            found.append(Effect("odd-option", word))
    return found


def read_forge(invocation: Invocation) -> list[Effect]:
    """`gh api`: its method, and whether its fields change something."""
    if invocation.subcommand != "api":
        return []
    arguments = invocation.arguments
    found = _sent_files(arguments)
    method = arguments.named("-X", "--method")
    given = (method.value.static or "").upper() if method and method.value else ""
    endpoint = arguments.operands[1] if len(arguments.operands) > 1 else None
    if given == "DELETE":
        return [*found, Effect("forge-deletes", invocation.named_by)]
    # An address leads to any server; what begins with an unknown part can be one.
    elsewhere = endpoint is None or not endpoint.prefix or "://" in endpoint.prefix
    if elsewhere or arguments.named("--hostname") or arguments.unsure:
        return [*found, Effect("forge-writes", invocation.named_by)]
    fields = [o for o in arguments.options if _FIELDS & set(o.names)]
    is_sent = bool(fields) or arguments.named("--input") is not None
    reads = given in ("GET", "HEAD") or not (method or is_sent)
    if endpoint is not None and endpoint.static == "graphql" and given in ("", "POST"):
        reads = arguments.named("--input") is None and _only_queries(fields)
    return found if reads else [*found, Effect("forge-writes", invocation.named_by)]


def _only_queries(fields: list[Option]) -> bool:
    texts = [field.value.static or "" for field in fields if field.value is not None]
    queries = [text for text in texts if re.match(r"query\s*=", text)]
    return bool(queries) and all(_QUERY.match(text) for text in queries)


def _sent_files(arguments: Arguments) -> list[Effect]:
    """`-F name=@file` and `--input file`: a file that is sent."""
    found: list[Effect] = []
    for option in arguments.options:
        if option.value is not None and {"-F", "--field"} & set(option.names):
            at = option.value.prefix.find("=@")
            found += [Effect("reads", option.value.after(at + 2))] if at >= 0 else []
    return found


def read_rename(invocation: Invocation) -> list[Effect]:
    """`rename 's/a/b/' *.txt`: its first operand is code of Perl in one version of the program."""
    arguments = invocation.arguments
    code = arguments.operands[:1]
    plain = all(
        re.fullmatch(r"(?:s|y|tr)/[^/$@{]*/[^/$@()]*/[gi]*|[\w .-]*", w.static or "$") for w in code
    )
    found = [] if plain else [Effect("unclear-program", word) for word in code]
    dry = arguments.named("-n", "--nono", "--no-act") and not arguments.named("--expr", "-e")
    return found if dry else [*found, Effect("renames-files", invocation.words[0])]


def read_texts(invocation: Invocation) -> list[Effect]:
    """hyperfine: every operand is a command of the shell."""
    return [Effect("runs-shell", word) for word in invocation.arguments.operands]


def read_make(invocation: Invocation) -> list[Effect]:
    """`make NAME=value`: some names and some values run programs."""
    found: list[Effect] = []
    staged = any(word.prefix.startswith("DESTDIR=") for word in invocation.arguments.operands)
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
        if bare.lower() in _INSTALLED_INTO and not staged:
            found.append(Effect("odd-place", word.after(len(name) + 1)))
        program, _, more = value.partition(" ")
        if CALLING_NAME.fullmatch(bare) and ("/" in program or more):
            started = literal_word(f"{program} --version", word.start, word.end)
            found.append(Effect("runs-shell", started))
    return found


TOOL_READERS: Final[dict[str, Reader]] = {
    "chmod": read_chmod,
    "installed": read_installed,
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
    "archive": read_archive,
    "dotnet": read_dotnet,
    "forge": read_forge,
    "rename": read_rename,
    "texts": read_texts,
}
