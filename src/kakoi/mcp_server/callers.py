"""WHO calls: which token, over which connection. State of one caller is no other caller's.

Over pipes there is one client. A client of the older protocols holds the id of its HTTP session,
which the SDK has checked against the token that opened it. Since protocol 2026-07-28 each request
stands alone: what a client does not present itself, nothing binds to its earlier requests.
"""

from dataclasses import dataclass
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext
from mcp_types.version import is_version_at_least

# The first version without a session of its own, and in which a server cannot send requests.
STATELESS_SINCE: Final = "2026-07-28"


@dataclass(frozen=True, slots=True)
class Caller:
    """`identity`: the name of its token. `connection`: its id; empty on pipes.

    `is_connected`: whatever comes from this caller comes from one client.
    """

    identity: str = ""
    connection: str = ""
    is_connected: bool = True


def caller_of(context: ServerRequestContext[Any, Any]) -> Caller:
    """Who sent this request. Without an HTTP request it came over pipes, or from this process."""
    request = context.request
    if request is None:
        return Caller()
    user = request.scope.get("user")
    identity = user.username if isinstance(user, AuthenticatedUser) else ""
    if is_version_at_least(context.protocol_version, STATELESS_SINCE):
        # An id in its headers is one that nobody has checked.
        return Caller(identity, is_connected=False)
    return Caller(identity, str(request.headers.get("mcp-session-id", ""))[:128])
