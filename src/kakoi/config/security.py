"""security.toml: what the shell integration (spec D) may do for this user."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kakoi.documents import parse_toml, read_text
from kakoi.homes import config_folder
from kakoi.sandbox.settings import SandboxConfig
from kakoi.sections import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSecurity:
    """The section `[shell]`. None leaves a matter to the caller and to the defaults.

    `enabled`: false if `[features] shell` is, too.
    `allowed_directories`: where commands may work, without links; None is anywhere.
    `origin`: the file, for messages; empty if there is none.
    """

    enabled: bool = True
    require_confirmation: bool = False
    timeout_s: float | None = None
    allowed_commands: tuple[str, ...] | None = None
    blocked_commands: tuple[str, ...] = ()
    allowed_directories: tuple[str, ...] | None = None
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    origin: str = ""


def security_file(environ: Mapping[str, str]) -> Path:
    """Where it is: KAKOI_SECURITY_FILE, else kakoi/security.toml among the user's settings."""
    named = environ.get("KAKOI_SECURITY_FILE")
    return Path(named) if named else config_folder(environ) / "security.toml"


def load_security(path: Path | None = None) -> ShellSecurity:
    """What the user's file says; without a file, the defaults. A broken file is an error."""
    path = path or security_file(os.environ)
    text = read_text(path)
    if text is None:
        return ShellSecurity()
    return parse_security(parse_toml(text, path), origin=str(path))


def parse_security(data: object, *, origin: str) -> ShellSecurity:
    """The whole file, read."""
    top = Section(data, origin, "shell features")
    features = Section(top.raw("features"), f"{origin}: features", "shell")
    shell = Section(
        top.raw("shell"),
        f"{origin}: shell",
        "enabled require_confirmation timeout allowed_commands blocked_commands "
        "allowed_directories sandbox",
    )
    directories = shell.texts("allowed_directories")
    return ShellSecurity(
        # Whoever imports it wants it; a file can only say so too, or forbid it.
        enabled=features.flag("shell", True) and shell.flag("enabled", True),
        require_confirmation=shell.flag("require_confirmation", False),
        timeout_s=shell.seconds("timeout", 0) or None,
        allowed_commands=shell.texts("allowed_commands"),
        blocked_commands=shell.texts("blocked_commands") or (),
        allowed_directories=None if directories is None else tuple(map(_resolved, directories)),
        sandbox=_sandbox(shell),
        origin=origin,
    )


def _sandbox(shell: Section) -> SandboxConfig:
    """A name, or a section as in other files."""
    given = shell.raw("sandbox")
    section = {"type": given} if isinstance(given, str) else given
    return SandboxConfig.parse(section, origin=shell.at("sandbox"))


def _resolved(directory: str) -> str:
    return os.path.realpath(os.path.expanduser(directory))
