"""Known secrets, in every form in which they can be written.

Line breaks, separators and terminal escape sequences can occur anywhere inside. They are removed
from a copy of the text; only a form that is found there is searched for in the text itself.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kakoi._support.late import dataclass
from kakoi._support.redact.names import REDACTED

# A shorter one would be found by chance.
_SHORTEST_ENCODED = 6
_SHORTEST_WRAPPED = 12

# What a terminal does not show: escape sequences, also spelled out, and characters without width.
_UNSEEN = (
    r"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[@-Z\\^_]|\x9b[0-?]*+[@-~]"
    r"|\\(?:x1[bB]|u001[bB]|033|e)\[[0-?]{0,64}+[A-Za-z]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\xad\u200b-\u200f\u2060-\u2064\ufeff]"
)
_BREAKS = r"[\r\n][ \t]*+|\\[rn]"
_BETWEEN_BYTES = r"[\s:,;-]|\\[rn]|\\x|0x"


@dataclass(frozen=True, slots=True)
class _Noise:
    """What can occur inside a form, as a pattern, and how letters are compared."""

    pattern: str
    flags: int = 0

    def taken_out(self, text: str) -> str:
        bare = re.sub(self.pattern, "", text)
        return bare.lower() if self.flags & re.IGNORECASE else bare

    def spread(self, form: str) -> re.Pattern[str]:
        """The form with noise anywhere inside. Each stretch of noise is entered once."""
        return re.compile(f"(?:{self.pattern})*".join(map(re.escape, form)), self.flags)


_TERMINAL = _Noise(_UNSEEN)
_WRAPPED = _Noise(f"{_UNSEEN}|{_BREAKS}")
_DUMPED = _Noise(f"{_UNSEEN}|{_BETWEEN_BYTES}", re.IGNORECASE)


def without_known(text: str, secrets: Iterable[str]) -> str:
    """Return `text` without these secrets, in every form."""
    given = [secrets] if isinstance(secrets, str) else secrets
    known = dict.fromkeys(secret for secret in given if secret.strip())
    if not known:
        return text
    plain = _longest_first(form for secret in known for form in _plain_forms(secret))
    encoded = _longest_first(form for secret in known for form in _base64_forms(secret))
    alternatives = re.compile("|".join(map(re.escape, _longest_first((*plain, *encoded)))))
    text = _between_marks(text, partial(alternatives.sub, REDACTED))
    text = _without_noisy(text, plain, _TERMINAL)
    long = [form for form in plain if len(form) >= _SHORTEST_WRAPPED]
    text = _without_noisy(text, _longest_first((*long, *encoded)), _WRAPPED)
    dumped = _longest_first(form for secret in known for form in _hex_forms(secret))
    return _without_noisy(text, dumped, _DUMPED)


def _longest_first(forms: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(forms), key=len, reverse=True)


def _between_marks(text: str, change: Callable[[str], str]) -> str:
    """Between the marks only: a secret such as "red" is part of the mark itself."""
    return REDACTED.join(change(part) for part in text.split(REDACTED))


def _without_noisy(text: str, forms: list[str], noise: _Noise) -> str:
    if not forms or not re.search(noise.pattern, text):
        return text
    bare = noise.taken_out(text)
    for form in forms:
        if form in bare:
            text = _between_marks(text, partial(noise.spread(form).sub, REDACTED))
    return text


def written_forms(secret: str) -> Iterator[str]:
    """Yield every form of a secret, without noise, also as a part of a longer text."""
    yield from _plain_forms(secret)
    yield from _base64_forms(secret)
    yield from _hex_forms(secret)


def _plain_forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, in JSON, and in a URL."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield secret
    for ensure_ascii in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ensure_ascii)[1:-1]
        yield escaped
        yield escaped.replace("/", r"\/")
    from urllib.parse import quote, quote_plus  # Long to import, and few have secrets.

    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield encoded
        yield re.sub("%..", lambda code: code[0].lower(), encoded)


def _base64_forms(secret: str) -> Iterator[str]:
    """Also as the middle of something longer ("user:secret"): the part that is always the same."""
    raw = secret.encode("utf-8", "surrogatepass")
    for shift in range(3) if len(raw) >= _SHORTEST_ENCODED else ():
        encoded = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        first = (0, 2, 3)[shift]
        whole = len(encoded) - ((shift + len(raw)) % 3 > 0)
        yield encoded[first:whole]
        yield encoded[first:whole].translate(str.maketrans("+/", "-_"))


def _hex_forms(secret: str) -> Iterator[str]:
    raw = secret.encode("utf-8", "surrogatepass")
    if len(raw) >= _SHORTEST_ENCODED:
        yield raw.hex()
