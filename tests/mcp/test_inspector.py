"""The MCP Inspector's command line, a client that nobody here wrote; where it is installed."""

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from tests.cli.conftest import need
from tests.cli.terminals import PATIENCE_S
from tests.mcp.connections import McpDoor

PROGRAM = os.environ.get("MCP_INSPECTOR") or shutil.which("mcp-inspector")
CALL = ("--method", "tools/call", "--tool-name", "execute_command", "--tool-arg")


def inspect(door: McpDoor, *arguments: str) -> dict[str, Any]:
    need("inspector", is_there=PROGRAM is not None)
    done = subprocess.run(
        [str(PROGRAM), "--cli", *arguments],
        env=door.environ,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow("a client in Node, started cold several times")
def test_it_lists_and_calls_tools_over_pipes(mcp_door: McpDoor) -> None:
    server = mcp_door.argv()[2:]  # Options of `env` would be taken for its own.
    tools = inspect(mcp_door, *server, "--method", "tools/list")["tools"]
    assert "execute_command" in [tool["name"] for tool in tools]
    answer = inspect(mcp_door, *server, *CALL, "command=echo hi")
    assert answer["content"][0]["text"].startswith("hi\n[exit code 0 | ")
    refused = inspect(mcp_door, *server, *CALL, "command=sudo id")
    assert refused["isError"]
