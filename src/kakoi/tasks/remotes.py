"""Where a project is cloned from: addresses read and made harmless, credentials for one host.

A credential is shown to git alone, by its environment, and only for the host it was given for.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kakoi.errors import ConfigurationError

_SCP = re.compile(r"(?:([\w.+-]+)@)?([\w.-]+):(?!//)(.+)")
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")  # `ext::…` starts programs.
_CONTROL = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Credential:
    """A name and a secret for git over HTTP. Its text never shows the secret."""

    username: str
    secret: str = field(repr=False)

    def header(self) -> str:
        """As HTTP has it."""
        pair = f"{self.username}:{self.secret}".encode()
        return f"Authorization: Basic {base64.b64encode(pair).decode()}"

    def hide(self, text: str) -> str:
        """`text` without the secret, in either form."""
        encoded = self.header().rpartition(" ")[2]
        return text.replace(self.secret, "***").replace(encoded, "***")


@dataclass(frozen=True, slots=True)
class Remote:
    """An address: how to get there, and how to write it without any secret."""

    scheme: str
    url: str
    host: str = ""
    credential: Credential | None = None

    @property
    def from_outside(self) -> bool:
        """Must it be fetched on this machine? A sandbox has neither our keys nor our files."""
        return self.scheme in ("file", "ssh")


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
    if parts.scheme not in ("https", "http", "ssh") or not host or host.startswith("-"):
        raise _unknown(address)
    if parts.scheme == "ssh":
        return Remote("ssh", address, host)
    place = f"[{host}]" if ":" in host else host
    place += f":{port}" if port is not None else ""
    given = None
    if parts.password:
        given = Credential(unquote(parts.username or ""), unquote(parts.password))
    elif parts.username:
        given = Credential("x-access-token", unquote(parts.username))
    return Remote(parts.scheme, f"{parts.scheme}://{place}{parts.path}", place, given)


def _unknown(address: str) -> ConfigurationError:
    shown = re.sub(r"//[^@/]*@", "//***@", address)[:200]
    return ConfigurationError(
        f"the repository's address is {shown!r}; git could not be given that",
        hint="use https://host/path, ssh://host/path, git@host:path or file:///path",
    )


def git_variables(
    remote: Remote | None = None, credential: Credential | None = None
) -> Mapping[str, str]:
    """The environment of one git process: nothing of the machine's settings, no helper, no prompt.

    With a credential, its header, which git sends to the remote's host and nowhere else.
    """
    settings = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("credential.helper", ""),
        ("protocol.ext.allow", "never"),
        ("advice.detachedHead", "false"),
        ("init.defaultBranch", "main"),
    ]
    if remote is not None and credential is not None:
        at = f"{remote.scheme}://{remote.host}/"
        settings.append((f"http.{at}.extraHeader", credential.header()))
    variables = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (name, value) in enumerate(settings):
        variables[f"GIT_CONFIG_KEY_{number}"] = name
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables
