"""A gate that is opened by settings: at its end nothing of it is left."""

from pathlib import Path

import pytest

from kakoi.config.opening import open_gate
from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.policy.profiles import DEFAULT_PROFILE, load_policy
from kakoi.runner.commands import Command
from kakoi.sandbox.settings import SandboxConfig
from tests.children import children_of_ours

pytestmark = pytest.mark.anyio


async def test_the_sandbox_of_a_gate_that_cannot_be_closed_is_taken_away_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_gate: Gate) -> None:
        raise SandboxError("a job does not end")

    monkeypatch.setattr(Gate, "close", fail)
    with pytest.raises(SandboxError, match="a job does not end"):
        async with open_gate(
            load_policy(DEFAULT_PROFILE),
            SandboxConfig(type="host"),
            workspace=str(tmp_path),
            audit_file=tmp_path / "audit.jsonl",
        ) as gate:
            assert (await gate.run(Command(command="true"))).ok
    assert children_of_ours() == []


@pytest.mark.parametrize("place", ["project", "project/deep", "link", "beside"])
async def test_a_log_that_commands_can_change_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    workspace, beside = tmp_path / "project", tmp_path / "beside"
    (workspace / "deep").mkdir(parents=True)
    beside.mkdir()
    (tmp_path / "link").symlink_to(workspace)
    async with open_gate(
        load_policy(DEFAULT_PROFILE),
        SandboxConfig(type="host"),
        workspace=str(workspace),
        audit_file=tmp_path / place / "audit.jsonl",
    ):
        warned = [each.getMessage() for each in caplog.records if "audit log" in each.msg]
    assert len(warned) == (place != "beside")
    assert all("commands can change it" in each for each in warned)
