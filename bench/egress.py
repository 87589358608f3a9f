"""Throughput, latency and memory of the network proxy, compared to a direct connection.

    python bench/egress.py [--tinyproxy PATH] [--squid PATH] [--save]

Run with `make bench`. Server, client and proxies are separate processes on loopback. Every figure
is a ratio to the direct connection in the same run, and the measurements alternate. tinyproxy and
squid are measured if they are installed. `--save` adds the table to bench/results/.
"""

import argparse
import asyncio
import contextlib
import ipaddress
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _results import save

from kakoi.network.domains import parse_domains
from kakoi.network.proxy import Proxy, ProxyLimits

STREAM_BYTES = 128 * 1024 * 1024
MANY = 64
PINGS = 300
OPENINGS = 100
IDLE = 100
ROUNDS = 3
WAIT_S = 120.0
NAME = "bench.test"
Rows = list[tuple[str, str, str]]


# --- Separate processes ----------------------------------------------------------------------


async def serve_bytes() -> None:
    """Answer the line `N` with N bytes and the line `0` with itself, until the client leaves."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        block = bytes(256 * 1024)
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                wanted = int(line)
                if wanted == 0:
                    writer.write(line)
                while wanted > 0:
                    writer.write(block[:wanted])
                    await writer.drain()
                    wanted -= len(block)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def serve_proxy(port: int) -> None:
    """Run kakoi's proxy, and let it connect to loopback addresses."""

    async def resolve(_name: str) -> list[ipaddress.IPv4Address]:
        return [ipaddress.IPv4Address("127.0.0.1")]

    limits = ProxyLimits(burst=100_000)
    proxy = Proxy(
        parse_domains([f"{NAME}:{port}"]),
        resolve=resolve,
        check_address=lambda _domains, _address: "",
        limits=limits,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    proxy.serve(listener)
    await asyncio.Event().wait()


@contextlib.contextmanager
def process(*words: str) -> Iterator[tuple[int, int]]:
    """Run this file as another process. Yields its port and its pid."""
    child = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield int(child.stdout.readline()), child.pid
    finally:
        child.kill()
        child.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def tinyproxy(program: str) -> Iterator[tuple[int, int]]:
    """Run Debian's tinyproxy, which allows everything on loopback."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(f"Port {port}\nListen 127.0.0.1\nMaxClients 200\nLogLevel Critical\n")
        file.flush()
        with answering([program, "-d", "-c", file.name], port) as child:
            yield port, child.pid


@contextlib.contextmanager
def squid(program: str) -> Iterator[tuple[int, int]]:
    """Run Debian's squid in one process without a cache. It allows everything on loopback."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # noqa: S103 - squid switches to another user if root starts it
        lines = [
            f"http_port 127.0.0.1:{port}",
            "http_access allow localhost",
            "http_access deny all",
            "cache deny all",
            "cache_mem 8 MB",
            "access_log none",
            f"cache_log {folder}/cache.log",
            f"pid_filename {folder}/squid.pid",
            f"coredump_dir {folder}",
            "pinger_enable off",
            "shutdown_lifetime 0 seconds",
        ]
        file = Path(folder, "squid.conf")
        file.write_text("\n".join(lines) + "\n")
        with answering([program, "-N", "-f", str(file)], port) as child:
            yield port, child.pid


@contextlib.contextmanager
def answering(argv: list[str], port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program and yield it once it accepts connections on its port."""
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if time.monotonic() > give_up or child.poll() is not None:
                raise TimeoutError(f"{argv[0]} does not answer")
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        child.wait()


# --- Measuring -------------------------------------------------------------------------------


class Way:
    """A route to the server: direct, or through a proxy that knows the server as `host`."""

    def __init__(
        self, name: str, server: int, proxy: int = 0, pid: int = 0, host: str = ""
    ) -> None:
        self.name, self.server, self.proxy, self.pid, self.host = name, server, proxy, pid, host

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self.proxy or self.server
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.proxy:
            at = f"{self.host}:{self.server}"
            writer.write(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answer, answer
        return reader, writer

    async def stream(self, size: int) -> None:
        reader, writer = await self.open()
        writer.write(b"%d\n" % size)
        while size > 0:
            data = await reader.read(1 << 20)
            assert data
            size -= len(data)
        writer.close()

    async def rate(self, streams: int) -> float:
        """Return MiB per second, summed over all streams."""
        began = time.perf_counter()
        await asyncio.gather(*(self.stream(STREAM_BYTES // streams) for _ in range(streams)))
        return STREAM_BYTES / 2**20 / (time.perf_counter() - began)

    async def ping_ms(self) -> float:
        """Return the round-trip time on an open connection."""
        reader, writer = await self.open()
        samples = []
        for _ in range(PINGS):
            began = time.perf_counter()
            writer.write(b"0\n")
            await reader.readline()
            samples.append((time.perf_counter() - began) * 1000)
        writer.close()
        return statistics.median(samples)

    async def opening_ms(self) -> float:
        """Return the time to open a connection and receive the first byte."""
        samples = []
        for _ in range(OPENINGS):
            began = time.perf_counter()
            reader, writer = await self.open()
            writer.write(b"0\n")
            await reader.readline()
            samples.append((time.perf_counter() - began) * 1000)
            writer.close()
        return statistics.median(samples)

    async def idle_kib(self) -> float:
        """Return the proxy's memory per open connection."""
        before = resident_kib(self.pid)
        held = [await self.open() for _ in range(IDLE)]
        grown = resident_kib(self.pid) - before
        for _, writer in held:
            writer.close()
        return grown / IDLE


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


async def measure(ways: list[Way]) -> Rows:
    figures: dict[tuple[str, str], list[float]] = {}
    # Measured first: later, connections would reuse memory that the proxy already has.
    memory = {way.name: await way.idle_kib() for way in ways if way.pid}
    for _ in range(ROUNDS):
        for way in ways:
            for what, work in (
                ("1 stream", way.rate(1)),
                (f"{MANY} streams", way.rate(MANY)),
                ("there and back", way.ping_ms()),
                ("open, first byte", way.opening_ms()),
            ):
                figures.setdefault((way.name, what), []).append(await work)
    rows: Rows = []
    for (name, what), found in figures.items():
        value, base = statistics.median(found), statistics.median(figures["direct", what])
        unit = "MiB/s" if "stream" in what else "ms"
        rows.append((f"{name}: {what}", f"{value:.2f} {unit}", f"{value / base:.2f} x direct"))
    for name, kib in memory.items():
        rows.append((f"{name}: memory, each of {IDLE}", f"{kib:.1f} KiB", ""))
    return rows


def run(others: dict[str, str | None]) -> Rows:
    with contextlib.ExitStack() as stack:
        server, _ = stack.enter_context(process("serve"))
        ours, pid = stack.enter_context(process("proxy", str(server)))
        ways = [Way("direct", server), Way("kakoi", server, ours, pid, NAME)]
        for name, start in (("tinyproxy", tinyproxy), ("squid", squid)):
            if program := others[name]:
                theirs, their_pid = stack.enter_context(start(program))
                ways.append(Way(name, server, theirs, their_pid, "127.0.0.1"))
            else:
                print(f"no {name}: it is left out", file=sys.stderr)
        return asyncio.run(measure(ways))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--tinyproxy", default=shutil.which("tinyproxy"))
    parser.add_argument("--squid", default=shutil.which("squid"))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.words[:1] == ["serve"]:
        asyncio.run(serve_bytes())
    elif options.words[:1] == ["proxy"]:
        asyncio.run(serve_proxy(int(options.words[1])))
    else:
        rows = run({"tinyproxy": options.tinyproxy, "squid": options.squid})
        table = "\n".join(f"{what:<50} {value:>14}   {ratio}" for what, value, ratio in rows)
        print(table)
        if options.save:
            save("egress", table)


if __name__ == "__main__":
    main()
