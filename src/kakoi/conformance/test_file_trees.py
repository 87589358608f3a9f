"""Directories, streams and watches over the channel, with the rights of the commands."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Channel, FileEvent
from kakoi.conformance.sandbox_commands import TIMEOUT_S, output_of
from kakoi.errors import ConfigurationError, UnsupportedError

pytestmark = [pytest.mark.anyio, pytest.mark.needs("files")]

HOSTILE_NAMES = [
    *("two words", "a\nb", "'", "$(id)", "*", "-rf", "\\", "あ", "...", "x" * 255),
    b"\xff\xfe".decode("utf-8", "surrogateescape"),
]


async def paths(channel: Channel, folder: str, depth: int = 99) -> list[str]:
    found = await channel.list_files(folder, depth=depth)
    return [info.path.removeprefix(folder + "/") for info in found]


# --- Streams ---------------------------------------------------------------------------------


async def parts(count: int, size: int = MIB // 2) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * size


async def test_a_file_above_the_limit_for_bytes_is_streamed_both_ways(
    channel: Channel, folder: str
) -> None:
    await channel.write_file(f"{folder}/big", parts(140), mode=0o600)
    info = await channel.stat_file(f"{folder}/big")
    assert (info.size, info.mode) == (70 * MIB, 0o600)
    seen = 0
    async for part in channel.stream_file(f"{folder}/big", offset=1):
        assert part[0] == (1 + seen) // (MIB // 2)
        seen += len(part)
    assert seen == 70 * MIB - 1


async def test_an_empty_stream_is_an_empty_file(channel: Channel, folder: str) -> None:
    await channel.write_file(f"{folder}/empty", parts(0))
    assert await channel.read_file(f"{folder}/empty") == b""
    assert [part async for part in channel.stream_file(f"{folder}/empty")] == []


async def test_a_stream_that_fails_leaves_the_old_file(channel: Channel, folder: str) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x" * 2 * MIB
        raise ZeroDivisionError

    await channel.write_file(f"{folder}/file", b"old")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(channel.write_file(f"{folder}/file", failing()), TIMEOUT_S)
    assert await channel.read_file(f"{folder}/file") == b"old"
    assert await paths(channel, folder) == ["file"]


async def test_a_reader_can_leave_a_stream(channel: Channel, folder: str) -> None:
    await channel.write_file(f"{folder}/file", parts(40))
    async with contextlib.aclosing(channel.stream_file(f"{folder}/file")) as stream:
        assert await anext(stream)
    assert (await channel.stat_file(f"{folder}/file")).size == 20 * MIB


async def test_what_is_not_a_file_is_not_streamed(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"mkfifo {folder}/pipe")
    for path in (folder, f"{folder}/pipe", f"{folder}/gone", "/dev/zero"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is up to the system
            await asyncio.wait_for(anext(aiter(channel.stream_file(path))), TIMEOUT_S)
    for path in (folder, f"{folder}/gone/file"):
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.wait_for(channel.write_file(path, parts(9)), TIMEOUT_S)


# --- Directories -----------------------------------------------------------------------------


async def test_a_tree_is_listed_by_name_each_directory_before_its_content(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    text = "mkdir -p b/c/d a && : >b/c/d/deep && : >b/x && : >'b/c z' && ln -s ../b a/link && : >.h"
    await output_of(sandbox, f"cd {folder} && {text}")
    everything = [".h", "a", "a/link", "b", "b/c", "b/c/d", "b/c/d/deep", "b/c z", "b/x"]
    assert await paths(channel, folder) == everything
    assert await paths(channel, folder, depth=1) == [".h", "a", "b"]
    assert await paths(channel, folder, depth=2) == [
        ".h",
        "a",
        "a/link",
        "b",
        "b/c",
        "b/c z",
        "b/x",
    ]
    (link,) = await channel.list_files(f"{folder}/a")
    assert (link.name, link.kind, link.target) == ("link", "link", "../b")
    with pytest.raises(OSError, match="more than 8"):
        await channel.list_files(folder, depth=9, limit=8)


async def test_owner_group_and_target_are_reported(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"cd {folder} && : >file && ln -s 'some\nwhere//else' link")
    who = await output_of(sandbox, f"cd {folder} && stat -c '%U %u %G %g' file")
    user, uid, group, gid = who.split()
    owner = (uid if user == "UNKNOWN" else user, gid if group == "UNKNOWN" else group)
    listed = {info.name: info for info in await channel.list_files(folder)}
    for info in (await channel.stat_file(f"{folder}/file"), listed["file"]):
        assert (info.owner, info.group, info.target) == (*owner, "")
        assert info.path == f"{folder}/file"
    for info in (await channel.stat_file(f"{folder}/link"), listed["link"]):
        assert info.target == "some\nwhere//else"


async def test_two_thousand_entries_are_listed_and_removed(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"mkdir {folder}/many && cd {folder}/many && seq 2000 | xargs touch")
    found = await channel.list_files(folder, depth=2, limit=2_001)
    assert len(found) == 2_001
    assert [info.name for info in found] == ["many", *sorted(map(str, range(1, 2_001)))]
    with pytest.raises(OSError) as failure:  # noqa: PT011 - the number says which
        await channel.list_files(f"{folder}/many", limit=1_999)
    assert failure.value.errno == errno.EOVERFLOW
    await channel.remove_file(f"{folder}/many", recursive=True)
    assert await paths(channel, folder) == []


async def test_directories_are_made_with_those_above_them(channel: Channel, folder: str) -> None:
    assert await channel.make_dir(f"{folder}/a/b/c", mode=0o750) is True
    assert await channel.make_dir(f"{folder}/a/b/c") is False
    assert (await channel.stat_file(f"{folder}/a/b/c")).mode == 0o750
    assert await channel.make_dir(f"{folder}/d/", parents=False) is True
    with pytest.raises(FileNotFoundError):
        await channel.make_dir(f"{folder}/x/y", parents=False)
    await channel.write_file(f"{folder}/file", b"")
    with pytest.raises(FileExistsError):
        await channel.make_dir(f"{folder}/file")
    with pytest.raises(OSError):  # noqa: PT011 - which one is up to the tool
        await channel.make_dir(f"{folder}/file/below")


async def test_a_move_is_a_rename(sandbox: SandboxAdapter, channel: Channel, folder: str) -> None:
    text = "mkdir full empty dir && : >full/x && echo old >old && echo new >new && ln -s full link"
    await output_of(sandbox, f"cd {folder} && {text}")
    await channel.move_file(f"{folder}/new", f"{folder}/old")
    assert await channel.read_file(f"{folder}/old") == b"new\n"
    refused = [
        ("old", "full", errno.EISDIR),
        ("dir", "old", errno.ENOTDIR),
        ("dir", "full", errno.ENOTEMPTY),
        ("full", "full/below", errno.EINVAL),
        ("gone", "else", errno.ENOENT),
        ("old", "gone/old", errno.ENOENT),
    ]
    for source, destination, code in refused:
        with pytest.raises(OSError) as failure:  # noqa: PT011 - the number says which
            await channel.move_file(f"{folder}/{source}", f"{folder}/{destination}")
        assert failure.value.errno == code, (source, destination)
    await channel.move_file(f"{folder}/full", f"{folder}/empty")
    await channel.move_file(f"{folder}/old", f"{folder}/link")
    assert await paths(channel, folder) == ["dir", "empty", "empty/x", "link"]
    assert await channel.read_file(f"{folder}/link") == b"new\n"
    await channel.move_file(f"{folder}/dir", f"{folder}/dir")
    assert "dir" in await paths(channel, folder)


async def test_a_removal_never_follows_a_link(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    text = "mkdir -p kept dir/sub && : >kept/file && ln -s ../kept dir/link && ln -s kept link"
    await output_of(sandbox, f"cd {folder} && {text} && ln -s nowhere dangling")
    with pytest.raises(IsADirectoryError):
        await channel.remove_file(f"{folder}/dir")
    await channel.remove_file(f"{folder}/dir", recursive=True)
    await channel.remove_file(f"{folder}/link/", recursive=True)
    await channel.remove_file(f"{folder}/dangling")
    assert await paths(channel, folder) == ["kept", "kept/file"]
    await channel.remove_file(f"{folder}/kept/file")
    with pytest.raises(FileNotFoundError):
        await channel.remove_file(f"{folder}/kept/file")
    for path in (f"{folder}/kept/.", f"{folder}/kept/..", "/"):
        with pytest.raises(OSError):  # noqa: PT011
            await channel.remove_file(path, recursive=True)


async def test_what_the_user_may_not_remove_or_read_is_reported(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    text = "mkdir -p dir/locked/sub dir/open && : >dir/open/file && chmod 0 dir/locked; id -u"
    if (await output_of(sandbox, f"cd {folder} && {text}")).strip() == "0":
        await channel.remove_file(f"{folder}/dir", recursive=True)  # Root may do everything.
        return
    assert "dir/locked/sub" not in await paths(channel, folder)
    with pytest.raises(PermissionError):
        await channel.list_files(f"{folder}/dir/locked")
    with pytest.raises(PermissionError):
        await channel.remove_file(f"{folder}/dir", recursive=True)
    assert await paths(channel, folder) == ["dir", "dir/locked"]
    await output_of(sandbox, f"chmod 700 {folder}/dir/locked")
    await channel.remove_file(f"{folder}/dir", recursive=True)
    assert await paths(channel, folder) == []


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_a_hostile_name_is_only_a_name_in_a_tree(
    channel: Channel, folder: str, name: str
) -> None:
    assert await channel.make_dir(f"{folder}/{name}/{name}")
    await channel.write_file(f"{folder}/file", parts(1, 9))
    await channel.move_file(f"{folder}/file", f"{folder}/{name}/{name}/{name}")
    assert await paths(channel, folder) == [name, f"{name}/{name}", f"{name}/{name}/{name}"]
    assert [p async for p in channel.stream_file(f"{folder}/{name}/{name}/{name}")] == [bytes(9)]
    await channel.remove_file(f"{folder}/{name}", recursive=True)
    assert await paths(channel, folder) == []


async def test_a_path_that_cannot_be_is_refused_with_the_name_of_the_argument(
    channel: Channel,
) -> None:
    for bad, why in (("/a\0b", "contains a NUL"), ("/\ud800", "surrogate"), ("", "is empty")):
        for call in (
            channel.read_file(bad),
            channel.write_file(bad, b""),
            channel.list_files(bad),
            channel.stat_file(bad),
            channel.make_dir(bad),
            channel.remove_file(bad),
            anext(aiter(channel.stream_file(bad))),
        ):
            with pytest.raises(ConfigurationError, match=f"^path .*{why}|^path {why}"):
                await call
        with pytest.raises(ConfigurationError, match=r"^source "):
            await channel.move_file(bad, "/x")
        with pytest.raises(ConfigurationError, match=r"^destination "):
            await channel.move_file("/x", bad)
    with pytest.raises(ConfigurationError, match=r"^depth is 0"):
        await channel.list_files("/", depth=0)
    with pytest.raises(ConfigurationError, match=r"^mode is "):
        await channel.make_dir("/x", mode=0o10000)


# --- Watches ---------------------------------------------------------------------------------


watches = pytest.mark.needs("watches")


@pytest.fixture
async def watcher(sandbox: SandboxAdapter, channel: Channel) -> Channel:
    """The channel of a sandbox that can watch: an image without python3 has no means to."""
    if not await output_of(sandbox, "command -v python3; true"):
        pytest.skip("there is no python3 in this sandbox")
    return channel


async def until(events: AsyncIterator[FileEvent], kind: str, path: str) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for event in events:
            seen.append((event.kind, event.path))
            if seen[-1] == (kind, path):
                break
    return seen


@watches
async def test_a_new_file_is_created_and_written_and_removed(
    sandbox: SandboxAdapter, watcher: Channel, folder: str
) -> None:
    async with watcher.watch_files(folder) as events:
        text = "echo hi >file; chmod 700 file; mv file 'other\nname'; rm other*; : >end"
        await output_of(sandbox, f"cd {folder}; {text}")
        seen = await until(events, "created", f"{folder}/end")
    file, other = f"{folder}/file", f"{folder}/other\nname"
    for event in (
        ("created", file),
        ("written", file),
        ("mode_changed", file),
        ("renamed", file),
        ("created", other),
        ("removed", other),
    ):
        assert event in seen
    assert seen.index(("created", file)) < seen.index(("written", file))


@watches
async def test_directories_that_are_made_later_are_watched(
    sandbox: SandboxAdapter, watcher: Channel, folder: str
) -> None:
    await output_of(sandbox, f"mkdir -p {folder}/old/deep")
    async with watcher.watch_files(folder, recursive=True) as events:
        text = "mkdir -p new/a/b; echo 1 >new/a/b/file; mv old moved; echo 2 >moved/deep/file"
        await output_of(sandbox, f"cd {folder}; {text}; : >end")
        seen = await until(events, "created", f"{folder}/end")
        for path in ("new/a/b/file", "moved/deep/file"):
            assert ("created", f"{folder}/{path}") in seen
            assert ("written", f"{folder}/{path}") in seen
        assert ("renamed", f"{folder}/old") in seen
        await output_of(sandbox, f"echo 3 >{folder}/moved/deep/more")
        await until(events, "written", f"{folder}/moved/deep/more")


@watches
async def test_a_watch_ends_with_what_is_watched(
    sandbox: SandboxAdapter, watcher: Channel, folder: str
) -> None:
    await watcher.make_dir(f"{folder}/dir")
    async with watcher.watch_files(f"{folder}/dir", recursive=True) as events:
        await output_of(sandbox, f"rmdir {folder}/dir")
        async with asyncio.timeout(TIMEOUT_S):
            seen = [(event.kind, event.path) async for event in events]
        assert seen == [("removed", f"{folder}/dir")]


@watches
async def test_a_file_is_watched_through_its_replacement(
    sandbox: SandboxAdapter, watcher: Channel, folder: str
) -> None:
    await watcher.write_file(f"{folder}/file", b"1")
    async with watcher.watch_files(f"{folder}/file") as events:
        await output_of(sandbox, f"echo x >{folder}/beside")
        for data in (b"2", b"3"):
            await watcher.write_file(f"{folder}/file", data)
            seen = await until(events, "written", f"{folder}/file")
            assert {path for _, path in seen} == {f"{folder}/file"}


@watches
async def test_what_is_missing_cannot_be_watched(watcher: Channel, folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        async with watcher.watch_files(f"{folder}/gone"):
            pass


async def test_what_cannot_be_watched_says_so(channel: Channel, folder: str) -> None:
    """A sandbox watches files, or says that it cannot and what would help."""
    try:
        async with channel.watch_files(folder):
            return
    except UnsupportedError as unsupported:
        error = unsupported
    assert error.code == "UNSUPPORTED"
    assert error.hint
