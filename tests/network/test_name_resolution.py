"""Names inside real sandboxes, by `kakoi run`: a real DNS server answers for the machine."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.boxes import AS_USER, GROUP, USER, needs_root, require_bubblewrap
from tests.cli.conftest import has_image, need
from tests.library import readable_library
from tests.network.name_machine import PUBLIC, PUBLIC_6, TTL_S

pytestmark = needs_root
IMAGE = "kakoi-test:python"
WAIT_S = 120.0
LISTED = ["good.example", "private.example", "mixed.example:8443", "*.wild.example"]
MACHINE = """
ip link set lo up
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
shift
exec "$@"
"""
# What a program in the sandbox sees: by the C library, and in the messages themselves.
ASK = r"""
import json, shutil, socket, struct, subprocess

def hosts(name, database="hosts"):
    done = subprocess.run(["getent", database, name], stdout=subprocess.PIPE, timeout=60)
    return sorted({line.split()[0] for line in done.stdout.decode().splitlines()})

def query(name, kind, data=b""):
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    # Data goes along as an option of EDNS.
    option = struct.pack("!HH", 65001, len(data)) + data
    extra = struct.pack("!BHHIH", 0, 41, 1232, 0, len(option)) + option if data else b""
    head = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 1 if data else 0)
    return head + labels + struct.pack("!xHH", kind, 1) + extra

def read(answer):
    flags, _, count = struct.unpack_from("!HHH", answer, 2)
    at, ttls = 12 + answer[12:].index(0) + 5, []
    for _ in range(count):
        ttl, size = struct.unpack_from("!IH", answer, at + 6)
        ttls.append(ttl)
        at += 12 + size
    return [flags & 15, ttls]

def by_udp(name, kind, data=b""):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(30)
        line.sendto(query(name, kind, data), ("127.0.0.1", 53))
        return read(line.recv(4096))

def by_tcp(name, kind):
    with socket.create_connection(("127.0.0.1", 53), 30) as line:
        asked = query(name, kind)
        line.sendall(struct.pack("!H", len(asked)) + asked)
        with line.makefile("rb") as stream:
            return read(stream.read(*struct.unpack("!H", stream.read(2))))

names = ["good.example", "other.example", "secret.good.example", "private.example", "mixed.example",
         "data.wild.example", "wild.example", "absent.example"]
told = {name: hosts(name, "ahosts") for name in names}
told["hosts"] = hosts("good.example")
told["udp"] = by_udp("good.example", 1)
told["tcp"] = by_tcp("GOOD.example", 28)
told["text"] = by_udp("good.example", 16)
told["refused"] = by_tcp("other.example", 1)
told["case"] = by_udp("GoOd.eXaMpLe", 1)
told["edns"] = by_udp("good.example", 1, b"secret" * 20)
hidden = ["s" * 63 + ".good.example", ".".join(["secret"] * 30) + ".good.example", "s.other.example"]
told["hidden"] = [by_udp(name, kind) for name in hidden for kind in (1, 5, 12, 16, 255)]
told["any"] = [by_udp("good.example", kind) for kind in (2, 5, 6, 33, 255)]

def direct(kind):
    with socket.socket(socket.AF_INET, kind) as line:
        line.settimeout(30)
        try:
            line.connect(("93.184.216.34", 53))
            return "connected"
        except OSError as error:
            return "unreachable"

told["direct"] = [direct(kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]

def nslookup(name):  # With a resolver of its own, as in images with musl.
    done = subprocess.run(["busybox", "nslookup", name], stdout=subprocess.PIPE, timeout=60)
    return "93.184.216.34" in done.stdout.decode()

if shutil.which("busybox"):
    told["nslookup"] = [nslookup("good.example"), nslookup("other.example")]
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Told:
    """What the sandbox saw, which names left the machine, and what kakoi reported and recorded."""

    seen: dict[str, list[object]]
    asked: list[str]
    blocked: list[dict[str, object]]
    audit: list[dict[str, object]]


def _kakoi(kind: str) -> list[str]:
    if kind == "docker":
        need("docker", is_there=has_image(IMAGE))
        return [sys.executable, "-m", "kakoi", "run", "--sandbox", "docker", "--image", IMAGE]
    if kind == "podman":
        image = f"localhost/{IMAGE}"
        argv = ["podman", "image", "exists", image]
        found = shutil.which("podman") and subprocess.run(argv).returncode == 0
        need("podman", is_there=bool(found))
        return [sys.executable, "-m", "kakoi", "run", "--sandbox", "podman", "--image", image]
    require_bubblewrap()
    if kind == "bubblewrap, a user":
        library = f"PYTHONPATH={readable_library()}"
        python = [*AS_USER, "env", library, "/usr/bin/python3"]
        return [*python, "-m", "kakoi", "run", "--sandbox", "bubblewrap"]
    more = ["--cow"] if kind == "bubblewrap, a copy" else []
    return [sys.executable, "-m", "kakoi", "run", "--sandbox", "bubblewrap", *more]


@pytest.fixture(
    scope="module",
    params=[
        *("bubblewrap, root", "bubblewrap, a copy", "bubblewrap, a user", "docker"),
        pytest.param("podman", marks=pytest.mark.extended("another engine of the same kind")),
    ],
)
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    root = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    root.chmod(0o755)
    try:
        (root / "resolv.conf").write_text("nameserver 127.0.0.1\noptions attempts:1 timeout:5\n")
        (root / "nsswitch.conf").write_text("hosts: files dns\n")
        project = root / "project"
        project.mkdir()
        (project / "ask.py").write_text(ASK)
        # Root's own files would be mounted for the engine, which does not see our mounts here.
        if request.param in ("bubblewrap, a user", "docker", "podman"):
            for path in (root, project):
                os.chown(path, USER, GROUP)
        yield _run(request.param, root, project)
    finally:
        shutil.rmtree(root)


def _run(kind: str, root: Path, project: Path) -> Told:
    listed = [word for line in LISTED for word in ("--allow-domain", line)]
    environ = {"HOME": str(root), "KAKOI_AUDIT_FILE": str(root / "audit.jsonl")}
    own = ["env", f"--chdir={project}", *(f"{name}={value}" for name, value in environ.items())]
    command = [*_kakoi(kind), "--yes", "--json", *listed, "--", "python3", "ask.py"]
    machine = [sys.executable, "-m", "tests.network.name_machine", *own, *command]
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec", MACHINE, "sh"]
        + [str(root), *machine],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    assert ran["status"] == 0, ran
    result = json.loads(ran["stdout"])
    audit = (root / "audit.jsonl").read_text().splitlines()
    return Told(
        json.loads(result["stdout"]),
        ran["asked"],
        result["blocked_connections"],
        [json.loads(line) for line in audit],
    )


@pytest.mark.requirement("A-032")
def test_a_listed_name_resolves_inside(told: Told) -> None:
    assert set(told.seen["good.example"]) == {PUBLIC, PUBLIC_6}
    assert told.seen["hosts"] in ([PUBLIC], [PUBLIC_6])
    # The port is of no concern: it decides about connections.
    assert told.seen["mixed.example"] == [PUBLIC]


def test_other_names_do_not_resolve(told: Told) -> None:
    for name in ("other.example", "secret.good.example", "wild.example", "absent.example"):
        assert told.seen[name] == [], name
    assert told.seen["refused"] == [3, []]


def test_a_name_that_leads_to_a_private_network_does_not_resolve(told: Told) -> None:
    assert told.seen["private.example"] == []
    assert any("10.9.8.7" in str(each["reason"]) for each in told.blocked)


def test_only_listed_names_leave_the_machine(told: Told) -> None:
    """A wildcard lists no name that the sandbox could not have made up."""
    assert told.asked == ["good.example", "mixed.example", "private.example"]
    assert told.seen["data.wild.example"] == ["127.0.0.2"]


def test_answers_keep_the_ttl_of_the_name_server(told: Told) -> None:
    for answer in (told.seen["udp"], told.seen["tcp"]):
        assert isinstance(answer[1], list)
        assert answer[0] == 0
        assert len(answer[1]) == 1
        assert TTL_S - 10 < answer[1][0] <= TTL_S


def test_other_kinds_of_records_are_empty(told: Told) -> None:
    assert told.seen["text"] == [0, []]


def test_no_kind_of_query_carries_data_out(told: Told) -> None:
    """Not in labels, types or options, and not past our name server; `asked` is tried above."""
    assert told.seen["hidden"] == [[3, []]] * 15
    assert told.seen["any"] == [[0, []]] * 5
    assert told.seen["direct"] == ["unreachable", "unreachable"]


def test_letter_case_and_options_make_no_difference(told: Told) -> None:
    for answer in (told.seen["case"], told.seen["edns"]):
        assert isinstance(answer[1], list)
        assert (answer[0], len(answer[1])) == (0, 1)


def test_a_resolver_that_is_not_the_c_librarys_finds_the_same(told: Told) -> None:
    # Images without busybox have no such resolver to try.
    assert told.seen.get("nslookup", [True, False]) == [True, False]


def test_a_refused_name_is_reported_and_recorded_like_a_refused_connection(told: Told) -> None:
    found = {str(each["host"]): each for each in told.blocked}
    assert found["other.example"] == {
        "host": "other.example",
        "port": 0,
        "reason": "it is not listed",
        "by_list": True,
    }
    recorded = {each["target"]: each["verdict"] for each in told.audit if each.get("target")}
    assert recorded["DNS other.example"] == "deny"
    assert recorded["DNS good.example"] == "allow"
