"""`kakoi run --cow` and what comes after it, from a terminal."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kakoi.overlay import Overlay
from tests.cli.calling import Home
from tests.cli.conftest import has_bubblewrap, need
from tests.cli.terminals import Door, terminal

if TYPE_CHECKING:
    from tests.mcp.connections import McpDoor


@pytest.fixture
def kakoi(home: Home) -> Home:
    need("bubblewrap", is_there=has_bubblewrap())
    return replace(home, env={"KAKOI_SANDBOX": "bubblewrap"})


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "KAKOI_OVERLAYS", "HOME"])
def test_the_library_finds_the_copy_that_the_command_line_made(
    kakoi: Home, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    place = kakoi.root / "elsewhere"
    place.mkdir()
    env = {"HOME": str(kakoi.root), variable: str(place)}
    kakoi = replace(kakoi, env={**kakoi.env, **env})
    assert kakoi("run", "--cow", "echo new > b")[0] == 0
    for name in ("XDG_STATE_HOME", "KAKOI_OVERLAYS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert Overlay(kakoi.project).apply().done == ("b",)
    assert (kakoi.project / "b").read_text() == "new\n"


def test_changes_are_seen_taken_over_in_part_and_thrown_away(kakoi: Home) -> None:
    file = kakoi.write(kakoi.project / "a", "one\n")
    status, _, said = kakoi("run", "--cow", "echo two >> a; echo new > b; mkdir d")
    assert (status, said) == (0, "")
    assert file.read_text() == "one\n"
    assert kakoi("copy", "changes")[1].splitlines() == ["M a", "A b", "A d/"]
    assert kakoi("copy", "diff", "a")[1].splitlines()[-3:] == ["@@ -1 +1,2 @@", " one", "+two"]
    assert kakoi("copy", "diff", "--stat")[1].splitlines()[-1] == "2 changes, +2 -0"
    told = json.loads(kakoi("copy", "changes", "--json")[1])
    assert [(each["path"], each["change"], each["type"]) for each in told] == [
        ("a", "modified", "file"),
        ("b", "added", "file"),
        ("d", "added", "directory"),
    ]
    assert kakoi("copy", "apply", "a") == (0, "1 change applied\n", "")
    assert file.read_text() == "one\ntwo\n"
    assert kakoi("copy", "discard") == (0, "2 changes discarded\n", "")
    assert kakoi("copy", "discard", "--json") == (0, '{"discarded": 0}\n', "")
    assert kakoi("copy", "changes") == (0, "", "")
    assert [each.name for each in kakoi.project.iterdir()] == ["a"]


def test_checkpoints_are_made_listed_and_gone_back_to(kakoi: Home) -> None:
    kakoi("run", "--cow", "echo 1 > a")
    assert kakoi("copy", "checkpoint", "first") == (0, "", "")
    kakoi("run", "--cow", "echo 2 > a; touch b")
    assert kakoi("copy", "checkpoint") == (0, "first\n", "")
    assert kakoi("copy", "checkpoint", "--json") == (0, '["first"]\n', "")
    assert kakoi("copy", "checkpoint", "--json", "again") == (0, '{"checkpoint": "again"}\n', "")
    assert kakoi("copy", "rollback", "first") == (0, "", "")
    assert kakoi("run", "--cow", "cat *")[1] == "1\n"
    status, _, said = kakoi("copy", "rollback", "second")
    assert status == 2
    assert said.startswith(
        "kakoi: checkpoint 'second' not found\n  hint: known checkpoints: first\n"
    )


def test_a_conflict_is_refused_unless_it_is_forced(kakoi: Home) -> None:
    file = kakoi.write(kakoi.project / "a", "one\n")
    kakoi("run", "--cow", "echo inside > a; echo b > b")
    file.write_text("mine\n")
    assert kakoi("copy", "changes")[1].splitlines() == [
        "M a  (it was changed in the project meanwhile)",
        "A b",
    ]
    status, out, said = kakoi("copy", "apply")
    assert (status, out) == (1, "1 change applied\n")
    assert said == "kakoi: not applied: a: it was changed in the project meanwhile\n"
    assert file.read_text() == "mine\n"
    assert kakoi("copy", "apply", "--force", "--json") == (
        0,
        json.dumps({"applied": ["a"], "refused": []}, indent=2) + "\n",
        "",
    )
    assert file.read_text() == "inside\n"


def test_what_a_terminal_would_obey_is_shown(kakoi: Home) -> None:
    script = 'import os\nopen("x\\x1b]0;t\\x07\\ny", "w").write("\\x1b[2Jred\\ttab\\u202e\\r\\n")'
    kakoi.write(kakoi.project / "make.py", script)
    status, _, said = kakoi("run", "--yes", "--cow", "python3 make.py")
    assert (status, said) == (0, "")
    outputs = [kakoi("copy", *words)[1] for words in (["changes"], ["diff"], ["diff", "--stat"])]
    assert not set("".join(outputs)) & {"\x1b", "\x07", "\r", "\u202e"}
    assert outputs[0] == "A x\\x1b]0;t\\x07\\x0ay\n"
    assert "+\\x1b[2Jred\ttab\\u202e\\x0d\n" in outputs[1]
    assert "+\x1b[2Jred\ttab" in kakoi("copy", "diff", "--raw")[1]


@pytest.mark.parametrize("sandbox", ["host", "container-use"])
def test_a_sandbox_without_it_is_refused_by_name(home: Home, sandbox: str) -> None:
    status, _, said = home("run", "--cow", "--sandbox", sandbox, "true")
    assert status == 125
    assert f"the sandbox `{sandbox}` does not support a copy-on-write workspace" in said
    assert "--sandbox bubblewrap" in said


def test_it_can_be_a_setting_and_its_place_too(kakoi: Home) -> None:
    place = kakoi.root / "copies"
    kakoi.write(kakoi.config, f"sandbox:\n  copy_on_write: true\n  overlays: {place}\n")
    assert kakoi("run", "touch a")[0] == 0
    assert list(kakoi.project.iterdir()) == []
    assert len(list(place.iterdir())) == 1
    assert kakoi("copy", "apply") == (0, "1 change applied\n", "")


def test_nothing_is_executed_from_the_copy_where_the_kernel_keeps_the_list(kakoi: Home) -> None:
    kakoi.write(kakoi.project / "old", "#!/bin/sh\necho ran\n").chmod(0o755)
    script = "cp /bin/ls made; chmod 755 made; ./made; echo $?; ./old; echo $?; cat old"
    status, out, _ = kakoi("run", "--yes", "--cow", "--kernel-allowlist", script)
    assert (status, out) == (0, "126\n126\n#!/bin/sh\necho ran\n")
    assert kakoi("copy", "changes")[1] == "A made\n"


def test_that_no_disk_limit_covers_the_copy_is_reported(kakoi: Home) -> None:
    told = json.loads(kakoi("run", "--cow", "--json", "head -c 1000 /dev/zero > a")[1])
    assert "not the workspace" in told["limits"]["enforced"]["disk_bytes"]
    assert "the workspace included" in told["limits"]["enforced"]["file_bytes"]


def test_a_shell_writes_to_the_copy(confined_door: Door) -> None:
    copies = confined_door.log.parent / "copies"
    door = replace(confined_door, env={**confined_door.env, "KAKOI_OVERLAYS": str(copies)})
    with terminal(door, "shell", "--cow") as screen:
        screen.until(b"(kakoi) ")
        screen.type(b"echo typed > a; exit 4\r")
        assert screen.wait() == 4
    assert list(door.workspace.iterdir()) == []
    assert door("copy", "changes") == (0, "A a\n", "")
    assert door("copy", "apply") == (0, "1 change applied\n", "")
    assert (door.workspace / "a").read_text() == "typed\n"


@pytest.mark.anyio
async def test_agents_over_mcp_write_to_the_copy(confined_mcp_door: "McpDoor") -> None:
    from tests.mcp.connections import run, stdout_of

    door = confined_mcp_door
    copies = door.folder / "copies"
    with (door.folder / "config.yaml").open("a") as file:
        file.write(f"sandbox:\n  overlays: {copies}\n")
    async with door.stdio("legacy", arguments=["--cow"]) as client:
        assert not (await run(client, "echo told > a")).is_error
        assert stdout_of(await run(client, "cat a")) == "told\n"
    assert list(door.workspace.iterdir()) == []
    overlay = Overlay(door.workspace, copies)
    assert [each.path for each in overlay.changes()] == ["a"]
    assert overlay.apply().done == ("a",)
