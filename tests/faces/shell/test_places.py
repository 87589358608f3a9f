"""The same calls in a container; and what the package asks for to be installed."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kakoi._support.asyncio import background
from kakoi.audit import read
from kakoi.errors import EnvironmentUnavailableError
from kakoi.shell import SecurityError, ShellExecutor

IMAGE = "kakoi-test:python"  # scripts/engine makes it.
PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def has_image() -> bool:
    docker = shutil.which("docker")
    argv = [docker or "", "image", "inspect", IMAGE]
    return docker is not None and subprocess.run(argv, capture_output=True).returncode == 0


@pytest.mark.requirement("D-048", "X-18")
def test_commands_run_in_a_container_if_that_is_asked_for(workspace: Path, tmp_path: Path) -> None:
    if not has_image():
        required = "docker" in os.environ.get("KAKOI_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)("there is no Docker with the test's image")
    (tmp_path / "security.toml").write_text(
        f'[shell.sandbox]\ntype = "docker"\ndocker = {{image = "{IMAGE}"}}\n'
    )
    executor = ShellExecutor(["cat", "echo", "pwd"])
    try:
        said = background().run(executor.exec("pwd; cat /proc/1/comm; echo made > inside"))
        assert said.stdout.splitlines() == [str(workspace), "docker-init"]
        assert (workspace / "inside").read_text() == "made\n"
        assert {entry.sandbox for entry in read(tmp_path / "audit.jsonl")} == {"docker"}
        with pytest.raises(SecurityError):
            background().run(executor.exec("ls; sudo id"))
    finally:
        background().run(executor.close())


@pytest.mark.requirement("D-048")
def test_a_place_that_is_not_there_is_told(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "security.toml").write_text('[shell]\nsandbox = "docker"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EnvironmentUnavailableError) as raised:
        background().run(ShellExecutor().exec("ls"))
    assert raised.value.hint


@pytest.mark.requirement("D-043", "X-47")
def test_docker_is_an_extra_and_no_dependency() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert project["optional-dependencies"]["shell"] == ["docker>=6.0.0"]
    assert not any(each.startswith("docker") for each in project["dependencies"])
