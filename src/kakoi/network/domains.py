"""Lists of allowed domains: can this host and port be reached?

    example.org           this name, ports 80 and 443
    *.example.org         every subdomain, but not example.org itself
    example.org:8443      this port only; `:*` is every port
    203.0.113.0/24        these addresses; with a port 203.0.113.7/32:8080, [2001:db8::/64]:443

Names are compared in lower case, in ASCII (xn--…) and without a trailing dot. An address instead of
a name is refused in every notation, unless a listed network contains it.
"""

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final

from kakoi._support.fields import TEXTS, ValueKind
from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError
from kakoi.network.addresses import Address, Network, is_private, never_reachable, unreachable_range

WEB_PORTS: Final = frozenset((80, 443))
_ALL_PORTS: Final[frozenset[int]] = frozenset()
_LONGEST_NAME: Final = 253
_LABEL: Final = pattern(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = pattern(r"\d+|0[xX][0-9a-fA-F]*")
_PORT: Final = pattern(r"[1-9]\d{0,4}")
# Older and newer IDNA rules disagree about these.
_DEVIATIONS: Final = pattern("[ßς\u200c\u200d]")
# Always the machine that asks (RFC 6761).
_LOCAL: Final = pattern(r"(?:^|\.)localhost$")
_MOST_ENTRIES: Final = 10_000


class BadHostError(ValueError):
    """The text is neither a host name nor an address in its usual notation; says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A destination: a normalized name or an address, and a port.

    Port 0 stands for the name itself, when only its addresses are asked for.
    """

    host: str | Address
    port: int

    def __str__(self) -> str:
        if not self.port:
            return str(self.host)
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class DomainEntry:
    """One line of a list. `host` is a name, a name with a leading `*.`, or a network."""

    host: str | Network
    ports: frozenset[int] = WEB_PORTS

    def __str__(self) -> str:
        """The notation used in a list, if its ports fit in one line."""
        if self.ports == WEB_PORTS:
            return str(self.host)
        port = next(iter(self.ports), "*")
        is_six = isinstance(self.host, ipaddress.IPv6Network)
        return f"[{self.host}]:{port}" if is_six else f"{self.host}:{port}"

    def covers(self, target: Target) -> bool:
        """Whether this line allows the target."""
        if self.ports and target.port not in self.ports:
            return False
        return self.covers_host(target.host)

    def covers_host(self, host: str | Address) -> bool:
        """Whether this line names the host, on any port."""
        if isinstance(self.host, str):
            if not isinstance(host, str):
                return False
            if self.host.startswith("*."):
                return host.endswith(self.host[1:]) and len(host) > len(self.host) - 1
            return host == self.host
        return not isinstance(host, str) and host in self.host


@dataclass(frozen=True, slots=True)
class Domains:
    """What can be reached. `everything`: every public name and address, on every port."""

    entries: tuple[DomainEntry, ...] = ()
    everything: bool = False
    networks: tuple[Network, ...] = field(init=False)

    def __post_init__(self) -> None:
        networks = tuple(each.host for each in self.entries if not isinstance(each.host, str))
        object.__setattr__(self, "networks", networks)

    def objection(self, target: Target) -> str:
        """Return why the target cannot be reached, before name resolution; empty if it can."""
        if self.everything or any(entry.covers(target) for entry in self.entries):
            return ""
        if any(entry.covers_host(target.host) for entry in self.entries):
            return f"port {target.port} is not listed for it"
        if isinstance(target.host, str):
            return "it is not listed"
        return "it is an address, and no listed network contains it"

    def name_objection(self, name: str) -> str:
        """Return why the addresses of a name are withheld; empty if they are given."""
        is_listed = self.everything or any(each.covers_host(name) for each in self.entries)
        return "" if is_listed else "it is not listed"

    def names_exactly(self, name: str) -> bool:
        """Whether the list has this very name, so a query for it carries no data of the sandbox."""
        return self.everything or any(each.host == name for each in self.entries)

    def address_objection(self, address: Address) -> str:
        """Return why an address that a name resolved to cannot be reached; empty if it can."""
        what = unreachable_range(address, self.networks)
        return f"it resolves to {address}, which is not public: {what}" if what else ""

    def needs_tls(self, target: Target) -> bool:
        """Whether a tunnel there must be TLS that names the same host.

        Where one server hosts many names, the content of the tunnel decides which one is reached.
        A port that is listed by number and is not a web port can carry anything.
        """
        if self.everything:
            return False
        named = any(
            target.port in entry.ports and entry.ports != WEB_PORTS
            for entry in self.entries
            if entry.covers(target)
        )
        return target.port in WEB_PORTS or not named


def public_lines(domains: Domains) -> tuple[str, ...]:
    """Return the lines of a list that `EVERYTHING_PUBLIC` also allows."""
    return tuple(
        str(entry)
        for entry in domains.entries
        if isinstance(entry.host, str) or not is_private(entry.host)
    )


def narrowed_lines(ours: Domains, theirs: Domains) -> tuple[str, ...]:
    """Return the lines of a list that allows what both allow, and never more than ours."""
    found = {
        line: None
        for wanted in theirs.entries
        for given in ours.entries
        for line in _both(given, wanted)
    }
    return tuple(found)


def _both(ours: DomainEntry, theirs: DomainEntry) -> Iterator[str]:
    host = _narrower(ours.host, theirs.host)
    if host is None:
        return
    if ours.ports == theirs.ports or not theirs.ports:
        yield str(DomainEntry(host, ours.ports))
    elif ours.ports:
        for port in sorted(ours.ports & theirs.ports):
            yield str(DomainEntry(host, frozenset((port,))))
    elif theirs.ports <= WEB_PORTS:
        yield str(DomainEntry(host, theirs.ports))
    else:  # Every port, with TLS. Listed by number, their port would not require TLS.
        yield str(DomainEntry(host, ours.ports))


def _narrower(one: str | Network, other: str | Network) -> str | Network | None:
    """Return the one that lies within the other; None if neither does."""
    if _is_within(one, other):
        return one
    return other if _is_within(other, one) else None


def _is_within(inner: str | Network, outer: str | Network) -> bool:
    if inner == outer:
        return True
    if isinstance(inner, str) or isinstance(outer, str):
        wild = isinstance(outer, str) and outer.startswith("*.")
        return wild and str(inner).removeprefix("*.").endswith(str(outer)[1:])
    # A network that is not within a private range covers only the public addresses in it.
    if is_private(inner) and not is_private(outer):
        return False
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # The same version.


EVERYTHING_PUBLIC: Final = Domains(everything=True)


# --- Lists -----------------------------------------------------------------------------------


def parse_domains(lines: Sequence[str], *, origin: str = "allowed_domains") -> Domains:
    """Parse a list of domains. ConfigurationError says which line is wrong, and how."""
    if len(lines) > _MOST_ENTRIES:
        raise ConfigurationError(f"{origin} has {len(lines)} lines; at most {_MOST_ENTRIES}")
    return Domains(tuple(_entry(line, origin) for line in lines))


def _checked(lines: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the lines as written, after checking that they can be parsed."""
    parse_domains(lines, origin=where)
    return lines


# A list of allowed domains in a settings file.
DOMAINS: Final = ValueKind(
    lambda value, where: _checked(TEXTS.read(value, where), where),
    lambda value, where: _checked(TEXTS.read_text(value, where), where),
    TEXTS.schema,
)


def _entry(line: str, origin: str) -> DomainEntry:
    try:
        return _parse_entry(line.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"{origin}: `{line[:80]}`: {error}",
            hint="`example.org`, `*.example.org`, `example.org:8443` or a network like 10.1.0.0/16",
        ) from None


def _parse_entry(text: str) -> DomainEntry:
    if "://" in text:
        raise BadHostError("it is a URL; use only the host name")
    if text == "*":
        raise BadHostError("that would allow everything; use the network `open` for that")
    host, ports = _split_ports(text)
    if "/" in host:
        return DomainEntry(_network(host), ports)
    wild, name = host.startswith("*."), host.removeprefix("*.")
    if "*" in name:
        raise BadHostError("a `*` can only stand for a whole label at the beginning")
    parsed = parse_host(_ascii(name))
    if not isinstance(parsed, str):
        network = _network(f"{parsed}/{parsed.max_prefixlen}")
        raise BadHostError(f"write an address as a network: {network}")
    if _LOCAL.search(parsed):
        raise BadHostError(
            "leave it out: a sandbox always reaches its own loopback, "
            "and no list opens the loopback of this machine"
        )
    return DomainEntry(f"*.{parsed}" if wild else parsed, ports)


def _split_ports(text: str) -> tuple[str, frozenset[int]]:
    if text.startswith("["):
        inside, closing, rest = text[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            raise BadHostError("a bracket is not closed")
        return inside, _ports(rest[1:]) if rest else WEB_PORTS
    if text.count(":") != 1:  # An IPv6 network without brackets has no port.
        return text, WEB_PORTS
    host, _, port = text.partition(":")
    return host, _ports(port)


def _ports(text: str) -> frozenset[int]:
    return _ALL_PORTS if text == "*" else frozenset((parse_port(text),))


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise BadHostError(f"it is not a network: {error}") from None
    what = never_reachable(network)
    if what:
        raise BadHostError(f"this network cannot be opened: {what}")
    return network


def _ascii(name: str) -> str:
    """Return the name as resolvers know it."""
    if name.isascii():
        return name
    if _DEVIATIONS.search(name):
        raise BadHostError("it has two ASCII forms; write the one you mean (xn--…)")
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise BadHostError(f"it has no ASCII form: {error}") from None


# --- Targets ---------------------------------------------------------------------------------


def parse_target(host: str, port: str | int) -> Target:
    """Parse what a client asked for. Raises BadHostError if it is not a host in usual notation."""
    return Target(parse_host(host), parse_port(str(port)))


def parse_port(text: str) -> int:
    """Parse a port in canonical notation."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise BadHostError(f"`{text[:20]}` is not a port")
    return int(text)


def parse_host(text: str) -> str | Address:
    """Return a normalized name, or an address that was written in the usual notation."""
    if not text.isascii() or not text.isprintable():
        raise BadHostError("a host name must be ASCII (xn--…)")
    if text.startswith("[") or ":" in text:
        return _parse_v6(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _parse_v4(name)
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHostError("it is not a host name")
    return name


def _parse_v4(text: str) -> Address:
    """Some programs take any name that ends in a number for an address: so it must be one."""
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):
        raise BadHostError("it ends in a number but is not an address") from None
    raise BadHostError(f"it is an unusual notation for {meant}")


def _parse_v6(text: str) -> Address:
    inside = text.removeprefix("[").removesuffix("]")
    if (text[0] == "[") != (text[-1] == "]"):
        raise BadHostError("a bracket is not closed")
    if "%" in inside:
        raise BadHostError("an address with a zone is local to one machine")
    try:
        return ipaddress.IPv6Address(inside)
    except ValueError:
        raise BadHostError("it is not an address") from None
