"""Which secret belongs to which host: a token never goes to another one."""

import os
from collections.abc import Mapping
from typing import Final

from kakoi.errors import ConfigurationError
from kakoi.tasks.remotes import Credential, parse_remote

# The variable of the token, the name that goes with it, the variable of the host and its default.
_PLATFORMS: Final = (
    ("GITHUB_PERSONAL_ACCESS_TOKEN", "x-access-token", "GITHUB_HOST", "github.com"),
    ("GITLAB_PERSONAL_ACCESS_TOKEN", "oauth2", "GITLAB_HOST", "gitlab.com"),
)


def credential_for(address: str, environ: Mapping[str, str] | None = None) -> Credential | None:
    """The secret for a repository's address, if its host is one that we have a token for.

    GITHUB_HOST and GITLAB_HOST name a server of your own, with its port if it has one. A token is
    sent over https, unless such a name says `http://` itself.
    """
    given = os.environ if environ is None else environ
    try:
        remote = parse_remote(address)
    except ConfigurationError:
        return None
    for variable, username, host_variable, default in _PLATFORMS:
        scheme, _, host = (given.get(host_variable) or default).rpartition("://")
        ours = (scheme or "https", host.rstrip("/").lower())
        if given.get(variable) and (remote.scheme, remote.host.lower()) == ours:
            return Credential(username, given[variable])
    return None
