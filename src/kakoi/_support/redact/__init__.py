"""Removes secrets from text before it is logged, shown or recorded.

`redact` runs before every log line, error text and audit record. It finds the secrets it is given
and text that has the shape of a secret. It is not a security boundary: an unknown secret in an
unusual shape passes. It takes time linear in the text: in its patterns a quantifier never repeats
another one, and a run of characters is entered only at its beginning.
"""

from collections.abc import Iterable

from kakoi._support.redact.commands import without_arguments
from kakoi._support.redact.given_secrets import without_known, written_forms
from kakoi._support.redact.names import REDACTED, is_secret_name
from kakoi._support.redact.token_patterns import without_pairs, without_schemes, without_tokens

__all__ = ("REDACTED", "is_secret_name", "redact", "written_forms")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with every secret replaced by `[redacted]`; never raises.

    `secrets` are removed as they are, in their URL-encoded, base64, hexadecimal and JSON forms, and
    with line breaks or terminal escape sequences inside. Redacting twice changes nothing more.
    """
    text = without_known(text, secrets)
    text = without_tokens(text)
    text = without_pairs(text)
    text = without_schemes(text)
    return without_arguments(text)
