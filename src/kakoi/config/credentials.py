"""Which secret belongs to which host: a token never goes to another one."""

import os
import re
from collections.abc import Mapping
from typing import Final, Literal

from kakoi.errors import ConfigurationError
from kakoi.sections import shown
from kakoi.tasks.remotes import Credential, parse_remote

Platform = Literal["github", "gitlab"]
_HOST: Final = re.compile(r"(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
# The variable of the token, the name that goes with it, the variable of the host and its default.
_PLATFORMS: Final = (
    ("GITHUB_PERSONAL_ACCESS_TOKEN", "x-access-token", "GITHUB_HOST", "github.com"),
    ("GITLAB_PERSONAL_ACCESS_TOKEN", "oauth2", "GITLAB_HOST", "gitlab.com"),
)

# Whose own address is whose, and the key for servers at other addresses.
_MODEL_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_OTHER_MODEL_KEY: Final = "KAKOI_MODEL_API_KEY"


def model_key(
    provider: str,
    *,
    base_url: str = "",
    variable: str = "",
    environ: Mapping[str, str] | None = None,
) -> str:
    """The key for a model; empty if there is none. A `variable` that is not set is an error.

    A provider's key goes to another address only if `variable` names it.
    """
    given = os.environ if environ is None else environ
    if variable:
        if not given.get(variable):
            raise ConfigurationError(
                f"agent.api_key_env names {variable[:64]!r}, which is not set",
                hint="set it to the key, or name another variable",
            )
        return given[variable].strip()
    own = _OTHER_MODEL_KEY if base_url else _MODEL_KEYS.get(provider, _OTHER_MODEL_KEY)
    return given.get(own, "").strip()


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
        ours = _server(given.get(host_variable) or default)
        if given.get(variable) and (remote.scheme, remote.host.lower()) == ours:
            return Credential(username, given[variable])
    return None


def server_and_token(name: Platform, environ: Mapping[str, str]) -> tuple[str, str]:
    """Where people see a platform, without a slash at the end, and our token for it, or nothing."""
    variable, _, host_variable, default = _PLATFORMS[0 if name == "github" else 1]
    scheme, host = _server(environ.get(host_variable) or default)
    address = f"{scheme}://{host}"
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ConfigurationError(
            f"{host_variable} is {shown(address)}; it must be the name of a server",
            hint="write git.example, git.example:8443 or http://git.example",
        )
    return address, environ.get(variable, "")


def _server(named: str) -> tuple[str, str]:
    scheme, _, host = named.rpartition("://")
    return scheme or "https", host.rstrip("/").lower()
