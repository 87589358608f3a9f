"""Games with links: what a name means changes between the look and the use."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from kakoi.channel.api import Channel, Command
from kakoi.errors import KakoiError
from tests.attacks.conftest import Place
from tests.attacks.swapping import SECRET, SWAPPER, WAIT_S, swaps
from tests.overlay.snapshots import exactly

pytestmark = pytest.mark.anyio


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the machine whose modes protect nothing."""
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text(SECRET)
    (tmp_path / "file").chmod(0o666)
    return tmp_path


@swaps
async def test_a_link_swapped_under_our_file_tools_leads_nowhere(
    place: Place, outside: Path, count: int
) -> None:
    """Files over the channel: read, written and listed with the rights of commands, never ours."""
    (outside / "secret name").touch()
    before = exactly(outside)
    made = await place.bash(
        "rm -rf swap other link; mkdir swap; printf theirs > swap/file; "
        f"ln -s '{outside}' other; ln -s '{outside}' link"
    )
    assert made.exit_code == 0, made
    channel = await place.sandbox.channel()
    argv = ["python3", "-I", "-c", SWAPPER, str(count), "swap", "other"]
    swapper = Command(command=argv, timeout_s=WAIT_S)
    await channel.start(swapper)
    seen: set[bytes] = set()
    rounds, result = 0, None
    while result is None or rounds < 20:
        rounds += 1
        for folder in ("swap", "link"):
            seen |= await _use_every_tool(channel, f"{place.inside}/{folder}")
        result = result or await channel.wait_job(swapper.id, wait_s=0)
    assert result.exit_code == 0, result
    assert seen <= {b"theirs", b"file"}
    assert b"theirs" in seen
    assert exactly(outside) == before


async def _use_every_tool(channel: Channel, folder: str) -> set[bytes]:
    """What was seen of files and their names; drafts of our own have names of their own."""
    seen: set[bytes] = set()
    with contextlib.suppress(OSError, KakoiError):
        seen.add(await channel.read_file(f"{folder}/file"))
    with contextlib.suppress(OSError, KakoiError):
        await channel.write_file(f"{folder}/file", b"theirs", mode=0o600)
    with contextlib.suppress(OSError, KakoiError):
        names = {os.fsencode(each.name) for each in await channel.list_files(folder)}
        seen |= {name for name in names if not name.startswith(b".kakoi-")}
    with contextlib.suppress(OSError, KakoiError):
        await channel.stat_file(f"{folder}/file")
    return seen


async def test_a_hard_link_to_a_file_outside_cannot_be_made(place: Place, outside: Path) -> None:
    target = outside / "file"
    result = await place.bash(f"ln '{target}' hard || ln /etc/passwd hard; cat hard")
    assert result.exit_code != 0
    assert SECRET not in result.stdout


async def test_a_workspace_full_of_links_is_left_to_itself_when_the_sandbox_goes(
    place: Place, outside: Path
) -> None:
    """Clean-up follows none of them."""
    other = place.workspace / "deep"
    await place.bash(
        f"mkdir deep; cd deep; ln -s '{outside}' out; ln -s / root; ln -s .. up; ln -s loop loop"
    )
    shutil.rmtree(other)
    assert (outside / "file").read_text() == SECRET


async def test_the_workspace_itself_cannot_be_swapped(place: Place) -> None:
    """It is not theirs to rename."""
    result = await place.bash(f"mv '{place.inside}' '{place.inside}.gone'")
    assert result.exit_code != 0
    assert place.workspace.is_dir()
    assert not place.workspace.is_symlink()
    assert (await place.bash("pwd -P")).stdout == f"{place.inside}\n"
