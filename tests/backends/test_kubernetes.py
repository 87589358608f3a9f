"""Pods of a real cluster: the one of `scripts/cluster start`, and no other that may be configured.

CI has none: to build it takes too long. Where it does not run, these are left out; what needs no
cluster is in test_kubernetes_pod.py and test_kubernetes_flow.py. The conformance suite runs by hand:

    KUBECONFIG=/run/kakoi-cluster/kubeconfig pytest --pyargs kakoi.conformance \
        --sandbox kubernetes:kakoi-test:python
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.kubernetes.adapter import KubernetesAdapter
from kakoi.backends.kubernetes.pod import KubernetesSettings
from kakoi.channel.api import MIB, Command
from kakoi.conformance.sandbox_commands import wait_until
from kakoi.errors import SandboxError
from kakoi.results import Reason

KUBECONFIG = "/run/kakoi-cluster/kubeconfig"
IMAGE = "kakoi-test:python"
# Without a home, kubectl keeps what it has heard in the directory that it is started in.
HOME = os.path.dirname(KUBECONFIG)
ENV = {"PATH": os.environ["PATH"], "HOME": HOME, "KUBECONFIG": KUBECONFIG}
OWNER = f"test-{os.getpid()}"
WAIT_S = 120


def kubectl(*words: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kubectl", *words],
        env=ENV,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def has_cluster() -> bool:
    return os.access(KUBECONFIG, os.R_OK) and kubectl("get", "--raw", "/readyz") == "ok"


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not has_cluster(), reason="no cluster: scripts/cluster build, then scripts/cluster start"
    ),
]


@contextlib.asynccontextmanager
async def opened(**more: Any) -> AsyncIterator[KubernetesAdapter]:
    settings = KubernetesSettings(**{"image": IMAGE, **more})
    adapter = KubernetesAdapter(settings, cluster_env=ENV, owner=OWNER, clock=time.time)
    try:
        yield adapter
    finally:
        await adapter.cleanup()


def pod(adapter: KubernetesAdapter) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl("get", "pod", adapter.pod or "", "-o", "json"))
    return found


def pods_of(owner: str = OWNER) -> list[str]:
    return kubectl("get", "pods", "-l", f"kakoi.owner={owner}", "-o", "name").split()


# --- Its life --------------------------------------------------------------------------------


async def test_a_pod_runs_commands_and_is_gone_after_the_cleanup() -> None:
    async with opened() as adapter:
        result = await adapter.execute("echo one >file; cat file; exit 3")
        assert (result.stdout, result.exit_code) == ("one\n", 3)
        assert pods_of() == [f"pod/{adapter.pod}"]
        assert pod(adapter)["spec"]["activeDeadlineSeconds"] == 24 * 3600
        assert adapter.limit_report.unenforced == {}
    assert pods_of() == []


async def test_what_the_cluster_has_made_is_what_was_asked_for() -> None:
    """An admission controller may change a pod; what counts is what runs."""
    async with opened() as adapter:
        text = (
            "grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status; ls /var/run/secrets; touch /etc/x"
        )
        result = await adapter.execute(text)
        lines = dict(line.split() for line in result.stdout.splitlines())
        assert {lines[name] for name in ("CapEff:", "CapPrm:", "CapBnd:")} == {"0" * 16}
        assert (lines["NoNewPrivs:"], lines["Seccomp:"]) == ("1", "2")
        assert "/var/run/secrets" in result.stderr
        assert "Read-only file system" in result.stderr
        env = (await adapter.execute("env")).stdout
        assert "TOKEN" not in env
        assert adapter.pod
        found = pod(adapter)["spec"]
        assert not [v for v in found["volumes"] if "secret" in v or "projected" in v]


async def test_each_pod_has_a_user_of_its_own() -> None:
    async with opened() as one, opened() as two:
        users = {(await each.execute("id -u")).stdout for each in (one, two)}
    assert len(users) == 2
    assert "0\n" not in users


async def test_the_first_process_can_be_neither_signalled_nor_driven_and_reaps() -> None:
    async with opened() as adapter:
        script = """
for number in $(seq 1 64); do kill -$number 1; done 2>/dev/null
(: >>/proc/1/mem) 2>/dev/null && echo opened
python3 - <<'PYTHON'
import ctypes, os
print("attached" if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else "refused")
PYTHON
"""
        assert (await adapter.execute(script)).stdout == "refused\n"
        assert (await adapter.execute("echo still there")).stdout == "still there\n"
        # Left to the first process, by a parent that is gone.
        await adapter.execute("for i in 1 2 3; do (setsid sh -c 'exit 0' &); done")
        dead = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
        assert (await adapter.execute(dead)).stdout.strip() == "0"


async def test_after_the_way_in_is_lost_jobs_are_found_again() -> None:
    async with opened() as adapter:
        channel = await adapter.channel()
        job = await channel.start(Command(command="echo up; sleep 600"))
        assert (await channel.read_output(job, "stdout", wait_s=WAIT_S)).data == b"up\n"
        await channel.close()
        again = await adapter.channel()
        assert again is not channel
        assert [(info.id, info.running) for info in await again.list_jobs()] == [(job, True)]
        await again.stop_job(job)


async def test_a_pod_that_somebody_deletes_is_a_lost_sandbox_and_is_reported() -> None:
    async with opened() as adapter:
        await adapter.execute("true")
        running = asyncio.create_task(adapter.run(Command(command="sleep 600", timeout_s=WAIT_S)))
        await adapter.execute("true")
        await asyncio.to_thread(kubectl, "delete", "pod", adapter.pod or "", "--grace-period=1")
        result = await running
        assert result.reason is Reason.SANDBOX_LOST
        assert re.search("its pod is (gone|terminating)", result.error or "")
        with pytest.raises(SandboxError, match="is no longer running"):
            await adapter.execute("true")


CLIENT = f"""
import asyncio, sys
from kakoi.channel.api import Command
from kakoi.backends.kubernetes.adapter import KubernetesAdapter
from kakoi.backends.kubernetes.pod import KubernetesSettings

async def main():
    settings = KubernetesSettings(image={IMAGE!r}, max_age_s=60)
    adapter = KubernetesAdapter(settings, cluster_env={ENV!r}, owner=sys.argv[1])
    channel = await adapter.channel()
    print(adapter.pod, flush=True)
    await channel.run(Command(command="sleep 12345"))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_killed_client_leaves_no_command_and_the_cluster_ends_the_pod(
    number: signal.Signals,
) -> None:
    owner = f"{OWNER}-killed-{number}"
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else goes on meanwhile
        [sys.executable, "-c", CLIENT, owner], stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        name = (await asyncio.to_thread(client.stdout.readline)).strip()
        look = ("exec", name, "--", "sh", "-c", "grep -la '1234[5]' /proc/[0-9]*/cmdline | wc -l")

        async def is_up() -> bool:
            return int(await asyncio.to_thread(kubectl, *look) or 0) > 0

        await wait_until(is_up, "the command runs")
        client.send_signal(number)
        await asyncio.to_thread(client.wait, WAIT_S)

        async def is_down() -> bool:
            return (await asyncio.to_thread(kubectl, *look)).strip() == "0"

        await wait_until(is_down, "the command is dead")
    # Its time is up long before this one's, who sweeps by the labels.
    adapter = KubernetesAdapter(
        KubernetesSettings(image=IMAGE),
        cluster_env=ENV,
        owner=owner,
        clock=lambda: time.time() + 120,
    )
    try:
        assert await adapter.availability()

        async def is_swept() -> bool:
            return pods_of(owner) == [f"pod/{adapter.pod}"]

        await wait_until(is_swept, "the old pod is swept")
    finally:
        await adapter.cleanup()


async def test_the_cluster_ends_a_pod_whose_time_is_up() -> None:
    async with opened(max_age_s=60) as adapter:
        result = await adapter.run(Command(command="sleep 600", timeout_s=300))
        assert result.reason is Reason.SANDBOX_LOST
        assert "DeadlineExceeded" in (result.error or "")


# --- Limits ----------------------------------------------------------------------------------


async def test_what_takes_too_much_memory_is_ended_and_reported() -> None:
    async with opened(limits=Limits(memory_bytes=128 * MIB)) as adapter:
        text = "import sys; x = bytearray(400_000_000); print(len(x))"
        result = await adapter.run(Command(command=["python3", "-c", text], timeout_s=WAIT_S))
        assert result.reason is Reason.OUT_OF_MEMORY


async def test_processes_are_limited_for_each_pod_alone() -> None:
    crowd = "for i in $(seq 100); do sleep 30 & done; echo $(jobs -p | wc -l)"
    async with opened(limits=Limits(processes=40)) as one, opened() as two:
        result = await one.run(Command(command=crowd, timeout_s=WAIT_S))
        assert "fork" in result.stderr
        assert (await two.execute(crowd)).stdout.strip() == "100"


async def test_a_pod_that_takes_too_much_disk_is_evicted() -> None:
    limits = Limits(disk_bytes=20 * MIB)
    async with opened(limits=limits) as adapter:
        fill = "head -c 60000000 /dev/zero >fill; echo written; sleep 300"
        result = await adapter.run(Command(command=fill, timeout_s=WAIT_S * 2))
        assert result.reason is Reason.SANDBOX_LOST
        assert "Evicted" in (result.error or "")


async def test_a_limit_that_no_node_has_room_for_is_taken_all_the_same() -> None:
    """Little is reserved, so a high limit needs no node of that size."""
    async with opened(limits=Limits(memory_bytes=10**13, cpus=512)) as adapter:
        assert await adapter.availability()


# --- Network ---------------------------------------------------------------------------------

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
    print("reached")
except OSError as error:
    print(error.strerror)
"""


async def test_without_a_network_nothing_is_reached_and_with_the_clusters_it_is() -> None:
    with socket_on_the_bridge() as address:
        argv = ["python3", "-c", CONNECT, *address]
        async with opened() as adapter:
            assert "not supported" in (await adapter.execute(argv)).stdout
        async with opened(network="bridge") as adapter:
            assert (await adapter.execute(argv)).stdout == "reached\n"


@contextlib.contextmanager
def socket_on_the_bridge() -> Iterator[tuple[str, str]]:
    with socket.create_server(("172.17.0.1", 0)) as server:
        host, port = server.getsockname()
        yield str(host), str(port)


# --- What goes wrong -------------------------------------------------------------------------


async def test_an_image_that_is_nowhere_is_reported() -> None:
    async with opened(image="localhost:1/kakoi/nowhere:x") as adapter:
        found = await adapter.availability()
    assert not found
    assert "cannot get the image `localhost:1/kakoi/nowhere:x`" in found.reason
    assert pods_of() == []


async def test_an_image_without_python_is_reported() -> None:
    async with opened(image="kakoi-test:busybox") as adapter:
        found = await adapter.availability()
    assert not found
    assert "python3" in found.reason + found.fix
    assert pods_of() == []


async def test_a_namespace_that_is_not_there_is_reported() -> None:
    async with opened(namespace="nowhere") as adapter:
        found = await adapter.availability()
    assert not found
    assert "namespace does not exist" in found.reason


async def test_a_context_that_is_not_there_is_reported() -> None:
    async with opened(context="nowhere") as adapter:
        found = await adapter.availability()
    assert not found
    assert "no such context" in found.reason


async def test_a_runtime_class_that_is_not_there_is_reported() -> None:
    async with opened(runtime_class="nowhere") as adapter:
        found = await adapter.availability()
    assert not found
    assert "RuntimeClass" in found.reason


async def test_a_pod_that_no_node_takes_is_given_up_and_deleted() -> None:
    kubectl("cordon", "127.0.0.1")
    try:
        async with opened(start_timeout_s=3) as adapter:
            found = await adapter.availability()
    finally:
        kubectl("uncordon", "127.0.0.1")
    assert not found
    assert "no node has room for the pod" in found.reason
    assert pods_of() == []


async def test_a_quota_that_is_used_up_is_reported() -> None:
    kubectl("create", "namespace", "kakoi-full")
    try:
        kubectl("create", "quota", "none", "--hard=pods=0", "-n", "kakoi-full")

        async def counts() -> bool:
            return bool(
                kubectl("get", "quota", "none", "-n", "kakoi-full", "-o", "jsonpath={.status.used}")
            )

        await wait_until(counts, "the quota counts")
        async with opened(namespace="kakoi-full") as adapter:
            found = await adapter.availability()
    finally:
        kubectl("delete", "namespace", "kakoi-full")
    assert not found
    assert "no room for such a pod" in found.reason


async def test_a_user_without_rights_learns_which_are_missing(tmp_path: Path) -> None:
    kubectl("create", "serviceaccount", "kakoi-nobody")
    try:
        name = ""

        async def has_token() -> bool:
            nonlocal name
            name = kubectl(
                "get", "serviceaccount", "kakoi-nobody", "-o", "jsonpath={.secrets[0].name}"
            )
            return bool(name)

        await wait_until(has_token, "the account has a token")
        encoded = kubectl("get", "secret", name, "-o", "jsonpath={.data.token}")
        config = tmp_path / "kubeconfig"
        config.write_text(weak_config(encoded), encoding="utf-8")
        env = {**ENV, "KUBECONFIG": str(config)}
        adapter = KubernetesAdapter(KubernetesSettings(image=IMAGE), cluster_env=env, owner=OWNER)
        for found in (await adapter.availability(), await adapter.would_be_taken()):
            assert not found
            assert "may not do that" in found.reason
            assert "pods/exec" in found.fix
    finally:
        kubectl("delete", "serviceaccount", "kakoi-nobody")


def weak_config(token: str) -> str:
    config = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": base64.b64decode(token).decode("ascii")}
    return json.dumps(config)
