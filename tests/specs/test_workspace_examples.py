"""The files of spec E, literally: lists, log, models, and our files held against its own."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kakoi.images.description import FOLDER
from kakoi.packages.allowlist import InstallResult
from kakoi.packages.installer import as_line
from tests.cli.calling import Home
from tests.images.conftest import need

EXAMPLES = Path(__file__).with_name("examples") / "docker_workspace"
ROOT = Path(__file__).resolve().parents[2]
KINDS = ("apt", "pip", "npm")


def lines(file: Path) -> list[str]:
    found = (line.strip() for line in file.read_text("utf-8").splitlines())
    return [line for line in found if line and not line.startswith("#")]


@pytest.mark.requirement("E-025")
@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_lists_are_those_of_the_spec(kind: str) -> None:
    assert lines(FOLDER / "allowlist" / f"{kind}.txt") == lines(
        EXAMPLES / "allowlist" / f"{kind}.txt"
    )


@pytest.mark.requirement("E-014", "E-019", "E-020", "E-022", "E-023")
def test_the_lists_decide_what_a_user_can_install(tmp_path: Path) -> None:
    """`kakoi install`; where a listed package is really installed is tests/images."""
    home = Home(tmp_path.resolve(), {"INSTALL_LOG_DIR": str(tmp_path / "logs")})
    home.project.mkdir()
    rejected = [("npm", "requests"), ("pip", "jq"), ("pip", "requests==0"), ("npm", "evil")]
    for kind, name in rejected:
        lists = ("--allowlist", str(EXAMPLES / "allowlist"))
        status, _, said = home("install", *lists, kind, name)
        assert (status, "is refused" in said) == (1, True), said
    (log,) = (tmp_path / "logs").iterdir()
    logged = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [(each["type"], each["package"], each["status"]) for each in logged] == [
        (kind, name, "rejected") for kind, name in rejected
    ]
    # Each key is one of the example's.
    known = {*json.loads((EXAMPLES / "log_entry.json").read_text("utf-8")), "error"}
    assert {key for each in logged for key in each} <= known


@pytest.mark.requirement("E-026", "E-027")
def test_the_example_of_the_log_is_an_entry_of_ours() -> None:
    entry = json.loads((EXAMPLES / "log_entry.json").read_text("utf-8"))
    assert json.loads(as_line(InstallResult(**entry))) == entry


@pytest.mark.requirement("E-028")
def test_the_data_models_are_those_of_the_spec() -> None:
    subprocess.run([sys.executable, str(EXAMPLES / "models.py")], check=True, timeout=60)


def composed(file: Path) -> dict[str, Any]:
    argv = ["docker", "compose", "-f", str(file), "config", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.requirement("E-001", "E-002", "E-003", "E-004", "E-005", "Y-15")
def test_our_workspace_is_that_of_the_spec_but_for_what_does_not_work_there(
    tmp_path: Path,
) -> None:
    """The spec's file, where the spec puts it, as Compose reads it; and ours."""
    version = subprocess.run(["docker", "compose", "version"], capture_output=True)
    need("docker compose is not installed: see scripts/compose", is_there=version.returncode == 0)
    place = tmp_path.resolve() / "clone" / "infra" / "docker"
    place.mkdir(parents=True)
    (place / "compose.yaml").write_text((EXAMPLES / "compose.yaml").read_text("utf-8"), "utf-8")
    theirs, ours = composed(place / "compose.yaml"), composed(ROOT / "infra/docker/compose.yaml")
    wanted, found = (each["services"]["workspace"] for each in (theirs, ours))
    for key in ("working_dir", "user", "environment"):
        assert found[key] == wanted[key], key
    assert list(found["networks"]) == list(wanted["networks"]) == ["workspace-net"]
    for each in (theirs, ours):
        assert each["networks"]["workspace-net"]["driver"] == "bridge"
    assert found["build"]["dockerfile"] == wanted["build"]["dockerfile"]
    assert found["build"]["context"] == str(ROOT / "infra/docker/images/base")
    targets = [[volume["target"] for volume in each["volumes"]] for each in (wanted, found)]
    assert targets[0] == targets[1] == ["/workspace", "/logs"]
    # Three levels up from infra/docker is the folder above the clone: ours is the clone.
    assert [volume["source"] for volume in wanted["volumes"]] == [
        str(tmp_path.resolve()),
        str(tmp_path.resolve() / "runtime" / "logs"),
    ]
    assert [volume["source"] for volume in found["volumes"]] == [
        str(ROOT),
        str(ROOT / "runtime" / "logs"),
    ]


@pytest.mark.requirement("E-006", "E-007", "E-008")
def test_our_image_has_what_the_dockerfile_of_the_spec_installs() -> None:
    """What is in a built image is asked of it in tests/images."""
    theirs, ours = ((each / "Dockerfile").read_text("utf-8") for each in (EXAMPLES, FOLDER))
    (base,) = re.findall(r"^FROM (\S+)", theirs)[:1] or re.findall(r"(?m)^FROM (\S+)", theirs)
    assert f"ARG BASE={base}" in ours
    wanted = re.search(r"install -y (.*?)&&", theirs.replace("\\\n", " "), re.DOTALL)
    assert wanted is not None
    contents = [line.split() for line in lines(FOLDER / "contents.txt")]
    assert set(wanted[1].split()) <= {each[2] for each in contents if each[:2] == ["base", "apt"]}
    assert "\nUSER agent\nWORKDIR /workspace\n" in ours


@pytest.mark.requirement("E-010")
def test_our_installer_is_called_as_that_of_the_spec() -> None:
    usage = re.search(r"Usage: install\.sh <(\w+)> <(\w+)>", (EXAMPLES / "install.sh").read_text())
    assert usage is not None
    words = " ".join(each.upper() for each in usage.groups())
    script = (FOLDER / "install.sh").read_text("utf-8")
    assert f"install.sh {words}" in script
    for arguments, status in ((["gem", "x"], 4), ([], 4)):
        done = subprocess.run(
            ["sh", str(FOLDER / "install.sh"), *arguments], capture_output=True, timeout=60
        )
        assert done.returncode == status
