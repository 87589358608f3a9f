"""`HOST HEADER=VARIABLE`: headers that the proxy adds, with values out of our environment."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kakoi.egress.domains import BadHostError, parse_host
from kakoi.egress.proxy import Credential
from kakoi.errors import ConfigurationError

_LINE: Final = re.compile(r"(\S+) +([A-Za-z0-9-]{1,64})=([A-Za-z_][A-Za-z0-9_]*)")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# The proxy writes these itself.
_OURS: Final = frozenset(("host", "connection", "content-length", "transfer-encoding"))


def parse_credentials(lines: Sequence[str], environ: Mapping[str, str]) -> Mapping[str, Credential]:
    """The credential of each host; ConfigurationError says which line is wrong, and no value."""
    found: dict[str, Credential] = {}
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        if match is None or match[2].lower() in _OURS:
            raise _wrong(line, "it is no host, header and variable")
        try:
            host = str(parse_host(match[1]))
        except BadHostError as error:
            raise _wrong(line, str(error)) from None
        if host in found:
            raise _wrong(line, f"there is one for {host} already")
        if not _VALUE.fullmatch(environ.get(match[3], "")):
            raise _wrong(line, f"the variable {match[3]} holds no value for a header")
        found[host] = Credential(header=match[2], value=environ[match[3]])
    return found


def _wrong(line: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"credentials: `{line[:80]}`: {why}",
        hint="`api.example.org Authorization=API_TOKEN`, where API_TOKEN is set for kakoi",
    )
