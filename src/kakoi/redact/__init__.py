"""Secrets out of text before it leaves a function.

`redact` is one step before any log line, error text or audit record. It knows the secrets it is
given and the shapes that secrets have. It is not a boundary: a secret in a shape of its own, which
it was not given, passes. It takes time linear in the text: in its patterns a quantifier never
repeats another one, and a run of characters is entered at its beginning only.
"""

from collections.abc import Iterable

from kakoi.redact.commands import without_arguments
from kakoi.redact.known import without_known, written_forms
from kakoi.redact.names import is_secret_name
from kakoi.redact.pairs import without_pairs
from kakoi.redact.references import REDACTED
from kakoi.redact.shapes import without_schemes, without_tokens

__all__ = ("REDACTED", "is_secret_name", "redact", "written_forms")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with every secret replaced by `[redacted]`; never raises.

    `secrets` are removed as they are, in their URL-encoded, base64, hexadecimal and JSON forms, and
    with line breaks or escape sequences of a terminal inside. Doing it twice changes nothing more.
    """
    text = without_known(text, secrets)
    text = without_tokens(text)
    text = without_pairs(text)
    text = without_schemes(text)
    return without_arguments(text)
