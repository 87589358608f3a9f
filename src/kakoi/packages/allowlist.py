"""Which packages can be installed: lists of names, and requests checked against them. Pure.

A list has one package per line; blank lines and lines that begin with `#` are ignored. A request
must have the name of a line; extras are allowed (`requests[socks]`). What a request can say about
the version is up to the line:

    requests            nothing: `requests==0` is refused, like any other version
    requests==2.32.0    that version, or nothing, which installs that version; so `jq=1.6-2.1` for
                        apt and `typescript@5.4.5` for npm
    requests==*         anything: `requests>=2,<3`; so `jq=*` and `typescript@*`

images/install.sh implements the same rules as a shell script; tests compare the two.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, Literal, TypeGuard, get_args

from kakoi._support.late import dataclass, pattern

Ecosystem = Literal["apt", "pip", "npm"]
InstallStatus = Literal["success", "rejected", "failed"]
ECOSYSTEMS: Final[tuple[Ecosystem, ...]] = get_args(Ecosystem)
LONGEST: Final = 256

_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_COMPARED: Final = r"(?:===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9][A-Za-z0-9.!+*_-]*"
_PIP_NAME: Final = (
    rf"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[{_PART}(?:,{_PART})*\])?"
)
_NPM: Final = pattern(
    rf"(?P<name>(?:@{_PART}/)?{_PART})(?P<version>(?:@(?:[~^=]|[<>]=?)?[A-Za-z0-9*][A-Za-z0-9.+*-]*)?)"
)
_APT_NAME: Final = r"(?P<name>[a-z0-9][a-z0-9+.-]+)"
_APT_VERSION: Final = r"=[A-Za-z0-9][A-Za-z0-9.+:~-]*"
# In a list: a request can name any version.
_ANY_VERSION: Final[Mapping[Ecosystem, str]] = {"apt": "=*", "pip": "==*", "npm": "@*"}
# These patterns exclude indexes, URLs, paths, options and markers. A version includes its operator.
_REQUESTED: Final[Mapping[Ecosystem, re.Pattern[str]]] = {
    "apt": pattern(rf"{_APT_NAME}(?P<version>(?:{_APT_VERSION})?)"),
    "pip": pattern(rf"{_PIP_NAME}(?P<version>(?:{_COMPARED}(?:,{_COMPARED})*)?)"),
    "npm": _NPM,
}
_LISTED: Final[Mapping[Ecosystem, re.Pattern[str]]] = {
    "apt": pattern(rf"{_APT_NAME}(?P<version>(?:{_APT_VERSION}|=\*)?)"),
    "pip": pattern(rf"{_PIP_NAME}(?P<version>(?:==(?:[A-Za-z0-9][A-Za-z0-9.!+_-]*|\*))?)"),
    "npm": _NPM,
}
# pip and npm take these for files in the current folder.
_ARCHIVE: Final = pattern(
    r".*\.(?:zip|whl|egg|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """A request to install one package. `package` is as requested, and not checked yet."""

    type: Ecosystem
    package: str


@dataclass(frozen=True, slots=True)
class InstallResult:
    """The result of a request. `timestamp` is ISO 8601, in UTC."""

    timestamp: str
    type: Ecosystem
    package: str
    status: InstallStatus
    duration_ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ListedPackage:
    """A line of a list: the normalized name, and the version with its operator, if any."""

    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Allowlist:
    """A parsed list. `invalid`: lines that are not a package; they allow nothing."""

    entries: tuple[ListedPackage, ...] = ()
    invalid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllowlistConfig:
    """Everything that can be installed. None means that the list is missing, not empty."""

    apt: Allowlist | None = None
    pip: Allowlist | None = None
    npm: Allowlist | None = None

    def of(self, ecosystem: Ecosystem) -> Allowlist | None:
        """Return the list for one type of package."""
        return {"apt": self.apt, "pip": self.pip, "npm": self.npm}[ecosystem]


@dataclass(frozen=True, slots=True)
class ListVerdict:
    """Whether a package is allowed: `wanted` is what to request from the package manager.

    If it is not allowed, `wanted` is empty and `reason` says why.
    """

    wanted: str = ""
    reason: str = field(default="", kw_only=True)

    def __bool__(self) -> bool:
        return bool(self.wanted)


def is_ecosystem(name: str) -> TypeGuard[Ecosystem]:
    """Tell if this is a type of package."""
    return name in ECOSYSTEMS


def parse(ecosystem: Ecosystem, text: str) -> Allowlist:
    """Parse the text of a list."""
    lines = [line.strip(" \t\r") for line in text.split("\n")]
    entries = [line for line in lines if line and not line.startswith("#")]
    found = [(line, _match(_LISTED, ecosystem, line)) for line in entries]
    return Allowlist(
        entries=tuple(_listed(ecosystem, match) for _, match in found if match),
        invalid=tuple(line for line, match in found if not match),
    )


def name_of(request: InstallRequest) -> str:
    """Return the normalized name of the package; empty if it is not well-formed."""
    match = _match(_REQUESTED, request.type, request.package)
    return "" if match is None else _listed(request.type, match).name


def check(request: InstallRequest, lists: AllowlistConfig) -> ListVerdict:
    """Check a request against its list; the first line that matches decides."""
    wanted, namesakes = _namesakes(request, lists)
    if wanted is None:
        return ListVerdict(reason="it is not a plain package name with an optional version")
    for entry in namesakes:
        if entry.version in (wanted.version, _ANY_VERSION[request.type]):
            return ListVerdict(request.package)
        if not wanted.version:
            return ListVerdict(request.package + entry.version)
    if namesakes:
        versions = ", ".join(entry.name + entry.version for entry in namesakes)
        return ListVerdict(reason=f"the list has only {versions}")
    return ListVerdict(reason="it is not on the list")


def check_dependency(request: InstallRequest, lists: AllowlistConfig) -> ListVerdict:
    """Check an entry of a project's manifest, which says which versions the project works with.

    So a line without a version allows all of them. A line with a version must be repeated.
    """
    wanted, namesakes = _namesakes(request, lists)
    if wanted is not None and any(not entry.version for entry in namesakes):
        return ListVerdict(request.package)
    verdict = check(request, lists)
    if verdict and verdict.wanted != request.package:
        return ListVerdict(reason=f"the list has only {verdict.wanted}")
    return verdict


def _namesakes(
    request: InstallRequest, lists: AllowlistConfig
) -> tuple[ListedPackage | None, Sequence[ListedPackage]]:
    """Return what is requested, and the lines with its name; None if it is not well-formed."""
    match = _match(_REQUESTED, request.type, request.package)
    if match is None:
        return None, ()
    wanted = _listed(request.type, match)
    allowlist = lists.of(request.type)
    entries = allowlist.entries if allowlist else ()
    return wanted, [entry for entry in entries if entry.name == wanted.name]


def _match(
    forms: Mapping[Ecosystem, re.Pattern[str]], ecosystem: Ecosystem, text: str
) -> re.Match[str] | None:
    if len(text) > LONGEST or (ecosystem != "apt" and _ARCHIVE.fullmatch(text)):
        return None
    return forms[ecosystem].fullmatch(text)


def _listed(ecosystem: Ecosystem, match: re.Match[str]) -> ListedPackage:
    name, version = match["name"], match["version"]
    if ecosystem == "pip":  # PEP 503: one name has many spellings.
        return ListedPackage(re.sub(r"[-_.]+", "-", name).lower(), version.lower())
    return ListedPackage(name, version)
