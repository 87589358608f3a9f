"""The user's git settings, as far as commands in a sandbox can see them.

Only keys that cannot run a program, read a file or hold a secret: aliases, helpers, hooks, includes
and addresses stay outside. Included files are not read.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kakoi._support.late import pattern

_HARMLESS: Final = frozenset(
    """user.name user.email author.name author.email committer.name committer.email
    init.defaultbranch core.autocrlf core.eol core.safecrlf core.quotepath core.whitespace
    pull.rebase pull.ff push.default push.autosetupremote fetch.prune merge.ff merge.conflictstyle
    rebase.autostash rebase.autosquash branch.autosetuprebase diff.algorithm diff.renames
    commit.verbose rerere.enabled color.ui""".split()
)
_MAX_BYTES: Final = 256 * 1024
_LONGEST: Final = 256
_HEADING: Final = pattern(r'\[\s*([A-Za-z0-9.-]+)\s*("[^"]*")?\s*\]\s*')
_SETTING: Final = pattern(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")
# A part of a value: quoted, escaped, plain, or a comment, which ends it.
_PART: Final = pattern(r'"((?:[^"\\]|\\.)*)"|(\\.)|([#;].*)|([^"\\#;]+)')


def git_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the harmless settings of the user, by key in small letters (`user.name`)."""
    found: dict[str, str] = {}
    for path in _files(environ):
        found.update(_settings(path))
    return found


def git_settings_file(environ: Mapping[str, str]) -> bytes:
    """Return these settings as a file for git; empty if there are none."""
    lines = []
    for name, value in sorted(git_settings(environ).items()):
        section, _, key = name.partition(".")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'[{section}]\n\t{key} = "{quoted}"\n')
    return "".join(lines).encode()


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the user's git settings files; later ones take precedence."""
    if named := environ.get("GIT_CONFIG_GLOBAL"):
        yield Path(named)
        return
    home = environ.get("HOME") or os.path.expanduser("~")
    yield Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "git", "config")
    yield Path(home, ".gitconfig")


def _settings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    section = ""
    # A backslash at the end of a line continues it.
    for line in map(str.strip, text.replace("\\\n", "").split("\n")):
        if heading := _HEADING.match(line):
            section = "" if heading[2] else heading[1].lower()
            line = line[heading.end() :]
        setting = _SETTING.fullmatch(line)
        name = f"{section}.{setting[1].lower()}" if setting else ""
        if setting and name in _HARMLESS:
            value = "true" if setting[2] is None else _value(setting[2])
            if 0 < len(value) <= _LONGEST and value.isprintable():
                yield name, value


def _value(text: str) -> str:
    """Return the value that a text means, without its quotes, escapes and comment."""
    value, kept = "", 0
    for quoted, escaped, comment, plain in _PART.findall(text):
        if comment:
            break
        value += re.sub(r"\\(.)", r"\1", quoted or escaped) + plain
        kept = kept if plain else len(value)
    return value[:kept] + value[kept:].rstrip()  # Quoted spaces stay.
