"""`Sandbox("kubernetes")`: a pod, here behind a `kubectl` of ours (tests/backends/kubectl_standin.py).

The same program runs on a real cluster by hand: see tests/backends/test_kubernetes.py.
"""

import os
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kakoi import LimitError, Sandbox, SandboxError, SecurityError, UnsupportedError
from kakoi.audit import read
from tests.backends.boxes import require_bubblewrap
from tests.backends.kubectl_standin import asked, install

pytestmark = pytest.mark.anyio
# The stand-in keeps no limits.
UNLIMITED: dict[str, Any] = {"memory": None, "cpus": None, "processes": None, "disk": None}


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the pods are."""
    require_bubblewrap()
    monkeypatch.setenv("PATH", f"{install(tmp_path)}:{os.environ['PATH']}")
    return tmp_path / "pods"


@pytest.fixture
async def box(pods: Path, tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with Sandbox("kubernetes", audit=tmp_path / "audit.jsonl", **UNLIMITED) as box:
        yield box


async def test_commands_files_and_jobs_of_a_pod(box: Sandbox, pods: Path, tmp_path: Path) -> None:
    assert (box.info.backend, box.info.workspace, box.info.private) == (
        "kubernetes",
        "/workspace",
        True,
    )
    await box.files.write("dir/file", "inside")
    assert (await box.run("cat dir/file; exit 3")).exit_code == 3
    seen = [chunk.text async for chunk in box.stream("cat dir/file")]
    assert "".join(seen) == "inside"
    job = await box.start("cat")
    await job.write("line\n")
    await job.close_stdin()
    assert (await job.wait()).stdout == "line\n"
    await box.files.download("dir", tmp_path / "back")
    assert (tmp_path / "back" / "file").read_text() == "inside"
    await box.files.upload(tmp_path / "back", "again")
    assert await box.files.read_text("again/file") == "inside"
    with pytest.raises(SecurityError):
        await box.run("rm -rf /")
    assert len(os.listdir(pods)) == 1
    await box.close()
    assert os.listdir(pods) == []
    events = [str(record.event) for record in read(tmp_path / "audit.jsonl")]
    assert (events.count("started"), events.count("ended"), events.count("refused")) == (7, 7, 1)


async def test_what_a_pod_cannot_do_names_the_backends_that_can(box: Sandbox) -> None:
    assert not box.supports("copy_on_write")
    assert not box.supports("checkpoint")
    assert not box.supports("fork")
    assert not box.supports("pause")
    assert not box.supports("attach")
    calls: list[Coroutine[Any, Any, object]] = [
        box.fork(),
        box.checkpoint("x"),
        box.rollback("x"),
        box.changes(),
        box.diff(),
        box.apply(),
        box.discard(),
        box.pause(),
        Sandbox.attach("x", backend="kubernetes"),
    ]
    for work in calls:
        with pytest.raises(UnsupportedError) as caught:
            await work
        assert "docker" in caught.value.hint
    with pytest.raises(UnsupportedError):
        await box.detach()
    assert (await box.run("echo fine")).stdout == "fine\n"


async def test_a_limit_that_the_cluster_does_not_keep_is_refused(pods: Path) -> None:
    for limits in ({}, {**UNLIMITED, "memory": "1GiB"}):
        box = Sandbox("kubernetes", **limits)
        with pytest.raises(LimitError, match="memory"):
            await box.open()
        await box.close()
    assert os.listdir(pods) == []


async def test_a_cluster_that_refuses_is_named(pods: Path, tmp_path: Path) -> None:
    (tmp_path / "fail-create").write_text("forbidden by quota")
    refused = Sandbox("kubernetes", **UNLIMITED)
    with pytest.raises(SandboxError, match="quota"):
        await refused.run("true")
    (tmp_path / "fail-create").unlink()
    assert (await refused.run("echo again")).stdout == "again\n"
    await refused.close()
    assert "delete" in asked(tmp_path)[-1]
