"""A sandbox that a door opens: at its end nothing of it is left."""

from pathlib import Path

import pytest

from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command
from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.policy.profiles import DEFAULT_PROFILE, load_policy
from kakoi.sandbox.doors import sandbox_for
from kakoi.sandbox.options import SandboxOptions
from tests.children import children_of_ours

pytestmark = pytest.mark.anyio


def options(workspace: Path, log: Path) -> SandboxOptions:
    return SandboxOptions(
        config=SandboxConfig(type="host"),
        policy=load_policy(DEFAULT_PROFILE),
        workspace=str(workspace),
        audit_file=log,
    )


async def test_a_sandbox_whose_gate_cannot_be_closed_is_removed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_gate: Gate, **_: object) -> None:
        raise SandboxError("a job does not end")

    monkeypatch.setattr(Gate, "close", fail)
    with pytest.raises(SandboxError, match="a job does not end"):
        async with sandbox_for(options(tmp_path, tmp_path / "audit.jsonl")) as box:
            assert (await box.gate.run(Command(command="true"))).ok
    assert children_of_ours() == []


@pytest.mark.parametrize("place", ["project", "project/deep", "link", "beside"])
async def test_a_log_that_commands_can_change_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    workspace, beside = tmp_path / "project", tmp_path / "beside"
    (workspace / "deep").mkdir(parents=True)
    beside.mkdir()
    (tmp_path / "link").symlink_to(workspace)
    async with sandbox_for(options(workspace, tmp_path / place / "audit.jsonl")):
        warned = [each.getMessage() for each in caplog.records if "audit log" in each.msg]
    assert len(warned) == (place != "beside")
    assert all("commands can change it" in each for each in warned)
