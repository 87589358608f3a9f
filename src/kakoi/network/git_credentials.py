"""Which token belongs to which host. A token is never sent to another host."""

import os
from collections.abc import Mapping
from typing import Final, Literal

from kakoi._support.late import pattern
from kakoi._support.text import short_repr
from kakoi.errors import ConfigurationError
from kakoi.network.git_remotes import GitCredential, parse_remote

Platform = Literal["github", "gitlab"]
_HOST: Final = pattern(r"(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
# The variable with the token, its user name, the variable with the host, and the default host.
_PLATFORMS: Final[dict[Platform, tuple[str, str, str, str]]] = {
    "github": ("GITHUB_PERSONAL_ACCESS_TOKEN", "x-access-token", "GITHUB_HOST", "github.com"),
    "gitlab": ("GITLAB_PERSONAL_ACCESS_TOKEN", "oauth2", "GITLAB_HOST", "gitlab.com"),
}
PLATFORMS: Final = tuple(_PLATFORMS)


def credential_for(address: str, environ: Mapping[str, str] | None = None) -> GitCredential | None:
    """The credential for a repository, if there is a token for its host.

    GITHUB_HOST and GITLAB_HOST name a self-hosted server, with its port if it has one. A token is
    sent over https, unless that name itself starts with `http://`.
    """
    variables = os.environ if environ is None else environ
    try:
        remote = parse_remote(address)
    except ConfigurationError:
        return None
    for variable, username, host_variable, default in _PLATFORMS.values():
        server = _server(variables.get(host_variable) or default)
        if variables.get(variable) and (remote.scheme, remote.host.lower()) == server:
            return GitCredential(username, variables[variable])
    return None


def server_and_token(name: Platform, environ: Mapping[str, str]) -> tuple[str, str]:
    """The web address of a platform, without a trailing slash, and its token or an empty string."""
    variable, _, host_variable, default = _PLATFORMS[name]
    scheme, host = _server(environ.get(host_variable) or default)
    address = f"{scheme}://{host}"
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ConfigurationError(
            f"{host_variable} is {short_repr(address)}; it must be the name of a server",
            hint="write git.example, git.example:8443 or http://git.example",
        )
    return address, environ.get(variable, "")


def _server(named: str) -> tuple[str, str]:
    scheme, _, host = named.rpartition("://")
    return scheme or "https", host.rstrip("/").lower()
