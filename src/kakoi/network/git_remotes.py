"""Where a project is cloned from: addresses, validated, and credentials that are for one host.

Only git gets a credential, in its environment, and uses it only when the host that it belongs to
asks for one. Not even a redirect takes it to another host.
"""

import base64
import re
import shlex
from collections.abc import Mapping
from dataclasses import field
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError

_SCP = pattern(r"(?:(?!-)([\w.+-]+)@)?((?!-)[\w.-]+):(?!//|-)(.+)")
_HELPER = pattern(r"[A-Za-z0-9+.-]+::")  # `ext::…` starts programs.
_CONTROL = pattern(r"[\x00-\x20\x7f]")
_PORTS: Final = {"http": 80, "https": 443}
# Answers git's `get`, and ignores `store` and `erase`.
_HELPER_SCRIPT: Final = (
    '!f() { test "$1" = get && '
    'printf "username=%s\\npassword=%s\\n" "$KAKOI_GIT_NAME" "$KAKOI_GIT_SECRET"; }; f'
)


@dataclass(frozen=True, slots=True)
class GitCredential:
    """A user name and a secret for git over HTTP. Its repr never shows the secret."""

    username: str
    secret: str = field(repr=False)

    def hide(self, text: str) -> str:
        """`text` without the secret, neither in plain text nor as HTTP encodes it."""
        # A user name without a secret may be a token.
        secret = self.secret or self.username
        encoded = base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()
        for each in (secret, quote(secret, safe=""), encoded):
            text = text.replace(each, "***") if each else text
        return text


@dataclass(frozen=True, slots=True)
class Remote:
    """An address. `url`: without any secret."""

    scheme: str
    url: str
    host: str = ""
    credential: GitCredential | None = None

    def credential_or(self, other: GitCredential | None) -> GitCredential | None:
        """A complete credential in the address wins over `other`, which wins over a bare name."""
        own = self.credential
        return own if own and (own.secret or other is None) else other


def parse_remote(address: str) -> Remote:
    """Parse an address as git would: https, http, ssh (also `git@host:path`), file or a path."""
    if not address or _CONTROL.search(address):
        raise ConfigurationError(
            "the repository's address is empty, or has spaces or control characters"
        )
    if address.startswith("/"):
        return Remote("file", f"file://{address}")
    if _HELPER.match(address) or address.startswith("-"):
        raise _unknown(address)
    if "://" not in address:
        if match := _SCP.fullmatch(address):
            return Remote("ssh", address, match[2])
        raise _unknown(address)
    return _parse_url(address)


def _parse_url(address: str) -> Remote:
    parts = urlsplit(address)
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _unknown(address) from None
    if parts.scheme == "file" and not parts.netloc:
        return Remote("file", address)
    is_option = host.startswith("-") or parts.netloc.startswith("-")
    if parts.scheme not in ("https", "http", "ssh") or not host or is_option:
        raise _unknown(address)
    if parts.scheme == "ssh":
        return Remote("ssh", address, host)
    netloc = f"[{host}]" if ":" in host else host
    netloc += f":{port}" if port not in (None, _PORTS[parts.scheme]) else ""
    credential = None
    if parts.username or parts.password:
        credential = GitCredential(unquote(parts.username or ""), unquote(parts.password or ""))
    return Remote(parts.scheme, f"{parts.scheme}://{netloc}{parts.path}", netloc, credential)


def _unknown(address: str) -> ConfigurationError:
    shown = re.sub(r"//[^@/]*@", "//***@", address)[:200]
    return ConfigurationError(
        f"unsupported repository address: {shown!r}",
        hint="use https://host/path, ssh://host/path, git@host:path or file:///path",
    )


def ssh_command(*, known_hosts: str = "", stall_s: float = 60.0) -> str:
    """The ssh command of the one git process that fetches a project.

    It never prompts. It refuses a host whose key is unknown or has changed, whatever the user's own
    settings say, and forwards nothing to the host, such as the ssh agent.
    """
    wait = max(1, round(stall_s))
    options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ForwardAgent=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ControlPath=none",
        f"ConnectTimeout={wait}",
        f"ServerAliveInterval={wait}",
        "ServerAliveCountMax=1",
    ]
    if known_hosts:
        options.append(f'UserKnownHostsFile="{known_hosts}"')
    return shlex.join(["ssh", *(word for each in options for word in ("-o", each))])


def git_variables(
    remote: Remote | None = None,
    credential: GitCredential | None = None,
    *,
    stall_s: float = 60.0,
    proxy: str = "",
) -> Mapping[str, str]:
    """The environment of one git process: none of the machine's settings, no helper, no prompt.

    A credential is used for the remote's host only. `stall_s`: git gives up if the server sends
    nothing for this long. `proxy`: for all of HTTP, whatever the variables of this machine say.
    """
    settings = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("credential.helper", ""),
        ("protocol.ext.allow", "never"),
        ("advice.detachedHead", "false"),
        ("init.defaultBranch", "main"),
        # GitLab redirects `/project` to `/project.git`. Later requests, which carry the
        # credential and a push, follow no redirect.
        ("http.followRedirects", "initial"),
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", f"{max(1, round(stall_s))}"),
    ]
    variables = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        # Error messages are matched in English.
        "LC_ALL": "C",
    }
    if proxy:
        settings.append(("http.proxy", proxy))
        variables |= {"no_proxy": "", "NO_PROXY": ""}
    if remote is not None and credential is not None:
        settings.append((f"credential.{remote.scheme}://{remote.host}.helper", _HELPER_SCRIPT))
        variables["KAKOI_GIT_NAME"] = credential.username
        variables["KAKOI_GIT_SECRET"] = credential.secret
    variables["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings):
        variables[f"GIT_CONFIG_KEY_{number}"] = name
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables
