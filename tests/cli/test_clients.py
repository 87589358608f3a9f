"""`kakoi client install`: the entry is there, everything else is as it was."""

import contextlib
import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.cli.commands.client.clients import CLIENTS
from kakoi.cli.commands.client.config_file import CannotMerge, with_json_entry, with_toml_entry
from kakoi.cli.commands.client.settings_file import SettingsFile
from kakoi.errors import ConfigurationError
from tests.attacks.swapping import SECRET, a_secret_place, swapping
from tests.cli.calling import Home
from tests.overlay.snapshots import exactly

KAKOI = str(Path(sys.executable).with_name("kakoi"))
FILES = {
    "claude": (".claude.json", ".mcp.json"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json"),
    "codex": (".codex/config.toml", ".codex/config.toml"),
    "vscode": (".config/Code/User/mcp.json", ".vscode/mcp.json"),
    "gemini": (".gemini/settings.json", ".gemini/settings.json"),
}
ENTRY = {"command": "kakoi", "args": ["mcp"]}
JSON = """{
    "numStartups": 1.50e2,   "mcpServers" : {
        "other": {"command": "x", "env": {"A": "\\u00e9"}}
    },
    "last": [1,2]
}"""
TOML = """# mine
model = "o"

[mcp_servers.other] # theirs
command = "x"
args = [
  "a",
]
"""


def parsed(path: Path) -> Any:
    text = path.read_text()
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


def entry(name: str, path: Path) -> Any:
    return parsed(path)[CLIENTS[name].section]["kakoi"]


def expected(name: str, command: str) -> dict[str, Any]:
    typed = {"type": "stdio"} if name in ("claude", "vscode") else {}
    return {**typed, "command": command, "args": ["mcp"]}


# --- The command -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_user_without_any_file_gets_one_with_the_entry(home: Home, name: str) -> None:
    status, out, err = home("client", "install", name)
    path = home.root / FILES[name][0]
    assert (status, err) == (0, "")
    assert f"now has kakoi: {path}\n  next: " in out
    assert entry(name, path) == expected(name, KAKOI)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir() if "before-kakoi" in each.name] == []


@pytest.mark.parametrize("name", FILES)
def test_a_project_gets_an_entry_that_others_can_use(home: Home, name: str) -> None:
    assert home("client", "install", name, "--scope", "project")[0] == 0
    path = home.project / FILES[name][1]
    assert entry(name, path) == expected(name, "kakoi")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not (home.root / FILES[name][0]).exists()


@pytest.mark.parametrize("name", FILES)
def test_everything_else_in_the_file_stays_byte_for_byte(home: Home, name: str) -> None:
    before = TOML if name == "codex" else JSON.replace("mcpServers", CLIENTS[name].section)
    path = home.write(home.root / FILES[name][0], before)
    path.chmod(0o640)
    status, out, _ = home("client", "install", name)
    assert status == 0
    after = path.read_text()
    assert entry(name, path) == expected(name, KAKOI)
    removed = [line for line in before.splitlines() if line.rstrip(",") not in after]
    assert removed == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = path.with_name(f"{path.name}.before-kakoi")
    assert backup.read_text() == before
    assert f"backup: {backup}" in out


@pytest.mark.parametrize("name", FILES)
def test_a_second_time_changes_nothing(home: Home, name: str) -> None:
    home("client", "install", name)
    path = home.root / FILES[name][0]
    before = path.read_bytes()
    status, out, _ = home("client", "install", name)
    assert (status, path.read_bytes()) == (0, before)
    assert "already has kakoi" in out
    assert len(list(path.parent.glob("*before-kakoi*"))) == 0


@pytest.mark.parametrize("name", FILES)
def test_a_dry_run_shows_the_change_and_changes_nothing(home: Home, name: str) -> None:
    before = TOML if name == "codex" else '{\n  "apiKey": "sk-ant-api03-abcdefghijklmnop"\n}\n'
    path = home.write(home.root / FILES[name][0], before)
    status, out, _ = home("client", "install", name, "--dry-run")
    assert status == 0
    assert path.read_text() == before
    assert sorted(path.parent.iterdir()).count(path) == 1
    assert out.startswith(f"--- {path}\n+++ {path}\n@@ ")
    assert [line for line in out.splitlines()[2:] if line.startswith("+") and KAKOI in line]
    assert "abcdefghijklmnop" not in out


def test_the_object_for_programs_says_what_was_done(home: Home) -> None:
    path = home.write(home.root / ".claude.json", "{}")
    answer = json.loads(home("client", "install", "claude", "--json", "--dry-run")[1])
    assert (answer["changed"], answer["written"], answer["backup"]) == (True, False, None)
    answer = json.loads(home("client", "install", "claude", "--json")[1])
    assert answer == {
        "client": "claude",
        "file": str(path),
        "changed": True,
        "written": True,
        "backup": f"{path}.before-kakoi",
        "entry": expected("claude", KAKOI),
    }


def test_an_old_entry_is_renewed_and_what_the_user_added_to_it_stays(home: Home) -> None:
    old = {"mcpServers": {"kakoi": {"command": "/old/kakoi", "args": [], "env": {"A": "1"}}}}
    path = home.write(home.root / ".claude.json", json.dumps(old))
    assert home("client", "install", "claude")[0] == 0
    assert entry("claude", path) == {**expected("claude", KAKOI), "env": {"A": "1"}}
    text = (
        TOML
        + '\n[mcp_servers.kakoi]\nargs = [\n  "[x]",\n]\nstartup_timeout_sec = 9\ncommand = "/old"\n\n[z]\na = 1\n'
    )
    path = home.write(home.root / ".codex" / "config.toml", text)
    assert home("client", "install", "codex")[0] == 0
    assert parsed(path)["mcp_servers"]["kakoi"] == {
        **expected("codex", KAKOI),
        "startup_timeout_sec": 9,
    }
    assert parsed(path)["z"] == {"a": 1}


def test_no_backup_is_ever_overwritten(home: Home) -> None:
    path = home.write(home.root / ".claude.json", '{"a": 1}')
    home.write(path.with_name(".claude.json.before-kakoi"), "older")
    home("client", "install", "claude")
    assert path.with_name(".claude.json.before-kakoi").read_text() == "older"
    assert path.with_name(".claude.json.before-kakoi-2").read_text() == '{"a": 1}'


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("claude", "{", "it is not valid JSON: "),
        ("claude", "[]", "it is not a JSON object"),
        ("claude", '{"mcpServers": []}', "its `mcpServers` is not an object"),
        ("claude", '{"mcpServers": {"kakoi": 1}}', "its `mcpServers.kakoi` is not an object"),
        ("claude", '{"a": 1, "a": 2}', "it has a duplicate key"),
        ("claude", '{"a": NaN}', "it is not valid JSON: NaN"),
        ("claude", "[" * 100_000, "it is nested too deeply"),
        ("vscode", '{\n  // mine\n  "servers": {}\n}', "it is not valid JSON: "),
        ("codex", "a = ", "it is invalid TOML: "),
        ("codex", "mcp_servers = {}", "the result would be invalid TOML: "),
        ("codex", "mcp_servers = 1", "its `mcp_servers` is not a table"),
        ("codex", "[mcp_servers]\nkakoi = {command = 'x'}", "written in a way that kakoi cannot change"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_added_to_is_left_alone(
    home: Home, name: str, text: str, why: str
) -> None:
    path = home.write(home.root / FILES[name][0], text)
    status, out, err = home("client", "install", name)
    assert (status, out) == (2, "")
    assert f"kakoi: {path} was not changed: " in err
    assert why in err
    assert path.read_text() == text
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(path.name)] == [
        path.name
    ]
    by_hand = {"claude": "claude mcp add", "codex": "codex mcp add", "vscode": "add to `servers`"}
    assert f"hint: {by_hand[name]}" in err


def test_a_file_that_is_not_plain_text_is_left_alone(home: Home) -> None:
    path = home.root / ".claude.json"
    path.write_bytes(b'{"a": "\xff"}')
    assert "it is not UTF-8 text" in home("client", "install", "claude")[2]
    path.unlink()
    os.mkfifo(path)
    assert "it is not a regular file" in home("client", "install", "claude")[2]
    path.unlink()
    path.mkdir()
    assert home("client", "install", "claude")[0] == 2


def test_a_link_of_the_user_is_followed_and_stays_a_link(home: Home) -> None:
    real = home.write(home.root / "dotfiles" / "claude.json", "{}")
    (home.root / ".claude.json").symlink_to(real)
    assert home("client", "install", "claude")[0] == 0
    assert (home.root / ".claude.json").is_symlink()
    assert entry("claude", real) == expected("claude", KAKOI)


@pytest.mark.parametrize("link", [".cursor", ".cursor/mcp.json"])
def test_a_link_of_a_project_leads_nowhere_else(home: Home, link: str) -> None:
    outside = home.root / "outside"
    outside.mkdir()
    home.write(outside / "mcp.json", "{}")
    place = home.project / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside if link == ".cursor" else outside / "mcp.json")
    status, _, err = home("client", "install", "cursor", "--scope", "project")
    assert status == 2
    assert "outside the project" in err
    assert (outside / "mcp.json").read_text() == "{}"


def test_a_link_swapped_into_a_project_leads_nowhere_else(tmp_path: Path) -> None:
    outside = a_secret_place(tmp_path / "outside")
    (outside / "mcp.json").write_text(SECRET)
    before = exactly(outside)
    folder, link = tmp_path / "project" / ".cursor", tmp_path / "project" / "link"
    folder.mkdir(parents=True)
    link.symlink_to(outside)
    rounds = 0
    with swapping(20_000, folder, link) as goes_on:
        while goes_on() or not rounds:
            rounds += 1
            file = SettingsFile(folder / "mcp.json", tmp_path / "project")
            with contextlib.suppress(ConfigurationError):
                text = file.read()
                assert text in (None, "theirs")
                backup = file.replace(text, "theirs", mode=0o644)
                if backup is not None:
                    backup.unlink(missing_ok=True)
    assert exactly(outside) == before


def test_the_folders_of_clients_can_be_elsewhere(home: Home) -> None:
    for name, variable, file in (
        ("claude", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("vscode", "XDG_CONFIG_HOME", "Code/User/mcp.json"),
    ):
        folder = home.root / name
        moved = Home(home.root, {variable: str(folder)})
        assert moved("client", "install", name)[0] == 0
        assert (folder / file).is_file()


def test_an_unknown_client_names_those_there_are(home: Home) -> None:
    status, _, err = home("client", "install", "emacs")
    assert status == 2
    for name in FILES:
        assert f"'{name}'" in err


# --- Texts -----------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "mcpServers": st.dictionaries(st.sampled_from(["a", "kakoi", 'q"}']), st.dictionaries(st.text(max_size=4), VALUES, max_size=2), max_size=3),
        "x{": VALUES,
        'y"': VALUES,
    },
)  # fmt: skip


@given(DOCUMENTS, st.sampled_from([None, 2, 4, "\t"]), st.booleans())
def test_any_json_keeps_all_that_it_had(
    document: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    after = with_json_entry(text, "mcpServers", "kakoi", ENTRY)
    servers = document.get("mcpServers", {})
    merged = {**servers, "kakoi": {**servers.get("kakoi", {}), **ENTRY}}
    assert json.loads(after) == {**document, "mcpServers": merged}
    assert with_json_entry(after, "mcpServers", "kakoi", ENTRY) == after


def test_line_ends_and_indents_are_those_of_the_file() -> None:
    text = '{\r\n\t"mcpServers": {\r\n\t\t"a": {}\r\n\t}\r\n}\r\n'
    after = with_json_entry(text, "mcpServers", "kakoi", ENTRY)
    assert "\n" not in after.replace("\r\n", "")
    assert after == text.replace(
        '"a": {}',
        '"a": {},\r\n\t\t"kakoi": {\r\n\t\t\t"command": "kakoi",\r\n\t\t\t"args": [\r\n\t\t\t\t"mcp"\r\n\t\t\t]\r\n\t\t}',
    )
    assert with_json_entry("", "s", "n", {}) == '{\n  "s": {\n    "n": {}\n  }\n}\n'


def test_toml_texts_are_written_so_that_they_are_read_back() -> None:
    odd = {"command": 'a "b" \\ é \t\x7f', "args": ["x\ny", ""]}
    assert tomllib.loads(with_toml_entry("", "s", "n", odd)) == {"s": {"n": odd}}
    assert with_toml_entry("a = 1", "s", "n", ENTRY).startswith("a = 1\n\n[s.n]\n")
    with pytest.raises(CannotMerge):
        with_toml_entry("s = [1]", "s", "n", ENTRY)
