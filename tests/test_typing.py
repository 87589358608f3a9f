"""Typed for callers: a project of somebody else, strictly checked against the installed package."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SETTINGS = """\
[tool.mypy]
strict = true
packages = ["robot"]
"""
# A comment that ignores an error which is not there is an error itself.
PROGRAM = """\
import asyncio
from pathlib import Path
from typing import Self, assert_type

from kakoi import (
    Chunk,
    CommandFailedError,
    Decision,
    ExecutionResult,
    FileInfo,
    Files,
    Job,
    OutputPart,
    Reason,
    Sandbox,
    SandboxInfo,
    SecurityError,
    Session,
    Verdict,
    agent,
)
from kakoi import sync


async def approve(decision: Decision) -> bool:
    return decision.verdict is not Verdict.DENY


@agent(model="claude-sonnet")
async def count(word: str, *, in_file: str = "a") -> int:
    return len(word)


@agent
async def report() -> str:
    assert_type(await count("x", in_file="b"), int)
    await count(1)  # type: ignore[arg-type]
    return ""


class Robot(Sandbox):
    async def lint(self) -> Self:
        await self.run(["ruff", "check"], check=True)
        return self


async def use(workspace: Path) -> list[str]:
    async with Robot("docker", workspace=workspace, memory="1GiB", network=["example.org"],
                     approve=approve, labels={"task": "7"}) as box:
        assert_type(await box.lint(), Robot)
        result = await box.run("make", env={"A": "b"}, timeout=9.5, max_output="1MiB")
        assert_type(result, ExecutionResult)
        assert_type(result.reason, Reason)
        async for chunk in box.stream("make test"):
            assert_type(chunk, Chunk)
            assert_type(chunk.data, bytes)
        job = await box.start("make serve", terminal=(24, 80))
        assert_type(job, Job)
        assert_type(await job.read(0, wait=1), OutputPart)
        assert_type(await job.wait(), ExecutionResult)
        assert_type(await job.wait(5), ExecutionResult | None)
        assert_type(await box.jobs(), list[Job])
        assert_type(await box.check("ls"), Decision)
        async with box.session() as session:
            assert_type(session, Session)
        assert_type(box.files, Files)
        assert_type(await box.files.read("a"), bytes)
        assert_type(await box.files.read_text(Path("a")), str)
        assert_type(await box.files.list(depth=2), list[FileInfo])
        async for part in box.files.stream("a"):
            assert_type(part, bytes)
        async with box.files.watch(".", recursive=True) as events:
            async for event in events:
                assert_type(event.path, str)
        assert_type(box.info, SandboxInfo)
        assert_type(await box.fork(2), list[Robot])
        assert_type(await box.diff(), str)
        changed = [change.path for change in await box.changes()]
        if box.supports("pause"):
            await box.pause()
        box.supports("frok")  # type: ignore[arg-type]
        box.run(1)  # type: ignore[arg-type, unused-coroutine]
        box.no_such_method()  # type: ignore[attr-defined]
        return changed


def use_sync() -> None:
    try:
        with sync.Sandbox(approve=lambda decision: True, policy="open") as box:
            assert_type(box, sync.Sandbox)
            assert_type(box.run("make", check=True), ExecutionResult)
            for chunk in box.stream("make test"):
                assert_type(chunk, Chunk)
            job = box.start("make serve")
            assert_type(job, sync.Job)
            assert_type(job.wait(), ExecutionResult)
            assert_type(job.wait(1), ExecutionResult | None)
            assert_type(box.files.read("a"), bytes)
            assert_type(box.files.list(), list[FileInfo])
            for part in box.files.stream("a"):
                assert_type(part, bytes)
            with box.files.watch(".") as events:
                for event in events:
                    assert_type(event.kind == "created", bool)
            assert_type(box.fork(), list[sync.Sandbox])
            assert_type(box.info.backend, str)
    except (CommandFailedError, SecurityError) as error:
        assert_type(error.hint, str)
    sync.Sandbox(memroy="1GiB")  # type: ignore[call-arg]


asyncio.run(use(Path()))
assert_type(asyncio.run(report()), str)
"""


def installed(folder: Path) -> Path:
    """Return a virtual environment with nothing but kakoi in it, as its wheel installs it."""
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    venv.create(folder / "venv")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
    return folder / "venv"


@pytest.mark.slow("mypy reads the whole package, without a cache")
def test_a_strictly_checked_project_of_somebody_else_can_use_kakoi(tmp_path: Path) -> None:
    package = tmp_path / "project" / "robot"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(SETTINGS)
    (package / "__init__.py").write_text(PROGRAM)
    python = installed(tmp_path) / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", str(python)],
        cwd=package.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.stdout, done.stderr) == ("Success: no issues found in 1 source file\n", "")
