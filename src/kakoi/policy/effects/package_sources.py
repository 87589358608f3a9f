"""Where a package manager gets the packages that it installs, and whose code it runs.

A package that is named comes from the index of the project. A URL can be anyone's, and a package
that arrives without encryption or verification can be changed in transit.
"""

import re
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.arguments import is_pipe
from kakoi.policy.parsing.words import STDIN_NAMES, Word

# Effects that the rules know.
ADDRESS: Final = "installs-address"
UNPROTECTED: Final = "installs-unprotected"

# `git+http://…`, `name @ https://…`, `name=https://…`; the host follows the user, if any.
_URL: Final = pattern(
    r"(?<![a-z0-9])(?:[a-z]{2,4}\+)?([a-z][a-z0-9]{0,19})://(?:[^/\s@]*@)?(\[[^\]]*\]|[^/\s:]*)",
    re.IGNORECASE,
)
_LOOPBACK: Final = pattern(r"(?:localhost|127(?:\.\d{1,3}){3}|\[?::1\]?)(?::\d*)?", re.IGNORECASE)
_PROTECTED: Final = frozenset(("https", "ssh"))
_HOSTED: Final = pattern(r"(?:.*@)?(?:github|gitlab|bitbucket|gist):.+")
_BY_SSH: Final = pattern(r"(?:git\+)?[\w.-]+@[\w-]+\.[\w.-]+:.+")
# npm and others take `name/repository` from GitHub; a file has a suffix, or a dot before it.
_REPOSITORY: Final = pattern(
    r"(?:[\w.-]+@)?[A-Za-z0-9][\w-]*/[\w.-]+(?<!\.tgz)(?<!\.tar)(?<!\.tar\.gz)(?:#.*)?"
)
_GITHUB_BY_NAME: Final = frozenset("npm npx yarn pnpm bun bunx".split())


def package_risk(word: Word, program: str) -> str | None:
    """Return the risk of a word that names a package or a list of packages; None if it has none."""
    text = _known(word)
    found = _worst(text)
    if found is not None:
        return found
    if text in STDIN_NAMES or (word.text is None and not text and is_pipe(word)):
        return ADDRESS
    is_repository = program in _GITHUB_BY_NAME and _REPOSITORY.fullmatch(text)
    if is_repository or _HOSTED.fullmatch(text) or _BY_SSH.fullmatch(text):
        return ADDRESS
    return None


def index_risk(word: Word) -> str | None:
    """Return the risk of an index: whose it is, nobody knows from its address."""
    text = _known(word)
    found = _worst(text)
    # A value that is filled in at run time can be any URL.
    return ADDRESS if found is None and word.text is None and not text else found


def names_stranger(word: Word) -> bool:
    """Whether the word is the address of another machine."""
    found = _URL.match(_known(word))
    return found is not None and found[1].lower() != "file" and not _LOOPBACK.fullmatch(found[2])


def host_risk(word: Word) -> str:
    """Return the risk of not verifying a host."""
    return ADDRESS if _LOOPBACK.fullmatch(_known(word)) else UNPROTECTED


def _known(word: Word) -> str:
    return word.prefix if word.text is None else word.text


def _worst(text: str) -> str | None:
    """Return the worst risk of the URLs in a text; None if it has no URL."""
    found = [match for match in _URL.finditer(text) if match[1].lower() != "file"]
    if any(_is_plain(match) and not _LOOPBACK.fullmatch(match[2]) for match in found):
        return UNPROTECTED
    return ADDRESS if found else None


def _is_plain(match: re.Match[str]) -> bool:
    return match[1].lower() not in _PROTECTED
