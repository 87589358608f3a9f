"""What a list of allowed domains means, as a value: may this host and port be reached?

    example.org           this name, ports 80 and 443
    *.example.org         every name below it, and not itself
    example.org:8443      this port only; `:*` is every port
    203.0.113.0/24        these addresses; with a port 203.0.113.7/32:8080, [2001:db8::/64]:443

Names are compared in lower case, in ASCII (xn--…) and without the dot at the end. An address in the
place of a name is refused in every spelling, unless a listed network holds it.
"""

import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kakoi.egress.addresses import Address, Network, is_private, never_reachable, not_public
from kakoi.errors import ConfigurationError

WEB_PORTS: Final = frozenset((80, 443))
_ALL_PORTS: Final[frozenset[int]] = frozenset()
_LONGEST_NAME: Final = 253
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"\d+|0[xX][0-9a-fA-F]*")
_PORT: Final = re.compile(r"[1-9]\d{0,4}")
# Older and newer rules for names disagree about these.
_DEVIATIONS: Final = re.compile("[ßς\u200c\u200d]")
# To whoever asks, their own machine (RFC 6761).
_LOCAL: Final = re.compile(r"(?:^|\.)localhost$")
_MOST_ENTRIES: Final = 10_000


class BadHostError(ValueError):
    """What was given is neither a name nor an address in its usual spelling; says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be reached: a name in its one spelling, or an address."""

    host: str | Address
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a list. `host` is a name, one that begins with `*.`, or a network."""

    host: str | Network
    ports: frozenset[int] = WEB_PORTS

    def __str__(self) -> str:
        """As it is written in a list, if it has the ports of one line."""
        if self.ports == WEB_PORTS:
            return str(self.host)
        port = next(iter(self.ports), "*")
        is_six = isinstance(self.host, ipaddress.IPv6Network)
        return f"[{self.host}]:{port}" if is_six else f"{self.host}:{port}"

    def covers(self, target: Target) -> bool:
        """Is the target on this line?"""
        if self.ports and target.port not in self.ports:
            return False
        return self.covers_host(target.host)

    def covers_host(self, host: str | Address) -> bool:
        """Is the host on this line, with whatever port?"""
        if isinstance(self.host, str):
            if not isinstance(host, str):
                return False
            if self.host.startswith("*."):
                return host.endswith(self.host[1:]) and len(host) > len(self.host) - 1
            return host == self.host
        return not isinstance(host, str) and host in self.host


@dataclass(frozen=True, slots=True)
class Domains:
    """What may be reached. `everything`: every public name and address, on every port."""

    entries: tuple[Entry, ...] = ()
    everything: bool = False
    networks: tuple[Network, ...] = field(init=False)

    def __post_init__(self) -> None:
        networks = tuple(each.host for each in self.entries if not isinstance(each.host, str))
        object.__setattr__(self, "networks", networks)

    def objection(self, target: Target) -> str:
        """Why the target may not be reached, before its name is resolved; empty if it may."""
        if self.everything or any(entry.covers(target) for entry in self.entries):
            return ""
        if any(entry.covers_host(target.host) for entry in self.entries):
            return f"port {target.port} is not listed for it"
        if isinstance(target.host, str):
            return "it is not listed"
        return "it is an address, and no network that holds it is listed"

    def address_objection(self, address: Address) -> str:
        """Why an address that a name resolved to may not be reached; empty if it may."""
        what = not_public(address, self.networks)
        return f"it leads to {address}, which is not public: {what}" if what else ""

    def needs_tls(self, target: Target) -> bool:
        """Must a tunnel there be TLS that names the same host?

        Where one host serves many names, what is said inside of a tunnel decides which is reached.
        A port that is listed by its number and is none of the web's may carry anything.
        """
        if self.everything:
            return False
        named = any(
            target.port in entry.ports and entry.ports != WEB_PORTS
            for entry in self.entries
            if entry.covers(target)
        )
        return target.port in WEB_PORTS or not named


def public_lines(theirs: Domains) -> tuple[str, ...]:
    """The lines of a list that lead to where `EVERYTHING_PUBLIC` leads, too."""
    return tuple(
        str(entry)
        for entry in theirs.entries
        if isinstance(entry.host, str) or not is_private(entry.host)
    )


def narrowed_lines(ours: Domains, theirs: Domains) -> tuple[str, ...]:
    """The lines of a list that leads to where both lead, and never further than ours."""
    found = {
        line: None
        for wanted in theirs.entries
        for given in ours.entries
        for line in _both(given, wanted)
    }
    return tuple(found)


def _both(ours: Entry, theirs: Entry) -> Iterator[str]:
    host = _narrower(ours.host, theirs.host)
    if host is None:
        return
    if ours.ports == theirs.ports or not theirs.ports:
        yield str(Entry(host, ours.ports))
    elif ours.ports:
        for port in sorted(ours.ports & theirs.ports):
            yield str(Entry(host, frozenset((port,))))
    elif theirs.ports <= WEB_PORTS:
        yield str(Entry(host, theirs.ports))
    else:  # Every port, with TLS. Named by its number, theirs would be one without.
        yield str(Entry(host, ours.ports))


def _narrower(one: str | Network, other: str | Network) -> str | Network | None:
    """The one of them that lies within the other; None if neither does."""
    if _is_within(one, other):
        return one
    return other if _is_within(other, one) else None


def _is_within(inner: str | Network, outer: str | Network) -> bool:
    if inner == outer:
        return True
    if isinstance(inner, str) or isinstance(outer, str):
        wild = isinstance(outer, str) and outer.startswith("*.")
        return wild and str(inner).removeprefix("*.").endswith(str(outer)[1:])
    # One that is no part of a private network means the public addresses in it, and no others.
    if is_private(inner) and not is_private(outer):
        return False
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # The same version.


EVERYTHING_PUBLIC: Final = Domains(everything=True)


# --- Lists -----------------------------------------------------------------------------------


def parse_domains(lines: Sequence[str], *, origin: str = "allowed_domains") -> Domains:
    """The list that these lines are; ConfigurationError says which is wrong, and how."""
    if len(lines) > _MOST_ENTRIES:
        raise ConfigurationError(f"{origin} has {len(lines)} lines; at most {_MOST_ENTRIES}")
    return Domains(tuple(_entry(line, origin) for line in lines))


def _entry(line: str, origin: str) -> Entry:
    try:
        return _parse_entry(line.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"{origin}: `{line[:80]}`: {error}",
            hint="`example.org`, `*.example.org`, `example.org:8443`, or a network as 10.1.0.0/16",
        ) from None


def _parse_entry(text: str) -> Entry:
    if "://" in text:
        raise BadHostError("it is an address of a page; the name of the host will do")
    if text == "*":
        raise BadHostError("that would be everything; for this there is the network `open`")
    host, ports = _split_ports(text)
    if "/" in host:
        return Entry(_network(host), ports)
    wild, name = host.startswith("*."), host.removeprefix("*.")
    if "*" in name:
        raise BadHostError("a `*` can stand for whole names at the beginning only")
    parsed = parse_host(_ascii(name))
    if not isinstance(parsed, str):
        network = _network(f"{parsed}/{parsed.max_prefixlen}")
        raise BadHostError(f"an address is listed as a network: {network}")
    if _LOCAL.search(parsed):
        raise BadHostError(
            "leave it out: a sandbox reaches its own loopback without a list, "
            "and no list opens that of this machine"
        )
    return Entry(f"*.{parsed}" if wild else parsed, ports)


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
        raise BadHostError(f"it is no network: {error}") from None
    what = never_reachable(network)
    if what:
        raise BadHostError(f"nothing can open this network: {what}")
    return network


def _ascii(name: str) -> str:
    """The name as the resolvers know it."""
    if name.isascii():
        return name
    if _DEVIATIONS.search(name):
        raise BadHostError("it has two spellings in ASCII; write the one you mean (xn--…)")
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise BadHostError(f"it has no spelling in ASCII: {error}") from None


# --- What is asked for -----------------------------------------------------------------------


def parse_target(host: str, port: str | int) -> Target:
    """What a client has named; BadHostError if that is no host, or has another spelling."""
    return Target(parse_host(host), parse_port(str(port)))


def parse_port(text: str) -> int:
    """A port in its one spelling."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise BadHostError(f"`{text[:20]}` is no port")
    return int(text)


def parse_host(text: str) -> str | Address:
    """A name in its one spelling, or an address that was written in the usual way."""
    if not text.isascii() or not text.isprintable():
        raise BadHostError("a name is asked for in ASCII (xn--…)")
    if text.startswith("[") or ":" in text:
        return _parse_v6(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _parse_v4(name)
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHostError("it is no name of a host")
    return name


def _parse_v4(text: str) -> Address:
    """What ends in a number is an address to some program, so it is one to us or an error."""
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):
        raise BadHostError("it ends in a number, and is no address") from None
    raise BadHostError(f"it is an unusual spelling of {meant}")


def _parse_v6(text: str) -> Address:
    inside = text.removeprefix("[").removesuffix("]")
    if (text[0] == "[") != (text[-1] == "]"):
        raise BadHostError("a bracket is not closed")
    if "%" in inside:
        raise BadHostError("an address with a zone belongs to one machine")
    try:
        return ipaddress.IPv6Address(inside)
    except ValueError:
        raise BadHostError("it is no address") from None
