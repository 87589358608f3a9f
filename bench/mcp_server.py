"""The cost of the MCP server: a call, many calls at once, a connection that stays open.

    python bench/mcp_server.py [--save]

Run with `make bench`. A call is compared to the echo tool of a bare SDK server, over the same kind
of pipe, in the same run. This file is not named `mcp`, because that is the SDK's name.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
from _results import save
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

TIMES = 200
ROUNDS = 5
AT_ONCE = (1, 8, 32)
BATCH = 320
SESSIONS = 100
MODES = {"handshake": "legacy", "2026-07-28": "2026-07-28"}
SANDBOXES = ("host", "bubblewrap")
TRUE = {"command": "true"}
Rows = list[tuple[str, str, str]]


def serve_echo() -> None:
    from mcp.server import MCPServer

    server = MCPServer("echo")

    @server.tool(structured_output=False)
    def echo(text: str) -> str:
        return text

    server.run()


class Bench:
    """A folder with a workspace, settings and an audit log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.nowhere = (folder / "errors.txt").open("w")
        (folder / "config.yaml").write_text("execution:\n  concurrency: 32\n")

    def environ(self, sandbox: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "KAKOI_AUDIT_FILE": str(self.folder / "audit.jsonl"),
            "KAKOI_CONFIG": str(self.folder / "config.yaml"),
            "KAKOI_SANDBOX": sandbox,
        }

    def argv(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "kakoi", "mcp", "--workspace", str(self.workspace), *more]

    @contextlib.contextmanager
    def listening(self, token: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
        """Start a server on HTTP. Yields the process and its URL."""
        env = {**self.environ("bubblewrap"), "KAKOI_MCP_TOKEN": token}
        argv = self.argv("--http", "127.0.0.1:0")
        server = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE)
        try:
            assert server.stderr is not None
            url = server.stderr.readline().decode().split()[-1]
            yield server, url
        finally:
            server.terminate()
            server.communicate()

    @contextlib.asynccontextmanager
    async def connected(
        self, argv: list[str], env: dict[str, str], mode: str
    ) -> AsyncIterator[Client]:
        server = StdioServerParameters(command=argv[0], args=argv[1:], env=env)
        async with Client(stdio_client(server, errlog=self.nowhere), mode=mode) as client:
            yield client


async def call(client: Client, tool: str, arguments: dict[str, str]) -> None:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result


async def p50(client: Client, tool: str, arguments: dict[str, str], times: int) -> float:
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        await call(client, tool, arguments)
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def shell_alone(name: str) -> tuple[str, str, str]:
    """Measure the shell alone, which runs every command."""
    samples = []
    for _ in range(TIMES):
        start = time.perf_counter()
        subprocess.run(["bash", "--norc", "--noprofile", "-c", "true"], check=True)
        samples.append((time.perf_counter() - start) * 1000)
    return f"{name}: subprocess.run of a shell, p50", f"{statistics.median(samples):.2f} ms", ""


async def calls(bench: Bench, rows: Rows) -> None:
    """Measure calls one by one, alternating with the baseline, because the machine is noisy."""
    for name, mode in MODES.items():
        async with contextlib.AsyncExitStack() as stack:
            argv = [sys.executable, __file__, "--echo"]
            echo = await stack.enter_async_context(
                bench.connected(argv, bench.environ("host"), mode)
            )
            doors = {
                sandbox: await stack.enter_async_context(
                    bench.connected(bench.argv(), bench.environ(sandbox), mode)
                )
                for sandbox in SANDBOXES
            }
            await p50(echo, "echo", {"text": "x"}, 20)
            for door in doors.values():
                await p50(door, "execute_command", TRUE, 20)
            plain: list[float] = []
            checked: list[float] = []
            ours: dict[str, list[float]] = {sandbox: [] for sandbox in SANDBOXES}
            for _ in range(ROUNDS):
                plain.append(await p50(echo, "echo", {"text": "x"}, TIMES // ROUNDS))
                host = doors["host"]
                checked.append(await p50(host, "check_command", TRUE, TIMES // ROUNDS))
                for sandbox, door in doors.items():
                    ours[sandbox].append(await p50(door, "execute_command", TRUE, TIMES // ROUNDS))
            base = statistics.median(plain)
            rows.append(shell_alone(name))
            rows.append((f"{name}: bare SDK echo, p50", f"{base:.2f} ms", "1.00 x echo"))
            found = {"check_command": checked, **ours}
            for what, samples in found.items():
                each = statistics.median(samples)
                title = what if what == "check_command" else f"execute_command in {what}"
                rows.append(
                    (f"{name}: {title}, p50", f"{each:.2f} ms", f"{each / base:.2f} x echo")
                )


async def many(bench: Bench, rows: Rows) -> None:
    async with bench.connected(bench.argv(), bench.environ("bubblewrap"), "legacy") as client:
        await call(client, "execute_command", TRUE)
        for count in AT_ONCE:

            async def worker(times: int = BATCH // count) -> None:
                for _ in range(times):
                    await call(client, "execute_command", TRUE)

            start = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(count)))
            rate = BATCH // count * count / (time.perf_counter() - start)
            rows.append((f"bubblewrap: {count} at once", f"{rate:.0f} /s", ""))


def memory_mib(root: int) -> float:
    """Return the memory of a process and its descendants, counting shared pages once."""
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(rollup.split("Pss:")[1].split()[0]) / 1024
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return total


async def connections(bench: Bench, rows: Rows) -> None:
    """Measure open HTTP connections, each with its own session in which one command has run."""
    token = secrets.token_hex(16)
    with bench.listening(token) as (server, url):
        async with contextlib.AsyncExitStack() as stack:

            async def connect(name: str) -> None:
                headers = {"Authorization": f"Bearer {token}"}
                http = httpx2.AsyncClient(headers=headers, timeout=60)
                await stack.enter_async_context(http)
                transport = streamable_http_client(url, http_client=http)
                client = Client(transport, mode="legacy")
                await stack.enter_async_context(client)
                result = await client.call_tool(
                    "execute_command", {"command": "true", "session": name}
                )
                assert not result.is_error

            for number in range(10):
                await connect(f"warm{number}")
            before = memory_mib(server.pid)
            for number in range(SESSIONS):
                await connect(f"s{number}")
            after = memory_mib(server.pid)
        rows.append(("HTTP, bubblewrap: server with 10 connections", f"{before:.0f} MiB", ""))
        each = (after - before) / SESSIONS * 1024
        rows.append((f"each of {SESSIONS} more, with a session", f"{each:.0f} KiB", ""))


async def measure(folder: Path) -> Rows:
    rows: Rows = []
    bench = Bench(folder)
    await calls(bench, rows)
    await many(bench, rows)
    await connections(bench, rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        serve_echo()
        return
    with tempfile.TemporaryDirectory() as temporary:
        rows = asyncio.run(measure(Path(temporary).resolve()))
    table = "\n".join(f"{what:<50} {value:>12}   {ratio}" for what, value, ratio in rows)
    print(table)
    if options.save:
        save("mcp", table)


if __name__ == "__main__":
    main()
