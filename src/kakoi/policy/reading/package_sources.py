"""Where a package manager gets what it installs, and runs while it installs it.

By its name a package comes from the index of the project. An address is anybody's, and what comes
without encryption or verification can be changed by anybody on the way.
"""

import re
from typing import Final

from kakoi.policy.words import Word

# Words of the rules.
ADDRESS: Final = "installs-address"
UNPROTECTED: Final = "installs-unprotected"

# `git+http://…`, `name @ https://…`, `name=https://…`; the host follows a user, if there is one.
_URL: Final = re.compile(
    r"(?<![a-z0-9])(?:[a-z]{2,4}\+)?([a-z][a-z0-9]{0,19})://(?:[^/\s@]*@)?(\[[^\]]*\]|[^/\s:]*)",
    re.IGNORECASE,
)
_LOOPBACK: Final = re.compile(
    r"(?:localhost|127(?:\.\d{1,3}){3}|\[?::1\]?)(?::\d*)?", re.IGNORECASE
)
_PROTECTED: Final = frozenset(("https", "ssh"))
_HOSTED: Final = re.compile(r"(?:.*@)?(?:github|gitlab|bitbucket|gist):.+")
_BY_SSH: Final = re.compile(r"(?:git\+)?[\w.-]+@[\w-]+\.[\w.-]+:.+")
# To npm and its like `name/repository` is one of GitHub's; a file has an ending or a dot before it.
_REPOSITORY: Final = re.compile(
    r"(?:[\w.-]+@)?[A-Za-z0-9][\w-]*/[\w.-]+(?<!\.tgz)(?<!\.tar)(?<!\.tar\.gz)(?:#.*)?"
)
_GITHUB_BY_NAME: Final = frozenset("npm npx yarn pnpm bun bunx".split())


def package_risk(word: Word, program: str) -> str | None:
    """What a word that names a package or a list of packages risks; None if nothing."""
    text = _known(word)
    found = _worst(text)
    if found is not None:
        return found
    is_repository = program in _GITHUB_BY_NAME and _REPOSITORY.fullmatch(text)
    if is_repository or _HOSTED.fullmatch(text) or _BY_SSH.fullmatch(text):
        return ADDRESS
    return None


def index_risk(word: Word) -> str | None:
    """What an index risks: one that is named by https is as good as any other."""
    text = _known(word)
    found = _worst(text)
    if found == ADDRESS and not any(_is_plain(match) for match in _URL.finditer(text)):
        return None
    # What is filled in at run time may be any address.
    return ADDRESS if found is None and word.text is None and not text else found


def host_risk(word: Word) -> str:
    """What it risks not to verify a host."""
    return ADDRESS if _LOOPBACK.fullmatch(_known(word)) else UNPROTECTED


def _known(word: Word) -> str:
    return word.prefix if word.text is None else word.text


def _worst(text: str) -> str | None:
    """The worst of the addresses in a text."""
    found = [match for match in _URL.finditer(text) if match[1].lower() != "file"]
    if any(_is_plain(match) and not _LOOPBACK.fullmatch(match[2]) for match in found):
        return UNPROTECTED
    return ADDRESS if found else None


def _is_plain(match: re.Match[str]) -> bool:
    return match[1].lower() not in _PROTECTED
