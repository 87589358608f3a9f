"""What a sandbox without Python says of its files is parsed, or is a breach."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.channel.posix.protocol import BreachError, parse_files, parse_stat


def entry(path: str, mode: str = "81a4", owner: str = "0 0 root/root") -> bytes:
    return f"//{mode} 5 1700000000 {owner}/./{path}\n".encode("utf-8", "surrogateescape")


def link(path: str, target: str) -> bytes:
    name = f"./{path}".encode()
    return b"%d %d %s%s" % (len(name), len(target.encode()), name, target.encode())


DIRECTORY, LINK = "41ed", "a1ff"


def test_a_listing_is_sorted_and_complete() -> None:
    said = entry("b/x") + entry("b", DIRECTORY) + entry("a\nb c") + entry("l", LINK)
    found = parse_files("/top/", said, link("l", "some//where\n") + link("gone", "x"))
    assert [info.path for info in found] == ["/top/a\nb c", "/top/b", "/top/b/x", "/top/l"]
    assert [info.kind for info in found] == ["file", "directory", "file", "link"]
    assert [info.target for info in found] == ["", "", "", "some//where\n"]
    assert (found[0].owner, found[0].group, found[0].name) == ("root", "root", "a\nb c")


def test_an_account_without_a_name_has_a_number() -> None:
    (info,) = parse_files("/", entry("a", owner="1000 7 UNKNOWN/UNKNOWN"), b"")
    assert (info.owner, info.group, info.path) == ("1000", "7", "/a")


def test_what_lost_its_directory_meanwhile_is_left_out() -> None:
    assert parse_files("/top", entry("gone/file"), b"") == []
    assert [i.name for i in parse_files("/top", entry("l", LINK) + entry("l/x"), b"")] == ["l"]


@pytest.mark.parametrize(
    "said",
    [
        entry(".."),
        entry("a/../b"),
        entry("./a"),
        entry("a/"),
        entry("a\0"),
        entry("a").replace(b"/./", b"/"),
        entry("a", owner="root root x/y"),
        entry("a", mode="zz"),
        entry("a")[:-1],
        b"//\n",
    ],
)
def test_an_entry_elsewhere_or_in_another_shape_is_a_breach(said: bytes) -> None:
    with pytest.raises(BreachError):
        parse_files("/top", said, b"")


@pytest.mark.parametrize(
    "links", [b"", b"9", b"3 4 ./a", b"9999 9999 ./a", b"x y ./a", b"3 -1 ./aX"]
)
def test_links_that_make_no_sense_have_no_target(links: bytes) -> None:
    (info,) = parse_files("/top", entry("link", LINK), links)
    assert info.target == ""


def test_a_file_is_described_with_its_target() -> None:
    info = parse_stat("/a/l", b"a1ff 5 1700000000 0 0 root/root\nsome\nwhere\n")
    assert (info.name, info.kind, info.target) == ("l", "link", "some\nwhere")
    info = parse_stat("/a/f/", b"81a4 5 -5 0 0 root/root\n")
    assert (info.name, info.kind, info.target, info.modified_s) == ("f", "file", "", -5.0)


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_any_reply_is_a_listing_or_a_breach(said: bytes, links: bytes) -> None:
    with contextlib.suppress(BreachError):
        parse_files("/top", b"//" + said, links)
    with contextlib.suppress(BreachError):
        parse_stat("/top", said)
