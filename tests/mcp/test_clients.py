"""Clients of one `kakoi mcp --http` server: none of them sees or touches what another one does."""

import json
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from kakoi.audit import AuditEntry, AuditLog, Event
from tests.cli.terminals import PATIENCE_S, alive
from tests.mcp.connections import (
    TOKEN,
    McpDoor,
    any_mode,
    meta_of,
    over_http,
    run,
    stdout_of,
    text_of,
    told_session,
)
from tests.tools.places import until

pytestmark = pytest.mark.anyio
OTHER = "another token, for another client"
NEW = "2026-07-28"


async def records(client: Client, session: str = "") -> list[dict[str, Any]]:
    uri = f"kakoi://audit/{session}" if session else "kakoi://audit"
    (content,) = (await client.read_resource(uri, cache_mode="bypass")).contents
    return [json.loads(line) for line in content.text.splitlines()]  # type: ignore[union-attr]


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, (tool, arguments)
    return text_of(result)


# --- Without a connection of their own ----------------------------------------------------------


@any_mode
async def test_two_clients_of_one_token_share_no_directory_variables_or_jobs(
    mcp_door: McpDoor, mode: str, mark: str
) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, mode) as one, over_http(url, mode) as other:
            await run(one, "mkdir sub && cd sub && export SECRET=of-the-first", env={"MINE": "1"})
            started = await run(one, f"echo secret; sleep {mark}", background=True)
            await until(lambda: alive(mark), "the job runs")
            for arguments in ({}, {"session": "default"}):
                result = await run(other, "pwd; echo $SECRET $MINE", **arguments)
                assert stdout_of(result) == f"{mcp_door.workspace}\n\n"
            listed = await other.call_tool("list_jobs", {})
            assert meta_of(started)["job_id"] not in str(listed)
            assert "sleep" not in text_of(listed)
            # They are told what they may not use, and where that is told, nothing can be used.
            assert meta_of(started)["job_id"] not in str(await other.list_resources())
            assert alive(mark) != []


async def test_a_client_goes_on_with_the_session_that_the_answer_named(
    mcp_door: McpDoor, mark: str
) -> None:
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, NEW) as client:
            session = told_session(await run(client, "mkdir sub && cd sub && export A=1"))
            assert (
                stdout_of(await run(client, "pwd; echo $A", **session))
                == f"{mcp_door.workspace}/sub\n1\n"
            )
            assert told_session(await run(client, "echo again", **session)) == session
            await client.call_tool("write_file", {"path": "f", "content": "hi", **session})
            assert (mcp_door.workspace / "sub" / "f").read_text() == "hi"
            started = await run(client, f"sleep {mark}", background=True, **session)
            assert told_session(started) == session
            job = meta_of(started)["job_id"]
            assert job in str(await client.call_tool("list_jobs", session))
            assert job not in str(await client.call_tool("list_jobs", {}))
            stopped = await client.call_tool("stop_command", {"job_id": job})
            assert not stopped.is_error
            ids = {record["id"] for record in await records(client, session["session"])}
            assert job in ids


async def test_a_session_cannot_be_chosen_guessed_or_taken_from_another_protocol(
    mcp_door: McpDoor,
) -> None:
    seen: set[str] = set()

    async def note(request: httpx2.Request) -> None:
        seen.update(filter(None, [request.headers.get("mcp-session-id")]))

    headers = {"Authorization": f"Bearer {TOKEN}"}
    with mcp_door.listening() as url, anyio.fail_after(PATIENCE_S):
        async with (
            httpx2.AsyncClient(headers=headers, event_hooks={"request": [note]}) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as old,
        ):
            await run(old, "mkdir sub && cd sub", session="named")
            (session_id,) = seen
            stolen = {**headers, "Mcp-Session-Id": session_id}
            async with (
                httpx2.AsyncClient(headers=stolen) as carrying,
                Client(streamable_http_client(url, http_client=carrying), mode=NEW) as new,
            ):
                assert stdout_of(await run(new, "pwd")) == f"{mcp_door.workspace}\n"
                for name in ("named", "build", "s-" + "0" * 32, session_id):
                    told = await refused(new, "execute_command", command="pwd", session=name)
                    assert "there is no session" in told
                    assert "omit `session`" in told
                    with pytest.raises(MCPError, match="there is no session"):
                        await records(new, name)


# --- Tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [(NEW, NEW), ("legacy", NEW), (NEW, "legacy"), ("legacy",) * 2])
async def test_what_was_begun_with_one_token_is_nothing_to_another(
    mcp_door: McpDoor, modes: tuple[str, str], mark: str
) -> None:
    with mcp_door.listening(tokens=(TOKEN, OTHER)) as url, anyio.fail_after(PATIENCE_S):
        async with (
            over_http(url, modes[0]) as one,
            over_http(url, modes[1], token=OTHER) as other,
        ):
            first = await run(one, "mkdir sub && cd sub")
            session = told_session(first)
            started = await run(one, f"echo secret; sleep {mark}", background=True, **session)
            job = meta_of(started)["job_id"]
            await until(lambda: alive(mark), "the job runs")
            for tool in ("read_output", "write_stdin", "stop_command"):
                assert "there is no job" in await refused(other, tool, job_id=job)
            if session and modes[1] == NEW:
                told = await refused(other, "execute_command", command="pwd", **session)
                assert "there is no session" in told
            assert job not in str(await other.call_tool("list_jobs", {}))
            assert alive(mark) != []
            assert not (await one.call_tool("stop_command", {"job_id": job})).is_error


async def test_a_connection_belongs_to_the_token_that_opened_it(mcp_door: McpDoor) -> None:
    seen: set[str] = set()

    async def note(request: httpx2.Request) -> None:
        seen.update(filter(None, [request.headers.get("mcp-session-id")]))

    headers = {"Authorization": f"Bearer {TOKEN}"}
    with mcp_door.listening(tokens=(TOKEN, OTHER)) as url, anyio.fail_after(PATIENCE_S):
        async with (
            httpx2.AsyncClient(headers=headers, event_hooks={"request": [note]}) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as one,
        ):
            await run(one, "echo hi")
            (session_id,) = seen
            call = {"jsonrpc": "2.0", "id": 9, "method": "tools/call"}
            body = {**call, "params": {"name": "list_jobs", "arguments": {}}}
            sent = {
                "Accept": "application/json, text/event-stream",
                "Mcp-Session-Id": session_id,
                "Mcp-Protocol-Version": "2025-06-18",
            }
            for token, status in ((OTHER, 404), (TOKEN, 200)):
                http.headers["Authorization"] = f"Bearer {token}"
                answer = await http.post(url, json=body, headers=sent)
                assert answer.status_code == status
            assert (await http.delete(url, headers=sent)).status_code == 200


# --- The record ---------------------------------------------------------------------------------


def record_elsewhere(door: McpDoor) -> None:
    """What other projects, tasks and servers have written to the same log."""
    log = AuditLog(door.log, clock=lambda: datetime.now(UTC))
    beside = f"{door.workspace}-beside"
    for number, (cwd, session, task) in enumerate(
        [
            ("/elsewhere", "", ""),
            (beside, "mcp:default", ""),
            (f"{door.workspace}/../elsewhere", "", ""),
            ("", "", ""),
            (str(door.workspace), "", "another-task"),
        ]
    ):
        entry = AuditEntry(
            event=Event.REFUSED,
            id=f"foreign{number}",
            command=f"echo foreign-{number}",
            cwd=cwd,
            session=session,
            task=task,
        )
        log.append(entry)


@any_mode
async def test_over_pipes_the_record_is_that_of_the_workspace(mcp_door: McpDoor, mode: str) -> None:
    record_elsewhere(mcp_door)
    (mcp_door.workspace / "sub").mkdir()
    here = AuditEntry(
        event=Event.REFUSED, id="before", command="ours", cwd=f"{mcp_door.workspace}/sub"
    )
    AuditLog(mcp_door.log, clock=lambda: datetime.now(UTC)).append(here)
    record_elsewhere(mcp_door)
    with anyio.fail_after(PATIENCE_S):
        async with mcp_door.stdio(mode) as client:
            await run(client, "echo hi")
            found = await records(client)
    told = [record["command"] for record in found if "command" in record]
    assert told == ["ours", "echo hi"]


@pytest.mark.parametrize("token", [TOKEN, OTHER], ids=["same token", "another token"])
@any_mode
async def test_over_http_the_record_is_that_of_the_client(
    mcp_door: McpDoor, mode: str, token: str
) -> None:
    record_elsewhere(mcp_door)
    with (
        mcp_door.listening(tokens=(TOKEN, OTHER)) as url,
        anyio.fail_after(PATIENCE_S),
    ):
        async with over_http(url, mode) as one, over_http(url, mode, token=token) as other:
            mine = told_session(await run(one, "echo of-the-first"))
            its = told_session(await run(other, "echo of-the-second"))
            for client, session, command in (
                (one, mine, "echo of-the-first"),
                (other, its, "echo of-the-second"),
            ):
                found = await records(client, session.get("session", ""))
                assert [record["event"] for record in found] == ["started", "ended"]
                assert found[0]["command"] == command
            if mode == NEW:
                with pytest.raises(MCPError, match="kakoi://audit/SESSION"):
                    await records(other)
    names = {record["session"].split("/")[1] for record in await _log(mcp_door)}
    assert names == {"token0", "token0" if token == TOKEN else "token1"}


async def _log(door: McpDoor) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in door.log.read_text().splitlines()]
    return [line for line in lines if not line["id"].startswith("foreign")]
