"""Games with links: what a name means changes between the look and the use."""

import os
import shutil
from pathlib import Path

import pytest

from kakoi.errors import KakoiError
from kakoi.runner.commands import Command
from tests.attacks.conftest import PATIENCE_S, Place

pytestmark = pytest.mark.anyio

SECRET = "not for them"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the machine whose modes protect nothing."""
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text(SECRET)
    (tmp_path / "file").chmod(0o666)
    return tmp_path


# `swap` is a folder of theirs and a link to ours by turns, as fast as they can.
SWAPPING = """
import os, sys
os.makedirs("real", exist_ok=True)
open("real/file", "w").write("theirs")
os.path.lexists("link") or os.symlink(sys.argv[1], "link")
os.path.lexists("swap") or os.symlink("real", "swap")
print("ready", flush=True)
for _ in range(200_000):
    for target in (sys.argv[1], "real"):
        try:
            os.symlink(target, "next")
            os.rename("next", "swap")
        except OSError:
            pass
"""


async def test_a_link_swapped_under_our_file_tools_leads_nowhere(
    place: Place, outside: Path
) -> None:
    """Files over the channel: read, written and listed with the rights of commands, never ours."""
    channel = await place.sandbox.channel()
    command = Command(command=["python3", "-I", "-c", SWAPPING, str(outside)], timeout_s=PATIENCE_S)
    seen = set()
    async with channel.open(command) as running:
        await anext(aiter(running.output()))
        for _ in range(150):
            for path in ("swap/file", "link/file"):
                try:
                    seen.add(await channel.read_file(f"{place.inside}/{path}"))
                    await channel.write_file(f"{place.inside}/{path}", b"theirs")
                except (OSError, KakoiError):
                    continue
    assert seen == {b"theirs"}
    assert (outside / "file").read_text() == SECRET
    assert sorted(os.listdir(outside)) == ["file"]


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
