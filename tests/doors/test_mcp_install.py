"""`install_package` of `kakoi mcp`: the answers of `kakoi install`, from the same lists."""

import json
import os
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult

from kakoi.audit import Event, read, verify
from kakoi.mcp_server.server import make_server
from tests.doors.mcp_doors import McpDoor, any_mode, meta_of, text_of, until

pytestmark = pytest.mark.anyio
# Takes the place of Python, which would be sent a program that calls pip.
PYTHON = """#!/bin/sh
cd "{workspace}" && cat >/dev/null && printf '%s\\n' "$@" >asked
if [ -e broken ]; then echo "no such thing" >&2; exit 1; fi
while [ -e slow ]; do touch waits; sleep 0.02; done
printf '%s\\n' 'requests 2.32' 'brought-along 1.0'
"""


@pytest.fixture
def mcp_door(mcp_door: McpDoor, monkeypatch: pytest.MonkeyPatch) -> McpDoor:
    """Where Python only says what it was asked, and direct installation is refused."""
    program = mcp_door.folder / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(PYTHON.format(workspace=mcp_door.workspace))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    settings = {"policy.packages": "allowlist", "packages.log_dir": str(mcp_door.folder / "logs")}
    return replace(mcp_door, settings=settings)


async def install(client: Client, package: str, kind: str = "pip", **more: Any) -> CallToolResult:
    return await client.call_tool("install_package", {"type": kind, "package": package, **more})


def logged(door: McpDoor) -> list[tuple[str, str]]:
    lines = [
        json.loads(line)
        for path in sorted((door.folder / "logs").glob("install-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [(line["package"], line["status"]) for line in lines]


async def test_a_listed_package_is_installed_and_recorded(
    client: Client, mcp_door: McpDoor
) -> None:
    assert (await client.call_tool("execute_command", {"command": "pip install six"})).is_error
    done = await install(client, "requests[socks]>=2,<3")
    assert not done.is_error
    came = "with it came brought-along 1.0\n[installed requests[socks]>=2,<3 | "
    assert text_of(done).startswith(came)
    assert meta_of(done)["also"] == ["brought-along 1.0"]
    assert meta_of(done)["status"] == "success"
    asked = (mcp_door.workspace / "asked").read_text().splitlines()
    assert (asked[0], asked[-1]) == ("-I", "requests[socks]>=2,<3")
    records = [(record.event, record.command) for record in read(mcp_door.log)]
    assert any(event == "started" and "pip install" in text for event, text in records)
    assert all(record.session for record in read(mcp_door.log))
    assert logged(mcp_door) == [("requests[socks]>=2,<3", "success")]


@pytest.mark.parametrize(
    "package",
    ["evil", "--index-url=x", "-r", "../x", "a\nb", "\x1b[2J", "", "requests; id", "x.whl", "a\0b"],
)
async def test_what_is_not_listed_is_refused_recorded_and_has_a_way_out(
    client: Client, mcp_door: McpDoor, package: str
) -> None:
    refused = await install(client, package)
    assert refused.is_error
    assert "is refused: " in text_of(refused)
    assert "hint: use a package that is on the list, " in text_of(refused)
    assert "\x1b" not in text_of(refused)
    (record,) = read(mcp_door.log)
    assert (record.event, record.verdict) == ("refused", "deny")
    assert record.rules == ("unlisted-packages",)
    assert verify(mcp_door.log).ok
    assert [status for _, status in logged(mcp_door)] == ["rejected"]
    assert not (mcp_door.workspace / "asked").exists()


async def test_a_failure_has_its_reason(client: Client, mcp_door: McpDoor) -> None:
    (mcp_door.workspace / "broken").touch()
    failed = await install(client, "requests")
    assert failed.is_error
    assert "was not installed: no such thing" in text_of(failed)
    apt = await install(client, "jq", "apt")
    assert apt.is_error
    assert "--container" in text_of(apt)
    other = await install(client, "x", "gem")
    assert other.is_error
    assert "apt, pip, npm" in text_of(other)


async def test_without_a_list_nothing_is_installed(mcp_door: McpDoor) -> None:
    empty = mcp_door.folder / "empty"
    empty.mkdir()
    door = replace(mcp_door, settings={**mcp_door.settings, "packages.allowlist": str(empty)})
    async with door.house() as house, Client(make_server(house)) as client:
        refused = await install(client, "requests")
    assert refused.is_error
    assert "there is no list" in text_of(refused)


async def test_one_that_takes_long_goes_on_and_the_same_call_waits_for_it(
    client: Client, mcp_door: McpDoor
) -> None:
    slow = mcp_door.workspace / "slow"
    slow.touch()
    first = await install(client, "requests", yield_ms=0)
    assert meta_of(first) == {"running": True}
    await until((mcp_door.workspace / "waits").exists, "pip runs")
    slow.unlink()
    assert meta_of(await install(client, "requests"))["status"] == "success"
    assert logged(mcp_door) == [("requests", "success")]


async def test_who_wants_to_know_hears_that_it_goes_on(client: Client, mcp_door: McpDoor) -> None:
    slow = mcp_door.workspace / "slow"
    slow.touch()
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")
        slow.unlink(missing_ok=True)

    asked = {"type": "pip", "package": "requests"}
    done = await client.call_tool("install_package", asked, progress_callback=hear)
    assert meta_of(done)["status"] == "success"
    assert heard[0].startswith("installing for ")


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
    assert "gave it up" in text_of(answer)


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
    assert not (await install(client, "requests==1")).is_error
    events = [record.event for record in read(mcp_door.log)]
    assert events.count(Event.STARTED) == events.count(Event.ENDED)


async def test_what_is_being_installed_ends_with_the_server(mcp_door: McpDoor) -> None:
    (mcp_door.workspace / "slow").touch()
    async with mcp_door.house() as house, Client(make_server(house)) as client:
        await install(client, "requests", yield_ms=0)
        await until((mcp_door.workspace / "waits").exists, "pip runs")
    assert logged(mcp_door) == [("requests", "failed")]
    events = [record.event for record in read(mcp_door.log)]
    assert events.count(Event.STARTED) == events.count(Event.ENDED)


async def test_there_is_an_end_to_what_can_be_waiting(client: Client, mcp_door: McpDoor) -> None:
    (mcp_door.workspace / "slow").touch()
    answers = [await install(client, f"requests=={n}", yield_ms=0) for n in range(17)]
    assert [answer.is_error for answer in answers] == [False] * 16 + [True]
    (mcp_door.workspace / "slow").unlink()


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

    async with door.house() as house:
        server = make_server(house)
        async with Client(server, mode=mode, elicitation_callback=ask) as client:
            assert meta_of(await install(client, "requests"))["status"] == "success"
        assert len(asked) == 1
        assert "who knows what is in it" in asked[0]
        async with Client(server, mode=mode) as client:
            refused = await install(client, "requests")
    assert refused.is_error
    assert "nobody was there to be asked" in text_of(refused)
