"""The cost of the MCP server: until it is ready, a call, many calls at once, its memory, and a
connection that stays open.

    python bench/mcp_server.py [--save]

Run with `make bench`. Everything is compared, by turns, to a bare server of the SDK with one tool
that echoes, over the same kind of pipe. This file is not named `mcp`, because that is the SDK's
name.
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
from _results import ENOUGH_S, Compared, Table, process_mib, save, tree_mib
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

TIMES = 200
STARTS = 10
AT_ONCE = (1, 8, 32)
ROUND_S = 2.0
SESSIONS = 100
MODES = {"handshake": "legacy", "2026-07-28": "2026-07-28"}
SANDBOXES = ("host", "bubblewrap")
TRUE = {"command": "true"}
ECHO = [sys.executable, __file__, "--echo"]
SHELL = ["bash", "--norc", "--noprofile", "-c", "true"]


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


async def timed_call(
    client: Client, tool: str, arguments: dict[str, str], samples: list[float]
) -> None:
    start = time.perf_counter()
    await call(client, tool, arguments)
    samples.append((time.perf_counter() - start) * 1000)


async def starting(bench: Bench, rows: Table) -> None:
    """Measure from the start of a server to its answer to the first request, and its memory."""
    servers = {"SDK": ECHO, "kakoi": bench.argv()}
    ready: dict[str, list[float]] = {name: [] for name in servers}
    first: list[float] = []
    memory: dict[str, tuple[float, float]] = {}
    until = time.perf_counter() + 3 * ENOUGH_S
    while len(first) < STARTS and not (len(first) > 2 and time.perf_counter() > until):
        for name, argv in servers.items():
            start = time.perf_counter()
            async with bench.connected(argv, bench.environ("bubblewrap"), "legacy") as client:
                await client.list_tools()
                ready[name].append((time.perf_counter() - start) * 1000)
                if name == "kakoi":
                    await timed_call(client, "execute_command", TRUE, first)
                else:
                    await call(client, "echo", {"text": "x"})
                memory[name] = memories()
    compared = Compared(tuple(ready["kakoi"]), tuple(ready["SDK"]))
    rows.add("server ready, p50", compared.value, compared.ratio("SDK"), "<= 1.5 x")
    rows.add("its first command, p50", f"{statistics.median(first):.0f} ms")
    (own, whole), (base, all_of_base) = memory["kakoi"], memory["SDK"]
    rows.add("memory of the bare SDK server", f"{base:.0f} MiB")
    rows.add("memory above it", f"{own - base:.0f} MiB", "the server's own process", "<= 25 MiB")
    rows.add("memory above it, with the sandbox", f"{whole - all_of_base:.0f} MiB")


def memories() -> tuple[float, float]:
    """Return the memory of the only server below us, alone and with its processes."""
    (pid,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return process_mib(int(pid)), tree_mib(int(pid))


async def calls(bench: Bench, rows: Table) -> None:
    """Measure calls one by one, by turns with the baselines, because the machine is noisy."""
    for name, mode in MODES.items():
        async with contextlib.AsyncExitStack() as stack:

            async def connect(argv: list[str], sandbox: str, mode: str = mode) -> Client:
                server = bench.connected(argv, bench.environ(sandbox), mode)
                return await stack.enter_async_context(server)

            host = await connect(bench.argv(), "host")
            asked = [
                ("bare SDK echo", await connect(ECHO, "host"), "echo", {"text": "x"}),
                ("check_command", host, "check_command", TRUE),
                ("execute_command in host", host, "execute_command", TRUE),
                (
                    "execute_command in bubblewrap",
                    await connect(bench.argv(), "bubblewrap"),
                    "execute_command",
                    TRUE,
                ),
            ]
            samples: dict[str, list[float]] = {title: [] for title, *_ in asked}
            shell: list[float] = []
            for _title, client, tool, arguments in asked * 20:
                await call(client, tool, arguments)
            until = time.perf_counter() + 2 * ENOUGH_S
            while len(shell) < TIMES and not (len(shell) > 2 and time.perf_counter() > until):
                for title, client, tool, arguments in asked:
                    await timed_call(client, tool, arguments, samples[title])
                start = time.perf_counter()
                subprocess.run(SHELL, check=True)  # noqa: ASYNC221 - nothing else may run
                shell.append((time.perf_counter() - start) * 1000)
        base = tuple(samples["bare SDK echo"])
        # No server can do less: the SDK's own work, and a shell without anything around it.
        least = [one + other for one, other in zip(base, shell, strict=True)]
        samples["echo + subprocess.run of a shell"] = least
        for title, found in samples.items():
            compared = Compared(tuple(found), base)
            bar = "<= 2.0 x" if title.startswith("execute") else ""
            rows.add(f"{name}: {title}, p50", compared.value, compared.ratio("echo"), bar)


async def many(bench: Bench, rows: Table) -> None:
    async with bench.connected(bench.argv(), bench.environ("bubblewrap"), "legacy") as client:
        await call(client, "execute_command", TRUE)
        for count in AT_ONCE:
            done, start = 0, time.perf_counter()

            async def worker(start: float = start) -> None:
                nonlocal done
                while time.perf_counter() - start < ROUND_S:
                    await call(client, "execute_command", TRUE)
                    done += 1

            await asyncio.gather(*(worker() for _ in range(count)))
            rate = done / (time.perf_counter() - start)
            rows.add(f"bubblewrap: {count} at once", f"{rate:.0f} /s")


async def connections(bench: Bench, rows: Table) -> None:
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
            before = tree_mib(server.pid)
            for number in range(SESSIONS):
                await connect(f"s{number}")
            after = tree_mib(server.pid)
        rows.add("HTTP, bubblewrap: server with 10 connections", f"{before:.0f} MiB")
        each = (after - before) / SESSIONS * 1024
        rows.add(f"each of {SESSIONS} more, with a session", f"{each:.0f} KiB")


async def measure(folder: Path, rows: Table) -> None:
    bench = Bench(folder)
    await starting(bench, rows)
    await calls(bench, rows)
    await many(bench, rows)
    await connections(bench, rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        serve_echo()
        return
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(measure(Path(temporary).resolve(), rows := Table()))
    if options.save:
        save("mcp", rows)


if __name__ == "__main__":
    main()
