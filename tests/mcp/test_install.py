"""`install_package` of `kakoi mcp`: calls that are cancelled, and questions about installers."""

from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult

from kakoi.audit import Event, read
from kakoi.mcp.server import make_server
from tests.mcp.connections import McpDoor, any_mode, meta_of, text_of
from tests.tools.installs import logged, with_scripted_python
from tests.tools.places import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def mcp_door(mcp_door: McpDoor, monkeypatch: pytest.MonkeyPatch) -> McpDoor:
    return with_scripted_python(mcp_door, monkeypatch)


async def install(client: Client, package: str, kind: str = "pip", **more: Any) -> CallToolResult:
    return await client.call_tool("install_package", {"type": kind, "package": package, **more})


async def test_who_waits_for_what_another_call_gives_up_is_told(
    client: Client, mcp_door: McpDoor
) -> None:
    (mcp_door.workspace / "slow").touch()
    answers = []
    waits = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        waits.set()

    async def wait_for_it() -> None:
        asked = {"type": "pip", "package": "requests"}
        answers.append(await client.call_tool("install_package", asked, progress_callback=hear))

    async with anyio.create_task_group() as both, anyio.create_task_group() as first:
        first.start_soon(install, client, "requests")
        await until((mcp_door.workspace / "waits").exists, "pip runs")
        both.start_soon(wait_for_it)
        await waits.wait()
        first.cancel_scope.cancel()
    (answer,) = answers
    assert answer.is_error
    assert "cancelled it" in text_of(answer)


async def test_who_gives_up_ends_it_and_another_can_be_installed(
    client: Client, mcp_door: McpDoor
) -> None:
    slow = mcp_door.workspace / "slow"
    slow.touch()
    async with anyio.create_task_group() as group:
        group.start_soon(install, client, "requests")
        await until((mcp_door.workspace / "waits").exists, "pip runs")
        group.cancel_scope.cancel()
    await until(lambda: logged(mcp_door) == [("requests", "failed")], "it is given up")
    slow.unlink()
    assert not (await install(client, "pytest")).is_error
    events = [record.event for record in read(mcp_door.log)]
    assert events.count(Event.STARTED) == events.count(Event.ENDED)


@any_mode
async def test_where_a_rule_asks_about_the_installer_the_person_is_asked(
    mcp_door: McpDoor, mode: str
) -> None:
    rule = {
        "id": "mine",
        "verdict": "ask",
        "commands": ["pip install"],
        "reason": "who knows what is in it",
        "match": ["pip install x"],
        "not_match": ["ls"],
    }
    door = replace(mcp_door, settings={**mcp_door.settings, "policy.rules": (rule,)})
    asked: list[str] = []

    async def ask(context: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={})

    async with door.server_state() as state:
        server = make_server(state)
        async with Client(server, mode=mode, elicitation_callback=ask) as client:
            assert meta_of(await install(client, "requests"))["status"] == "success"
        assert len(asked) == 1
        assert "who knows what is in it" in asked[0]
        async with Client(server, mode=mode) as client:
            refused = await install(client, "requests")
    assert refused.is_error
    assert "there was nobody to ask" in text_of(refused)
