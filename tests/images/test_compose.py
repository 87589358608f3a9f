"""The workspace service: `infra/docker/compose.yaml`, which is the packaged file."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kakoi.images.description import FOLDER
from tests.images.boxes import LABEL, Box, docker
from tests.images.conftest import need

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


@pytest.mark.requirement("E-002", "E-003", "Y-15")
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
@pytest.mark.requirement("E-002", "E-003", "E-004", "E-020")
def test_files_are_seen_on_both_sides_and_the_log_arrives(image: str, tmp_path: Path) -> None:
    """With the words of the file, by hand: it holds where compose is not, too."""
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
        for request in ("npm evil", "pip requests==0", "npm eslint@9"):
            assert box(f"install.sh {request}").returncode == 1
        refused = box("install.sh apt jq")
        assert refused.returncode == 2
        assert f"kakoi install --container {box.name[:12]} apt jq" in refused.stderr
    finally:
        docker("rm", "-f", box.name)
    (log,) = logs.iterdir()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["package"], each["status"]) for each in entries] == [
        ("evil", "rejected"),
        ("requests==0", "rejected"),
        ("eslint@9", "rejected"),
        ("jq", "failed"),
    ]


@dataclass(frozen=True)
class Compose:
    """`docker compose` on the file, as a project of its own."""

    environ: Mapping[str, str]

    def __call__(self, *words: str, check: bool = True) -> str:
        project = ["-p", f"kakoi-test-{os.getpid()}", "-f", str(COMPOSE)]
        done = subprocess.run(
            ["docker", "compose", *project, *words],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def clones() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@needs_root
@pytest.mark.requirement("E-001", "E-002", "E-003", "E-004", "E-005", "E-030")
@pytest.mark.parametrize("owner", [1000, 0, 4321])
@pytest.mark.slow("builds an image, and Compose starts and stops its containers")
def test_compose_brings_up_a_workspace_that_owner_and_agent_can_write_to(
    image: str, clones: Path, owner: int
) -> None:
    """Whoever cloned the project, without a variable that says so."""
    version = subprocess.run(["docker", "compose", "version"], capture_output=True)
    need("docker compose is not installed: see scripts/compose", is_there=version.returncode == 0)
    project, logs = clones / "project", clones / "logs"
    (project / "src").mkdir(parents=True)
    (project / "src" / "from-outside").write_text("hello")
    subprocess.run(["git", "init", "--quiet", project], check=True, timeout=60)
    subprocess.run(["chown", "-R", f"{owner}:{owner}", project], check=True, timeout=60)
    compose = Compose({"KAKOI_BASE": image, "KAKOI_PROJECT": str(project), "KAKOI_LOGS": str(logs)})

    def inside(script: str, *, check: bool = True) -> str:
        return compose("exec", "-T", "workspace", "sh", "-c", script, check=check)

    def owner_can(script: str) -> bool:
        who = ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups"]
        return subprocess.run([*who, "sh", "-c", script], timeout=60).returncode == 0

    try:
        compose("up", "-d", "--build")
        said = inside("id -un; pwd; echo $NODE_ENV; cat src/from-outside; echo hi >src/from-inside")
        assert said == "agent\n/workspace\ndevelopment\nhello"
        assert (project / "src" / "from-inside").read_text() == "hi\n"
        inside("mkdir made && echo more >>src/from-outside && git status --short")
        assert owner_can(f"echo x >>{project}/src/from-inside && echo x >{project}/made/there")
        inside("echo y >>made/there")
        inside("install.sh npm evil", check=False)
        (log,) = logs.iterdir()
        assert json.loads(log.read_text())["status"] == "rejected"
        assert owner_can(f"test -w {logs} && test -w {log}")
        compose("up", "-d")
        (container,) = compose("ps", "-q").split()
        joined = docker("inspect", "-f", "{{json .NetworkSettings.Networks}}", container).stdout
        (network,) = json.loads(joined)
        assert network.endswith("_workspace-net")
    finally:
        compose("down", "-v", "--rmi", "local")
    assert docker("network", "ls", "-q", "-f", f"name={network}").stdout == ""
