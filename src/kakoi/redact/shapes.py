"""Secrets that are known by their shape: keys, tokens, users of addresses, addresses of bots."""

import base64
import binascii
import re

from kakoi.redact.names import is_secret_name
from kakoi.redact.references import REDACTED, is_reference

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
# Addresses that let anybody who has them speak: what stands behind this part is the secret.
_BOT = re.compile(
    r"""(?:hooks\.slack\.com/(?:services|workflows|triggers)/
    |discord(?:app)?\.com/api/(?:v[0-9]{1,3}/)?webhooks/
    |\.webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/
    |hooks\.zapier\.com/hooks/catch/|maker\.ifttt\.com/trigger/[\w-]{1,64}/(?:json/)?with/key/
    |open\.(?:feishu|larksuite)\.[a-z]{2,3}/open-apis/bot/v2/hook/
    |qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=|chat\.googleapis\.com/v1/spaces/)
    (?!\[redacted\])([\w@./%:~-]*[\w/])""",
    re.VERBOSE | re.ASCII,
)
_TELEGRAM = re.compile(
    r"(api\.telegram\.org/(?:file/)?bot)[0-9]{1,20}:[\w-]+|[0-9]{8,10}:AA[\w-]{30,}", re.ASCII
)
# What signs an address for a while.
_SIGNED = re.compile(r"([?&;]sig=)[A-Za-z0-9%+/_-]+=*")
_DENSE = re.compile("(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12,}")

_SCHEME = re.compile(r"([Bb](?:earer|EARER|asic|ASIC)[ \t]{1,4})([A-Za-z0-9._~+/-]{6,}=*)")
_ELEMENT = re.compile(r"<([A-Za-z_][\w.:-]{0,80})>([^<>\n]{1,4096}+)(?=</)", re.ASCII)
_NETRC = re.compile(r"(login\s{1,8}\S{1,128}\s{1,8}password\s{1,8})\S+")


def without_tokens(text: str) -> str:
    """Without private keys, tokens of known makers, and users and secrets in addresses."""
    text = _PRIVATE_KEY.sub(_private_key, text)
    text = _BOT.sub(lambda found: found[0][: found.start(1) - found.start()] + REDACTED, text)
    text = _TELEGRAM.sub(lambda found: (found[1] or "") + REDACTED, text)
    text = _SIGNED.sub(rf"\1{REDACTED}", text)
    text = _URL_USER.sub(_url_user, text)
    return _LONG_RUN.sub(_tokens, text)


def without_schemes(text: str) -> str:
    """Without what follows `Bearer` and `Basic`, elements of XML, and lines of a .netrc."""
    text = _SCHEME.sub(_scheme, text)
    text = _ELEMENT.sub(_element, text)
    return _NETRC.sub(rf"\1{REDACTED}", text)


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


def _scheme(found: re.Match[str]) -> str:
    named, value = found.groups()
    secret = _is_login(value) if "asi" in named.lower() else looks_random(value)
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
