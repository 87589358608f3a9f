"""The file tools of `kakoi mcp` while somebody swaps a directory of the workspace with a link."""

from pathlib import Path

import anyio
import pytest
from mcp import Client

from kakoi.mcp_server.server import make_server
from tests.attacks.swapping import SECRET, a_secret_place, swapping, swaps
from tests.doors.mcp_doors import McpDoor
from tests.overlay.snapshots import exactly

pytestmark = pytest.mark.anyio
TOOLS = (
    ("read_file", {"path": "dir/one"}),
    ("write_file", {"path": "dir/one", "content": "theirs"}),
    ("edit_file", {"path": "dir/two", "old_text": SECRET, "new_text": "theirs"}),
    ("edit_file", {"path": "dir/two", "old_text": "theirs", "new_text": "also theirs"}),
    ("list_files", {"path": "dir"}),
    ("execute_command", {"command": "cat one; rm -f two; ls", "workdir": "dir"}),
)


@swaps
async def test_links_swapped_into_the_workspace_lead_the_file_tools_nowhere(
    confined_mcp_door: McpDoor, tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    outside = a_secret_place(tmp_path_factory.mktemp("outside"))
    (outside / "secret name").touch()
    before = exactly(outside)
    workspace = confined_mcp_door.workspace
    link = _prepared(workspace, outside)
    async with (
        confined_mcp_door.house() as house,
        Client(make_server(house), mode="2026-07-28") as client,
    ):
        served, rounds = set(), 0
        with swapping(count, workspace / "dir", link) as goes_on, anyio.fail_after(300):
            while goes_on() or rounds < 3:
                rounds += 1
                for tool, arguments in TOOLS:
                    answer = await client.call_tool(tool, arguments)
                    told = answer.model_dump_json()
                    assert SECRET not in told
                    assert "secret name" not in told
                    served |= set() if answer.is_error else {tool}
    assert "read_file" in served
    assert exactly(outside) == before


def _prepared(workspace: Path, outside: Path) -> Path:
    """The link to swap in; it lies in the workspace, too."""
    (workspace / "dir").mkdir()
    for name in ("one", "two"):
        (workspace / "dir" / name).write_text("theirs")
    link = workspace / "link"
    link.symlink_to(outside)
    return link
