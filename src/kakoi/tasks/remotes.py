"""Where a project is cloned from: addresses read and made harmless, credentials for one host.

A credential is shown to git alone, by its environment, and git asks for it only when the host that
it was given for wants one: not even a redirect takes it to another.
"""

import base64
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from kakoi.errors import ConfigurationError

_SCP = re.compile(r"(?:(?!-)([\w.+-]+)@)?((?!-)[\w.-]+):(?!//|-)(.+)")
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")  # `ext::…` starts programs.
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_PORTS: Final = {"http": 80, "https": 443}
# Answers git's question, and does nothing when it is told to keep or to forget something.
_HELPER_SCRIPT: Final = (
    '!f() { test "$1" = get && '
    'printf "username=%s\\npassword=%s\\n" "$KAKOI_GIT_NAME" "$KAKOI_GIT_SECRET"; }; f'
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A name and a secret for git over HTTP. Its text never shows the secret."""

    username: str
    secret: str = field(repr=False)

    def hide(self, text: str) -> str:
        """`text` without the secret, as it is and as HTTP has it."""
        # A name without a secret may be one: some put their token there.
        secret = self.secret or self.username
        encoded = base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()
        for each in (secret, quote(secret, safe=""), encoded):
            text = text.replace(each, "***") if each else text
        return text


@dataclass(frozen=True, slots=True)
class Remote:
    """An address: how to get there, and how to write it without any secret."""

    scheme: str
    url: str
    host: str = ""
    credential: Credential | None = None

    def credential_or(self, given: Credential | None) -> Credential | None:
        """A whole one in the address wins over `given`, which wins over a bare name there."""
        own = self.credential
        return own if own and (own.secret or given is None) else given


def parse_remote(address: str) -> Remote:
    """Read an address as git would: https, http, ssh (also `git@host:path`), file or a path."""
    if not address or _CONTROL.search(address):
        raise ConfigurationError("the repository's address is empty, or holds spaces or controls")
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
    place = f"[{host}]" if ":" in host else host
    place += f":{port}" if port not in (None, _PORTS[parts.scheme]) else ""
    given = None
    if parts.username or parts.password:
        given = Credential(unquote(parts.username or ""), unquote(parts.password or ""))
    return Remote(parts.scheme, f"{parts.scheme}://{place}{parts.path}", place, given)


def _unknown(address: str) -> ConfigurationError:
    shown = re.sub(r"//[^@/]*@", "//***@", address)[:200]
    return ConfigurationError(
        f"the repository's address is {shown!r}; git could not be given that",
        hint="use https://host/path, ssh://host/path, git@host:path or file:///path",
    )


def ssh_command(*, known_hosts: str = "", stall_s: float = 60.0) -> str:
    """What git is to run for ssh, for the one process that fetches a project.

    Nobody is asked. A host whose key is not known, or is another, is not talked to, whatever the
    user's own settings say; and nothing of ours, such as our agent, is there for that host.
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
    credential: Credential | None = None,
    *,
    stall_s: float = 60.0,
    proxy: str = "",
) -> Mapping[str, str]:
    """The environment of one git process: nothing of the machine's settings, no helper, no prompt.

    With a credential, what git may answer the remote's host with, and no other.
    `stall_s`: after so long without a byte from a server git gives up. `proxy`: what all of HTTP
    goes by, whatever the variables of this machine say.
    """
    settings = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("credential.helper", ""),
        ("protocol.ext.allow", "never"),
        ("advice.detachedHead", "false"),
        ("init.defaultBranch", "main"),
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", f"{max(1, round(stall_s))}"),
    ]
    variables = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        # We read what it says.
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
