"""The disk of a task: as large as the settings say, and no larger."""

import pytest

from kakoi.backends.adapter import Limits
from kakoi.channel.api import MIB
from tests.backends.boxes import needs_root
from tests.tasks.conftest import Make
from tests.tasks.hosting import GitServer, a_task

pytestmark = pytest.mark.anyio


@needs_root
@pytest.mark.requirement("A-024")
async def test_a_task_that_writes_too_much_is_stopped_and_told_why(
    make: Make, git: GitServer
) -> None:
    manager = make(limits=Limits(disk_bytes=10 * MIB), install_dependencies=False)
    info = await manager.prepare(a_task(git.url("open/project")))
    fill = "head -c 20000000 /dev/zero > big"
    result = await manager.execute(info.container_id, fill)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert result.disk_full == info.workspace_path
    again = await manager.execute(info.container_id, "rm big && echo small > big && cat big")
    assert (again.stdout, again.disk_full) == ("small\n", "")
