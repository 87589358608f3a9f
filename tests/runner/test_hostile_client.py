"""A client may send anything: the runner cuts it off, ends what it asked for, and serves the rest."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.process.options import default_environment
from kakoi.runner import frames
from tests.process.trees import Witness, tree_argv
from tests.runner.conftest import PATIENCE_S, RawClient, is_alive, kill, run_order, wait_until

LINGER = RunnerSettings(linger=True)


@pytest.fixture
def client() -> Iterator[RawClient]:
    with RawClient() as client:
        yield client


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """The environment of a place of its own, for runners that stay there."""
    return {**default_environment(), "TMPDIR": str(tmp_path)}


def pid_of(path: Path) -> int:
    """The number that a command writes into a file, whole."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def sleeper(path: Path) -> list[str]:
    return ["sh", "-c", f"echo $$ > {path}; exec sleep 300"]


# --- Nonsense --------------------------------------------------------------------------------

NONSENSE = {
    "noise": b"GET / HTTP/1.1\r\n\r\n",
    "an unknown kind": frames.HEAD.pack(99, 1, 0),
    "a frame too big": frames.HEAD.pack(frames.INPUT, 1, frames.MAX_DATA + 1),
    "a request too big": frames.HEAD.pack(frames.REQUEST, 1, frames.MAX_JSON + 1),
    "no JSON": frames.frame(frames.REQUEST, 1, b"{]"),
    "nothing": frames.frame(frames.REQUEST, 1, b""),
    "deep JSON": frames.frame(frames.REQUEST, 1, b"[" * 500_000),
    "deep objects": frames.frame(frames.REQUEST, 1, b'{"op":' * 200_000),
    "no UTF-8": frames.frame(frames.REQUEST, 1, b'{"op": "\xff"}'),
    "a list": frames.frame(frames.REQUEST, 1, b"[]"),
    "a text": frames.frame(frames.REQUEST, 1, b'"run"'),
    "a number": frames.frame(frames.REQUEST, 1, b"7"),
    "null": frames.frame(frames.REQUEST, 1, b"null"),
    "no op": frames.frame(frames.REQUEST, 1, b"{}"),
    "an unknown op": frames.frame(frames.REQUEST, 1, b'{"op": "fly"}'),
    "an op that is a list": frames.frame(frames.REQUEST, 1, b'{"op": []}'),
    "a name of ours as an op": frames.frame(frames.REQUEST, 1, b'{"op": "__init__"}'),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_the_end_of_its_client(client: RawClient, nonsense: bytes) -> None:
    client.send_bytes(nonsense)
    client.until_closed()
    assert client.wait_until_gone() == 0
    assert client.complaints() == b""


RUN = run_order("x", "true")
NAN, INFINITY = float("nan"), float("inf")


def each(
    op: str, name: str, *values: object, **rest: object
) -> list[tuple[str, dict[str, object]]]:
    return [(op, {**rest, name: value}) for value in values]


ABOUT_JOBS = ("read", "write", "wait", "stop", "signal", "resize")
ABOUT_FILES = (
    *("read_file", "write_file", "list_files", "stat_file"),
    *("make_dir", "move_file", "remove_file", "watch_files"),
)
WRONG: list[tuple[str, dict[str, object]]] = [
    *each("run", "id", None, 7, [], {}),
    *each("run", "command", None, 7, {}, [7], [None], [[]], []),
    *each("run", "cwd", 7, [], {}),
    *each("run", "env", None, 7, [], "x", {"A": 7}, {"A": None}),
    *each("run", "stdin", None, 7, "x"),
    *each("run", "terminal", 7, [1], [1, 2, 3], ["a", "b"], [-1, 1], [70000, 1]),
    *each("run", "timeout_s", "1", [], -1, NAN, INFINITY),
    *each("run", "idle_timeout_s", "1", [], -1, NAN),
    *each("run", "send_limit", None, "1", 1.5, -1),
    *each("run", "spill", None, "1", 1.5, -1),
    *each("run", "input", 7, "€", background=True, stdin=True),
    *[(op, {}) for op in ABOUT_JOBS + ABOUT_FILES],
    *[wrong for op in ABOUT_JOBS for wrong in each(op, "id", [])],
    *each("read_file", "path", None, [], {}),
    *each("read_file", "limit", None, "1", path="/etc/passwd", offset=0),
    *each("write_file", "path", None, [], {}),
    *each("list_files", "path", 3, [], {}, depth=1, limit=9),
    *each("list_files", "depth", None, "1", 0, -1, 1.5, True, path="/etc", limit=9),
    *each("list_files", "limit", None, "1", -1, 1.5, path="/etc", depth=1),
    *each("make_dir", "mode", None, "1", -1, path="/etc", parents=True),
    *each("move_file", "destination", None, 7, path="/nowhere"),
    *each("remove_file", "path", None, 7, recursive=True),
    *each("watch_files", "path", None, 7, recursive=True),
    *each("stat_file", "path", None, [], {}),
]


@pytest.mark.parametrize(("op", "fields"), WRONG, ids=[f"{op} {fields}" for op, fields in WRONG])
def test_a_request_of_the_wrong_shape_is_the_end_of_its_client_and_of_nobody_else(
    clients: "Clients", op: str, fields: dict[str, object]
) -> None:
    """Two clients of one runner: one of them sends what nobody would."""
    good, bad = clients.pair()
    base = RUN if op == "run" else {"op": op}
    bad.send_bytes(
        frames.frame(frames.REQUEST, 1, json.dumps({**base, **fields}).encode())
        + frames.frame(frames.REQUEST, 2, b'{"op": "ping"}')
    )
    bad.until_closed()
    assert good.ask(clients.number(), {"op": "ping"}) == {}
    assert clients.complaints() == b""


class Clients:
    """One lingering runner, a client that behaves, and one new client after the other."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._good = RawClient(LINGER, env=env)
        self._good.__enter__()
        self._guests: list[RawClient] = []
        self._number = 0

    def pair(self) -> tuple[RawClient, RawClient]:
        guest = RawClient(LINGER, env=self._env)
        self._guests.append(guest)
        return self._good, guest.__enter__()

    def number(self) -> int:
        self._number += 1
        return self._number

    def complaints(self) -> bytes:
        return self._good.complaints()

    def close(self) -> None:
        for client in [*self._guests, self._good]:
            client.__exit__()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = str(tmp_path_factory.mktemp("place"))
    clients = Clients({**default_environment(), "TMPDIR": folder})
    try:
        yield clients
    finally:
        clients.close()


ODD = {
    "a file name with a NUL": {"op": "read_file", "path": "/a\0b", "offset": 0, "limit": 9},
    "half a character": {"op": "read_file", "path": "/\ud800", "offset": 0, "limit": 9},
    "an offset before the file": {
        "op": "read_file",
        "path": "/etc/passwd",
        "offset": -1,
        "limit": 9,
    },
    "a limit below zero": {"op": "read_file", "path": "/etc/passwd", "offset": 0, "limit": -1},
    "a file that cannot be read": {
        "op": "read_file",
        "path": "/proc/self/mem",
        "offset": 0,
        "limit": 9,
    },
    "a stat with a NUL": {"op": "stat_file", "path": "/a\0b"},
    "a list with a NUL": {"op": "list_files", "path": "/a\0b", "depth": 1, "limit": 9},
    "a removal with a NUL": {"op": "remove_file", "path": "/a\0b", "recursive": True},
    "a watch with a NUL": {"op": "watch_files", "path": "/a\0b", "recursive": True},
    "a move to a NUL": {"op": "move_file", "path": "/nowhere", "destination": "/a\0b"},
    "a removal of the root": {"op": "remove_file", "path": "/", "recursive": True},
    "a removal of nothing": {"op": "remove_file", "path": "", "recursive": True},
    "a removal of the parent": {"op": "remove_file", "path": "/nowhere/..", "recursive": True},
    "a write with a NUL": {"op": "write_file", "path": "/a\0b", "mode": 0o644, "limit": 9},
    "an unknown job": {"op": "stop", "id": "nobody"},
}


@pytest.mark.parametrize("order", ODD.values(), ids=ODD)
def test_what_the_system_refuses_is_an_answer(client: RawClient, order: object) -> None:
    assert client.ask(1, order)["errno"] > 0
    assert client.ask(2, {"op": "ping"}) == {}
    assert client.complaints() == b""


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ["echo", "a\0b"]},
        {"command": ["echo", "\ud800"]},
        {"command": [""]},
        {"env": {"A": "a\0b"}},
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"cwd": "/a\0b"},
        {"command": ["true", "x" * 140_000]},
        {"terminal": [24, 80], "cwd": "/no/such"},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_command_that_cannot_be_was_never_started(
    client: RawClient, changes: dict[str, object]
) -> None:
    for number in (1, 2):
        answer = client.ask(number, {**run_order(f"x{number}", "true"), **changes})
        assert answer["kind"] in ("no_cwd", "no_program", "no_start", "no_keeper")
    assert client.ask(3, run_order("next", "true"))["kind"] == "exited"
    assert client.complaints() == b""


@given(st.binary(max_size=400))
@settings(max_examples=15)
def test_whatever_bytes_come_the_runner_ends_in_peace(noise: bytes) -> None:
    with RawClient() as client:
        client.send_bytes(noise)
        client.leave()
        assert client.wait_until_gone() == 0
        assert client.complaints() == b""


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["x", "", "/", "/etc/passwd", "\0", "\ud800", "stdout"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["A", "op", "id"]), inner, max_size=3)
    ),
    max_leaves=6,
)
small = st.integers(-2, 300)
seconds = st.sampled_from([0, -1, 0.001, 1e300, float("nan"), float("inf"), None])
# Nothing that runs, writes or waits: the test is about the shape of what is asked.
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "op": st.sampled_from([op for op in ABOUT_JOBS + ABOUT_FILES if "write" not in op] + ["list"]),
    "id": st.sampled_from(["job", "nobody", "", "\ud800"]),
    "path": st.sampled_from(["/", "/etc/passwd", "/proc/self/mem", "/no/such", "", "\ud800"]),
    "offset": small,
    "limit": small,
    "stream": st.integers(-1, 2),
    "wait_s": seconds,
    "number": st.integers(-1, 70),
    "rows": small,
    "columns": small,
}


def mostly(good: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.integers(0, 9).flatmap(lambda odds: good if odds else json_values)


mostly_right = st.fixed_dictionaries({name: mostly(good) for name, good in FIELDS.items()})
orders = st.tuples(st.just(frames.REQUEST), st.integers(0, 40), mostly_right)
other_frames = st.one_of(
    st.tuples(st.just(frames.INPUT), st.integers(0, 40), st.binary(max_size=8)),
    st.tuples(st.just(frames.CANCEL), st.integers(0, 40), st.just(b"")),
    st.tuples(st.just(frames.CREDIT), st.integers(0, 40), st.binary(max_size=4)),
)


@given(st.lists(orders | other_frames, max_size=20))
@settings(max_examples=50)
def test_requests_of_any_shape_do_the_runner_no_harm(
    sent: list[tuple[int, int, dict[str, object] | bytes]],
) -> None:
    with RawClient() as client:
        assert client.ask(99, run_order("job", "cat", background=True, stdin=True)) == {"id": "job"}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for kind, number, body in sent:
                client.send(
                    kind, number, body if isinstance(body, bytes) else json.dumps(body).encode()
                )
        client.leave()
        assert client.wait_until_gone() == 0
        assert client.complaints() == b""


# --- Order and number ------------------------------------------------------------------------


def test_a_number_that_is_in_use_is_the_end_of_its_client(
    client: RawClient, tmp_path: Path
) -> None:
    """Otherwise nobody would know which of the two is to be ended."""
    client.order(1, run_order("first", sleeper(tmp_path / "pid")))
    pid = pid_of(tmp_path / "pid")
    client.order(1, run_order("second", "true"))
    client.until_closed()
    assert client.wait_until_gone() == 0
    assert not is_alive(pid)


def test_a_number_may_be_used_again_after_its_answer(client: RawClient) -> None:
    for name in ("a", "b", "c"):
        assert client.ask(1, run_order(name, "true"))["id"] == name


def test_an_id_that_is_asked_for_twice_is_done_once(client: RawClient, tmp_path: Path) -> None:
    log = tmp_path / "log"
    order = run_order("same", f"echo done >> {log}; exit 7")
    client.order(1, order)
    client.order(2, order)
    found = client.answers(2)
    assert found[1] == found[2]
    assert client.ask(3, order) == found[1]
    assert log.read_text() == "done\n"
    assert found[1]["number"] == 7


def test_a_job_that_is_asked_for_twice_reads_its_input_once(
    client: RawClient, tmp_path: Path
) -> None:
    changes = {"background": True, "stdin": True, "input": "b25jZQo=", "input_ends": True}
    order = run_order("job", f"cat >> {tmp_path}/log", **changes)
    for number in (1, 2, 3):
        assert client.ask(number, order) == {"id": "job"}
    assert client.ask(4, {"op": "wait", "id": "job", "wait_s": None})["number"] == 0
    assert (tmp_path / "log").read_text() == "once\n"


def test_frames_for_a_request_that_is_over_are_not_a_breach(client: RawClient) -> None:
    """They were on their way."""
    assert client.ask(1, run_order("x", "true"))["kind"] == "exited"
    for kind, body in ((frames.INPUT, b"x"), (frames.CANCEL, b""), (frames.CREDIT, bytes(4))):
        client.send(kind, 1, body)
        client.send(kind, 99, body)
    assert client.ask(2, {"op": "ping"}) == {}


def test_input_beyond_the_credit_is_the_end_of_its_client(client: RawClient) -> None:
    client.order(1, run_order("x", "sleep 300", stdin=True))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(10):
            client.send(frames.INPUT, 1, bytes(frames.MAX_DATA))
    client.until_closed()
    assert client.wait_until_gone() == 0


def test_input_for_a_command_that_takes_none_is_swallowed(client: RawClient) -> None:
    client.order(1, run_order("x", "cat; sleep 300"))
    for _ in range(8):
        client.send(frames.INPUT, 1, bytes(frames.MAX_DATA))
        while client.expect() != (frames.CREDIT, 1, frames.NUMBER.pack(frames.MAX_DATA)):
            pass
    client.send(frames.CANCEL, 1)
    assert client.answer(1)["kind"] == "cancelled"


def test_a_request_after_the_end_of_its_client_is_not_obeyed(
    clients: Clients, tmp_path: Path
) -> None:
    """It came in one piece with the breach: whoever started it would be gone already."""
    good, bad = clients.pair()
    bad.send_bytes(
        frames.frame(frames.REQUEST, 1, b"{]")
        + frames.frame(
            frames.REQUEST, 2, json.dumps(run_order("late", f"touch {tmp_path}/x")).encode()
        )
    )
    bad.until_closed()
    assert good.ask(clients.number(), run_order("after", "true"))["kind"] == "exited"
    assert not (tmp_path / "x").exists()


def test_more_requests_than_allowed_are_the_end_of_their_client(client: RawClient) -> None:
    job = {"background": True}
    assert client.ask(1, run_order("job", "sleep 300", **job)) == {"id": "job"}
    for number in range(2, 4000):
        client.order(number, {"op": "wait", "id": "job", "wait_s": None})
    assert client.ask(6000, {"op": "ping"}) == {}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for number in range(4000, 5000):
            client.order(number, {"op": "wait", "id": "job", "wait_s": None})
    client.until_closed()
    assert client.wait_until_gone() == 0


def test_five_thousand_requests_one_after_the_other_are_answered(client: RawClient) -> None:
    for begin in range(0, 5000, 500):
        for number in range(begin, begin + 500):
            client.order(number, {"op": "stat_file", "path": "/"})
        assert len(client.answers(500)) == 500


def test_a_client_that_reads_nothing_does_not_fill_the_runners_memory(
    client: RawClient, tmp_path: Path
) -> None:
    """A thousand requests for a megabyte each, and nobody takes the answers."""
    (tmp_path / "big").write_bytes(bytes(1 << 20))
    client.order(1, run_order("job", ["cat", str(tmp_path / "big")], background=True))
    assert client.answer(1) == {"id": "job"}
    assert client.ask(2, {"op": "wait", "id": "job", "wait_s": None})["bytes"] == [1 << 20, 0]
    part = {"op": "read", "id": "job", "stream": 0, "offset": 0, "limit": 1 << 20, "wait_s": 0}
    body = json.dumps(part).encode()
    numbers = range(10, 310)
    client.send_bytes(b"".join(frames.frame(frames.REQUEST, each, body) for each in numbers))
    wait_until(lambda: unread_bytes(client) > 0)
    status = Path(f"/proc/{client.process.pid}/status").read_text(encoding="ascii")
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib < 100_000
    assert len(client.answers(300)) == 300


def unread_bytes(client: RawClient) -> int:
    return int(struct.unpack("i", fcntl.ioctl(client._socket, termios.FIONREAD, bytes(4)))[0])


@pytest.mark.parametrize("seconds", [2_600_000, 10**9, 1e300])
def test_a_limit_of_years_counts_as_none(client: RawClient, seconds: float) -> None:
    """The kernel waits for at most 24 days at a time."""
    job = {"background": True, "timeout_s": seconds, "idle_timeout_s": seconds}
    assert client.ask(1, run_order("job", "sleep 300", **job)) == {"id": "job"}
    client.order(2, {"op": "wait", "id": "job", "wait_s": seconds})
    part = {"op": "read", "id": "job", "stream": 0, "offset": 0, "limit": 9, "wait_s": seconds}
    client.order(3, part)
    assert client.ask(4, {"op": "ping"}) == {}
    assert client.ask(5, {"op": "stop", "id": "job"})["kind"] == "cancelled"


# --- The client is gone ----------------------------------------------------------------------


def test_when_the_client_is_gone_all_it_asked_for_is_dead_and_the_runner_too(
    client: RawClient, witness: Witness, tmp_path: Path
) -> None:
    for number, kind in enumerate(("daemons", "deaf to signals", "stopped"), 1):
        client.order(
            number, run_order(kind.replace(" ", "-"), tree_argv(kind, witness.pipe, then="stay()"))
        )
    job = {"background": True}
    client.order(4, run_order("job", sleeper(tmp_path / "pid"), **job))
    witness.wait_until_announced(21 + 3 + 3)
    pid = pid_of(tmp_path / "pid")
    client.leave()
    assert client.wait_until_gone() == 0
    assert not witness.anybody_alive()
    assert not is_alive(pid)
    assert client.complaints() == b""


def test_a_client_that_leaves_in_the_middle_of_a_file_leaves_no_draft(
    client: RawClient, tmp_path: Path
) -> None:
    order = {"op": "write_file", "path": str(tmp_path / "f"), "mode": 0o644, "limit": 10**6}
    client.order(1, order)
    client.send(frames.INPUT, 1, b"half")
    assert client.expect()[0] == frames.CREDIT
    client.leave()
    assert client.wait_until_gone() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_flood_whose_client_is_gone_does_not_hold_the_runner(
    clients: Clients, tmp_path: Path
) -> None:
    """Its credit is used up, and nobody will ever give more: the command is over all the same."""
    good, guest = clients.pair()
    guest.order(1, run_order("flood", f"echo $$ > {tmp_path}/pid; exec yes", send_limit=1 << 62))
    pid = pid_of(tmp_path / "pid")
    while guest.expect()[0] != frames.STDOUT:
        pass
    guest.leave()
    wait_until(lambda: not is_alive(pid))
    answer = good.ask(clients.number(), {"op": "wait", "id": "flood", "wait_s": PATIENCE_S})
    assert answer.get("kind") == "cancelled"


# --- A place that outlives its clients -------------------------------------------------------


def start_job(client: RawClient, name: str, command: list[str] | str) -> None:
    assert client.ask(900, run_order(name, command, background=True)) == {"id": name}


def read_job(client: RawClient, name: str, offset: int) -> bytes:
    part = {"op": "read", "id": name, "stream": 0, "offset": offset, "limit": 1 << 20}
    client.order(901, {**part, "wait_s": PATIENCE_S})
    data = b""
    while True:
        kind, _, body = client.expect()
        if kind == frames.ANSWER:
            return data
        data += body


def test_a_job_outlives_its_client_and_the_next_one_finds_it(
    place: dict[str, str], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    with RawClient(LINGER, env=place) as first:
        start_job(first, "job", f"echo one; read line < {go}; echo $line")
        assert read_job(first, "job", 0) == b"one\n"
        first.leave()
        with RawClient(LINGER, env=place) as second:
            assert read_job(second, "job", 0) == b"one\n"
            assert second.process.pid != first.process.pid
            go.write_text("two\n")
            assert read_job(second, "job", 4) == b"two\n"
            answer = second.ask(1, {"op": "wait", "id": "job", "wait_s": PATIENCE_S})
            assert (answer["kind"], answer["bytes"]) == ("exited", [8, 0])
            second.leave()
            assert first.wait_until_gone() == 0
            assert second.wait_until_gone() == 0


def test_a_foreground_command_does_not_outlive_its_client(
    place: dict[str, str], tmp_path: Path
) -> None:
    with RawClient(LINGER, env=place) as first:
        start_job(first, "job", ["sleep", "300"])
        with RawClient(LINGER, env=place) as second:
            second.order(1, run_order("mine", sleeper(tmp_path / "pid")))
            pid = pid_of(tmp_path / "pid")
            second.leave()
            assert second.wait_until_gone() == 0
            wait_until(lambda: not is_alive(pid))
        assert first.ask(1, {"op": "ping"}) == {}
        assert first.ask(2, {"op": "stop", "id": "job"})["kind"] == "cancelled"


def test_a_runner_without_jobs_does_not_linger(place: dict[str, str]) -> None:
    with RawClient(LINGER, env=place) as client:
        assert client.ask(1, run_order("x", "true"))["kind"] == "exited"
        client.leave()
        assert client.wait_until_gone() == 0


def test_a_runner_leaves_when_its_last_job_is_over(place: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    with RawClient(LINGER, env=place) as client:
        start_job(client, "job", f"read line < {tmp_path}/go")
        client.leave()
        (tmp_path / "go").write_text("\n")
        assert client.wait_until_gone() == 0


def test_several_clients_share_one_runner(place: dict[str, str]) -> None:
    with contextlib.ExitStack() as stack:
        everybody = [stack.enter_context(RawClient(LINGER, env=place)) for _ in range(3)]
        for number, client in enumerate(everybody):
            start_job(client, f"job{number}", f"echo {number}; sleep 300")
        for client in everybody:
            jobs = client.ask(5, {"op": "list"})["jobs"]
            assert {job["id"] for job in jobs} == {"job0", "job1", "job2"}
        for client in everybody:  # The same number on three streams is three requests.
            client.order(7, run_order(f"x{id(client)}", f"echo {id(client)}"))
        for client in everybody:
            assert client.expect() == (frames.STDOUT, 7, f"{id(client)}\n".encode())
        for number in range(3):
            answer = everybody[2].ask(8, {"op": "stop", "id": f"job{number}"})
            assert answer["kind"] == "cancelled"


def test_runners_that_start_at_the_same_time_become_one(place: dict[str, str]) -> None:
    """Otherwise the jobs of all but one of them could never be found again."""
    clients = [RawClient(LINGER, env=place) for _ in range(4)]
    try:
        for number, client in enumerate(clients):
            client.__enter__()
            start_job(client, f"job{number}", ["sleep", "300"])
        for client in clients:
            jobs = client.ask(5, {"op": "list"})["jobs"]
            assert {job["id"] for job in jobs} == {f"job{number}" for number in range(4)}
        for number in range(4):
            assert clients[0].ask(6, {"op": "stop", "id": f"job{number}"})["kind"] == "cancelled"
    finally:
        for client in clients:
            client.leave()
        for client in clients:
            client.__exit__()


def test_a_client_that_comes_while_the_last_one_leaves_is_served(place: dict[str, str]) -> None:
    """The runner it finds may be about to go."""
    for _ in range(6):
        first = RawClient(LINGER, env=place)
        with first:
            assert first.ask(1, run_order("x", "true"))["kind"] == "exited"
            second = RawClient(LINGER, env=place)
            first.leave()
            with second:
                assert second.ask(1, run_order("y", "true"))["kind"] == "exited"


def test_the_socket_of_a_dead_runner_is_replaced(place: dict[str, str], tmp_path: Path) -> None:
    with RawClient(LINGER, env=place) as first:
        start_job(first, "job", ["sleep", "300"])
        first.process.kill()
        first.process.wait()
    assert (tmp_path / f".kakoi-{os.getuid()}" / "runner").exists()
    with RawClient(LINGER, env=place) as second:
        start_job(second, "new", ["sleep", "300"])
        with RawClient(LINGER, env=place) as third:
            assert [job["id"] for job in third.ask(1, {"op": "list"})["jobs"]] == ["new"]
            assert third.ask(2, {"op": "stop", "id": "new"})["kind"] == "cancelled"


def occupy_with_a_file(folder: Path) -> None:
    folder.mkdir(0o700)
    (folder / "runner").write_text("not a socket")


def occupy_with_a_folder(folder: Path) -> None:
    (folder / "runner" / "full").mkdir(0o700, parents=True)


def occupy_with_a_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def occupy_with_a_plain_file(folder: Path) -> None:
    folder.write_text("no folder")


def occupy_for_everybody(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def occupy_as_somebody_else(folder: Path) -> None:
    folder.mkdir(0o755)
    os.chown(folder, 12345, 12345)


OCCUPANTS = [
    occupy_with_a_file,
    occupy_with_a_folder,
    occupy_with_a_link,
    occupy_with_a_plain_file,
    occupy_for_everybody,
    pytest.param(
        occupy_as_somebody_else,
        marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away"),
    ),
]


@pytest.mark.parametrize("occupy", OCCUPANTS)
def test_a_runner_works_whatever_is_in_the_place_of_its_socket(
    place: dict[str, str], tmp_path: Path, occupy: Callable[[Path], None]
) -> None:
    occupy(tmp_path / f".kakoi-{os.getuid()}")
    with RawClient(LINGER, env=place) as client:
        assert client.ask(1, run_order("x", "true"))["kind"] == "exited"
        client.leave()
        assert client.wait_until_gone() == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("spoil", ["owner", "mode"])
def test_a_stream_is_not_handed_to_a_stranger(
    place: dict[str, str], tmp_path: Path, spoil: str
) -> None:
    """Somebody else in the sandbox has made our folder, and listens in it."""
    folder = tmp_path / f".kakoi-{os.getuid()}"
    folder.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(folder / "runner"))
        stranger.listen(16)
        stranger.setblocking(False)
        if spoil == "owner":
            os.chown(folder, 12345, 12345)
        else:
            folder.chmod(0o777)
        with RawClient(LINGER, env=place) as client:
            assert client.ask(1, run_order("x", "true"))["kind"] == "exited"
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.slow("waits until it is given up")
def test_a_runner_does_not_start_beside_one_that_does_not_answer(
    place: dict[str, str], tmp_path: Path
) -> None:
    """It may have been stopped: whoever asks has to end it first, with all below it."""
    folder = tmp_path / f".kakoi-{os.getuid()}"
    folder.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / "runner"))
        deaf.listen(0)
        client = RawClient(LINGER, env=place)
        with contextlib.ExitStack() as stack:
            stack.push(client.__exit__)
            assert client.receive() is None
            assert client.process.wait(PATIENCE_S) == 1
            assert b"does not answer" in client.complaints()


@pytest.mark.slow("waits until the lock is given up")
def test_a_lock_that_is_never_given_back_is_not_waited_for(
    place: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / f".kakoi-{os.getuid()}"
    folder.mkdir(0o700)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with RawClient(LINGER, env=place) as client:
            assert client.ask(1, run_order("x", "true"))["kind"] == "exited"


def test_visitors_without_a_stream_are_sent_away(place: dict[str, str], tmp_path: Path) -> None:
    with RawClient(LINGER, env=place) as client:
        path = str(tmp_path / f".kakoi-{os.getuid()}" / "runner")
        before = len(os.listdir(f"/proc/{client.process.pid}/fd"))
        visitors = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for visitor in visitors:
            visitor.settimeout(PATIENCE_S)
            visitor.connect(path)
        visitors[0].send(b"hello")
        with open(os.devnull) as null:
            for visitor, count in zip(visitors[1:3], (1, 5), strict=True):
                socket.send_fds(visitor, [b"k"], [null.fileno()] * count)
        visitors[3].close()
        for visitor in visitors[:3]:
            with contextlib.suppress(ConnectionResetError):
                while visitor.recv(10):
                    pass
            visitor.close()
        assert client.ask(1, {"op": "ping"}) == {}
        wait_until(lambda: len(os.listdir(f"/proc/{client.process.pid}/fd")) == before)


def test_a_runner_that_is_killed_takes_its_visitors_along(
    place: dict[str, str], tmp_path: Path
) -> None:
    with RawClient(LINGER, env=place) as first:
        start_job(first, "job", sleeper(tmp_path / "pid"))
        with RawClient(LINGER, env=place) as second:
            os.kill(first.process.pid, signal.SIGKILL)
            second.until_closed()
            second.wait_until_gone()
    wait_until(lambda: not is_alive(pid_of(tmp_path / "pid")))


# --- Who never delivers ----------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"0000", b"0000000100abc"])
def test_a_python_that_is_sent_no_runner_just_ends(sent: bytes) -> None:
    done = subprocess.run(
        python_argv(sys.executable),
        input=sent,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"kakoi ")


def test_a_job_is_ended_for_certain_when_the_runner_is_asked_to_exit(tmp_path: Path) -> None:
    """Also when it has stopped its keeper."""
    with RawClient() as client:
        script = f"kill -STOP $PPID; echo $$ > {tmp_path}/pid; exec sleep 300"
        client.order(1, run_order("x", ["sh", "-c", script]))
        pid = pid_of(tmp_path / "pid")
        began = time.monotonic()
        client.leave()
        assert client.wait_until_gone() == 0
        assert not is_alive(pid)
        assert time.monotonic() - began < PATIENCE_S
        kill(pid)
