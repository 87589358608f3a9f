"""A model's commands in a framework: their replies, approvals, files, and missing frameworks."""

import importlib
import sys
from collections.abc import AsyncIterator

import pytest

from kakoi import FileError, Sandbox, SandboxError
from kakoi.integrations.commands import (
    approve_as_framework,
    approved,
    question_about,
    reply_to_command,
    result_text,
)
from kakoi.integrations.files import builtin_error, real_path, write_plainly
from kakoi.results import ExecutionResult, Reason
from tests.cli.conftest import has_bubblewrap, need

pytestmark = pytest.mark.anyio


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    need("bubblewrap", is_there=has_bubblewrap())
    async with Sandbox("bubblewrap", approve=approve_as_framework) as box:
        yield box


async def test_a_model_reads_output_ends_and_refusals(box: Sandbox) -> None:
    reply = await reply_to_command(box, "echo out; echo err >&2; exit 3")
    assert reply.startswith("out\n[stderr]\nerr\n[exit code 3 | ")
    assert "timed_out" in await reply_to_command(box, "sleep 60", timeout=0.2)
    refused = await reply_to_command(box, "sudo reboot")
    assert refused.startswith("deny[privilege]: `sudo`")
    assert "help: " in refused


async def test_what_the_framework_approved_runs_and_nothing_else_does(box: Sandbox) -> None:
    command = "git init -q . && git push origin main"
    assert "git push" in await question_about(box, command)
    assert await question_about(box, "ls") == ""
    with approved(True):
        assert "[exit code " in await reply_to_command(box, command)
    with approved("yes"):
        assert "declined" in await reply_to_command(box, command)
    assert "declined" in await reply_to_command(box, command)


def test_a_lost_sandbox_is_not_the_models_fault() -> None:
    lost = ExecutionResult(125, "", "", 1, reason=Reason.SANDBOX_LOST, error="it is gone")
    with pytest.raises(SandboxError, match="it is gone"):
        result_text(lost)


async def test_a_file_is_written_as_a_program_would(box: Sandbox) -> None:
    await box.run("mkdir a && echo old > a/file && ln -s a/file link && echo x > fixed")
    await box.run("chmod a-w fixed")
    await write_plainly(box, "link", "new")
    assert await box.files.read_text("a/file") == "new"
    with pytest.raises(FileError) as caught:
        await write_plainly(box, "fixed", "y")
    assert isinstance(builtin_error(caught.value), PermissionError)
    assert await real_path(box, "link/../none") == f"{box.info.workspace}/a/none"


FRAMEWORKS = {"openai_agents": "agents"} | {
    name: name for name in ("deepagents", "inspect_ai", "pydantic_ai")
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = FRAMEWORKS[name]
    monkeypatch.delitem(sys.modules, f"kakoi.integrations.{name}", raising=False)
    for loaded in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    wanted = rf"pip install 'kakoi\[{name.replace('_', '-')}\]'"
    with pytest.raises(ModuleNotFoundError, match=wanted):
        importlib.import_module(f"kakoi.integrations.{name}")
