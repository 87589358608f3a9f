"""The mark that stands for a secret, and words that only say where one is."""

import re

REDACTED = "[redacted]"
_REFERENCE = re.compile(
    r"""(?:\$[A-Za-z_][A-Za-z0-9_]*|\$[({].*|%[A-Za-z0-9_]+%|[{<].*|[*x.•-]+
    |[A-Za-z_][A-Za-z0-9_.]*[(\[].*
    |(?:args|cfg|config|ctx|env|opts|options|os|params|process|request|self|settings|this)[.].*
    )\Z""",
    re.VERBOSE | re.DOTALL,
)


def is_reference(value: str) -> bool:
    """A variable, a template, a call, stars: it says where a secret is, not what it is."""
    return value.startswith(REDACTED) or _REFERENCE.match(value) is not None
