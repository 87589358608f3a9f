"""The runner gets into a place over its own stream, and runs on whatever Python it finds there."""

import ast
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import kakoi
from kakoi.channel.api import Command, TerminalSize
from kakoi.channel.delivery import (
    DELIVERED,
    NoPythonError,
    RunnerSettings,
    any_argv,
    delivery,
    python_argv,
)
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from kakoi.errors import SandboxError
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch
from kakoi.results import Reason
from tests.process.trees import TREES, Witness, tree_argv
from tests.runner.conftest import soon

PACKAGE = Path(kakoi.__file__).parent
in_a_loop = pytest.mark.usefixtures("nothing_leaks")


def source_of(name: str) -> str:
    return PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")


# --- What is delivered -----------------------------------------------------------------------


def imports_at_run_time(tree: ast.AST) -> Iterator[str]:
    """What a module imports, except for the eyes of a type checker."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports_at_run_time(node)


@pytest.mark.parametrize("name", DELIVERED)
def test_a_delivered_module_is_python_3_8(name: str) -> None:
    ast.parse(source_of(name), feature_version=(3, 8))


@pytest.mark.parametrize("name", DELIVERED)
def test_a_delivered_module_needs_the_standard_library_and_what_came_before_it(name: str) -> None:
    before = DELIVERED[: DELIVERED.index(name)]
    for imported in imports_at_run_time(ast.parse(source_of(name))):
        if imported.startswith("kakoi"):
            assert imported.startswith(before), f"{name} imports {imported}"
        elif imported != "__future__.annotations":
            assert imported.partition(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("name", DELIVERED)
def test_a_delivered_module_has_no_annotation_that_an_old_python_would_evaluate(name: str) -> None:
    tree = ast.parse(source_of(name))
    first = tree.body[1] if ast.get_docstring(tree) else tree.body[0]
    assert ast.unparse(first) == "from __future__ import annotations"


def test_settings_and_modules_are_one_message_with_its_length() -> None:
    for magic in (b"\0\0\0\0", __import__("importlib.util").util.MAGIC_NUMBER):
        message = delivery(RunnerSettings(linger=True), magic)
        assert int(message[:10]) == len(message) - 10


# --- Every Python of this machine ------------------------------------------------------------


def pythons() -> list[str]:
    """One Python of each version from 3.8 on that is installed here."""
    found: dict[str, str] = {}
    places = [
        *Path.home().glob(".pyenv/versions/3.*/bin"),
        Path("/usr/bin"),
        Path("/usr/local/bin"),
    ]
    for place in places:
        for path in place.glob("python3.*"):
            version = re.fullmatch(r"python3\.(\d+)", path.name)
            if version is not None and int(version[1]) >= 8 and os.access(path, os.X_OK):
                found[version[1]] = str(path)
    return [found[minor] for minor in sorted(found, key=int)]


@pytest.fixture(params=pythons(), ids=lambda path: Path(path).name)
async def old_channel(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[RunnerChannel]:
    argv = python_argv(request.param)
    launch = Launch(argv=argv, env=default_environment(), cwd=str(tmp_path), kept=True)
    channel = await open_channel(launch, RunnerSettings())
    try:
        yield channel
    finally:
        await soon(channel.close())


@in_a_loop
@pytest.mark.anyio
async def test_the_runner_works_with_every_python_of_this_machine(
    old_channel: RunnerChannel, tmp_path: Path
) -> None:
    command = Command(command="cat; cd /usr; exit 7", stdin=b"hello", report_shell=True)
    result = await soon(old_channel.run(command))
    assert (result.exit_code, result.stdout, result.cwd) == (7, "hello", "/usr")
    result = await soon(old_channel.run(Command(command="sleep 300", timeout_s=0.2)))
    assert result.reason is Reason.TIMED_OUT
    result = await soon(old_channel.run(Command(command="kill -9 $PPID; sleep 300")))
    assert result.reason is Reason.SANDBOX_LOST
    result = await soon(old_channel.run(Command(command="tty", terminal=TerminalSize())))
    assert result.stdout.startswith("/dev/pts/")
    await old_channel.write_file(str(tmp_path / "f"), b"x" * 300_000)
    assert await old_channel.read_file(str(tmp_path / "f")) == b"x" * 300_000
    job = await old_channel.start(Command(command="cat", stdin=b"in"))
    assert (await soon(old_channel.wait_job(job))) is not None
    assert (await old_channel.read_output(job, "stdout")).data == b"in"


@in_a_loop
@pytest.mark.anyio
async def test_trees_are_dead_with_every_python_of_this_machine(
    old_channel: RunnerChannel, witness: Witness
) -> None:
    argv = tree_argv("daemons", witness.pipe, then="os._exit(7)")
    result = await soon(old_channel.run(Command(command=argv)))
    assert not witness.anybody_alive()
    assert (result.exit_code, len(witness.announced)) == (7, TREES["daemons"][0] + 1)


# --- Places where nobody knows what there is -------------------------------------------------


def place_with(folder: Path, **programs: str) -> dict[str, str]:
    """An environment whose PATH has just these programs."""
    for name, target in programs.items():
        (folder / name).symlink_to(target)
    return {"PATH": str(folder)}


def program(name: str) -> str:
    path = shutil.which(name)
    assert path is not None
    return path


@in_a_loop
@pytest.mark.anyio
async def test_a_shell_finds_a_python_by_itself(tmp_path: Path) -> None:
    # A script, not a link: a Python finds its library from where it is.
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    env = place_with(tmp_path, sh=program("sh"))
    channel = await soon(open_channel(Launch(argv=any_argv(), env=env), RunnerSettings()))
    try:
        assert (await soon(channel.run(Command(command="echo hi")))).stdout == "hi\n"
    finally:
        await soon(channel.close())


def too_old() -> list[str]:
    return sorted(map(str, Path.home().glob(".pyenv/versions/3.[67].*/bin/python3")))


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("python", [None, "/bin/false", "/bin/true", *too_old()])
async def test_a_sandbox_without_a_new_enough_python_is_distinguished_from_a_broken_one(
    tmp_path: Path, python: str | None
) -> None:
    env = place_with(tmp_path, sh=program("sh"))
    if python is not None:
        (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (tmp_path / "python3").chmod(0o755)
    error = SandboxError if python == "/bin/true" else NoPythonError
    with pytest.raises(error) as raised:
        await soon(open_channel(Launch(argv=any_argv(), env=env), RunnerSettings()))
    assert isinstance(raised.value, NoPythonError) is (python != "/bin/true")


@in_a_loop
@pytest.mark.anyio
async def test_a_python_that_says_something_first_is_not_taken_for_a_runner(
    tmp_path: Path,
) -> None:
    (tmp_path / "python3").write_text(f'#!/bin/sh\necho Welcome\nexec {sys.executable} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    env = place_with(tmp_path, sh=program("sh"))
    launch = Launch(argv=python_argv("python3"), env=env)
    with pytest.raises(SandboxError, match="greet"):
        await soon(open_channel(launch, RunnerSettings()))
