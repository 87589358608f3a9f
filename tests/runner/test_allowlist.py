"""Names of programs → files that may be executed, in a place that is made up."""

import os
import struct
from pathlib import Path

import pytest

from kakoi.policy.blocked_commands import with_blocked
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.runner.allowlist import Programs, find_programs
from kakoi.runner.restrictions import EXECUTE, READ_FILE, REFER


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("bin", "other", "lib", "work/bin"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def program(path: Path, content: bytes = b"\x00") -> Path:
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def elf(loader: str) -> bytes:
    """As little of one as names its loader."""
    text = loader.encode() + b"\0"
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1
    )
    table = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(text), len(text), 1)
    return header.ljust(64, b"\0") + table + text


def found(place: Path, *names: str) -> set[str]:
    path = f"{place}/bin:{place}/other:relative:{place}/work/bin"
    files = Programs(names, path, [f"{place}/work"]).files
    return {os.path.relpath(file, place) for file in files}


def test_a_name_is_every_file_of_that_name_on_the_path_with_links_followed(place: Path) -> None:
    program(place / "lib" / "real")
    (place / "bin" / "tool").symlink_to("../lib/alternative")
    (place / "lib" / "alternative").symlink_to("real")
    program(place / "other" / "tool")
    assert found(place, "tool") == {"lib/real", "other/tool"}


def test_a_script_brings_its_interpreter_and_what_that_needs(place: Path) -> None:
    loader = program(place / "lib" / "ld.so")
    program(place / "bin" / "language", elf(str(loader)))
    program(place / "bin" / "env", elf(str(loader)))
    program(place / "bin" / "script", f"#!{place}/bin/env -S language -x\n".encode())
    program(place / "bin" / "direct", f"#! {place}/bin/language\n".encode())
    wanted = {"bin/script", "bin/env", "bin/language", "lib/ld.so"}
    assert found(place, "script") == wanted
    assert found(place, "direct") == {"bin/direct", "bin/language", "lib/ld.so"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!",
        b"#!\n",
        b"#! \0",
        b"\x7fELF",
        b"\x7fELF\x02\x01" + b"\xff" * 250,
        elf("/nowhere"),
    ],
)
def test_a_broken_file_brings_nothing(place: Path, content: bytes) -> None:
    program(place / "bin" / "tool", content)
    assert found(place, "tool") == {"bin/tool"}


def test_scripts_that_interpret_each_other_come_to_an_end(place: Path) -> None:
    program(place / "bin" / "a", f"#!{place}/bin/b\n".encode())
    program(place / "bin" / "b", f"#!{place}/bin/a\n".encode())
    assert found(place, "a") == {"bin/a", "bin/b"}


def test_what_commands_can_write_is_nobodys_program(place: Path) -> None:
    program(place / "work" / "bin" / "mine")
    (place / "bin" / "link").symlink_to(place / "work" / "bin" / "mine")
    assert found(place, "mine", "link", "missing") == set()


def test_neither_a_folder_nor_a_file_without_the_bit_is_a_program(place: Path) -> None:
    (place / "bin" / "folder").mkdir()
    (place / "bin" / "text").write_text("x", encoding="ascii")
    assert found(place, "folder", "text") == set()


def test_other_programs_are_not_even_read(place: Path) -> None:
    tool = program(place / "bin" / "tool")
    program(place / "bin" / "other")
    programs = Programs(["tool"], f"{place}/bin", [])
    granted = dict(programs.grants())
    assert granted[str(tool)] == EXECUTE | READ_FILE
    assert granted["/"] == REFER
    assert granted[f"{place}/lib"] == READ_FILE
    assert f"{place}/bin" not in granted
    assert str(place) not in granted
    assert not any(path.startswith("/usr/bin/") for path in granted)


def test_without_names_nothing_is_found() -> None:
    restrictions: dict[str, object] = {}
    find_programs(restrictions, "/bin", "/bin/sh")
    assert restrictions == {}


# --- Which names -----------------------------------------------------------------------------


def test_the_list_is_what_the_policy_lets_run_in_some_way() -> None:
    programs = load_policy().runnable_programs()
    assert programs is not None
    assert {"ls", "python3", "git", "go", "perl"} <= programs  # One of them asks first.
    assert programs.isdisjoint({"nc", "sudo", "mount", "git push"})


def test_what_a_user_adds_removes_or_blocks_counts() -> None:
    allowed = AllowedCommands(additional=("frob push",), exclude=("ls",))
    policy = with_blocked(load_policy(allowed=allowed), ["curl", "git push"], origin="test")
    programs = policy.runnable_programs()
    assert programs is not None
    assert {"frob", "git"} <= programs
    assert programs.isdisjoint({"ls", "curl"})
