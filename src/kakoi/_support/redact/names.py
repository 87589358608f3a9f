"""Names whose value is a secret, and values that only say where a secret is."""

import re

from kakoi._support.late import pattern

REDACTED = "[redacted]"
_WORD = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

# What the last word of a secret's name ends with: PGPASSWORD, client_secret, _authToken.
_TAILS = (
    *("password", "passwd", "passphrase", "passcode", "secret", "token", "apikey", "authkey"),
    *("credential", "authorization", "secretkey", "privatekey", "accesskey"),
)
# A last word that needs a word before it to mean a secret, and which words do.
_AFTER = {
    "key": frozenset(
        """access account admin api auth deploy encryption gpg hmac jwt license master private
        secret service shared signing ssh storage subscription webhook""".split()
    ),
    "pat": frozenset("access ado azure devops git github gitlab user".split()),
    "cookie": frozenset("auth session".split()),
    "signature": frozenset("amz goog".split()),
    "string": frozenset(["connection"]),
    "sock": frozenset(["auth"]),
    "id": frozenset(["secret"]),
}
# A last word that means a secret unless it stands alone or after one of these.
_UNLESS_AFTER = {
    "pass": frozenset("all band by first high low multi one second single test tests".split()),
    "pwd": frozenset(["old"]),
    "tokens": frozenset(
        """cached completion input max min n new num of output prompt reasoning special stop
        total used""".split()
    ),
}
# Parsers and language models have tokens that are not secrets.
_PLAIN_TOKENS = frozenset(
    """bos cls current end eos first last mask next pad peek prev previous sep special start
    stop syntax unk""".split()
)
_WHOLE = frozenset(("_auth", "sshpass", "dbpass", "userpass", "rediscli_auth", "psk"))
_REFERENCE = pattern(
    r"""(?:\$[A-Za-z_][A-Za-z0-9_]*|\$[({].*|%[A-Za-z0-9_]+%|[{<].*|[*x.•-]+
    |[A-Za-z_][A-Za-z0-9_.]*[(\[].*
    |(?:args|cfg|config|ctx|env|opts|options|os|params|process|request|self|settings|this)[.].*
    )\Z""",
    re.VERBOSE | re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Does a variable, option, header or key of this name hold a secret?"""
    words = [word.lower() for word in _WORD.findall(name[-256:])]
    while words and words[-1].isdigit():
        words.pop()
    if not words or name.lower() in _WHOLE or words[-1] in _WHOLE:
        return bool(words)
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _UNLESS_AFTER:
        return bool(before) and before not in _UNLESS_AFTER[last]
    if words[-3:] in (["access", "key", "id"], ["secret", "key", "base"]):
        return True
    last = last.removesuffix("s")
    if last == "token":
        return before not in _PLAIN_TOKENS
    return last.endswith(_TAILS) or before in _AFTER.get(last, ())


def is_reference(value: str) -> bool:
    """Is it a variable, a template, a call or stars, which say where a secret is but not what?"""
    return value.startswith(REDACTED) or _REFERENCE.match(value) is not None


def holds_any(text: str, *parts: str) -> bool:
    """Does the text hold what an expression cannot match without? Compiling that takes longer."""
    for part in parts:  # noqa: SIM110 - each command calls this many times, and `any` takes longer
        if part in text:
            return True
    return False
