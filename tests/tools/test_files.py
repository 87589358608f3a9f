"""The file tools: judged, recorded, and confined to the workspace."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from kakoi.tools.toolset import Toolset
from tests.tools.places import ToolPlace

pytestmark = pytest.mark.anyio


async def test_files_are_written_edited_read_and_listed(tools: Toolset, place: ToolPlace) -> None:
    await tools.call("write_file", {"path": "a.txt", "content": "one\ntwo\ntwo\n"})
    (place.workspace / "a.txt").chmod(0o755)
    edit = {"path": "a.txt", "old_text": "one", "new_text": "größer"}
    assert (await tools.call("edit_file", edit)).text.startswith("[1 replacement")
    assert (place.workspace / "a.txt").read_text() == "größer\ntwo\ntwo\n"
    assert (place.workspace / "a.txt").stat().st_mode & 0o777 == 0o755
    part = await tools.call("read_file", {"path": "a.txt", "first_line": 2, "lines": 1})
    assert part.text == "two\n[lines 2-2 of 3 | 17 bytes]"
    listed = await tools.call("list_files", {})
    assert listed.meta["files"] == [{"name": "a.txt", "kind": "file", "bytes": 17}]


async def test_an_edit_must_find_its_text_exactly_once(tools: Toolset, place: ToolPlace) -> None:
    (place.workspace / "a.txt").write_text("two\ntwo\n")
    for old, words in (("three", "was not found in"), ("two", "2 times"), ("", "is empty")):
        edit = {"path": "a.txt", "old_text": old, "new_text": "x"}
        result = await tools.call("edit_file", edit)
        assert result.is_error
        assert words in result.text
    assert (place.workspace / "a.txt").read_text() == "two\ntwo\n"
    every = {"path": "a.txt", "old_text": "two", "new_text": "x", "replace_all": True}
    assert (await tools.call("edit_file", every)).meta["replacements"] == 2


async def test_edits_at_once_do_not_lose_each_other(tools: Toolset, place: ToolPlace) -> None:
    (place.workspace / "a.txt").write_text("".join(f"line {n};\n" for n in range(20)))
    async with anyio.create_task_group() as group:
        for n in range(20):
            edit = {"path": "a.txt", "old_text": f"line {n};", "new_text": f"done {n};"}
            group.start_soon(tools.call, "edit_file", edit)
    assert (place.workspace / "a.txt").read_text().count("done") == 20


async def test_no_path_leads_out_of_the_workspace(
    tools: Toolset, place: ToolPlace, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (place.workspace / "link").symlink_to(tmp_path / "outside")
    (place.workspace / "file").symlink_to(tmp_path / "outside" / "secret")
    for path in ("../outside/secret", "link/secret", "file", "/etc/passwd", str(tmp_path), "/"):
        for tool, more in (
            ("read_file", {}),
            ("list_files", {}),
            ("write_file", {"content": "x"}),
            ("edit_file", {"old_text": "secret", "new_text": "x"}),
        ):
            result = await tools.call(tool, {"path": path, **more})
            assert result.is_error, (tool, path)
            assert "outside the workspace" in result.text
    assert (tmp_path / "outside" / "secret").read_text() == "secret"


async def test_odd_files_are_told_and_not_shown(tools: Toolset, place: ToolPlace) -> None:
    (place.workspace / "binary").write_bytes(b"\x7fELF\0\xff")
    os.mkfifo(place.workspace / "pipe")
    (place.workspace / "big").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    (place.workspace / "odd\x1b[31m\n").touch()
    result = await tools.call("read_file", {"path": "binary"})
    assert result.meta["binary"]
    assert "\x7f" not in result.text
    assert (await tools.call("read_file", {"path": "pipe"})).is_error
    assert (await tools.call("read_file", {"path": "."})).is_error
    big = await tools.call("read_file", {"path": "big"})
    assert big.is_error
    assert "more than 4194304 bytes" in big.text
    listed = (await tools.call("list_files", {})).text
    assert "odd\\x1b[31m\\x0a" in listed
    assert "\x1b" not in listed
    missing = await tools.call("write_file", {"path": "no/such/x", "content": ""})
    assert "mkdir -p" in missing.text


async def test_files_are_judged_and_recorded_as_what_is_done_to_them(
    tools: Toolset, place: ToolPlace
) -> None:
    (place.workspace / ".git").mkdir()
    hook = {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"}
    refused = await tools.call("write_file", hook)
    assert refused.is_error
    assert refused.text.startswith("ask[write-git]")
    await tools.call("write_file", {"path": "a", "content": "x"})
    records = [json.loads(line) for line in place.log.read_text().splitlines()]
    assert [record["event"] for record in records] == ["asked", "declined", "started", "ended"]
    assert records[2]["command"] == f"write {place.workspace}/a"


async def test_a_listing_goes_as_deep_as_asked_and_follows_no_link(
    tools: Toolset, place: ToolPlace, tmp_path: Path
) -> None:
    (place.workspace / "a" / "b" / "c").mkdir(parents=True)
    (place.workspace / "a" / "b" / "file").write_text("four")
    (place.workspace / "a" / "b" / "\x1b[2J\n").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (place.workspace / "link").symlink_to(tmp_path / "outside")

    async def names(**arguments: Any) -> list[str]:
        listed = await tools.call("list_files", arguments)
        assert not listed.is_error, listed.text
        assert f"[entries: {len(listed.meta['files'])} | " in listed.text
        return [file["name"] for file in listed.meta["files"]]

    assert await names() == ["a", "link"]
    assert await names(depth=2) == ["a", "a/b", "link"]
    deep = ["a", "a/b", "a/b/\\x1b[2J\\x0a", "a/b/c", "a/b/file", "link"]
    assert await names(depth=32) == deep
    assert await names(path="a/b", depth=3) == ["\\x1b[2J\\x0a", "c", "file"]
    text = (await tools.call("list_files", {"depth": 3})).text
    assert "         4  a/b/file\n" in text
    assert "a/b/\n" in text
    for wrong in (0, -1, 33, 10**9):
        assert (await tools.call("list_files", {"depth": wrong})).is_error


async def test_a_listing_has_an_end(place: ToolPlace) -> None:
    folder = place.workspace / "many"
    folder.mkdir()
    for number in range(2001):
        (folder / f"{number:04}").touch()
    async with place.open() as tools:
        for arguments in ({"path": "many"}, {"depth": 2}):
            refused = await tools.call("list_files", arguments)
            assert refused.is_error
            assert "has more than 2000 entries" in refused.text
        assert "a smaller `depth`" in refused.text
    (folder / "0000").unlink()
    short = ToolPlace(place.folder, settings={"execution.max_output_size": 1000})
    async with short.open() as tools:
        listed = await tools.call("list_files", {"path": "many"})
    # A line has 17 characters: ten for the size, two spaces, four for the name, and its end.
    assert len(listed.meta["files"]) == 1000 // 17
    assert "entries: 2000 | cut: the first 58 are shown | " in listed.text
    assert len(listed.text) < 1200
    records = [json.loads(line) for line in place.log.read_text().splitlines()]
    assert records[-1]["event"] == "ended"
    assert records[-2]["command"] == f"list {folder}"
