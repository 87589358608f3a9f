"""Which commands of git in a text talk to another repository."""

import posixpath
from typing import Final

from kakoi._support.late import dataclass
from kakoi.policy.parsing.parser import parse
from kakoi.policy.parsing.script import Unreadable

PUSH: Final = "git-receive-pack"
FETCH: Final = "git-upload-pack"
_SERVICES: Final = {
    "push": PUSH,
    **dict.fromkeys(("fetch", "pull", "ls-remote", "clone", "remote"), FETCH),
}
# Options before the subcommand whose value is the next word.
_WITH_VALUE: Final = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env")


@dataclass(frozen=True, slots=True)
class GitTraffic:
    """What the text asks of other repositories.

    `services`: of git's protocol. `addresses`: words that may name a repository. `folders`: where
    git may run, besides the directory of the text.
    """

    services: frozenset[str]
    addresses: tuple[str, ...]
    folders: tuple[str, ...]


def git_traffic(text: str) -> GitTraffic | None:
    """Return what the simple commands of the text ask; None if none of them talks to a remote.

    Only words that are certain count, so that what runs is what was judged as `git push`.
    """
    if "git" not in text or not any(each in text for each in _SERVICES):
        return None
    script = parse(text)
    if isinstance(script, Unreadable):
        return None
    services: set[str] = set()
    addresses: list[str] = []
    folders: list[str] = []
    for command in script.commands:
        # A word that is not certain is no option, no subcommand and no address.
        words = [word.static or "" for word in command.words]
        name = posixpath.basename(words[0]) if words else ""
        if name == "cd":
            folders += words[1:2]
        elif name == "git":
            subcommand, rest, directory = _subcommand(words[1:])
            folders += directory
            if subcommand in _SERVICES:
                services.add(_SERVICES[subcommand])
                addresses += [each for each in rest if ":" in each]
    return GitTraffic(frozenset(services), tuple(addresses), tuple(folders)) if services else None


def _subcommand(words: list[str]) -> tuple[str, list[str], list[str]]:
    """Return git's subcommand, what follows it, and the directories of `-C`."""
    directories, at = [], 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "-C":
            directories += words[at + 1 : at + 2]
        at += 2 if words[at] in _WITH_VALUE else 1
    return (words[at] if at < len(words) else "", words[at + 1 :], directories)
