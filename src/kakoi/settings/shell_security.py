"""security.toml: what `kakoi.shell` and the profile `shell` can do for this user."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.parsing import (
    Section,
    as_flag,
    as_folders,
    nearest,
    parse_toml,
    read_text,
)
from kakoi._support.text import shown
from kakoi._support.user_folders import config_folder, environment, home_folder
from kakoi.backends.settings import SandboxConfig
from kakoi.errors import ConfigurationError

_log = logging.getLogger(__name__)
_NAME: Final = "security.toml"
# A program's own settings, of which only `[features] shell` is read.
_FEATURES_NAME: Final = "config.toml"
# `features.shel`, `feature.shell`; not `features.search`.
_CLOSE: Final = 0.9
_MISSPELLED: Final = pattern(r"\.?security\.(toml|tml|yaml|yml|json)(\.txt)?", re.IGNORECASE)
# `[shell]`, `[features]` and `shell.enabled = …` in TOML, `shell:` in YAML.
_OUR_SECTION: Final = pattern(r"^\s*(\[\s*)?(shell|features)\s*[].:=]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSecurity:
    """The `[shell]` section. None leaves a value to the caller and the defaults.

    `enabled`: also false if `[features] shell` is false, here or in a config.toml of the same
        folders; `off_by` is the file that says so.
    `allowed_directories`: where commands can work, with links resolved; None means anywhere.
    `origin`: the file, for error messages; empty if there is no file.
    """

    enabled: bool = True
    require_confirmation: bool = False
    timeout_s: float | None = None
    allowed_commands: tuple[str, ...] | None = None
    blocked_commands: tuple[str, ...] = ()
    allowed_directories: tuple[str, ...] | None = None
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    origin: str = ""
    off_by: str = ""


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """Where security.toml is. `used`: the file that is read; None if there is none.

    `unread`: files that look as if they were meant to be read, and are not.
    `place`: where to put a file that is read.
    """

    used: Path | None
    unread: tuple[Path, ...]
    place: Path

    @property
    def fix(self) -> str:
        """What to do about a file that is not read."""
        return f"move its content to {self.used or self.place}, or remove it"

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each file that is not read."""
        instead = f"{self.used} is read instead" if self.used else "no security.toml is in force"
        return tuple(f"{each} is not read: {instead}; {self.fix}" for each in self.unread)


def find_security(
    environ: Mapping[str, str] | None = None, directory: str | Path = "."
) -> SecurityFiles:
    """Find the file of this user: the one that KAKOI_SECURITY_FILE names, which must exist, or else
    the first security.toml in the config folder, ~/.kakoi or ~/.kagura.

    `directory`: look here too for files that are not read.
    """
    variables = environment(environ)
    named = variables.get("KAKOI_SECURITY_FILE")
    places = _places(variables)
    read = [Path(named)] if named else places
    found = [path for path in read if _exists(path)]
    if named and not found:
        raise ConfigurationError(
            f"KAKOI_SECURITY_FILE is {named}, which does not exist",
            hint="correct or unset the variable",
        )
    others = [path for path in places if _exists(path)]
    nearby = [path for path in _nearby(variables, directory) if _is_meant_for_us(path)]
    unread: dict[str, Path] = {}
    for path in (*others, *nearby):
        unread.setdefault(os.path.realpath(path), path)
    if found:
        unread.pop(os.path.realpath(found[0]), None)
    return SecurityFiles(found[0] if found else None, tuple(unread.values()), read[0])


def load_security(environ: Mapping[str, str] | None = None) -> ShellSecurity:
    """Read the user's file; return the defaults if there is none. A broken file is an error.

    Files in nearby places that are not read are logged as warnings, once in a process.
    """
    files = find_security(environ)
    if not environment(environ).get("KAKOI_SECURITY_FILE"):
        for warning in files.warnings:
            _warn_once(warning)
    security = ShellSecurity() if files.used is None else read_security(files.used)
    off_by = find_feature_off(environ) if security.enabled else None
    return security if off_by is None else replace(security, enabled=False, off_by=str(off_by))


def find_feature_off(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the config.toml, in one of the folders of security.toml, whose `[features] shell` is
    false; None if there is none. A broken file is an error."""
    for place in _places(environment(environ)):
        path = place.with_name(_FEATURES_NAME)
        text = read_text(path)
        content = {} if text is None else parse_toml(text, path)
        features = content.get("features")
        shell = features.get("shell") if isinstance(features, Mapping) else None
        if shell is not None and not as_flag(shell, f"{path}: features.shell"):
            return path
        for section, values in content.items():
            _warn_if_misspelled(section, values, path)
    return None


def _warn_if_misspelled(section: str, values: object, path: Path) -> None:
    """Warn about a key that was probably meant to be `[features] shell`: the rest of the file
    belongs to another program, so it is no error."""
    for key in values if isinstance(values, Mapping) else ():
        said, meant = f"{section}.{key}", "features.shell"
        if said != meant and (guess := nearest(said, [meant], cutoff=_CLOSE)):
            _warn_once(f"{path}: `{said}` is not read{guess}")


def read_security(path: Path) -> ShellSecurity:
    """Read the file at `path`, which must exist."""
    text = read_text(path)
    if text is None:
        raise ConfigurationError(
            f"{path} is a link to a file that does not exist", hint="correct or remove it"
        )
    return parse_security(parse_toml(text, path), origin=str(path))


@cache
def _warn_once(warning: str) -> None:
    _log.warning("%s", shown(warning))


def _places(environ: Mapping[str, str]) -> list[Path]:
    """Return where the file can be, the place that takes precedence first."""
    below_home = (home / name for home in _homes(environ) for name in (".kakoi", ".kagura"))
    return [folder / _NAME for folder in (config_folder(environ), *below_home)]


def _nearby(environ: Mapping[str, str], directory: str | Path) -> Iterator[Path]:
    """Yield places that are not read, although people may expect them to be."""
    homes, here = _homes(environ), []
    with contextlib.suppress(OSError):  # The current directory may have been removed.
        here.append(Path(directory).absolute())
    for path in _places(environ):
        yield from _misspelled(path.parent)
    for folder in (config_folder(environ).parent, *(home / ".config" for home in homes)):
        yield from (folder / name / _NAME for name in ("kakoi", "kagura", ""))
    for folder in (*homes, *here):
        yield from (folder / name / _NAME for name in (".kakoi", ".kagura", ""))
    yield Path("/etc/kakoi", _NAME)


def _misspelled(folder: Path) -> list[Path]:
    """Return the files in a folder whose name is nearly that of security.toml."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [
        folder / name for name in sorted(names) if name != _NAME and _MISSPELLED.fullmatch(name)
    ]


def _homes(environ: Mapping[str, str]) -> list[Path]:
    """Return the user's home directory in a list, which is empty if there is none."""
    try:
        return [home_folder(environ)]
    except ConfigurationError:
        return []


def _exists(path: Path) -> bool:
    """Tell if there is a file, even if we cannot read it or it is a link to nothing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _is_meant_for_us(path: Path) -> bool:
    """Tell if a file exists and has a section of ours: other programs use the name as well."""
    try:
        text = read_text(path)
    except ConfigurationError:
        return True
    return text is not None and bool(_OUR_SECTION.search(text))


def parse_security(data: object, *, origin: str) -> ShellSecurity:
    """Parse the content of the file."""
    top = Section(data, origin, "shell features")
    features = Section(top.raw("features"), f"{origin}: features", "shell")
    shell = Section(
        top.raw("shell"),
        f"{origin}: shell",
        "enabled require_confirmation timeout allowed_commands blocked_commands "
        "allowed_directories sandbox",
    )
    directories = shell.raw("allowed_directories")
    where = shell.at("allowed_directories")
    # On by default: a program that imports `kakoi.shell` wants it. The file can turn it off.
    enabled = features.flag("shell", True) and shell.flag("enabled", True)
    return ShellSecurity(
        enabled=enabled,
        require_confirmation=shell.flag("require_confirmation", False),
        timeout_s=shell.seconds("timeout", 0) or None,
        allowed_commands=shell.texts("allowed_commands"),
        blocked_commands=shell.texts("blocked_commands") or (),
        allowed_directories=None
        if directories is None
        else tuple(map(_resolved, as_folders(directories, where))),
        sandbox=_sandbox(shell),
        origin=origin,
        off_by="" if enabled else origin,
    )


def _sandbox(shell: Section) -> SandboxConfig:
    """Parse `sandbox`: a name, or a section as in other files."""
    value = shell.raw("sandbox")
    section = {"type": value} if isinstance(value, str) else value
    return SandboxConfig.parse(section, origin=shell.at("sandbox"))


def _resolved(directory: str) -> str:
    return os.path.realpath(os.path.expanduser(directory))
