"""The checkpoints of a container: archives on this machine that nobody else needs or keeps."""

import pytest

from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.channel.api import Command
from kakoi.errors import SandboxError
from tests.tasks.conftest import engine as engine  # Skips if there is no engine.
from tests.tasks.hosting import PYTHON

pytestmark = pytest.mark.anyio


async def test_a_file_that_cannot_be_read_leaves_no_checkpoint_and_cleanup_leaves_no_archive(
    engine: None,
) -> None:
    adapter = DockerAdapter(DockerSettings(image=PYTHON), lifetime="client")
    try:
        assert (await adapter.run(Command(command="echo x > secret; chmod 0 secret"))).ok
        with pytest.raises(SandboxError, match="could not be read"):
            await adapter.checkpoint("one")
        assert adapter.checkpoints() == []
        assert (await adapter.run(Command(command="chmod 600 secret"))).ok
        await adapter.checkpoint("one")
        assert adapter.checkpoints() == ["one"]
        (archive,) = adapter._checkpoints._files.values()
        assert archive.stat().st_size > 0
        assert archive.parent.stat().st_mode & 0o777 == 0o700
    finally:
        await adapter.cleanup()
    assert not archive.parent.exists()
    assert adapter.checkpoints() == []
