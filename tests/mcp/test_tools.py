"""The tools of `kakoi mcp`, called by the official client by the old protocol and the new one."""

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import TextContent, TextResourceContents

from kakoi.audit import AuditLog
from kakoi.backends.host.adapter import HostAdapter
from kakoi.mcp.server import ServerState, make_server
from kakoi.policy.profiles import load_policy, prompt_commands
from tests.mcp.connections import McpDoor, meta_of, run, stdout_of, text_of
from tests.tools.places import CountingGate, tools_over

pytestmark = pytest.mark.anyio


# --- Calls -----------------------------------------------------------------------------------


@pytest.mark.requirement("A-053")
async def test_the_answer_is_all_that_was_written_and_a_last_line(client: Client) -> None:
    result = await run(client, "echo out; echo err >&2; exit 3")
    first, second, third, last = text_of(result).splitlines()
    assert (first, second, third) == ("out", "[stderr]", "err")
    assert last.startswith("[exit code 3 | ")
    assert f"| exited | job {meta_of(result)['job_id']}]" in last
    assert not result.is_error
    assert result.structured_content is None
    meta = meta_of(result)
    assert (meta["exit_code"], meta["reason"], meta["running"]) == (3, "exited", False)
    assert type(meta["exit_code"]) is type(meta["duration_ms"]) is int
    assert f"| {meta['duration_ms']} ms |" in last
    assert "disk_bytes" in meta["limits_unenforced"]  # Commands run on the host here.
    start, end = meta["spans"]["stderr"]
    assert text_of(result)[start:end] == "err\n"
    start, end = meta["spans"]["stdout"]
    assert text_of(result)[start:end] == "out\n"
    slow = await run(client, "sleep 0.3")
    assert meta_of(slow)["duration_ms"] >= 300


async def test_a_command_is_judged_once_and_recorded_when_it_starts_and_ends(
    tmp_path: Path,
) -> None:
    """Whatever it is: a program, text for the shell, or what later commands inherit."""
    log, admitted = tmp_path / "audit.jsonl", list[str]()
    gate = CountingGate(
        load_policy(),
        HostAdapter(tmp_path, warn_on_start=False),
        cwd=str(tmp_path),
        audit=AuditLog(log, clock=lambda: datetime.now(UTC)),
        validators=[admitted.append],
    )
    commands = ["true", "echo a | cat", "export NAME=value", "cd /tmp && ls", "echo $NAME; false"]
    async with tools_over(gate, tmp_path) as tools:
        state = ServerState(tools=tools, name="kakoi", audit_file=log)
        async with Client(make_server(state)) as client:
            for command in commands:
                assert not (await run(client, command)).is_error
            refused = await run(client, "sudo id")
    assert refused.is_error
    assert gate.judged == len(commands) + 1
    assert [text.splitlines()[-1] for text in admitted] == commands
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["event"] for each in records] == ["started", "ended"] * len(commands) + ["refused"]


@pytest.mark.requirement("A-049")
async def test_it_can_be_called_with_the_name_of_the_server_in_front(client: Client) -> None:
    tools = [tool.name for tool in (await client.list_tools()).tools]
    assert "execute_command" in tools
    info = client.server_info
    assert info is None or info.name == "command-executor"
    result = await client.call_tool("command-executor/execute_command", {"command": "echo hi"})
    assert stdout_of(result) == "hi\n"


@pytest.mark.requirement("A-050", "X-33")
async def test_an_environment_of_somebody_else_is_refused(client: Client) -> None:
    result = await run(client, "echo hi", container_id="coding-agent-exec-someone")
    assert result.is_error
    assert "is not yours" in text_of(result)


async def test_a_session_keeps_its_directory_and_its_variables(
    client: Client, mcp_door: McpDoor
) -> None:
    await run(client, "mkdir -p sub/deep && cd sub", env={"NAME": "a b"})
    assert stdout_of(await run(client, 'pwd; echo "$NAME"')) == f"{mcp_door.workspace}/sub\na b\n"
    assert stdout_of(await run(client, "pwd", workdir="deep")) == f"{mcp_door.workspace}/sub/deep\n"
    other = await run(client, 'pwd; echo "$NAME"', session="other")
    assert stdout_of(other) == f"{mcp_door.workspace}\n\n"


async def test_a_long_command_goes_on_as_a_job(client: Client, mcp_door: McpDoor) -> None:
    command = "mkdir sub; cd sub; echo one; while ! test -e ../go; do sleep 0.01; done; echo two"
    result = await run(client, command, yield_ms=200)
    job = meta_of(result)["job_id"]
    assert meta_of(result)["running"]
    assert "still running" in text_of(result)
    assert f"job {job}" in text_of(result)
    listed = await client.call_tool("list_jobs", {})
    assert meta_of(listed)["jobs"] == [{"job_id": job, "running": True, "session": "default"}]
    (mcp_door.workspace / "go").touch()
    seen, offset = "", 0
    with anyio.fail_after(60):
        while True:
            arguments = {"job_id": job, "offset": offset, "wait_ms": 30_000}
            part = await client.call_tool("read_output", arguments)
            seen += "".join(text_of(part).splitlines(keepends=True)[:-1])
            offset = meta_of(part)["next_offset"]
            if not meta_of(part)["running"] and meta_of(part)["output_ended"]:
                break
    assert seen == "one\ntwo\n"
    assert stdout_of(await run(client, "pwd")) == f"{mcp_door.workspace}/sub\n"


async def test_who_wants_to_know_hears_that_it_runs(client: Client, mcp_door: McpDoor) -> None:
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        assert total is None
        assert "running" in (message or "")
        (mcp_door.workspace / "go").touch()

    result = await client.call_tool(
        "execute_command",
        {"command": "while ! test -e go; do sleep 0.01; done; echo went"},
        progress_callback=hear,
    )
    assert stdout_of(result) == "went\n"
    assert heard


async def test_null_and_whole_fractions_are_what_clients_mean(client: Client) -> None:
    result = await run(client, "echo hi", workdir=None, timeout_ms=5000.0)
    assert stdout_of(result) == "hi\n"


async def test_an_unknown_tool_is_an_error_that_names_the_nearest(client: Client) -> None:
    with pytest.raises(MCPError, match="did you mean `execute_command`"):
        await client.call_tool("execute_comand", {"command": "ls"})


async def test_files_are_written_edited_read_and_listed(client: Client, mcp_door: McpDoor) -> None:
    await client.call_tool("write_file", {"path": "a.txt", "content": "one\ntwo\ntwo\n"})
    (mcp_door.workspace / "a.txt").chmod(0o755)
    edit = {"path": "a.txt", "old_text": "one", "new_text": "größer"}
    assert text_of(await client.call_tool("edit_file", edit)).startswith("[1 replacement")
    assert (mcp_door.workspace / "a.txt").read_text() == "größer\ntwo\ntwo\n"
    assert (mcp_door.workspace / "a.txt").stat().st_mode & 0o777 == 0o755
    part = await client.call_tool("read_file", {"path": "a.txt", "first_line": 2, "lines": 1})
    assert text_of(part) == "two\n[lines 2-2 of 3 | 17 bytes]"
    listed = await client.call_tool("list_files", {})
    assert meta_of(listed)["files"] == [{"name": "a.txt", "kind": "file", "bytes": 17}]


# --- What clients are told -------------------------------------------------------------------


async def test_tools_say_what_they_do_and_have_schemas_that_everybody_reads(
    client: Client,
) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    reading = {"read_output", "list_jobs", "read_file", "list_files", "check_command"}
    for name, tool in tools.items():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (name in reading)
        assert tool.annotations.destructive_hint is (name not in reading)
        assert tool.output_schema is None
        assert tool.input_schema["additionalProperties"] is False
        assert "anyOf" not in json.dumps(tool.input_schema)
        assert tool.description
    defaults = tools["execute_command"].input_schema["properties"]
    assert (defaults["timeout_ms"]["default"], defaults["yield_ms"]["default"]) == (120_000, 45_000)


async def test_the_log_and_the_policy_can_be_read(client: Client) -> None:
    (nothing,) = (await client.read_resource("kakoi://audit", cache_mode="bypass")).contents
    assert isinstance(nothing, TextResourceContents)
    assert nothing.text == ""
    await run(client, "echo hello API_TOKEN=abcdefghijklmnop1234")
    uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
    texts = []
    for uri in uris:
        (content,) = (await client.read_resource(uri)).contents
        assert isinstance(content, TextResourceContents)
        texts.append(content.text)
    records = [json.loads(line) for line in texts[0].splitlines()]
    assert [record["event"] for record in records] == ["started", "ended"]
    assert "abcdefghijklmnop1234" not in texts[0]
    assert "Version Control: git status" in texts[1]
    assert json.loads(texts[2])["name"] == "coding-agent"
    with pytest.raises(MCPError):
        await client.read_resource("kakoi://secrets")


async def test_a_log_that_cannot_be_read_is_told_with_the_way_out(
    client: Client, mcp_door: McpDoor, caplog: pytest.LogCaptureFixture
) -> None:
    mcp_door.log.mkdir()
    with pytest.raises(MCPError, match="is not a regular file; use another file"):
        await client.read_resource("kakoi://audit")
    assert "Traceback" not in caplog.text


async def test_an_argument_that_a_tool_does_not_have_is_told(client: Client) -> None:
    answer = text_of(await client.call_tool("list_jobs", {"jobs": 1}))
    assert answer == "there is no argument 'jobs'\n  hint: the arguments are session"


async def test_the_prompt_lists_what_may_run(client: Client) -> None:
    (prompt,) = (await client.list_prompts()).prompts
    (message,) = (await client.get_prompt(prompt.name)).messages
    assert isinstance(message.content, TextContent)
    assert "## Command Execution Feature" in message.content.text
    assert prompt_commands(load_policy()) in message.content.text
    with pytest.raises(MCPError):
        await client.get_prompt("other")
