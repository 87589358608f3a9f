"""Names that are made to be misread: newlines, escapes, options, bytes that are no text."""

import json
import os
from pathlib import Path

import pytest

from tests.attacks.conftest import Place
from tests.cli.terminals import Door, terminal

pytestmark = pytest.mark.anyio

NAMES = [
    b"-rf",
    b"--help",
    b"a\nb",
    b"a\rb",
    b"\x1b[2J",
    b"\x1b]0;title\x07",
    b"$(touch taken)",
    b"`touch taken`",
    b"; touch taken",
    b"a'b\"c",
    b" ",
    b"~",
    b"*",
    b"\xff\xfe",
    b"a" * 255,
    "\u202etxt.exe".encode(),
    b"\\",
    b".kakoi-0",
    b"%s%n",
]


async def test_files_of_any_name_are_read_written_and_listed_as_what_they_are(
    place: Place,
) -> None:
    channel = await place.sandbox.channel()
    names = [name.decode("utf-8", "surrogateescape") for name in NAMES]
    await place.bash("mkdir names")
    for name in names:
        await channel.write_file(f"{place.inside}/names/{name}", repr(name).encode())
    listed = await channel.list_files(f"{place.inside}/names")
    assert {entry.name for entry in listed} == set(names)
    for name in names:
        assert await channel.read_file(f"{place.inside}/names/{name}") == repr(name).encode()
    assert {os.fsencode(path.name) for path in (place.workspace / "names").iterdir()} == set(NAMES)


def test_a_workspace_with_such_a_name_is_reported_in_one_line(tmp_path: Path) -> None:
    workspace = tmp_path / "a\nb\x1b[2J"
    workspace.mkdir()
    door = Door(workspace, tmp_path / "log")
    with terminal(door, "run", "--sandbox", "bubblewrap", "sudo ls") as screen:
        assert screen.wait() == 126
        assert b"\x1b[2J" not in screen.screen
    status, out, _ = door("run", "--json", "--sandbox", "bubblewrap", "pwd")
    assert status == 0
    assert json.loads(out)["stdout"] == f"{workspace}\n"
    assert len((tmp_path / "log").read_text().splitlines()) >= 2
