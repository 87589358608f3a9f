"""Secrets out of text before it leaves a function.

`redact` is one step before any log line, error text or audit record. It knows the secrets it is
told and the shapes that secrets have. It is no boundary: a secret in a shape of its own, which
nobody told it, passes. Every pattern takes time linear in the text: a quantifier never repeats
another one, and a run of characters is entered at its beginning only.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with every secret replaced by `[redacted]`; never raises.

    `secrets` are removed as they are and in their URL-encoded, base64 and JSON forms. Doing it
    twice changes nothing more.
    """
    text = _without_known(text, secrets)
    text = _PRIVATE_KEY.sub(_private_key, text)
    text = _URL_USER.sub(_url_user, text)
    text = _LONG_RUN.sub(_tokens, text)
    text = _without_pairs(text)
    text = _SCHEME.sub(_scheme, text)
    text = _ELEMENT.sub(_element, text)
    text = _CURL.sub(_curl, text)
    return _NETRC.sub(rf"\1{REDACTED}", text)


# --- Names -----------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

# What the last word of a secret's name ends with: PGPASSWORD, client_secret, _authToken.
_TAILS = (
    *("password", "passwd", "passphrase", "passcode", "secret", "token", "apikey"),
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
# Parsers and language models have tokens that are no secrets.
_PLAIN_TOKENS = frozenset(
    """bos cls current end eos first last mask next pad peek prev previous sep special start
    stop syntax unk""".split()
)
_WHOLE = frozenset(("_auth", "sshpass", "dbpass", "userpass"))


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


# --- Secrets that we were told ---------------------------------------------------------------


def _without_known(text: str, secrets: Iterable[str]) -> str:
    told = [secrets] if isinstance(secrets, str) else secrets
    forms = {form for secret in told if secret.strip() for form in _forms(secret)}
    if not forms:
        return text
    longest_first = sorted(forms, key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest_first)))
    # Between the marks only: a secret such as "red" is part of the mark itself.
    return REDACTED.join(known.sub(REDACTED, part) for part in text.split(REDACTED))


def _forms(secret: str) -> Iterator[str]:
    """A secret as it may stand in a text: plain, in a URL, in JSON, in base64."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield encoded
        yield re.sub("%..", lambda code: code[0].lower(), encoded)
    if len(raw) >= 6:
        yield from _base64_forms(raw)


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Also as the middle of something longer ("user:secret"): the part that is always the same."""
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        first = (0, 2, 3)[shift]
        whole = len(encoded) - ((shift + len(raw)) % 3 > 0)
        yield encoded[first:whole]
        yield encoded[first:whole].translate(str.maketrans("+/", "-_"))


# --- Secrets that have a shape ---------------------------------------------------------------

_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
    r"((?:[A-Za-z0-9+/=\s\\,:.()]++|-(?!----END))*+)"
)
_KEY_LINE = re.compile("[A-Za-z0-9+/]{40}")

_URL_USER = re.compile(r"""(?<=://)([^\s/?#"'<>\\`]{1,1024})@""")
_SCHEME_OF_URL = re.compile(r"([A-Za-z0-9+.]{1,20})://\Z")

# Every token is a part of such a run, and few other things are.
_LONG_RUN = re.compile(r"[A-Za-z0-9_./%\\-]{20,}+")
_TOKEN = re.compile(
    r"(?:gh[pousr]_[A-Za-z0-9]{20,}"  # GitHub
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|gl(?:pat|oat|dt|rt|rtr|cbt|ptt|ft|imt|agent|soat)-[A-Za-z0-9_.-]{20,}"  # GitLab
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"  # AWS
    r"|AIza[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,}"  # Google
    r"|xox[a-z]-[A-Za-z0-9-]{15,}|xapp-[A-Za-z0-9-]{20,}"  # Slack
    r"|(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}|rubygems_[a-f0-9]{40,}|dckr_pat_[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|do[opr]_v1_[a-f0-9]{40,}|dapi[a-f0-9]{32}|hv[sb]\.[A-Za-z0-9_-]{20,}|lin_api_[\w]{30,}"
    r"|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{40,}"
    r"|sntrys_[A-Za-z0-9_=+/-]{40,}|tskey-[a-z]{2,16}-[A-Za-z0-9-]{16,}|shpat_[a-f0-9]{32}"
    # At the start of a run only; the end of an escape sequence ("\n", "%3D", a colour) is one.
    r"|(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=[0-9]m))"
    r"(?:sk-[A-Za-z0-9_-]{20,}|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?))"
    r"[A-Za-z0-9_-]*+"
)
_DENSE = re.compile("(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12,}")

_SCHEME = re.compile(r"([Bb](?:earer|EARER|asic|ASIC)[ \t]{1,4})([A-Za-z0-9._~+/-]{6,}=*)")
_ELEMENT = re.compile(r"<([A-Za-z_][\w.:-]{0,80})>([^<>\n]{1,4096}+)(?=</)", re.ASCII)
_CURL = re.compile(r"(?:curl|wget)[ \t][^\n]*")
_CURL_USER = re.compile(
    r"""(\s(?:-u|-U|--user|--proxy-user)[ =]?["']?[^\s:"'$]{0,128}:)([^\s"'$][^\s"']*)"""
)
_NETRC = re.compile(r"(login\s{1,8}\S{1,128}\s{1,8}password\s{1,8})\S+")


def _private_key(found: re.Match[str]) -> str:
    return found[1] + REDACTED if _KEY_LINE.search(found[2]) else found[0]


def _url_user(found: re.Match[str]) -> str:
    """Name and password go; a name alone may be a token over HTTP, and is only a name over SSH."""
    user, _, password = found[1].partition(":")
    before = found.string[max(0, found.start() - 24) : found.start()]
    scheme = _SCHEME_OF_URL.search(before)
    over_http = scheme is not None and "http" in scheme[1].lower()
    if _is_reference(password or user) or not (password or over_http):
        return found[0]
    return f"{REDACTED}@"


def _tokens(found: re.Match[str]) -> str:
    return _TOKEN.sub(_token, found[0])


def _token(found: re.Match[str]) -> str:
    # "sk-" also begins branch names and slugs; a key has a long part without a hyphen.
    if found[0].startswith("sk-") and not _DENSE.search(found[0]):
        return found[0]
    return REDACTED


def _scheme(found: re.Match[str]) -> str:
    named, value = found.groups()
    secret = _is_login(value) if "asi" in named.lower() else _looks_random(value)
    return f"{named}{REDACTED}" if secret else found[0]


def _is_login(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def _looks_random(value: str) -> bool:
    return len(value) >= 24 or (len(value) >= 8 and any(map(str.isdigit, value)))


def _element(found: re.Match[str]) -> str:
    if not is_secret_name(found[1]) or _is_reference(found[2]):
        return found[0]
    return f"<{found[1]}>{REDACTED}"


def _curl(found: re.Match[str]) -> str:
    return _CURL_USER.sub(rf"\1{REDACTED}", found[0])


# --- Names with values -----------------------------------------------------------------------

# A name at the start of a run, and what stands between it and its value.
_NAME = re.compile(
    r"""(?:(?<![A-Za-z0-9_.\\-])|(?<=\\[nrt]))
    (?:
        -{0,2}([A-Za-z_][A-Za-z0-9_.-]{0,80}+)\\?["']?\]?[ \t]{0,3}+
        (?::=|=>|==?=?(?=[ \t]{0,3}["'])|=(?!=)|:)[ \t]{0,3}
      | --?([A-Za-z][A-Za-z0-9_-]{0,80}+)[ \t]{1,8}+(?=[^\s-])
    )""",
    re.VERBOSE,
)
_OPENING = re.compile(r"""\\*["'`]""")
_INSIDE = {mark: re.compile(rf"(?:[^{mark}\\\n]++|\\.)*+") for mark in "\"'`"}
_LONGEST_VALUE = 1024
_LONGEST_WORD = 128
_PUNCTUATION = ",;.:)]}"
_BARE = re.compile(r"""[^\s"'`&|<>]+""")
_AUTH_SCHEME = re.compile(
    r"(?:bearer|basic|token|apikey|negotiate|digest|aws4-hmac-sha256)[ \t]+", re.IGNORECASE
)
_COOKIE = re.compile(r"[^\s=;,\"']{1,256}=")
_REST_OF_HEADER = re.compile(r"""[^\r\n"']+""")
_REFERENCE = re.compile(
    r"""(?:\$[A-Za-z_][A-Za-z0-9_]*|\$[({].*|%[A-Za-z0-9_]+%|[{<].*|[*x.•-]+
    |[A-Za-z_][A-Za-z0-9_.]*[(\[].*
    |(?:args|cfg|config|ctx|env|opts|options|os|params|process|request|self|settings|this)[.].*
    )\Z""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_VALUES = frozenset(
    """any bool boolean bytes empty expired false inherit int integer invalid missing no nil none
    null number object off ok on optional prompt required str string text true undefined unset
    valid yes""".split()
)
_PROSE = re.compile(r"[a-z]+[,.]?[ \t]+[A-Za-z]")


def _without_pairs(text: str) -> str:
    kept: list[str] = []
    done = position = 0
    while found := _NAME.search(text, position):
        position = found.end()
        name = found[1] or found[2]
        start, end = _value(text, position, name, prose=text[position - 2 : position] == ": ")
        if start < end:
            kept += (text[done:start], REDACTED)
            done = position = end
    return "".join(kept) + text[done:]


def _value(text: str, start: int, name: str, *, prose: bool) -> tuple[int, int]:
    """Where the secret value of `name` begins and ends; an empty stretch if there is none."""
    if name.lower() in ("cookie", "set-cookie"):
        return _header(text, start) if _COOKIE.match(text, start) else (start, start)
    if not is_secret_name(name):
        return start, start
    opening = _OPENING.match(text, start)
    if opening:
        start = opening.end()
    if name.lower().endswith("authorization"):
        return _credentials(text, start)
    if _says_nothing(text, start, name) or (prose and not opening and _PROSE.match(text, start)):
        return start, start
    return start, _closing(text, opening) if opening else _bare_end(text, start)


def _says_nothing(text: str, start: int, name: str) -> bool:
    """Judged by the head of the value alone, or a long one would be read again and again."""
    head = _BARE.match(text, start, start + _LONGEST_WORD)
    if head is None:
        return False
    value = head[0].rstrip(_PUNCTUATION)
    return value.lower() in _PLAIN_VALUES or value == name or _is_reference(head[0])


def _credentials(text: str, start: int) -> tuple[int, int]:
    """What an Authorization header proves; the word before it ("Bearer") stays."""
    scheme = _AUTH_SCHEME.match(text, start)
    if scheme is None:
        end = _bare_end(text, start)
        return start, end if _looks_random(text[start:end]) else start
    if scheme[0].strip().lower() in ("digest", "aws4-hmac-sha256"):
        return _header(text, scheme.end())
    return scheme.end(), _bare_end(text, scheme.end())


def _header(text: str, start: int) -> tuple[int, int]:
    rest = _REST_OF_HEADER.match(text, start)
    return rest.span() if rest else (start, start)


def _closing(text: str, opening: re.Match[str]) -> int:
    """Where a quoted value ends: at its closing mark, or with the word if there is none."""
    start, mark = opening.end(), opening[0]
    if len(mark) > 1:  # Quotes inside of a quoted text are escaped, and so is the closing one.
        end = text.find(mark, start, start + _LONGEST_VALUE)
        return end if end >= 0 and "\n" not in text[start:end] else _bare_end(text, start)
    inside = _INSIDE[mark].match(text, start)
    closed = inside is not None and text.startswith(mark, inside.end())
    return inside.end() if inside and closed else _bare_end(text, start)


def _bare_end(text: str, start: int) -> int:
    """Where an unquoted value ends; the punctuation behind it is not a part of it."""
    found = _BARE.match(text, start)
    if found is None:
        return start
    punctuation = _PUNCTUATION.replace("]", "") if REDACTED in found[0] else _PUNCTUATION
    return start + len(found[0].rstrip(punctuation))


def _is_reference(value: str) -> bool:
    """A variable, a template, a call, stars: it says where a secret is, not what it is."""
    return value.startswith(REDACTED) or _REFERENCE.match(value) is not None
