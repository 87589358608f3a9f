"""Secrets that are arguments: `mysql -pX`, `sshpass -p X`, `curl -u name:X`.

What an option of one letter means, its program says: `-p` is a password to mysql, a port to ssh and
a folder to mkdir. So the text is cut at the names of programs that take a secret, and each piece,
up to the end of its line, is looked at with the pattern of its own program.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from kakoi.redact.references import REDACTED, is_reference

# In a shell, or in a list of words as programs write them down: ["-p", "X"].
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
    """`-pX`; with a space behind it, it asks for the password."""
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
        "docker podman nerdctl buildah skopeo helm az oc cf ibmcloud",
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
    _Program("redis-cli redis-benchmark valkey-cli", (_either("-a"), _apart("--pass"))),
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
    _Program("sqlcmd bcp osql ipmitool", (_either("-P"),)),
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
            _COOKIE,
        ),
    ),
)
# What is handed over on standard input.
_PIPED: Final = re.compile(
    r"""((?:echo|printf)[ \t]{1,4}(?:-n[ \t]{1,4}|['"]?%s(?:\\n)?['"]?[ \t]{1,4})?)
    ("[^"\n]{1,256}"|'[^'\n]{1,256}'|[^\s"'|&;<>$-][^\s"'|&;<>]{0,256})
    (?=[ \t]{0,4}\|[ \t]{0,4}(?:sudo[ \t]{1,4}(?:-[A-Za-z]{1,8}[ \t]{1,4}){0,2}?-[A-Za-z]{0,4}S
      |(?:sudo[ \t]{1,4})?(?:chpasswd|passwd[ \t]{1,4}--stdin)
      |[^\n|;&]{1,256}?(?:--password-stdin|--with-token)))""",
    re.VERBOSE,
)


@cache
def _by_name() -> dict[str, _Program]:
    return {name: program for program in _PROGRAMS for name in program.names.split()}


@cache
def _names() -> re.Pattern[str]:
    # Without a look behind: so it is searched by its first letters, which is much faster.
    longest_first = sorted(_by_name(), key=len, reverse=True)
    return re.compile(rf"""(?:{"|".join(map(re.escape, longest_first))})(?=[ \t"'])""")


def _commands(text: str) -> Iterator[re.Match[str]]:
    """Where a program is named that may be given a secret."""
    for found in _names().finditer(text):
        before = text[found.start() - 1 : found.start()]
        if not (before.isalnum() or before in ("_", ".", "-")):
            yield found


def without_arguments(text: str) -> str:
    """Without the arguments of commands that are secrets."""
    text = _PIPED.sub(_piped, text)
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
    """Where the line ends that a command stands in; a backslash goes on with the next one."""
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
    """The mark for a value, in its quotes; a value that only says where a secret is, stays."""
    quote = value[0] if value[0] in "\"'" and value.find(value[0], 1) == len(value) - 1 else ""
    inside = value[1:-1] if quote else value
    if is_reference(inside.lstrip("\"'")):
        return value
    return f"{quote}{REDACTED}{quote}"
