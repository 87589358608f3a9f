"""What a list of domains means: tables of cases, and what holds for every host."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.errors import ConfigurationError
from kakoi.network.domains import (
    EVERYTHING_PUBLIC,
    BadHostError,
    Domains,
    narrowed_lines,
    parse_domains,
    parse_host,
    parse_target,
)

LIST = parse_domains(
    [
        "example.org",
        "*.Example.NET.",
        "git.example.com:22",
        "any.example.com:*",
        "bücher.example",
        "203.0.113.0/24:8080",
        "[2001:db8:7::/48]:443",
        "8.8.8.8/32",
    ]
)


def reached(domains: Domains, host: str, port: int = 443) -> bool:
    """May a client that names this host go on to resolve it?"""
    try:
        return not domains.objection(parse_target(host, port))
    except BadHostError:
        return False


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.org", 443),
        ("example.org", 80),
        ("EXAMPLE.oRg", 443),
        ("example.org.", 443),
        ("a.example.net", 443),
        ("a.b.c.example.net", 80),
        ("git.example.com", 22),
        ("any.example.com", 1),
        ("any.example.com", 65535),
        ("xn--bcher-kva.example", 443),
        ("203.0.113.9", 8080),
        ("[2001:db8:7::1]", 443),
        ("8.8.8.8", 443),
    ],
)
def test_what_is_listed_may_be_reached(host: str, port: int) -> None:
    assert reached(LIST, host, port)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.com", 443),
        ("notexample.org", 443),
        ("example.org.evil.test", 443),
        ("sub.example.org", 443),
        ("example.net", 443),
        ("aexample.net", 443),
        ("example.org", 8443),
        ("git.example.com", 443),
        ("example.org..", 443),
        ("example.org\x00.evil.test", 443),
        ("example.org ", 443),
        ("example.org%00", 443),
        ("bücher.example", 443),
        ("ｅxample.org", 443),
        ("example。org", 443),
        ("203.0.113.9", 443),
        ("203.0.114.9", 8080),
        ("[2001:db8:8::1]", 443),
        ("", 443),
        (".", 443),
        ("example.org", 0),
        ("example.org", 65536),
    ],
)
def test_what_is_not_listed_may_not(host: str, port: int) -> None:
    assert not reached(LIST, host, port)


# Every one of them is 8.8.8.8 to some program.
SPELLINGS = """
    134744072 0x08080808 010.8.8.8 8.8.2056 8.526344 0x8.0x8.0x8.0x8 010.010.010.010 0X8.8.8.8
    [::ffff:8.8.8.8] ::ffff:808:808 [::8.8.8.8] [64:ff9b::8.8.8.8] [2002:808:808::] 8.8.8.8.8
    8.8.8.256 08.8.8.8 [fe80::1%25eth0] [fe80::1%eth0] [8.8.8.8] [::1 ::1] 1e1 0x
""".split()


@pytest.mark.parametrize("host", SPELLINGS)
def test_an_address_is_known_in_one_spelling_only(host: str) -> None:
    assert not reached(LIST, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "1.1.1.1", "[::1]", "[2606:4700::1]"])
def test_an_address_that_no_listed_network_holds_is_refused(host: str) -> None:
    assert not reached(LIST, host)


NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.255.0.1
    168.63.129.16 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1
    192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1
    239.255.255.250 240.0.0.1 255.255.255.255
    :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
    64:ff9b::127.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::10.0.0.1 100::1 2001::1
    2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe::
    2002:0808:0808:: 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fd20:ce::254 fe80::1 fe80::1%lo
    fec0::1 ff02::1
""".split()
PUBLIC = "1.1.1.1 8.8.8.8 172.32.0.1 2606:4700::1111 64:ff9b::8.8.8.8 ::ffff:8.8.8.8".split()


@pytest.mark.parametrize(
    "domains", [parse_domains(["example.org"]), EVERYTHING_PUBLIC], ids=["listed", "open"]
)
@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_no_name_leads_to_an_address_that_is_not_public(domains: Domains, address: str) -> None:
    assert domains.address_objection(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_reached(address: str) -> None:
    assert not EVERYTHING_PUBLIC.address_objection(ipaddress.ip_address(address))


def test_a_listed_private_network_opens_that_network_only() -> None:
    listed = parse_domains(["registry.corp.test", "10.1.0.0/16"])

    assert not listed.address_objection(ipaddress.ip_address("10.1.2.3"))
    assert not listed.address_objection(ipaddress.ip_address("::ffff:10.1.2.3"))
    assert listed.address_objection(ipaddress.ip_address("10.2.0.1"))
    assert listed.address_objection(ipaddress.ip_address("192.168.0.1"))


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "::/0", "8.0.0.0/5"])
def test_a_network_that_is_larger_than_a_private_one_opens_nothing_private(wide: str) -> None:
    listed = parse_domains([wide])

    for address in NOT_PUBLIC:
        assert listed.address_objection(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "line",
    [
        *(
            "127.0.0.0/8",
            "127.0.0.1/32",
            "169.254.169.254/32",
            "::1/128",
            "fe80::/10",
            "0.0.0.0/32",
        ),
        *("*", "*.*.org", "a*.org", "foo.*", "**.org", "*.", "", " ", "."),
        *("https://example.org", "example.org/path", "10.0.0.1", "10.0.0.1/8", "1.2.3/24"),
        *("example.org:0", "example.org:70000", "example.org:http", "example.org:", "a b.org"),
        *("straße.example", "xn--.\u200d.org", "[::1", "[2001:db8::/32]x", "exa\nmple.org"),
    ],
)
def test_a_line_that_means_nothing_or_too_much_is_an_error_that_names_it(line: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed_domains: `") as caught:
        parse_domains(["example.org", line])
    assert caught.value.hint


@pytest.mark.parametrize(
    "line", ["localhost", "LOCALHOST.", "localhost:8080", "*.localhost", "app.localhost:*"]
)
def test_the_machine_of_who_asks_is_not_listed(line: str) -> None:
    with pytest.raises(ConfigurationError, match="leave it out: a sandbox always reaches its own"):
        parse_domains([line])
    assert parse_domains(["notlocalhost", "localhost.example.org"]).entries


@pytest.mark.parametrize("line", ["127.0.0.1", "::1", "169.254.169.254"])
def test_an_address_that_no_list_opens_is_not_sent_on_to_be_listed_as_a_network(line: str) -> None:
    with pytest.raises(ConfigurationError, match="this network cannot be opened"):
        parse_domains([line])


def test_the_reason_says_what_to_add() -> None:
    assert LIST.objection(parse_target("example.com", 443)) == "it is not listed"
    assert "port 22" in LIST.objection(parse_target("example.org", 22))
    assert "network" in LIST.objection(parse_target("1.1.1.1", 443))


@pytest.mark.parametrize(
    ("host", "port", "tls"),
    [
        ("example.org", 443, True),
        ("example.org", 80, True),
        ("git.example.com", 22, False),
        ("any.example.com", 22, True),
        ("203.0.113.9", 8080, False),
    ],
)
def test_a_tunnel_is_tls_unless_its_port_was_listed_by_number(
    host: str, port: int, *, tls: bool
) -> None:
    assert LIST.needs_tls(parse_target(host, port)) is tls


# --- What holds for every host ---------------------------------------------------------------

ADDRESSES = st.ip_addresses()
LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=2, max_size=5).map(".".join)


@given(NAMES)
def test_a_name_has_one_spelling_whatever_its_case_and_last_dot(name: str) -> None:
    assert parse_host(name.upper() + ".") == parse_host(name) == name


@given(NAMES, NAMES)
def test_a_star_covers_what_is_below_and_nothing_else(name: str, other: str) -> None:
    listed = parse_domains([f"*.{name}"])

    assert reached(listed, f"x.{name}")
    assert not reached(listed, name)
    assert not reached(listed, f"x{name}")
    assert reached(listed, other) is other.endswith(f".{name}")


@given(st.text(max_size=40))
def test_no_text_is_taken_for_a_listed_name_but_its_spellings(text: str) -> None:
    listed = parse_domains(["example.org"])

    if reached(listed, text):
        assert text.lower().removesuffix(".") == "example.org"


@given(st.ip_addresses(v=4))
def test_every_spelling_of_an_address_is_the_address_or_an_error(
    address: ipaddress.IPv4Address,
) -> None:
    number = int(address)
    a, b, c, d = address.packed
    others = [f"{number}", f"{number:#x}", f"{a:#o}.{b}.{c}.{d}".replace("0o", "0")]
    others += [f"{a}.{number & 0xFFFFFF}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}", f"[::ffff:{address}]"]
    for text in [str(address), *others]:
        assert not reached(parse_domains(["*.test"]), text)
        try:
            found = parse_host(text)
        except BadHostError:
            continue
        assert not isinstance(found, str)


@given(ADDRESSES)
def test_what_python_calls_private_is_never_public_to_us(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not EVERYTHING_PUBLIC.address_objection(address):
        inside = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        # For what is translated, Python and its releases disagree: the address of IPv4 in it counts.
        translated = any(
            address in ipaddress.ip_network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48")
        )
        assert (inside or address).is_global or translated
        assert not (inside or address).is_multicast


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("a.org", "a.org", ["a.org"]),
        ("a.org", "b.org", []),
        ("x.a.org", "*.a.org", ["x.a.org"]),
        ("a.org", "*.a.org", []),
        ("*.x.a.org", "*.a.org", ["*.x.a.org"]),
        ("*.xa.org", "*.a.org", []),
        ("a.org:8443", "a.org", []),
        ("a.org:443", "a.org", ["a.org:443"]),
        ("a.org:*", "a.org", ["a.org"]),
        ("a.org:*", "a.org:*", ["a.org:*"]),
        ("10.1.0.0/16", "10.0.0.0/8", ["10.1.0.0/16"]),
        ("10.0.0.0/8:*", "10.1.0.0/16:22", ["10.1.0.0/16:22"]),
        ("[2001:db8::/64]:*", "[2001:db8::/32]:8080", ["[2001:db8::/64]:8080"]),
        # Every port, with TLS; the number alone would be one without.
        ("a.org:22", "a.org:*", ["a.org:*"]),
        ("10.0.0.0/8", "2001:db8::/32", []),
        ("a.org", "10.0.0.0/8", []),
    ],
)
def test_what_two_lists_have_in_common(one: str, other: str, both: list[str]) -> None:
    assert list(narrowed_lines(parse_domains([other]), parse_domains([one]))) == both
    assert [str(each) for each in parse_domains(both).entries] == both


hosts = st.sampled_from(["a.org", "x.a.org", "y.x.a.org", "xa.org", "10.1.0.1", "10.2.0.1"])
ports = st.sampled_from([80, 443, 22, 8443])
lines = st.builds(
    lambda host, port: f"{host}{port}",
    st.sampled_from(["a.org", "*.a.org", "x.a.org", "*.x.a.org", "10.1.0.0/16", "10.0.0.0/8"]),
    st.sampled_from(["", ":22", ":443", ":*"]),
)


@given(st.lists(lines, max_size=4), st.lists(lines, max_size=4), hosts, ports)
def test_a_narrowed_list_leads_to_where_both_do_and_no_further_than_ours(
    one: list[str], other: list[str], host: str, port: int
) -> None:
    ours, theirs = parse_domains(one), parse_domains(other)
    both = parse_domains(narrowed_lines(ours, theirs))
    target = parse_target(host, str(port))
    if not both.objection(target):
        assert not ours.objection(target)
        assert both.needs_tls(target) or not ours.needs_tls(target)
    elif not ours.objection(target):
        assert theirs.objection(target)
