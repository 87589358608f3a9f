"""Which addresses are public, and why others are not.

A list names domains, but the owner of a domain decides where it points: to this machine, to a
neighbor, to the cloud's metadata service. So every address is also checked after name resolution.
"""

import ipaddress
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network
else:
    Address = Network = object  # Few commands need the module, so it is loaded late.


# No list can open these: the machine that kakoi runs on, and what only it should talk to.
_NEVER_REACHABLE: Final = """
    0.0.0.0/8        this machine
    127.0.0.0/8      loopback
    168.63.129.16/32 a cloud's metadata
    169.254.0.0/16   link-local (a cloud's metadata)
    192.0.0.0/24     reserved (a cloud's metadata)
    192.88.99.0/24   a relay of 6to4
    224.0.0.0/4      multicast
    240.0.0.0/4      reserved
    ::/127           this machine
    2001::/32        a Teredo tunnel
    2002::/16        a 6to4 tunnel
    fd00:ec2::/32    a cloud's metadata
    fd20:ce::/32     a cloud's metadata
    fe80::/10        link-local
    fec0::/10        site-local
    ff00::/8         multicast
"""
# Reachable if a list names a part of one of them.
_REACHABLE_IF_LISTED: Final = """
    10.0.0.0/8       private
    100.64.0.0/10    shared by a provider (CGNAT)
    172.16.0.0/12    private
    192.0.2.0/24     for documentation
    192.168.0.0/16   private
    198.18.0.0/15    for benchmarks
    198.51.100.0/24  for documentation
    203.0.113.0/24   for documentation
    100::/64         discarded
    2001::/23        reserved
    2001:db8::/32    for documentation
    3fff::/20        for documentation
    fc00::/7         private
"""
# All public IPv6 addresses are in here.
_GLOBAL: Final = "2000::/3"
# IPv6 ranges whose addresses embed an IPv4 address in their last bits.
_HOLDERS: Final = """
    ::/96            compatible
    ::ffff:0:0/96    mapped
    ::ffff:0:0:0/96  translated
    64:ff9b::/96     translated
    64:ff9b:1::/48   translated
"""


@cache
def _networks(text: str) -> tuple[tuple[Network, str], ...]:
    lines = (line.split(None, 1) for line in text.strip().splitlines())
    return tuple((ipaddress.ip_network(network), what) for network, what in lines)


def effective(address: Address) -> Address:
    """Return the embedded IPv4 address of an IPv6 address, if it has one; else the address."""
    if isinstance(address, ipaddress.IPv6Address) and int(address) > 1:
        if _range_of(address, _networks(_HOLDERS)):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.scope_id:  # A scope is local to this machine, so never public.
            return ipaddress.IPv6Address(int(address))
    return address


def unreachable_range(address: Address, opened: Sequence[Network] = ()) -> str:
    """Return what kind of address it is if it must not be reached; empty if it can be.

    `opened`: the listed networks. A network within a private range opens its addresses; a larger
    network opens only the public addresses in it.
    """
    meant = effective(address)
    never = _range_of(meant, _networks(_NEVER_REACHABLE))
    if never:
        return never
    private = _range_of(meant, _networks(_REACHABLE_IF_LISTED))
    if private:
        return "" if any(meant in each and is_private(each) for each in opened) else private
    if isinstance(meant, ipaddress.IPv6Address) and meant not in ipaddress.ip_network(_GLOBAL):
        return "reserved"
    return ""


def is_private(network: Network) -> bool:
    """Whether the network lies within one private range."""
    return any(
        network.version == each.version and network.subnet_of(each)  # type: ignore[arg-type]  # The same version.
        for each, _ in _networks(_REACHABLE_IF_LISTED)
    )


def never_reachable(network: Network) -> str:
    """Return what kind of network it is if no list can open any part of it; else empty."""
    for each, what in _networks(_NEVER_REACHABLE):
        if network.version == each.version and network.subnet_of(each):  # type: ignore[arg-type]  # The same version.
            return what
    return ""


def _range_of(address: Address, ranges: Sequence[tuple[Network, str]]) -> str:
    return next((what for network, what in ranges if address in network), "")
