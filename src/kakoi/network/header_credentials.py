"""`HOST HEADER=VARIABLE`: headers that the proxy adds, with values from our environment."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError
from kakoi.network.domains import BadHostError, parse_host

_LINE: Final = pattern(r"(\S+) +([A-Za-z0-9-]{1,64})=([A-Za-z_][A-Za-z0-9_]*)")
_VALUE: Final = pattern(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# The proxy writes these itself.
_PROXY_HEADERS: Final = frozenset(("host", "connection", "content-length", "transfer-encoding"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderCredential:
    """A header for one host that is added here, so that the sandbox never sees it.

    The sandbox asks for `http://HOST/…`; the request goes on to `port` of HOST with the header, by
    TLS if `tls`.
    """

    header: str
    value: str = field(repr=False)
    port: int = 443
    tls: bool = True


def parse_credentials(
    lines: Sequence[str], environ: Mapping[str, str]
) -> Mapping[str, HeaderCredential]:
    """Return the credential of each host. ConfigurationError names the bad line, never a value."""
    found: dict[str, HeaderCredential] = {}
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        if match is None or match[2].lower() in _PROXY_HEADERS:
            raise _wrong(line, "expected a host, a header and a variable")
        try:
            host = str(parse_host(match[1]))
        except BadHostError as error:
            raise _wrong(line, str(error)) from None
        if host in found:
            raise _wrong(line, f"duplicate credential for {host}")
        if not _VALUE.fullmatch(environ.get(match[3], "")):
            raise _wrong(line, f"the variable {match[3]} is not set to a valid header value")
        found[host] = HeaderCredential(header=match[2], value=environ[match[3]])
    return found


def _wrong(line: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"credentials: `{line[:80]}`: {why}",
        hint="`api.example.org Authorization=API_TOKEN`, where API_TOKEN is set for kakoi",
    )
