"""Which variables change what a command means, and which values of them are harmless."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.package_sources import ADDRESS, UNPROTECTED, index_risk
from kakoi.policy.effects.readers.shell import ASSIGNED, placeholder
from kakoi.policy.judging.command_words import program_name
from kakoi.policy.judging.inert_variables import is_inert, names_folder
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import Expansion, Word

# Builtins that name variables without giving them a value.
NAMING_BUILTINS: Final = frozenset("export declare local readonly typeset unset".split())
# Builtins that change the shell itself: after `command`, their effect is not followed.
STATE_BUILTINS: Final = NAMING_BUILTINS | frozenset(
    "cd pushd popd read mapfile readarray getopts printf trap set shopt eval source hash".split()
)

# If set, they make the shell, the loader, git or an interpreter run or read something else.
_DENIED: Final = pattern(
    r"LD_.*|DYLD_.*|PATH|IFS|BASH_ENV|ENV|PS[0-4]|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|BASH_(?!SILENCE).*|SHELL|CDPATH"
    r"|GLOBIGNORE|EXECIGNORE|FPATH|ZDOTDIR|POSIXLY_CORRECT|HISTFILE|GIT_.*|.*PAGER|.*EDITOR|VISUAL|BROWSER"
    r"|LESSOPEN|LESSCLOSE|NODE_OPTIONS|NODE_PATH|PYTHONSTARTUP|PYTHONHOME|PYTHONINSPECT|PYTHONBREAKPOINT"
    r"|PYTHONUSERBASE|PERL5OPT|PERL5LIB|PERL5DB|PERLLIB|RUBYOPT|RUBYLIB|PHPRC|PHP_INI_SCAN_DIR|JAVA_TOOL_OPTIONS"
    r"|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|RUSTC|RUSTC_WRAPPER|RUSTC_WORKSPACE_WRAPPER|CARGO_TARGET_.*_(?:RUNNER|LINKER)"
    r"|CARGO_BUILD_(?:RUSTC.*|RUSTDOC.*|TARGET)|RUSTDOC|MAKEFLAGS|MAKEFILES|GNUMAKEFLAGS|GOROOT|GOENV|SSH_ASKPASS|SUDO_ASKPASS|GCONV_PATH"
    r"|LOCPATH|NLSPATH|TAR_OPTIONS|RIPGREP_CONFIG_PATH|WGETRC|SYSTEM_WGETRC|CURL_HOME|NETRC|OPENSSL_CONF"
    r"|OPENSSL_MODULES|OPENSSL_ENGINES|SSLKEYLOGFILE|TERMINFO.*|TERMCAP|MANPATH|MANOPT|LESS|MORE|SYSTEMD_.*"
    r"|DOTNET_STARTUP_HOOKS|CORECLR_.*|CMAKE_.*(?:COMPILER|LAUNCHER|TOOLCHAIN).*|PYTHONPYCACHEPREFIX|LESSKEY.*|GOTOOLDIR|DOCKER_HOST|KUBECONFIG|DBUS_.*|XDG_CONFIG_DIRS|XDG_DATA_DIRS|BASH|COMP_.*|PIPESTATUS|DIRSTACK|FUNCNAME"
    r"|AWKPATH|AWKLIBPATH|GREP_OPTIONS|SVN_SSH|CVS_RSH|RSYNC_RSH|EMACSLOADPATH|VIMINIT|EXINIT|INPUTRC"
    r"|HOSTALIASES|RESOLV_.*|LOCALDOMAIN|MALLOC_.*|GCC_EXEC_PREFIX|COMPILER_PATH|COLLECT_.*|DEPENDENCIES_OUTPUT"
    r"|NPM_CONFIG_(?:SCRIPT_SHELL|NODE_OPTIONS|GIT|GLOBALCONFIG|USERCONFIG|PREFIX|SHELL|NODE_GYP|INIT_MODULE|VIEWER)"
    r"|PIP_CONFIG_FILE|UV_CONFIG_FILE|GRADLE_USER_HOME|ANT_ARGS|M2_HOME|FZF_.*|TMUX|PSQLRC"
    # They start other programs, or add other options, than those in the text.
    r"|GOCACHEPROG|GOAUTH|PKG_CONFIG|JAVACMD|RUSTFMT|RUBYSHELL|FCEDIT|.*_SYMBOLIZER_PATH|PYTHONEXECUTABLE|PYTHONPLATLIBDIR"
    r"|CARGO_ALIAS_.*|CARGO_.*CREDENTIAL.*|CCC_OVERRIDE_OPTIONS|CC_(?:PRINT|LOG).*|SUNPRO_DEPENDENCIES|TAPE|ZIPOPT|UNZIP(?:OPT)?|ZIPINFO(?:OPT)?"
    r"|ACK_OPTIONS|ACKRC|BAT_CONFIG_.*|BUN_OPTIONS|YARN_(?:YARN_PATH|RC_FILENAME|PLUGINS.*)|TS_NODE_(?:COMPILER|TRANSPILER|REQUIRE)"
    r"|CCACHE_(?:PREFIX.*|COMPILER.*|CONFIGPATH|EXTENSION)|SCCACHE_.*|TEXMF.*|open(?:in|out)_any|shell_escape.*"
    r"|(?:GH|GLAB)_CONFIG_DIR|GH_PATH|R_(?:HOME|PROFILE.*|ENVIRON.*)|LUA_(?:INIT|PATH|CPATH).*|JULIA_(?:LOAD_PATH|DEPOT_PATH|BINDIR)"
    # With them the text of `$"…"` comes from a file.
    r"|TEXTDOMAIN(?:DIR)?|GLIBC_TUNABLES"
)
_ASKED: Final = pattern(
    r"HOME|XDG_CONFIG_HOME|PYTHONPATH|CLASSPATH|GOFLAGS|.*_OPTS|RUSTFLAGS|CGO_.*|.*FLAGS|MAVEN_ARGS"
)
# They add options to those of the command.
_OPTIONS: Final = pattern(r"(?!.*SAN_).*_OPTS|MAVEN_ARGS|MFLAGS")
_SYSTEM_FOLDER: Final = r"(?:/usr|/opt|/Library|/nix)/(?!.*\.\.).*"
# Where the system's own packages have their modules.
_SYSTEM_MODULES: Final = pattern(
    r"/usr/(?:local/)?lib(?:64)?/python3[\d.]*/(?:dist|site)-packages/?"
)
# Variables that ask depending on their value: the values that need no question.
_ASKED_BY_VALUE: Final = {
    # `category` can be a class of any module.
    "PYTHONWARNINGS": pattern(r"[\w:, ]*"),
    "PYTEST_ADDOPTS": pattern(r"(?!.*(?:\.\.|~|(?:^|[=\s'\"])/))[^\0]*", re.DOTALL),
    **dict.fromkeys(("JAVA_HOME", "DOTNET_ROOT"), pattern(rf"(?:{_SYSTEM_FOLDER})?")),
    # With them everything that is sent goes to somebody else, or strangers are believed.
    **dict.fromkeys(
        ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
        pattern(r"(?:(?:https?|socks5h?)://)?(?:localhost|127\.0\.0\.1)?(?::\d+)?/?"),
    ),
    **dict.fromkeys(
        (
            *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"),
            *("NODE_EXTRA_CA_CERTS", "npm_config_cafile", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO"),
        ),
        pattern(r"(?:/etc/(?:ssl|pki)/(?!.*\.\.).*)?"),
    ),
    "UV_PYTHON": pattern(rf"{_SYSTEM_FOLDER}|[\w@+-]*\d[\w.@+-]*|"),
}
# Where package managers fetch from.
_INDEXES: Final = pattern(
    r"(?:PIP|UV)_(?:(?:DEFAULT_|EXTRA_)?INDEX(?:_URL)?|FIND_LINKS)|PIP_(?:REQUIREMENT|CONSTRAINT|EDITABLE)"
    r"|NPM_CONFIG_(?:.*:)?REGISTRY|YARN_(?:NPM_)?REGISTRY(?:_SERVER)?|BUN_CONFIG_REGISTRY|GOPROXY"
    r"|CARGO_REGISTRIES_.*_INDEX|PIPENV_PYPI_MIRROR|BUNDLE_MIRROR__.*"
)
# Whether they verify downloads: the values that keep verification on.
_VERIFYING: Final = {
    **dict.fromkeys(("PIP_TRUSTED_HOST", "UV_INSECURE_HOST", "GOINSECURE", "GONOSUMCHECK"), ("",)),
    **dict.fromkeys(("NPM_CONFIG_STRICT_SSL", "YARN_ENABLE_STRICT_SSL"), ("", "true", "1")),
    "NODE_TLS_REJECT_UNAUTHORIZED": ("", "1"),
    "PYTHONHTTPSVERIFY": ("", "1"),
    "GOSUMDB": ("", "sum.golang.org", "sum.golang.google.cn"),
}
_COMPILERS: Final = pattern(r"CC|CXX|LD|AR|AS|NM|RANLIB|STRIP|CPP|FC|HOSTCC|HOSTCXX|RUSTC_LINKER")
_IDENTITY: Final = pattern(
    r"GIT_(?:(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)|TERMINAL_PROMPT|OPTIONAL_LOCKS|MERGE_AUTOEDIT|LFS_SKIP_SMUDGE"
    r"|CONFIG_NOSYSTEM|ADVICE|PROGRESS_DELAY|DISCOVERY_ACROSS_FILESYSTEM|CEILING_DIRECTORIES|FLUSH|PS1_.*)"
)
_HARMLESS_VALUES: Final[Mapping[str, re.Pattern[str]]] = {
    "pager": pattern(r"cat|less|more|less -[A-Za-z]+|true|"),
    "editor": pattern(r"true|:|cat|"),
    "less": pattern(r"-?[A-Za-z]*"),
    "trace": pattern(r"[0-2]?|true|false"),
    # Flags that only tune; `--require`, `--import`, `--loader` and `-r` load code.
    "node": pattern(
        r"(?:\s*--(?:max[-_]old[-_]space[-_]size|max[-_]semi[-_]space[-_]size|stack[-_]size|unhandled-rejections"
        r"|dns-result-order|max-http-header-size|openssl-legacy-provider|no-warnings|no-deprecation"
        r"|trace-(?:warnings|uncaught|deprecation)|enable-source-maps|experimental-[\w-]*(?<!loader)"
        r"|no-experimental-[\w-]+|preserve-symlinks|expose-gc|throw-deprecation)(?:=[\w.:-]+)?\s*)*"
    ),
    "off": pattern(r"none|true|false|\d*"),
    "make": pattern(r"(?:-?j\d*|\d+|-[ks]|--no-print-directory|\s)*"),
    "java": pattern(r"(?:-X(?:mx|ms|ss)\w+|-D[\w.]+=[\w.:/-]*|\s)*"),
    # No files, and none of the letters that load code or settings.
    "options": pattern(
        r"(?:\s*(?:-D[\w.]+(?:=[\w.:,@+-]*)?|-X[a-z]+\w*|-XX:[+-]?(?!On)\w+(?:=\w+)?|-(?![rIcfFCxipDX])\w+"
        r"|--\w[\w-]*(?:=[\w.:,%+-]*)?|-p\s+no:\w+|\w[\w.:,%+-]*)(?=\s|$))*\s*"
    ),
    "flags": pattern(
        r"(?!.*(?:exec|linker|plugin|wrapper|agent|-B|@|load|init|require|import)).*", re.DOTALL
    ),
}


# No one types a longer value, and a pattern could take minutes on it.
_LONGEST_VALUE: Final = 1000
# Directories and lists of directories: fine inside the workspace.
_SEARCHED: Final = frozenset(
    "PYTHONPATH CLASSPATH TMPDIR TMP TEMP BUNDLE_GEMFILE PIP_TARGET PIP_PREFIX PIP_ROOT PIP_SRC "
    "PIP_LOG COVERAGE_FILE CARGO_TARGET_DIR CARGO_INSTALL_ROOT GOBIN UV_TOOL_BIN_DIR "
    "UV_PROJECT_ENVIRONMENT".split()
)
# The value in `HOME="$HOME"` after it is filled in.
_ITS_OWN: Final = {"HOME": "/home/user"}
# Assigning to these evaluates the text as arithmetic.
_INTEGERS: Final = frozenset("RANDOM SECONDS OPTIND HISTCMD LINENO BASHPID EPOCHSECONDS".split())


_JUDGED_BY_VALUE: Final = {
    pattern(r".*PAGER"): "pager",
    pattern(r".*EDITOR|VISUAL"): "editor",
    pattern(r"LESS"): "less",
    pattern(r"NODE_OPTIONS"): "node",
    pattern(r"GIT_TRACE.*|GIT_CURL_VERBOSE"): "trace",
    pattern(r"BROWSER|PYTHONBREAKPOINT|RUSTC_WRAPPER|MALLOC_.*"): "off",
    pattern(r"(?:GNU)?MAKEFLAGS"): "make",
    pattern(r"JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS"): "java",
}


class Meaning(StrEnum):
    """What setting a variable does to the meaning of a command."""

    HARMLESS = "harmless"
    CHANGES = "sets-variable"
    ASK = "sets-search-path"
    PATHS = "sets-folder"
    RUNS = "runs-shell"
    UNKNOWN = "sets-unknown"


_OF_RISKS: Final[Mapping[str | None, Meaning]] = {
    None: Meaning.HARMLESS,
    ADDRESS: Meaning.ASK,
    UNPROTECTED: Meaning.CHANGES,
}


def meaning_of(name: str, value: Word | None) -> Meaning:
    """Return what `NAME=value` changes; `value` is None if it is unset or unknown."""
    text = "" if value is None else value.static
    shown = text if text is not None else "\0"
    own = _only(value) if value is not None else None
    if own and own in (name, _ITS_OWN.get(name)):
        return Meaning.HARMLESS
    if name in _INTEGERS:
        return Meaning.HARMLESS if shown.isdigit() else Meaning.ASK
    if _COMPILERS.fullmatch(name):
        return Meaning.RUNS if text else Meaning.CHANGES
    upper = name.upper() if name.lower().startswith("npm_config_") else name
    if _INDEXES.fullmatch(upper) or upper in _VERIFYING:
        return _fetching(upper, value, shown)
    if _DENIED.fullmatch(upper):
        return Meaning.HARMLESS if _harmless(name, shown) else Meaning.CHANGES
    if name in _SEARCHED:
        return _searched(name, shown)
    if name in ("HOME", "XDG_CONFIG_HOME"):
        return Meaning.ASK
    if name in _ASKED_BY_VALUE:
        return Meaning.HARMLESS if _ASKED_BY_VALUE[name].fullmatch(shown) else Meaning.ASK
    if _ASKED.fullmatch(name):
        return Meaning.HARMLESS if _only_tunes(name, shown) else Meaning.ASK
    return Meaning.HARMLESS


def meaning_before(name: str, value: Word | None, program: str) -> Meaning:
    """Return what `NAME=value` changes in front of `program`; an unknown variable asks."""
    meaning = meaning_of(name, value)
    if meaning is not Meaning.HARMLESS or _is_known(name):
        return meaning
    text = "" if value is None else value.static
    shown = "\0" if text is None else text
    if not is_inert(name, shown, program):
        return Meaning.UNKNOWN
    is_path = names_folder(name) and re.match(r"/|~|\.\./", shown)
    return Meaning.PATHS if is_path and not re.match(_SYSTEM_FOLDER, shown) else Meaning.HARMLESS


def _is_known(name: str) -> bool:
    """Whether the value of the variable was examined, and is harmless."""
    upper = name.upper() if name.lower().startswith("npm_config_") else name
    return (
        any(each.fullmatch(upper) for each in (_DENIED, _INDEXES, _ASKED, _COMPILERS))
        or upper in _VERIFYING
        or name in _ASKED_BY_VALUE
    )


def _searched(name: str, shown: str) -> Meaning:
    """Return what a list of directories changes: the system's own modules are harmless."""
    system = name == "PYTHONPATH" and _SYSTEM_MODULES.fullmatch(shown)
    return Meaning.HARMLESS if system else Meaning.PATHS


def _fetching(name: str, value: Word | None, shown: str) -> Meaning:
    """Return what a variable of a package manager changes about its downloads."""
    if name in _VERIFYING:
        return Meaning.HARMLESS if shown in _VERIFYING[name] else Meaning.CHANGES
    return _OF_RISKS[index_risk(value) if value is not None else None]


def assigns_in_turn(value: Word) -> bool:
    """Whether arithmetic that evaluates the value would change a meaning: `x='IFS=1'; ((x))`."""
    names = re.findall(r"([A-Za-z_]\w*)\s*[-+*/%&|^]?=", value.shown)
    return any(meaning_of(name, None) is Meaning.CHANGES for name in names)


def _only_tunes(name: str, shown: str) -> bool:
    """Whether flags only tune a program; those in `X_OPTS` can also load code and name files."""
    kind = "options" if _OPTIONS.fullmatch(name) else "flags"
    return (
        len(shown) <= _LONGEST_VALUE
        and _HARMLESS_VALUES["flags"].fullmatch(shown) is not None
        and _HARMLESS_VALUES[kind].fullmatch(shown) is not None
    )


def _only(value: Word) -> str | None:
    """Return the variable that is the whole value, or the shape that stands for it; else None."""
    part = value.parts[0] if len(value.parts) == 1 else None
    return part.name if isinstance(part, Expansion) and not part.operator else None


def _harmless(name: str, shown: str) -> bool:
    if _IDENTITY.fullmatch(name):
        return True
    kind = next((kind for named, kind in _JUDGED_BY_VALUE.items() if named.fullmatch(name)), "")
    return (
        bool(kind)
        and len(shown) <= _LONGEST_VALUE
        and _HARMLESS_VALUES[kind].fullmatch(shown) is not None
    )


@dataclass(frozen=True, slots=True)
class VariableSetting:
    """A variable that a word sets, with its new value; or the effect of a word that names none."""

    name: str = ""
    value: Word | None = None
    effect: str = ""


def setting_of(word: Word, program: str) -> VariableSetting:
    """Return what `NAME`, `NAME=value` or `NAME[0]` sets as an argument of `program`."""
    assigned = ASSIGNED.match(word.prefix)
    if re.search(r"\[.*(?:\$|`)", word.static or "", re.DOTALL):
        return VariableSetting(effect="hidden-text")
    if assigned:
        return VariableSetting(assigned[1], word.after(assigned.end()))
    if word.static is None:
        return VariableSetting(effect="sets-unclear")
    # `unset 'PATH[0]'` unsets the whole variable.
    name = word.static.split("[")[0]
    keeps = program in NAMING_BUILTINS and (
        name not in ("PATH", "IFS") or program in ("export", "readonly")
    )
    return VariableSetting() if keeps else VariableSetting(name, placeholder(word))


def programs_given(command: SimpleCommand, script: Script, index: int) -> list[str | None]:
    """Return the programs that get what command `index` assigns; None: it is not exported."""
    name = program_name(command)
    if not command.words or (name in NAMING_BUILTINS and name != "export"):
        return [None]
    if name != "export":
        return [name]
    after = script.commands[index + 1 :]
    return [None, *sorted({program_name(each) for each in after if each.words})]
