"""The file tools while somebody swaps a directory of the workspace with a link."""

from pathlib import Path

import anyio
import pytest

from tests.attacks.swapping import SECRET, a_secret_place, swapping, swaps
from tests.overlay.snapshots import exactly
from tests.tools.places import ToolPlace

pytestmark = pytest.mark.anyio


def calls(workspace: Path) -> list[tuple[str, dict[str, str]]]:
    """By absolute paths: a command moves the directory that others are looked for from."""
    folder = f"{workspace}/dir"
    edit = {"path": f"{folder}/two", "old_text": "theirs", "new_text": "also theirs"}
    return [
        ("read_file", {"path": f"{folder}/one"}),
        ("write_file", {"path": f"{folder}/one", "content": "theirs"}),
        ("edit_file", edit),
        ("edit_file", {**edit, "old_text": SECRET, "new_text": "theirs"}),
        ("list_files", {"path": folder}),
        ("execute_command", {"command": "cat one; rm -f two; ls", "workdir": folder}),
    ]


@swaps
async def test_links_swapped_into_the_workspace_lead_the_file_tools_nowhere(
    confined_place: ToolPlace, tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    outside = a_secret_place(tmp_path_factory.mktemp("outside"))
    (outside / "secret name").touch()
    before = exactly(outside)
    workspace = confined_place.workspace
    link = _prepared(workspace, outside)
    async with confined_place.open() as tools:
        rounds = 0
        with swapping(count, workspace / "dir", link) as goes_on, anyio.fail_after(300):
            while goes_on() or rounds < 3:
                rounds += 1
                for tool, arguments in calls(workspace):
                    told = repr(await tools.call(tool, arguments))
                    assert SECRET not in told
                    assert "secret name" not in told
        # Nobody swaps any more: the tools work where the directory has come to be.
        place = "link" if (workspace / "dir").is_symlink() else "dir"
        answer = await tools.call("read_file", {"path": f"{workspace}/{place}/one"})
        assert not answer.is_error, answer.text
    assert exactly(outside) == before


def _prepared(workspace: Path, outside: Path) -> Path:
    """The link to swap in; it lies in the workspace, too."""
    (workspace / "dir").mkdir()
    for name in ("one", "two"):
        (workspace / "dir" / name).write_text("theirs")
    link = workspace / "link"
    link.symlink_to(outside)
    return link
