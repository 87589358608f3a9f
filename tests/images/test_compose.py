"""The workspace service: `infra/docker/compose.yaml`, which is the packaged file."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kakoi.images.description import FOLDER
from tests.images.boxes import LABEL, Box, docker

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "infra" / "docker" / "compose.yaml"


def config(**variables: str) -> dict[str, Any]:
    """The file with its variables filled in, and its paths made whole, as compose does it."""
    text = re.sub(
        r"\$\{(\w+):-([^}]*)\}",
        lambda found: variables.get(found[1], found[2]),
        COMPOSE.read_text(),
    )
    parsed: dict[str, Any] = yaml.safe_load(text)
    service = parsed["services"]["workspace"]
    service["build"]["context"] = str(COMPOSE.parent / service["build"]["context"])
    service["volumes"] = {
        target: os.path.normpath(COMPOSE.parent / source)
        for source, target, mode in (volume.split(":") for volume in service["volumes"])
        if mode == "rw"
    }
    return parsed


SERVICE: Mapping[str, Any] = config()["services"]["workspace"]


@pytest.mark.requirement("E-001")
def test_the_workspace_is_built_from_the_only_copy() -> None:
    assert COMPOSE.resolve() == FOLDER / "compose.yaml"
    build = SERVICE["build"]
    assert build["context"] == str(COMPOSE.parent / "images" / "base")
    assert Path(build["context"]).resolve() == FOLDER
    assert (build["dockerfile"], build["target"]) == ("Dockerfile", "base")


@pytest.mark.requirement("Y-15")
def test_the_repository_and_its_logs_are_mounted() -> None:
    assert SERVICE["volumes"] == {"/workspace": str(ROOT), "/logs": str(ROOT / "runtime" / "logs")}


@pytest.mark.requirement("E-004", "E-005")
def test_the_service_is_that_of_the_spec() -> None:
    assert (SERVICE["working_dir"], SERVICE["user"]) == ("/workspace", "agent")
    assert SERVICE["environment"] == ["NODE_ENV=development"]
    assert SERVICE["networks"] == ["workspace-net"]
    assert config()["networks"] == {"workspace-net": {"driver": "bridge"}}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to the agent")


@needs_root
@pytest.mark.requirement("E-002", "E-003", "E-004")
def test_files_are_seen_on_both_sides_and_the_log_arrives(image: str, tmp_path: Path) -> None:
    """With the words of the file, by hand: compose itself is not everywhere."""
    project, logs = tmp_path / "project", tmp_path / "logs"
    for folder in (project, logs):
        folder.mkdir()
        os.chown(folder, 1000, 1000)
    (project / "from-outside").write_text("hello")
    service = config(KAKOI_PROJECT=str(project), KAKOI_LOGS=str(logs))["services"]["workspace"]
    mounts = [
        word for target, path in service["volumes"].items() for word in ("-v", f"{path}:{target}")
    ]
    settings = [
        "-w",
        service["working_dir"],
        "-u",
        service["user"],
        "-e",
        service["environment"][0],
    ]
    argv = ["run", "-d", "--init", "--network", "none", "--label", LABEL, *mounts, *settings]
    box = Box(docker(*argv, image, *service["command"]).stdout.strip())
    try:
        said = box("id -un; pwd; echo $NODE_ENV; cat from-outside; echo hi >from-inside")
        assert said.stdout == "agent\n/workspace\ndevelopment\nhello"
        assert (project / "from-inside").read_text() == "hi\n"
        assert box("install.sh npm evil").returncode == 1
    finally:
        docker("rm", "-f", box.name)
    (log,) = logs.iterdir()
    assert json.loads(log.read_text())["package"] == "evil"


def has_compose() -> bool:
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@needs_root
def test_compose_itself_brings_the_workspace_up(image: str, tmp_path: Path) -> None:
    if not has_compose():
        pytest.skip("docker compose is not installed")
    project, logs = tmp_path / "project", tmp_path / "logs"
    for folder in (project, logs):
        folder.mkdir()
        os.chown(folder, 1000, 1000)
    environ = {"KAKOI_BASE": image, "KAKOI_PROJECT": str(project), "KAKOI_LOGS": str(logs)}
    words = ["docker", "compose", "-p", f"kakoi-test-{os.getpid()}", "-f", str(COMPOSE)]

    def compose(*more: str) -> str:
        done = subprocess.run(
            [*words, *more],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        compose("up", "-d", "--build")
        assert compose("exec", "-T", "workspace", "sh", "-c", "id -un; echo hi >x") == "agent\n"
        assert (project / "x").read_text() == "hi\n"
    finally:
        compose("down", "-v", "--rmi", "local")
