"""KubernetesAdapter against a `kubectl` of ours (kubectl_standin.py), also one that fails.

What a real cluster does is in test_kubernetes.py.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.kubernetes.adapter import KubernetesAdapter
from kakoi.backends.kubernetes.pod import KubernetesSettings
from kakoi.backends.select import AUTO_ORDER, SandboxFactory, cluster_environment
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command
from kakoi.conformance.sandbox_commands import wait_until
from kakoi.errors import ConfigurationError, EnvironmentUnavailableError, SandboxError
from kakoi.results import Reason
from tests.backends.boxes import require_bubblewrap
from tests.backends.kubectl_standin import asked, install

pytestmark = pytest.mark.anyio
# The stand-in sets no limits, and does not claim to.
UNLIMITED = Limits(memory_bytes=None, cpus=None, processes=None, disk_bytes=None)


@dataclass(frozen=True)
class World:
    """A machine with a kubectl, and a cluster behind it."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def complain(self, verb: str, text: str) -> None:
        (self.folder / f"fail-{verb}").write_text(text, encoding="utf-8")

    def tell(self, name: str, value: object) -> None:
        (self.folder / name).write_text(json.dumps(value), encoding="utf-8")

    @property
    def verbs(self) -> list[str]:
        return [next(w for w in words if not w.startswith("--")) for words in asked(self.folder)]

    @property
    def pods(self) -> list[str]:
        folder = self.folder / "pods"
        return sorted(os.listdir(folder)) if folder.exists() else []

    @contextlib.asynccontextmanager
    async def adapter(self, **more: Any) -> AsyncIterator[KubernetesAdapter]:
        settings = KubernetesSettings(**{"limits": UNLIMITED, **more})
        adapter = KubernetesAdapter(settings, cluster_env=self.env, clock=lambda: 2e9)
        try:
            yield adapter
        finally:
            await adapter.cleanup()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, {"PATH": f"{install(tmp_path)}:{os.environ['PATH']}"})


@pytest.fixture(scope="module")
def bubblewrap() -> None:
    require_bubblewrap()


# --- Its life --------------------------------------------------------------------------------


async def test_one_pod_serves_all_commands_and_is_deleted_at_the_end(
    world: World, bubblewrap: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.adapter(context="c", namespace="n") as adapter:
        assert (adapter.name, adapter.pod) == ("kubernetes", None)
        first = await adapter.execute("echo one >file; id -u")
        assert first.stdout == "4242\n"
        assert (await adapter.execute("cat file; exit 3")).exit_code == 3
        assert world.pods == [adapter.pod]
        assert world.verbs == ["get", "create", "get", "exec"]
    assert world.pods == []
    assert world.verbs[-1] == "delete"
    assert all(words[:2] == ["--context=c", "--namespace=n"] for words in asked(world.folder))
    assert "starts with an empty /workspace" in caplog.text


async def test_after_the_cleanup_there_is_no_other_pod(world: World, bubblewrap: None) -> None:
    async with world.adapter() as adapter:
        channel = await adapter.channel()
    assert (await channel.run(Command(command="echo x"))).reason is Reason.SANDBOX_LOST
    assert world.pods == []


async def test_without_a_network_no_socket_can_be_made(world: World, bubblewrap: None) -> None:
    text = "import socket; socket.socket(); print('made')"
    async with world.adapter() as adapter:
        without = await adapter.execute(["python3", "-c", text])
        assert "EAFNOSUPPORT" in without.stderr or "not supported" in without.stderr
    async with world.adapter(network="bridge") as adapter:
        assert (await adapter.execute(["python3", "-c", text])).stdout == "made\n"


async def test_being_available_means_that_a_pod_runs(world: World, bubblewrap: None) -> None:
    async with world.adapter() as adapter:
        found = await adapter.availability()
        assert found
        assert adapter.pod
        assert adapter.pod in found.reason
        assert world.pods == [adapter.pod]


async def test_whether_a_pod_would_be_taken_is_asked_without_making_one(world: World) -> None:
    async with world.adapter() as adapter:
        assert await adapter.would_be_taken()
    assert world.verbs == ["create"]
    assert "--dry-run=server" in asked(world.folder)[0]
    assert world.pods == []


async def test_what_is_not_confined_is_refused_and_deleted(world: World, bubblewrap: None) -> None:
    """The kernel is asked from inside; here it says that there is no limit on memory."""
    limits = Limits(memory_bytes=64 * 2**20, cpus=None, processes=None, disk_bytes=None)
    async with world.adapter(limits=limits) as adapter:
        found = await adapter.availability()
        assert not found
        assert "did not set these limits: memory_bytes" in found.reason
        assert world.pods == []


async def test_a_lost_pod_is_reported_with_its_reason(world: World, bubblewrap: None) -> None:
    async with world.adapter() as adapter:
        channel = await adapter.channel()
        ended = {"state": {"terminated": {"reason": "Evicted", "message": "too much disk"}}}
        world.tell("status", {"phase": "Failed", "containerStatuses": [ended]})
        os.kill(int((world.folder / "executes").read_text(encoding="ascii")), signal.SIGKILL)

        async def is_lost() -> bool:
            return channel.lost

        await wait_until(is_lost, "the loss is noticed")
        why = r"is no longer running: it is failed \(Evicted: too much disk\)"
        with pytest.raises(SandboxError, match=why):
            await adapter.execute("true")


async def test_old_pods_are_swept_before_a_new_one_is_made(world: World, bubblewrap: None) -> None:
    spec = {"activeDeadlineSeconds": 60}
    status = {"phase": "Failed"}
    items = [
        {"metadata": {"name": name, "creationTimestamp": day}, "spec": spec, "status": status}
        for name, day in (
            ("kakoi-old", "2020-01-01T00:00:00Z"),
            ("kakoi-new", "2099-01-01T00:00:00Z"),
        )
    ]
    world.tell("items", {"items": items})
    async with world.adapter() as adapter:
        await adapter.execute("true")
        deleted = [words for words in asked(world.folder) if "delete" in words]
        assert [word for words in deleted for word in words if word.startswith("kakoi-")] == [
            "kakoi-old"
        ]
        listing = next(words for words in asked(world.folder) if "pods" in words)
        assert "app.kubernetes.io/managed-by=kakoi,kakoi.owner=" in " ".join(listing)


# --- What goes wrong -------------------------------------------------------------------------


async def test_without_kubectl_it_says_how_to_get_it(tmp_path: Path) -> None:
    adapter = KubernetesAdapter(cluster_env={"PATH": str(tmp_path)})
    found = await adapter.availability()
    assert not found
    assert "kubectl" in found.reason
    assert "install kubectl" in found.fix
    assert not await adapter.is_available()


@pytest.mark.parametrize(
    ("verb", "text", "said"),
    [
        ("get", "The connection to the server 127.0.0.1:1 was refused", "no cluster answers"),
        (
            "create",
            "error: You must be logged in to the server (Unauthorized)",
            "did not accept the login",
        ),
        ("create", "Error from server (Forbidden): pods is forbidden: User", "may not do that"),
        ("create", 'Error from server (NotFound): namespaces "x" not found', "namespace"),
    ],
)
async def test_a_cluster_that_refuses_is_explained_and_nothing_is_left(
    world: World, verb: str, text: str, said: str
) -> None:
    world.complain(verb, text)
    async with world.adapter() as adapter:
        found = await adapter.availability()
        assert not found
        assert said in found.reason
        assert found.fix
        with pytest.raises(EnvironmentUnavailableError, match=said):
            await adapter.execute("true")
    # Nothing was made, so there is nothing to delete.
    assert "delete" not in world.verbs


async def test_an_image_that_cannot_be_pulled_is_one_error_and_its_pod_is_deleted(
    world: World,
) -> None:
    waits = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}}}
    world.tell("status", {"phase": "Pending", "containerStatuses": [waits]})
    async with world.adapter(image="nowhere/x") as adapter:
        found = await adapter.availability()
    assert "cannot get the image `nowhere/x`: no such host" in found.reason
    assert world.pods == []


async def test_a_pod_without_a_node_is_given_up_in_time_and_deleted(world: World) -> None:
    condition = {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    world.tell("status", {"phase": "Pending", "conditions": [condition]})
    async with world.adapter(start_timeout_s=0.5) as adapter:
        found = await adapter.availability()
    assert "no node has room for the pod: 0/3 nodes" in found.reason
    assert world.pods == []


@pytest.mark.parametrize("answer", ["", "[", "[]", "null", '"x"'])
async def test_nonsense_from_a_cluster_is_an_error_of_ours(world: World, answer: str) -> None:
    (world.folder / "items").write_text(answer, encoding="utf-8")
    (world.folder / "status").write_text('{"phase": [], "containerStatuses": 3}', encoding="utf-8")
    async with world.adapter() as adapter:
        with pytest.raises(SandboxError, match="cannot be read"):
            await adapter.execute("true")
    assert world.pods == []


async def test_a_cancelled_start_leaves_no_pod(world: World) -> None:
    world.tell("status", {"phase": "Pending"})
    async with world.adapter() as adapter:
        task = asyncio.create_task(adapter.execute("true"))

        async def is_made() -> bool:
            return bool(world.pods)

        await wait_until(is_made, "the pod is made")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.pods == []


async def test_a_pod_that_cannot_be_deleted_is_logged_and_not_raised(
    world: World, bubblewrap: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.adapter() as adapter:
        await adapter.execute("true")
        world.complain("delete", "Error from server (Forbidden): pods is forbidden")
    assert "could not be deleted" in caplog.text


async def test_a_pod_that_cannot_be_entered_is_explained_and_deleted(world: World) -> None:
    world.complain("exec", "error: unable to upgrade connection: error dialing backend")
    async with world.adapter() as adapter:
        found = await adapter.availability()
    assert "does not reach the node" in found.reason
    assert world.pods == []


# --- Chosen by name only ---------------------------------------------------------------------


async def test_it_is_made_by_its_name_with_the_shared_settings(world: World) -> None:
    factory = SandboxFactory(world.folder, environ=world.env)
    adapter = factory.make("kubernetes", SandboxConfig(network="bridge"))
    assert isinstance(adapter, KubernetesAdapter)
    assert await adapter.would_be_taken()
    with pytest.raises(ConfigurationError, match="a pod can have"):
        factory.make("kubernetes", SandboxConfig(network="open"))
    with pytest.raises(ConfigurationError, match="kernel_allowlist"):
        factory.make("kubernetes", SandboxConfig(kernel_allowlist=True))
    with pytest.raises(ConfigurationError, match="copy-on-write"):
        factory.make("kubernetes", SandboxConfig(copy_on_write=True))
    assert "kubernetes" not in AUTO_ORDER


def test_kubectl_sees_only_what_is_its_business() -> None:
    environ = {"PATH": "/x", "KUBECONFIG": "/k", "MY_TOKEN": "t", "DOCKER_HOST": "d", "HOME": "/h"}
    assert cluster_environment(environ) == {"PATH": "/x", "KUBECONFIG": "/k", "HOME": "/h"}
