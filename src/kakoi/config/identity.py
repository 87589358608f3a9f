"""Who commits: the name and address that git would use for this user, for git inside a sandbox."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_VARIABLES = (
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
)
_MAX_BYTES = 256 * 1024
_SECTION = re.compile(r"\[\s*([A-Za-z0-9.-]+)\s*\]")
_SETTING = re.compile(r"(name|email)\s*=\s*(.*)", re.IGNORECASE)


def git_identity(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for git, of which a sandbox sees neither ours nor our settings.

    What the repository's own settings say goes last, as it does for git: these are left out where
    nothing is known, and git asks the repository then.
    """
    given = os.environ if environ is None else environ
    found = {name: given[name] for name in _VARIABLES if given.get(name)}
    for path in _settings_files(given):
        for key, value in _user_settings(path):
            for role in ("AUTHOR", "COMMITTER"):
                found.setdefault(f"GIT_{role}_{key.upper()}", value)
    return found


def _settings_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The user's own, the one that wins first."""
    home = environ.get("HOME") or os.path.expanduser("~")
    yield Path(home, ".gitconfig")
    yield Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "git", "config")


def _user_settings(path: Path) -> Iterator[tuple[str, str]]:
    """`name` and `email` of the section [user], as far as they are written plainly."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    section = ""
    for line in map(str.strip, lines):
        if heading := _SECTION.match(line):
            section = heading[1].lower()
        elif section == "user" and (setting := _SETTING.fullmatch(line)):
            value = setting[2].strip().strip('"')
            if value and value.isprintable():
                yield setting[1].lower(), value
