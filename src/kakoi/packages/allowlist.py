"""Which packages may be installed: lists of names, and requests held against them. Pure.

A list has one package on each line; blank lines and lines that begin with `#` say nothing. What
must be on the list is the *name*, whatever version or extras a request has: `requests[socks]>=2`
needs `requests`. A line may name a version (`requests==2.32.0`, `jq=1.6-2.1`, `typescript@5.4.5`);
then that one is installed, and a request for another is refused.

Spec E compares whole texts, so there `requests==0` is refused. Here it is a version of `requests`:
it is tried, and whether there is such a version is the package manager's answer.

images/install.sh has the same rules as a shell script; the tests hold both against each other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeGuard, get_args

Ecosystem = Literal["apt", "pip", "npm"]
Status = Literal["success", "rejected", "failed"]
ECOSYSTEMS: Final[tuple[Ecosystem, ...]] = get_args(Ecosystem)
LONGEST: Final = 256

_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_COMPARED: Final = r"(?:===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9][A-Za-z0-9.!+*_-]*"
_PIP_NAME: Final = (
    rf"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[{_PART}(?:,{_PART})*\])?"
)
_NPM: Final = re.compile(
    rf"(?P<name>(?:@{_PART}/)?{_PART})(?P<version>(?:@(?:[~^=]|[<>]=?)?[A-Za-z0-9*][A-Za-z0-9.+*-]*)?)"
)
_APT: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]+)(?P<version>(?:=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?)"
)
# No index, address, path, option or marker: there is no letter for them. A version has its sign.
_REQUESTED: Final[Mapping[Ecosystem, re.Pattern[str]]] = {
    "apt": _APT,
    "pip": re.compile(rf"{_PIP_NAME}(?P<version>(?:{_COMPARED}(?:,{_COMPARED})*)?)"),
    "npm": _NPM,
}
_LISTED: Final[Mapping[Ecosystem, re.Pattern[str]]] = {
    **_REQUESTED,
    "pip": re.compile(rf"{_PIP_NAME}(?P<version>(?:==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?)"),
}
# pip and npm take these for files of the folder they run in.
_ARCHIVE: Final = re.compile(
    r".*\.(?:zip|whl|egg|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """One package to install. `package` is as it was asked for; nobody has looked at it yet."""

    type: Ecosystem
    package: str


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What came of a request. `timestamp` is ISO 8601, in UTC."""

    timestamp: str
    type: Ecosystem
    package: str
    status: Status
    duration_ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of a list: a name in its one spelling, and a version with its sign if it has one."""

    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Allowlist:
    """A list as it was read. `unread`: lines that are no package; they allow nothing."""

    entries: tuple[Listed, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllowlistConfig:
    """Everything that may be installed. None: there is no list, which is not an empty one."""

    apt: Allowlist | None = None
    pip: Allowlist | None = None
    npm: Allowlist | None = None

    def of(self, ecosystem: Ecosystem) -> Allowlist | None:
        """The list for one type of package."""
        return {"apt": self.apt, "pip": self.pip, "npm": self.npm}[ecosystem]


@dataclass(frozen=True, slots=True)
class Answer:
    """May it be installed? `wanted`: what to ask the package manager for; else `reason`."""

    wanted: str = ""
    reason: str = field(default="", kw_only=True)

    def __bool__(self) -> bool:
        return bool(self.wanted)


def is_ecosystem(name: str) -> TypeGuard[Ecosystem]:
    """Is there such a type of package?"""
    return name in ECOSYSTEMS


def parse(ecosystem: Ecosystem, text: str) -> Allowlist:
    """A list from the text of its file."""
    lines = [line.strip(" \t\r") for line in text.split("\n")]
    said = [line for line in lines if line and not line.startswith("#")]
    found = [(line, _fitting(_LISTED, ecosystem, line)) for line in said]
    return Allowlist(
        entries=tuple(_listed(ecosystem, match) for _, match in found if match),
        unread=tuple(line for line, match in found if not match),
    )


def name_of(request: InstallRequest) -> str:
    """The name of the package in its one spelling; empty if it is not well-formed."""
    match = _fitting(_REQUESTED, request.type, request.package)
    return "" if match is None else _listed(request.type, match).name


def check(request: InstallRequest, lists: AllowlistConfig) -> Answer:
    """Hold a request against its list; the first line that fits decides."""
    ecosystem, package = request.type, request.package
    match = _fitting(_REQUESTED, ecosystem, package)
    if match is None:
        return Answer(reason="it is no plain name of a package, with a version at most")
    allowlist = lists.of(ecosystem)
    wanted = _listed(ecosystem, match)
    namesakes = [
        entry for entry in (allowlist.entries if allowlist else ()) if entry.name == wanted.name
    ]
    for entry in namesakes:
        if entry.version in ("", wanted.version):
            return Answer(package)
        if not wanted.version:
            return Answer(package + entry.version)
    if namesakes:
        versions = ", ".join(entry.name + entry.version for entry in namesakes)
        return Answer(reason=f"the list has only {versions}")
    return Answer(reason="it is not on the list")


def _fitting(
    forms: Mapping[Ecosystem, re.Pattern[str]], ecosystem: Ecosystem, text: str
) -> re.Match[str] | None:
    if len(text) > LONGEST or (ecosystem != "apt" and _ARCHIVE.fullmatch(text)):
        return None
    return forms[ecosystem].fullmatch(text)


def _listed(ecosystem: Ecosystem, match: re.Match[str]) -> Listed:
    name, version = match["name"], match["version"]
    if ecosystem == "pip":  # PEP 503: one name has many spellings.
        return Listed(re.sub(r"[-_.]+", "-", name).lower(), version.lower())
    return Listed(name, version)
