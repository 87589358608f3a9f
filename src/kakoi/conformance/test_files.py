"""Files of the sandbox over the channel, with the rights of the user that runs the commands."""

import asyncio
import errno

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Channel, Command
from kakoi.conformance.sandbox_commands import output_of

pytestmark = [pytest.mark.anyio, pytest.mark.needs("files")]

BINARY = bytes(range(256)) * 1000
HOSTILE_NAMES = [
    *("two words", "a\nb", "'", '"', "$(id)", "`id`", ";", "*", "-rf", "~", "\\", "あ", "..."),
    b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "x" * 255,
]


async def test_what_is_written_is_read_back(channel: Channel, folder: str) -> None:
    for data in (b"", b"hello\n", BINARY):
        await channel.write_file(f"{folder}/file", data)
        same = await channel.read_file(f"{folder}/file") == data
        assert same


async def test_commands_and_the_channel_see_the_same_file(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await channel.write_file(f"{folder}/ours", b"from us\n")
    assert await output_of(sandbox, f"cat {folder}/ours; echo from a command >{folder}/theirs") == (
        "from us\n"
    )
    assert await channel.read_file(f"{folder}/theirs") == b"from a command\n"


async def test_twenty_megabytes_arrive_unchanged(channel: Channel, folder: str) -> None:
    data = BINARY * 80
    await channel.write_file(f"{folder}/file", data)
    same = await channel.read_file(f"{folder}/file") == data
    assert same


async def test_a_part_can_be_read(channel: Channel, folder: str) -> None:
    await channel.write_file(f"{folder}/file", b"0123456789")
    assert await channel.read_file(f"{folder}/file", offset=7) == b"789"
    assert await channel.read_file(f"{folder}/file", offset=10) == b""
    assert await channel.read_file(f"{folder}/file", offset=99) == b""


async def test_a_file_that_is_too_big_is_refused_and_not_cut(channel: Channel, folder: str) -> None:
    await channel.write_file(f"{folder}/file", b"0123456789")
    assert await channel.read_file(f"{folder}/file", limit=10) == b"0123456789"
    with pytest.raises(OSError, match="more than 9 bytes") as failure:
        await channel.read_file(f"{folder}/file", limit=9)
    assert failure.value.errno == errno.EFBIG


async def test_a_file_without_end_is_refused(channel: Channel, sandbox: SandboxAdapter) -> None:
    for path in ("/dev/zero", "/proc/kmsg", "/dev/tty"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is up to the system
            await asyncio.wait_for(channel.read_file(path, limit=MIB), 30)
    assert await output_of(sandbox, "echo hi") == "hi\n"


async def test_a_pipe_in_the_place_of_a_file_stops_nobody(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"mkfifo {folder}/pipe")
    with pytest.raises(OSError):  # noqa: PT011 - which one is up to the system
        await asyncio.wait_for(channel.read_file(f"{folder}/pipe"), 30)
    assert await output_of(sandbox, "echo hi") == "hi\n"


async def test_what_is_missing_is_reported(channel: Channel, folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        await channel.read_file(f"{folder}/gone")
    with pytest.raises(FileNotFoundError):
        await channel.stat_file(f"{folder}/gone")
    with pytest.raises(FileNotFoundError):
        await channel.list_files(f"{folder}/gone")
    with pytest.raises(FileNotFoundError):
        await channel.write_file(f"{folder}/gone/file", b"x")


async def test_a_directory_is_not_a_file_and_a_file_is_not_a_directory(
    channel: Channel, folder: str
) -> None:
    await channel.write_file(f"{folder}/file", b"x")
    with pytest.raises(IsADirectoryError):
        await channel.read_file(folder)
    with pytest.raises(IsADirectoryError):
        await channel.write_file(folder, b"x")
    with pytest.raises(NotADirectoryError):
        await channel.list_files(f"{folder}/file")
    with pytest.raises(NotADirectoryError):
        await channel.read_file(f"{folder}/file/x")


async def test_the_rights_of_commands_are_the_rights_of_files(channel: Channel) -> None:
    """Nobody, not even root, can create a file in /proc."""
    with pytest.raises(OSError):  # noqa: PT011 - which one is up to the system
        await channel.write_file("/proc/kakoi", b"x")


async def test_stat_reports_kind_size_and_mode(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await channel.write_file(f"{folder}/file", b"12345", mode=0o750)
    await output_of(
        sandbox, f"cd {folder} && ln -s nowhere link && mkfifo pipe && mkdir -m 700 sub"
    )
    file, link, pipe, sub = [
        await channel.stat_file(f"{folder}/{name}") for name in ("file", "link", "pipe", "sub")
    ]
    assert (file.name, file.kind, file.size, file.mode) == ("file", "file", 5, 0o750)
    assert [link.kind, pipe.kind, sub.kind, sub.mode] == ["link", "other", "directory", 0o700]
    now = float(await output_of(sandbox, "date +%s"))
    assert now - 300 < file.modified_s < now + 300


async def test_a_listing_has_everything_once(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"cd {folder} && : >a && : >.hidden && mkdir b && ln -s nowhere c")
    found = {info.name: info.kind for info in await channel.list_files(folder)}
    assert found == {"a": "file", ".hidden": "file", "b": "directory", "c": "link"}
    assert await channel.list_files(f"{folder}/b") == []


async def test_a_listing_that_is_too_long_is_refused_and_not_cut(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"cd {folder} && for i in 1 2 3 4 5; do : >$i; done")
    assert len(await channel.list_files(folder, limit=5)) == 5
    with pytest.raises(OSError, match="more than 4"):
        await channel.list_files(folder, limit=4)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_a_hostile_name_is_only_a_name(
    sandbox: SandboxAdapter, channel: Channel, folder: str, name: str
) -> None:
    path = f"{folder}/{name}"
    await channel.write_file(path, b"content")
    assert await channel.read_file(path) == b"content"
    assert (await channel.stat_file(path)).name == name
    assert [info.name for info in await channel.list_files(folder)] == [name]
    assert (await sandbox.run(Command(command=["cat", path]))).stdout == "content"


async def test_a_name_that_is_too_long_is_an_error(channel: Channel, folder: str) -> None:
    with pytest.raises(OSError) as failure:  # noqa: PT011 - the number says which
        await channel.write_file(f"{folder}/{'x' * 256}", b"content")
    assert failure.value.errno == errno.ENAMETOOLONG


async def test_a_link_is_followed_to_its_file(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    await output_of(sandbox, f"cd {folder} && echo old >file && ln -s file link")
    assert await channel.read_file(f"{folder}/link") == b"old\n"
    await channel.write_file(f"{folder}/link", b"new\n")
    assert await output_of(sandbox, f"cd {folder} && cat file && test -L link && echo link") == (
        "new\nlink\n"
    )


async def test_a_reader_sees_the_old_file_or_the_new_one(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    """The checker stops at the first mixed content. A marker file ends it when writing is done."""
    size = MIB
    await channel.write_file(f"{folder}/file", b"a" * size)
    text = """
until [ -e done ]; do
    kinds=$(fold -w 1024 file | sort -u | wc -l)
    [ $kinds = 1 ] && [ $(wc -c <file) = $1 ] || { echo mixed $kinds; exit 1; }
done"""
    command = Command(command=["sh", "-c", text, "x", str(size)], cwd=folder, timeout_s=120)
    checker = asyncio.create_task((await sandbox.channel()).run(command))
    for number in range(30):
        await channel.write_file(f"{folder}/file", (b"b" if number % 2 else b"a") * size)
    await channel.write_file(f"{folder}/done", b"")
    result = await checker
    assert (result.exit_code, result.stdout) == (0, "")
    assert {info.name for info in await channel.list_files(folder)} == {"file", "done"}


async def test_a_write_that_is_cancelled_leaves_the_old_file(channel: Channel, folder: str) -> None:
    await channel.write_file(f"{folder}/file", b"old")
    task = asyncio.create_task(channel.write_file(f"{folder}/file", bytes(32 * MIB)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await channel.read_file(f"{folder}/file") == b"old"
    # The channel answers in order, so the temporary file is gone by now.
    assert [info.name for info in await channel.list_files(folder)] == ["file"]


async def test_many_files_at_once(channel: Channel, folder: str) -> None:
    names = [f"{folder}/{number}" for number in range(50)]
    await asyncio.gather(*(channel.write_file(name, name.encode() * 1000) for name in names))
    found = await asyncio.gather(*(channel.read_file(name) for name in names))
    assert found == [name.encode() * 1000 for name in names]
