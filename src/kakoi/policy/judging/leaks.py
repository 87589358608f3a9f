"""What leaves by a network program: variables and files that hold secrets.

Such a file may be read, and its name may be anywhere in the text: in the same pipeline, in a loop,
in an option. If the text reads one, everything that is filled in at run time may be its content.
"""

from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.programs import Invocation
from kakoi.policy.judging.command_words import program_name
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import Expands, Expansion, Word

NETWORK: Final = frozenset(
    "curl wget aria2c http https fetch dig host nslookup ping ping6 traceroute whois ffmpeg "
    "ffprobe gh glab npm yarn pnpm pip pip3 uv go cargo gem deno getent".split()
)
# With them a program proves who it is: that is what the secret is for.
_PROVING: Final = frozenset(
    "-H --header -u --user --oauth2-bearer -E --cert --key --cacert --certificate "
    "--private-key".split()
)
_SENSITIVE: Final = pattern(
    r"(?:^|[/@=])(?:\.env(?:\.(?!example|sample|template|dist)[\w.-]+)?|\.envrc|.*credentials?(?:\.\w+)?|.*secrets?\.\w+"
    r"|.*\.(?:pem|key|p12|pfx|jks|keystore|kdbx)|.*[_.-]token(?:\.\w+)?|\.git/config|terraform\.tfstate|\.htpasswd"
    r"|.*service[_-]account.*\.json|\.npmrc|\.pypirc|\.netrc|id_(?:rsa|ed25519|ecdsa|dsa))$"
)
_LISTING: Final = frozenset({"env", "printenv", "set", "export", "declare"})
_LONGEST: Final = 4096


def secret_that_leaves(invocation: Invocation, script: Script) -> Word | None:
    """Return the word of a network program by which a secret may leave; None if there is none."""
    proving = [
        option.value if option.value is not None else option.word
        for option in invocation.arguments.options
        if not _PROVING.isdisjoint(option.names)
    ]
    words = [word for word in invocation.words[1:] if not any(word is each for each in proving)]
    for word in words:
        if word.text is None and any(_is_secret_variable(p.name) for p in _variables(word)):
            return word
    unclear = [word for word in words if word.text is None or word.static == "-"]
    if unclear and any(map(_shows_secrets, script.commands)):
        return unclear[0]
    return next((word for word in words if _is_sensitive(word)), None)


def _variables(word: Word) -> list[Expansion]:
    return [part for part in word.expansions() if part.kind is Expands.VARIABLE]


def _is_secret_variable(name: str) -> bool:
    # Few commands send a variable, so the others need not load what knows secret names.
    from kakoi._support.redact import is_secret_name

    return bool(name) and is_secret_name(name)


def _shows_secrets(command: SimpleCommand) -> bool:
    """Whether the command reads a file that holds secrets, or shows the environment."""
    name = program_name(command)
    if name in _LISTING and all(word.prefix[:1] == "-" for word in command.words[1:]):
        return True
    if name == "printenv":
        return True
    targets = [redirect.target for redirect in command.redirects if not redirect.writes]
    return any(_is_sensitive(word) for word in (*command.words[1:], *targets))


def _is_sensitive(word: Word) -> bool:
    text = word.text or ""
    return (
        bool(text) and len(text) <= _LONGEST and "://" not in text and bool(_SENSITIVE.search(text))
    )
