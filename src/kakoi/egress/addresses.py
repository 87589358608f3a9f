"""Which addresses are public, and why another one is not.

A name is listed, but its owner says where it leads: to this machine, to a neighbour, to the cloud's
metadata. So every address is judged, too, after the name was resolved.
"""

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def _networks(text: str) -> tuple[tuple[Network, str], ...]:
    lines = (line.split(None, 1) for line in text.strip().splitlines())
    return tuple((ip_network(network), what) for network, what in lines)


# Nobody can open these: the machine that kakoi runs on, and what only it should talk to.
_NEVER: Final = _networks(
    """
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
)
# Reachable where a list names a part of one of them.
_PRIVATE: Final = _networks(
    """
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
)
# All that is public in IPv6 lies in here.
_GLOBAL: Final = ip_network("2000::/3")
# IPv6 addresses that hold one of IPv4 in their last bits, and mean that one.
_HOLDERS: Final = tuple(
    ip_network(text)
    for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)


def effective(address: Address) -> Address:
    """The address that is meant: one of IPv4, where one of IPv6 only holds that."""
    if isinstance(address, IPv6Address) and int(address) > 1:
        if any(address in holder for holder in _HOLDERS):
            return IPv4Address(int(address) & 0xFFFFFFFF)
        if address.scope_id:  # Of this machine's own interfaces, so never public.
            return IPv6Address(int(address))
    return address


def not_public(address: Address, opened: Sequence[Network] = ()) -> str:
    """What an address is, if it is not public; empty if it can be reached.

    `opened`: networks that are listed. One that lies within a private range opens its addresses;
    one that is larger means the public addresses in it.
    """
    meant = effective(address)
    never = _range_of(meant, _NEVER)
    if never:
        return never
    private = _range_of(meant, _PRIVATE)
    if private:
        return "" if any(meant in each and is_private(each) for each in opened) else private
    if isinstance(meant, IPv6Address) and meant not in _GLOBAL:
        return "reserved"
    return ""


def is_private(network: Network) -> bool:
    """Does it lie within one private range?"""
    return any(
        network.version == each.version and network.subnet_of(each)  # type: ignore[arg-type]  # The same version.
        for each, _ in _PRIVATE
    )


def never_reachable(network: Network) -> str:
    """What a network is, if no list can open any of it; empty otherwise."""
    for each, what in _NEVER:
        if network.version == each.version and network.subnet_of(each):  # type: ignore[arg-type]  # The same version.
            return what
    return ""


def _range_of(address: Address, ranges: Sequence[tuple[Network, str]]) -> str:
    return next((what for network, what in ranges if address in network), "")
