"""Wrong input and wrong use of an open `Sandbox`: a sentence that names the argument, no leftovers."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kakoi import (
    ConfigurationError,
    MissingFileError,
    Reason,
    Sandbox,
    SandboxError,
    SecurityError,
    UnsupportedError,
    load_policy,
)
from kakoi.audit import read
from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Command
from kakoi.sync import Sandbox as BlockingSandbox

pytestmark = pytest.mark.anyio


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    async with Sandbox("bubblewrap") as opened:
        yield opened


def names(box: Sandbox) -> set[str]:
    return set(os.listdir(box.info.workspace))


# --- Approvals -------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["no", 1, None, [False]])
async def test_an_answer_that_is_neither_yes_nor_no_runs_nothing(
    answer: Any, tmp_path: Path
) -> None:
    async def approve(_decision: object) -> Any:
        return answer

    log = tmp_path / "audit.jsonl"
    async with Sandbox("bubblewrap", approve=approve, audit=log) as box:
        with pytest.raises(ConfigurationError, match=r"`approve` returned \w+; it must return"):
            await box.run("git push origin main")
    assert [record.event for record in read(log)] == ["asked", "declined"]


async def test_an_approver_that_is_not_async_is_named() -> None:
    async with Sandbox("bubblewrap", approve=lambda _decision: True) as box:  # type: ignore[arg-type,return-value]
        with pytest.raises(ConfigurationError, match=r"`approve` returned bool.*async"):
            await box.run("git push origin main")


def test_a_blocking_approver_has_to_say_yes_or_no() -> None:
    box = BlockingSandbox("bubblewrap", approve=lambda _decision: "no")
    with box, pytest.raises(ConfigurationError, match="`approve` returned str"):
        box.run("git push origin main")


# --- Arguments of calls ----------------------------------------------------------------------


async def test_an_unknown_argument_of_a_call_names_the_nearest(box: Sandbox) -> None:
    wrong: Any = {"tiemout": 1}
    with pytest.raises(TypeError, match=r"Sandbox.run\(\) has no argument 'tiemout'.*`timeout`"):
        await box.run("true", **wrong)
    with pytest.raises(TypeError, match=r"Sandbox.start\(\).*`timeout`"):
        await box.start("true", **wrong)
    with pytest.raises(TypeError, match=r"Sandbox.stream\(\).*`timeout`"):
        box.stream("true", **wrong)
    with pytest.raises(TypeError, match=r"Session.run\(\).*`timeout`"):
        await box.session().run("true", **wrong)
    assert asyncio.iscoroutinefunction(Sandbox.run)


def test_an_unknown_argument_of_a_blocking_call_names_the_nearest() -> None:
    box, wrong = BlockingSandbox("bubblewrap"), {"tiemout": 1}
    calls: list[Any] = [box.run, box.start, box.stream]
    for call in calls:
        with pytest.raises(TypeError, match=rf"Sandbox.{call.__name__}\(\).*`timeout`"):
            call("true", **wrong)


async def test_a_signal_that_is_none_is_named(box: Sandbox) -> None:
    job = await box.start("sleep 600")
    wrong: list[Any] = [[], True, 1.0, None, 0, 65, "SIGNOPE", ""]
    for number in wrong:
        with pytest.raises(ConfigurationError, match=r"number is .*; it must be a signal"):
            await job.signal(number)
    await job.stop()
    await job.signal("SIGTERM")  # It has ended, so nothing happens.


async def test_a_name_that_no_checkpoint_can_have_is_named(box: Sandbox) -> None:
    wrong: list[Any] = ["", "../x", "a/b", "a\0", "x" * 65, 5, None]
    for name in wrong:
        with pytest.raises(ConfigurationError, match="name is "):
            await box.checkpoint(name)
        with pytest.raises(ConfigurationError, match="not found"):
            await box.rollback(name)


# --- Streams and watches ---------------------------------------------------------------------


async def test_a_stream_is_read_once(box: Sandbox) -> None:
    stream = box.stream("echo a; sleep 0.05; echo b")

    async def collect() -> list[str]:
        return [chunk.text async for chunk in stream]

    first, second = await asyncio.gather(collect(), collect(), return_exceptions=True)
    assert isinstance(first, list)
    assert "".join(first) == "a\nb\n"
    assert isinstance(second, ConfigurationError)
    with pytest.raises(ConfigurationError, match="already read"):
        await collect()


async def test_a_watch_that_cannot_begin_leaves_nothing_open(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with Sandbox("bubblewrap", audit=log) as box:
        with pytest.raises(MissingFileError):
            async with box.files.watch("missing"):
                pass
        assert [record.event for record in read(log)] == ["started", "ended"]
        watch = box.files.watch()
        async with watch:
            with pytest.raises(ConfigurationError, match="already"):
                await watch.__aenter__()


async def test_closing_ends_what_is_waited_for_and_records_it(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    box = await Sandbox("bubblewrap", audit=log).open()
    job = await box.start("echo begun; sleep 600")
    await job.read(wait=60)
    other = await box.start("sleep 600")
    begun = asyncio.Event()

    async def wait() -> Any:
        begun.set()
        return await job.wait()

    waiter = asyncio.create_task(wait())
    await begun.wait()
    await box.close()
    assert (await waiter).reason is Reason.SANDBOX_LOST
    with pytest.raises(SandboxError, match="closed"):
        await other.wait()
    assert [str(record.event) for record in read(log)].count("ended") == 2


# --- Files -----------------------------------------------------------------------------------


async def test_parts_of_a_file_must_be_bytes(box: Sandbox) -> None:
    async def parts() -> AsyncIterator[Any]:
        yield b"begun"
        yield "text"

    with pytest.raises(ConfigurationError, match="data has a part of type str"):
        await box.files.write("parts", parts())
    assert names(box) == set()


async def test_a_negative_limit_of_a_read_is_named(box: Sandbox) -> None:
    with pytest.raises(ConfigurationError, match="max_bytes is -1"):
        await box.files.read("x", max_bytes=-1)


async def test_links_out_of_the_workspace_are_judged_by_where_they_lead_on_the_host(
    tmp_path: Path,
) -> None:
    """The host confines nothing, so only the policy is between a link and the files of the user."""
    shipped = load_policy("coding-agent")
    policy = replace(shipped, block_patterns=(*shipped.block_patterns, "forbidden"))
    outside, workspace = tmp_path / "forbidden", tmp_path / "workspace"
    outside.mkdir()
    workspace.mkdir()
    (outside / "kept").write_text("before")
    local = tmp_path / "kept"
    local.write_text("after")
    for name, target in (("file", "kept"), ("dangling", "new"), ("kept", "kept"), ("folder", "")):
        os.symlink(outside / target, workspace / name)
    async with Sandbox("host", workspace=workspace, policy=policy) as box:
        files = box.files
        for work in (
            files.read("file"),
            files.list("folder"),
            files.stat("folder/kept"),
            files.write("file", "after"),
            files.write("folder/kept", "after"),
            files.write("folder/new", "after"),
            files.write("dangling", "after"),
            files.make_dir("folder/made"),
            files.move("folder/kept", "taken"),
            files.remove("folder/kept"),
            files.upload(local, "file"),
            files.upload(local, "."),
            files.upload(local, "folder"),
            files.download("file", tmp_path / "copy"),
        ):
            with pytest.raises(SecurityError):
                await work
        assert (await files.stat("file")).kind == "link"
        await files.remove("file")
        await files.remove("folder")
        await files.write("inside", "x")
        os.symlink("inside", workspace / "near")
        await files.write("near", "y")
        assert await files.read("inside") == b"y"
    assert [each.name for each in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "before"


# --- Backends --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["host", "confined-host", "kubernetes"])
def test_a_backend_without_copies_names_those_that_have_them(backend: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no copies") as caught:
        Sandbox(backend, workspace=tmp_path, copy_on_write=True)
    assert "bubblewrap" in caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"memory": "1GiB"},
        {"cpus": 1},
        {"processes": 5},
        {"disk": "1GiB"},
        {"network": "open"},
        {"network": ["example.org"]},
        {"image": "x"},
        {"user": "me"},
        {"lifetime": 5},
        {"copy_on_write": True},
    ],
    ids=str,
)
def test_what_a_backend_of_your_own_decides_cannot_be_given_beside_it(
    given: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} is given with a backend"):
        Sandbox(HostAdapter(str(tmp_path)), **given)


async def test_a_backend_of_your_own_is_described_as_far_as_it_is_known(tmp_path: Path) -> None:
    box = Sandbox(HostAdapter(str(tmp_path)))
    assert box.supports("files")
    assert not box.supports("fork")
    assert not box.supports("attach")
    assert repr(box) == "<Sandbox not open>"
    async with box:
        assert repr(box) == f"<Sandbox {box.id}>"
        assert box.info.network == "host"
        assert not box.info.private
        await box._life.opened.adapter.run(Command(command="true"))
    assert repr(box) == "<Sandbox closed>"


@pytest.mark.parametrize("id", ["", "a b", "../x", "-f", "a\0", "a/b", 5])
async def test_an_id_that_no_sandbox_has_is_named(id: Any) -> None:
    with pytest.raises(ConfigurationError, match="id is "):
        await Sandbox.attach(id)
