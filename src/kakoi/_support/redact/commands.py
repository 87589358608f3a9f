"""Secrets that are arguments: `mysql -pX`, `sshpass -p X`, `curl -u name:X`.

The meaning of a one-letter option depends on the program: `-p` is a password to mysql, a port to
ssh and a folder to mkdir. So the text is split at the names of programs that take a secret, and
each piece, up to the end of its line, is matched against the patterns of its own program.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.redact.names import REDACTED, holds_any, is_reference

# In a shell, or in a printed list of words: ["-p", "X"].
_GAP: Final = r"""(?:[ \t=]+|["'],[ \t]*(?=["']))"""
_JOINED: Final = r"""(?:"[^\s"]{1,512}"|'[^\s']{1,512}'|[^\s"'`|&;<>,]+)*"""
_QUOTED: Final = r""""[^"\n]{1,512}"|'[^'\n]{1,512}'"""
_VALUE: Final = rf"""((?:{_QUOTED}|[^\s"'`|&;<>,-][^\s"'`|&;<>]*){_JOINED})"""
# Right behind a letter it may begin with a hyphen.
_STUCK: Final = rf"""((?:{_QUOTED}|[^\s"'`|&;<>,][^\s"'`|&;<>]*){_JOINED})"""
_BEFORE: Final = r"""(?<=[\s"'])"""


def _apart(*options: str) -> str:
    """`-p X`."""
    return rf"{_BEFORE}(?:{'|'.join(options)}){_GAP}{_VALUE}"


def _stuck(option: str) -> str:
    """`-pX`; followed by a space, the option prompts for the password."""
    return rf"{_BEFORE}{option}(?![ \t]){_STUCK}"


def _either(option: str) -> str:
    return rf"{_BEFORE}{option}{_GAP}?{_VALUE}"


@dataclass(frozen=True, slots=True)
class _Program:
    """Programs by name, and the secrets among their arguments: the group that has matched.

    `when`: what must follow the name for that, such as a subcommand.
    """

    names: str
    secrets: tuple[str, ...]
    when: str = ""


_OPENSSL: Final = rf"{_BEFORE}-pass(?:in|out|word)?{_GAP}"
_USER: Final = r"""(?:-u|-U|--user|--proxy-user)[ \t=]*["']?[^\s:"'$]{0,128}:([^\s"'$][^\s"']*)"""
_COOKIE: Final = (
    rf"{_BEFORE}(?:-b|--cookie){_GAP}?"
    r"""("[^"\n=]{1,256}=[^"\n]+"|'[^'\n=]{1,256}=[^'\n]+'|[^\s"'=/.]{1,256}=[^\s"'|&<>]+)"""
)
_NAMED: Final = (
    rf"{_BEFORE}[^\s\"']{{0,200}}(?i:_auth|token|password|secret|access_key|api_key)[\w.-]{{0,80}}"
)
_SIGN_IN: Final = r"""(?:login|authtoken|config["',\s]+add-authtoken|auth|obscure)"""
_PROGRAMS: Final = (
    _Program("mysqladmin", (_stuck("-p"), _apart("password"))),
    _Program(
        "mysql mysqldump mysqlimport mysqlshow mysqlcheck mysqlpump mysqlsh mysqlslap "
        "mariadb mariadb-dump mariadb-admin mariadb-import mariadb-check mycli",
        (_stuck("-p"),),
    ),
    # Behind its own options stands another program, whose -p is a port.
    _Program("sshpass", (rf"""\A["',\s]*(?:-v["',\s]+)?-p{_GAP}?{_VALUE}""",)),
    _Program(
        "docker podman nerdctl crane oras helm az oc cf ibmcloud",
        (_either("-p"),),
        when=r"""["',\s]+(?:[\w-]+["',\s]+){0,2}?login\b""",
    ),
    _Program(
        "openssl",
        (
            rf"{_OPENSSL}\"pass:([^\"\n]+)",
            rf"{_OPENSSL}'pass:([^'\n]+)",
            rf"{_OPENSSL}pass:([^\s\"']+)",
            _apart("-k", "-K"),
        ),
    ),
    _Program(
        "redis-cli redis-benchmark valkey-cli",
        (_either("-a"), _apart("--pass"), rf"{_BEFORE}(?i:auth)[ \t]+{_VALUE}(?![ \t]+[^\s|&;<>])"),
    ),
    _Program("sqlplus", (r"(?<=[\s\"'])[^\s/\"']{1,128}/([^\s/@\"']+)(?=@)",)),
    _Program("cqlsh rdesktop useradd usermod", (_apart("-p"),)),
    _Program("snmpwalk snmpget snmpset snmpbulkwalk", (_apart("-A", "-X", "-c"),)),
    _Program("doctl codecov", (_apart("-t"),)),
    _Program("dotnet nuget gem", (_apart("-k"),), when=r"""["',\s]+(?:nuget["',\s]+)?push\b"""),
    # The secret itself is the argument of a subcommand.
    _Program(
        "vault cargo ngrok snyk rclone",
        (rf"""\A["',\s]+{_SIGN_IN}["',\s]*{_BEFORE}{_VALUE}""",),
        when=rf"""["',\s]+{_SIGN_IN}["',\s]+[^\s=;|&-][^\s=;|&]*["',\s]*(?:$|[|&;])""",
    ),
    _Program("nmcli", (_apart("password", r"[\w.-]*\.psk"),)),
    _Program("wpa_passphrase", (rf"\A[ \t]+\S{{1,64}}[ \t]+{_VALUE}",)),
    _Program("mount mount.cifs", (r"(?<=[\s,])pass(?:word)?=([^\s,\"']+)",)),
    _Program("mongo mongosh mongodump mongorestore mongoexport mongoimport", (_either("-p"),)),
    _Program(
        "ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldapcompare ldapmodrdn",
        (_either("-w"),),
    ),
    _Program("ldappasswd", (_apart("-w", "-s", "-a"),)),
    _Program("zip unzip zipcloak", (_apart("-P"),)),
    _Program("7z 7za 7zr rar unrar", (_stuck("-h?p"),)),
    _Program("ssh-keygen", (_apart("-N", "-P"),)),
    _Program("keytool jarsigner", (_apart("-(?:src|dest)?(?:store|key)pass"),)),
    _Program(
        "htpasswd",
        (rf"{_BEFORE}-[A-Za-z]{{0,8}}b[A-Za-z]{{0,8}}(?:[ \t]+[^\s-]\S*){{2}}[ \t]+{_VALUE}",),
    ),
    _Program("sqlcmd bcp osql ipmitool mosquitto_pub mosquitto_sub", (_either("-P"),)),
    _Program("twine", (_either("-p"),), when=r"""["',\s]+upload\b"""),
    _Program("http https xh xhs", (rf"{_BEFORE}(?:-a|--auth){_GAP}?[^\s:\"'$]{{0,128}}:{_VALUE}",)),
    _Program(
        "skopeo buildah",
        (rf"{_BEFORE}--(?:src-|dest-)?creds{_GAP}[^\s:\"'$]{{0,128}}:{_VALUE}", _either("-p")),
    ),
    _Program("xfreerdp xfreerdp3 wlfreerdp", (rf"{_BEFORE}/(?:g|gw)?p:{_STUCK}",)),
    _Program("chpasswd", (rf"\A[ \t]*<<<[ \t]*{_VALUE}",)),
    # The name is one of the program's own settings, which stands before its value.
    _Program(
        "npm pnpm yarn aws poetry composer",
        (
            rf"{_BEFORE}http-basic\.\S{{1,128}}[ \t]+[^\s-]\S{{0,128}}[ \t]+{_VALUE}",
            rf"{_NAMED}{_GAP}{_VALUE}",
        ),
        when=r"""["',\s]+(?:config|configure)["',\s]+""",
    ),
    _Program(
        "smbclient rpcclient smbget",
        (rf"{_BEFORE}(?:-U[ \t]*|--user[ =])[\"']?[^\s%\"']{{1,128}}%([^\s\"']+)",),
    ),
    _Program("lftp ncftp", (rf"{_BEFORE}-u[ \t]*[^\s,\"']{{1,128}},([^\s,\"']+)",)),
    _Program("plink pscp psftp", (_apart("-pw"),)),
    _Program("security", (_apart("-w"),)),
    _Program(
        "net",
        (
            rf"(?<=[ \t])\\{{2,4}}\S{{1,256}}[ \t]+(?:/user:\S{{1,128}}[ \t]+)?(?![/*]){_VALUE}",
            rf"\A[ \t]+user[ \t]+[^\s/*]{{1,128}}[ \t]+(?![/*]){_VALUE}",
        ),
        when=r"[ \t]+user?\b",
    ),
    _Program(
        "curl wget",
        (
            rf"{_BEFORE}{_USER}",
            _apart("--pass", "--proxy-pass", "--oauth2-bearer"),
            rf"{_BEFORE}(?:-E|--cert){_GAP}[^\s:\"']{{1,256}}:([^\s\"']+)",
            _COOKIE,
        ),
    ),
)
# Secrets that are piped to standard input.
_PIPED: Final = pattern(
    r"""((?:echo|printf)[ \t]{1,4}(?:-n[ \t]{1,4}|['"]?%s(?:\\n)?['"]?[ \t]{1,4})?)
    ("[^"\n]{1,256}"|'[^'\n]{1,256}'|[^\s"'|&;<>$-][^\s"'|&;<>]{0,256})
    (?=[ \t]{0,4}\|[ \t]{0,4}(?:sudo[ \t]{1,4}(?:-[A-Za-z]{1,8}[ \t]{1,4}){0,2}?-[A-Za-z]{0,4}S
      |(?:sudo[ \t]{1,4})?(?:chpasswd|passwd[ \t]{1,4}--stdin)
      |[^\n|;&]{1,256}?(?:--password-stdin|--with-token)))""",
    re.VERBOSE,
)

_HERE: Final = pattern(
    rf"""((?:--password-stdin|--with-token|\bpasswd[ \t]{{1,4}}--stdin
      |\bsudo[ \t]{{1,4}}(?:-[A-Za-z]{{1,8}}[ \t]{{1,4}}){{0,2}}?-[A-Za-z]{{0,4}}S)
      [^\n|;&<]{{0,256}}<<<[ \t]{{0,4}}){_VALUE}""",
    re.VERBOSE,
)


@cache
def _by_name() -> dict[str, _Program]:
    return {name: program for program in _PROGRAMS for name in program.names.split()}


@cache
def _names() -> re.Pattern[str]:
    # Without a lookbehind the search starts from the first letters, which is much faster.
    longest_first = sorted(_by_name(), key=len, reverse=True)
    return re.compile(rf"""(?:{"|".join(map(re.escape, longest_first))})(?=[ \t"'])""")


def _commands(text: str) -> Iterator[re.Match[str]]:
    """Yield where a program is named that takes a secret."""
    for found in _names().finditer(text):
        before = text[found.start() - 1 : found.start()]
        if not (before.isalnum() or before in ("_", ".", "-")):
            yield found


def without_arguments(text: str) -> str:
    """Return the text without command arguments that are secrets."""
    if "|" in text:
        text = _PIPED.sub(_piped, text)
    if "<<<" in text:
        text = _HERE.sub(_piped, text)
    if not holds_any(text, *_by_name()):
        return text
    kept: list[str] = []
    done = 0
    commands = _commands(text)
    found = next(commands, None)
    while found:
        following = next(commands, None)
        start = found.end()
        end = _end_of_line(text, start, following.start() if following else len(text))
        program = _by_name()[found[0]]
        if re.compile(program.when).match(text, start, end):
            secrets = re.compile("|".join(program.secrets))
            kept += (text[done:start], secrets.sub(_argument, text[start:end]))
            done = end
        found = following
    return "".join(kept) + text[done:]


def _end_of_line(text: str, start: int, limit: int) -> int:
    """Return where the line of a command ends; a backslash continues it on the next one."""
    while (end := text.find("\n", start, limit)) >= 0:
        if text[end - 1] != "\\":
            return end
        start = end + 1
    return limit


def _argument(found: re.Match[str]) -> str:
    group = found.lastindex or 0
    start, end = (each - found.start() for each in found.span(group))
    return found[0][:start] + _marked(found[group]) + found[0][end:]


def _piped(found: re.Match[str]) -> str:
    return found[1] + _marked(found[2])


def _marked(value: str) -> str:
    """Return the mark for a value, in its quotes; a mere reference to a secret stays."""
    quote = value[0] if value[0] in "\"'" and value.find(value[0], 1) == len(value) - 1 else ""
    inside = value[1:-1] if quote else value
    if is_reference(inside.lstrip("\"'")):
        return value
    return f"{quote}{REDACTED}{quote}"
