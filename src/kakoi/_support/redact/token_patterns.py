"""Secrets recognised by their name or shape: `password=…`, headers, keys, tokens, users in URLs."""

import base64
import binascii
import re

from kakoi._support.late import pattern
from kakoi._support.redact.names import REDACTED, holds_any, is_reference, is_secret_name

_PRIVATE_KEY = pattern(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
    r"((?:[A-Za-z0-9+/=\s\\,:.()]++|-(?!----END))*)"
)
_KEY_LINE = pattern("[A-Za-z0-9+/]{40}")

_URL_USER = pattern(r"""(?<=://)([^\s/?#"'<>\\`]{1,1024})@""")
_SCHEME_OF_URL = pattern(r"([A-Za-z0-9+.]{1,20})://\Z")

# Every token is a part of such a run, and few other things are.
_LONG_RUN = pattern(r"[A-Za-z0-9_./%\\-]{20,}+")
_TOKEN = pattern(
    r"(?:gh[pousr]_[A-Za-z0-9]{20,}"  # GitHub
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|gl(?:pat|oat|dt|rt|rtr|cbt|ptt|ft|imt|agent|soat)-[A-Za-z0-9_.-]{20,}"  # GitLab
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"  # AWS
    r"|AIza[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,}"  # Google
    r"|xox[a-z]-[A-Za-z0-9-]{15,}|xapp-[A-Za-z0-9-]{20,}"  # Slack
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}|rubygems_[a-f0-9]{40,}|dckr_pat_[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|do[opr]_v1_[a-f0-9]{40,}|dapi[a-f0-9]{32}|hv[sb]\.[A-Za-z0-9_-]{20,}|lin_api_[\w]{30,}"
    r"|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{40,}"
    r"|glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}|AT[AC]TT3[A-Za-z0-9_=-]{20,}|nvapi-[A-Za-z0-9_-]{40,}"
    r"|xai-[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{30,}|figd_[A-Za-z0-9_-]{30,}|PMAK-[a-f0-9]{20,}-[a-f0-9]+"
    r"|sntrys_[A-Za-z0-9_=+/-]{40,}|tskey-[a-z]{2,16}-[A-Za-z0-9-]{16,}|shpat_[a-f0-9]{32}"
    # At the start of a run only; the end of an escape sequence ("\n", "%3D", a colour) is one.
    r"|(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=[0-9]m))"
    r"(?:sk-[A-Za-z0-9_-]{20,}|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?))"
    r"[A-Za-z0-9_-]*+"
)
# Addresses that let anybody who has them speak: what stands behind this part is the secret.
_BOT = pattern(
    r"""(?:hooks\.slack\.com/(?:services|workflows|triggers)/
    |discord(?:app)?\.com/api/(?:v[0-9]{1,3}/)?webhooks/
    |\.webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/
    |hooks\.zapier\.com/hooks/catch/|maker\.ifttt\.com/trigger/[\w-]{1,64}/(?:json/)?with/key/
    |open\.(?:feishu|larksuite)\.[a-z]{2,3}/open-apis/bot/v2/hook/
    |qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=|chat\.googleapis\.com/v1/spaces/)
    (?!\[redacted\])([\w@./%:~-]*[\w/])""",
    re.VERBOSE | re.ASCII,
)
_TELEGRAM = pattern(
    r"(api\.telegram\.org/(?:file/)?bot)[0-9]{1,20}:[\w-]+|[0-9]{8,10}:AA[\w-]{30,}", re.ASCII
)
# What signs an address for a while.
_SIGNED = pattern(r"([?&;]sig=)[A-Za-z0-9%+/_-]+=*")
_DENSE = pattern("(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12,}")

_SCHEME = pattern(r"([Bb](?:earer|EARER|asic|ASIC)[ \t]{1,4})([A-Za-z0-9._~+/-]{6,}=*)")
_ELEMENT = pattern(r"<([A-Za-z_][\w.:-]{0,80})>([^<>\n]{1,4096}+)(?=</)", re.ASCII)
# What SQL, shells without `=`, Redis, connection strings and CVS write before a password.
_STATED = pattern(
    r"""(?:\b(?i:(?<!is[ ])(?<!are[ ])identified[ \t]+(?:with[ \t]+\S{1,64}[ \t]+)?by[ \t]+
          (?:password[ \t]+)?
        |pass(?:word|phrase)(?:[ \t]+|[ \t]*\([ \t]*))(?=["'])
      |^[ \t]*(?:requirepass|masterauth)[ \t]+|;[ \t]*(?i:pwd)[ \t]*=[ \t]*
      |:(?:pserver|ext):[^\s:@/]{1,128}:(?=[^\s@]{1,256}@))
    ("[^"\n]{1,256}"|'[^'\n]{1,256}'|[^\s"';@]+)""",
    re.VERBOSE | re.MULTILINE,
)
_STATED_WORDS = ("identified", "pass", "masterauth", "pwd", "pserver", "ext")
_SET = pattern(
    r"""(\b(?:set(?:[ \t]+-[a-zA-Z]{1,4}|[ \t]+--(?:export|global|universal)){1,3}|setenv)[ \t]+
    ([A-Za-z_]\w{0,80})[ \t]+)("[^"\n]{1,256}"|'[^'\n]{1,256}'|[^\s"';&|]+)""",
    re.VERBOSE,
)
# In docker's config.json: `"auth": "…"` with a name and a password in base64.
_DOCKER = pattern(r"""(["']auth["'][ \t]*:[ \t]*["'])([A-Za-z0-9+/]{8,}=*)""")
_NETRC = pattern(r"(login\s{1,8}\S{1,128}\s{1,8}password\s{1,8})\S+")


def without_tokens(text: str) -> str:
    """Return the text without private keys, known kinds of tokens, and secrets in URLs."""
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(_private_key, text)
    if holds_any(text, "hook", "maker.ifttt.com", "/open-apis/bot/", "chat.googleapis.com"):
        text = _BOT.sub(lambda found: found[0][: found.start(1) - found.start()] + REDACTED, text)
    if ":" in text:
        text = _TELEGRAM.sub(lambda found: (found[1] or "") + REDACTED, text)
    if "sig=" in text:
        text = _SIGNED.sub(rf"\1{REDACTED}", text)
    if "@" in text:
        text = _URL_USER.sub(_url_user, text)
    return _LONG_RUN.sub(_tokens, text)


def without_schemes(text: str) -> str:
    """Return the text without secrets after what only stands before secrets: `Bearer`, in SQL."""
    # Without regard to case, where a letter outside of ASCII can stand for one inside.
    if not text.isascii() or holds_any(text.lower(), *_STATED_WORDS):
        text = _STATED.sub(_stated, text)
    if "set" in text:
        text = _SET.sub(
            lambda found: _stated(found) if is_secret_name(found[2]) else found[0], text
        )
    if "auth" in text:
        text = _DOCKER.sub(_scheme, text)
    if holds_any(text, "earer", "EARER", "asic", "ASIC"):
        text = _SCHEME.sub(_scheme, text)
    if "</" in text:
        text = _ELEMENT.sub(_element, text)
    return _NETRC.sub(rf"\1{REDACTED}", text) if "login" in text else text


def _private_key(found: re.Match[str]) -> str:
    return found[1] + REDACTED if _KEY_LINE.search(found[2]) else found[0]


def _url_user(found: re.Match[str]) -> str:
    """Name and password go; a name alone may be a token over HTTP, and is only a name over SSH."""
    user, _, password = found[1].partition(":")
    before = found.string[max(0, found.start() - 24) : found.start()]
    scheme = _SCHEME_OF_URL.search(before)
    over_http = scheme is not None and "http" in scheme[1].lower()
    if is_reference(password or user) or not (password or over_http):
        return found[0]
    return f"{REDACTED}@"


def _tokens(found: re.Match[str]) -> str:
    return _TOKEN.sub(_token, found[0])


def _token(found: re.Match[str]) -> str:
    # "sk-" also begins branch names and slugs; a key has a long part without a hyphen.
    if found[0].startswith("sk-") and not _DENSE.search(found[0]):
        return found[0]
    return REDACTED


def _stated(found: re.Match[str]) -> str:
    value = found[found.lastindex or 0]
    quote = value[0] if value[0] in "\"'" else ""
    if is_reference(value.strip("\"'")):
        return found[0]
    return f"{found[0].removesuffix(value)}{quote}{REDACTED}{quote}"


def _scheme(found: re.Match[str]) -> str:
    named, value = found.groups()
    secret = looks_random(value) if named.lower().startswith("bearer") else _is_login(value)
    return f"{named}{REDACTED}" if secret else found[0]


def _is_login(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def looks_random(value: str) -> bool:
    """Is it more likely a credential than a word?"""
    return len(value) >= 24 or (len(value) >= 8 and any(map(str.isdigit, value)))


def _element(found: re.Match[str]) -> str:
    if not is_secret_name(found[1]) or is_reference(found[2]):
        return found[0]
    return f"<{found[1]}>{REDACTED}"


# A name at the start of a run, and what stands between it and its value.
_NAME = pattern(
    r"""(?:(?<![A-Za-z0-9_.\\-])|(?<=\\[nrt]))
    (?:
        -{0,2}([A-Za-z_][A-Za-z0-9_.-]{0,80}+)\\{0,7}["']?\]?[ \t]{0,3}+
        (?::=|=>|==?=?(?=[ \t]{0,3}["'])|=(?!=)|:|%3[AaDd])[ \t]{0,3}
      | --?([A-Za-z][A-Za-z0-9_-]{0,80}+)[ \t]{1,8}+(?=[^\s-])
    )""",
    re.VERBOSE,
)
_OPENING = pattern(r"""\$(?=["'])["']|\\*["'`]""")
# A shell joins what stands side by side (`a'b'"c"`), and many languages what a plus joins.
_JOINED = pattern(
    r"""(?:"(?=[^\s,;:)\]}\[+"'`])[^\s"]{1,256}+"|'(?=[^\s,;:)\]}\[+"'`])[^\s']{1,256}+'
    |[ ]{0,2}\+[ ]{0,2}(?:"[^"\n]{1,256}+"|'[^'\n]{1,256}+')|[A-Za-z0-9_]+)""",
    re.VERBOSE,
)
_INSIDE = {mark: pattern(rf"(?:[^{mark}\\\n]++|\\.)*") for mark in "\"'`"}
_LONGEST_VALUE = 1024
_LONGEST_WORD = 128
_PUNCTUATION = ",;.:)]}"
_BARE = pattern(r"""[^\s"'`&|<>]+""")
_AUTH_SCHEME = pattern(
    r"(?:bearer|basic|token|apikey|negotiate|digest|aws4-hmac-sha256)[ \t]+", re.IGNORECASE
)
_COOKIE = pattern(r"[^\s=;,\"']{1,256}=")
_REST_OF_HEADER = pattern(r"""[^\r\n"']+""")
_PLAIN_VALUES = frozenset(
    """any bool boolean bytes empty expired false inherit int integer invalid missing no nil none
    null number object off ok on optional prompt required str string text true undefined unset
    valid yes""".split()
)
_PROSE = pattern(r"[a-z]+[,.]?[ \t]+[A-Za-z]")


def without_pairs(text: str) -> str:
    """Return the text without the values of names that hold secrets."""
    if not holds_any(text, ":", "=", "%3", "-"):
        return text
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
    end = _closing(text, opening) if opening else _bare_end(text, start)
    return _with_joined(text, opening, start, end)


def _with_joined(text: str, opening: re.Match[str] | None, start: int, end: int) -> tuple[int, int]:
    """Return the whole value with its quotes if more pieces follow, else the range as it was."""
    mark = opening[0].lstrip("$") if opening else ""
    closed = len(mark) == 1 and text.startswith(mark, end)
    if opening and not closed:
        return start, end
    whole, joins = end + closed, opening is not None
    while (more := _JOINED.match(text, whole)) and whole - start < _LONGEST_VALUE:
        joins = joins or more[0][0] in "\"'"
        if not joins:
            break
        whole = more.end()
    if whole == end + closed:
        return start, end
    return (opening.start() if opening else start), whole


def _says_nothing(text: str, start: int, name: str) -> bool:
    """Judged by the head of the value alone, or a long one would be read again and again."""
    head = _BARE.match(text, start, start + _LONGEST_WORD)
    if head is None:
        return False
    value = head[0].rstrip(_PUNCTUATION)
    return value.lower() in _PLAIN_VALUES or value == name or is_reference(head[0])


def _credentials(text: str, start: int) -> tuple[int, int]:
    """Return where the credential of an Authorization header is; the scheme ("Bearer") stays."""
    scheme = _AUTH_SCHEME.match(text, start)
    if scheme is None:
        end = _bare_end(text, start)
        return start, end if looks_random(text[start:end]) else start
    if scheme[0].strip().lower() in ("digest", "aws4-hmac-sha256"):
        return _header(text, scheme.end())
    return scheme.end(), _bare_end(text, scheme.end())


def _header(text: str, start: int) -> tuple[int, int]:
    rest = _REST_OF_HEADER.match(text, start)
    return rest.span() if rest else (start, start)


def _closing(text: str, opening: re.Match[str]) -> int:
    """Where a quoted value ends: at its closing mark, or with the word if there is none."""
    start, mark = opening.end(), opening[0].lstrip("$")
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
