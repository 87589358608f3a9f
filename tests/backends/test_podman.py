"""Podman without root. As root it passes src/kakoi/conformance (pyproject.toml) and the attacks."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from tests.backends.boxes import AS_USER, GROUP, USER, needs_root
from tests.library import readable_library

BUSYBOX = "kakoi-test:busybox"
PYTHON = "kakoi-test:python"
WAIT_S = 280.0
# Users who own more ids than their own: in files of this mount namespace, not of the machine.
MACHINE = r"""
for name in passwd group subuid subgid; do
    cat "/etc/$name" "$1/$name" >"$1/$name.whole" 2>/dev/null
    chmod 644 "$1/$name.whole"
    touch "/etc/$name"
    mount --bind "$1/$name.whole" "/etc/$name"
done
shift
exec "$@"
"""
PROGRAM = """
import asyncio, json, os, sys
from kakoi.backends.adapter import Limits
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.select import engine_environment
from kakoi.channel.api import Command
from kakoi.errors import KakoiError

async def run(limits):
    settings = DockerSettings(image=sys.argv[1], workspace=os.getcwd(), limits=limits)
    env = engine_environment(os.environ)
    box = DockerAdapter(settings, program="podman", lifetime="sandbox", engine_env=env)
    try:
        result = await box.run(Command(command="id -u; echo hi >made; cat made", timeout_s=60))
        return [result.exit_code, result.stdout]
    except KakoiError as error:
        return [error.message, error.hint]
    finally:
        await box.cleanup()

none = Limits(memory_bytes=None, cpus=None, processes=None, disk_bytes=None)
print(json.dumps([asyncio.run(run(each)) for each in (none, Limits())]))
"""
# Without limits, which only control groups of the second version can set for a user.
SUBJECT = """
import os
from kakoi.backends.adapter import Limits
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.select import engine_environment
from kakoi.conformance.subjects import Subject, Traits

def make(workspace):
    none = Limits(memory_bytes=None, cpus=None, processes=None, disk_bytes=None)
    settings = DockerSettings(image="localhost/kakoi-test:python", workspace=str(workspace), limits=none)
    env = engine_environment(os.environ)
    return DockerAdapter(settings, program="podman", lifetime="sandbox", engine_env=env)

rootless = Subject("rootless_podman:rootless", make, Traits())
"""
# In one container: without fuse, a user's engine copies the whole image for each.
SUITE = ["ends", "output", "stdin", "isolation"]
CHOSEN = "ends or output or stdin or a_process_of_the_machine or our_secrets"
# What pytest needs to run as another user.
PYTEST = ["pytest", "pluggy", "iniconfig", "packaging", "pygments"]
PYTEST += ["anyio", "idna", "sniffio", "typing_extensions"]


def _need_rootless_podman() -> None:
    required = "podman" in os.environ.get("KAKOI_REQUIRE", "").split(",")
    report = pytest.fail if required else pytest.skip
    for program, package in (("podman", "podman"), ("newuidmap", "uidmap"), ("docker", "docker")):
        if shutil.which(program) is None:
            report(f"{program} is missing: scripts/setup installs {package}")


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of a user with a range of ids, and the test image in a file."""
    root = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    root.chmod(0o755)
    try:
        (root / "passwd").write_text(f"kakoi-test:x:{USER}:{GROUP}::{root}:/bin/sh\n")
        (root / "group").write_text(f"kakoi-test:x:{GROUP}:\n")
        for name in ("subuid", "subgid"):
            (root / name).write_text("kakoi-test:1000000:65536\n")
        given = Path(os.environ.get("CONTAINERS_CONF", "/etc/containers/containers.conf"))
        (root / "containers.conf").write_text(given.read_text() if given.exists() else "")
        (root / "program.py").write_text(PROGRAM)
        for name in ("run", "project", "storage"):
            (root / name).mkdir(mode=0o700)
            os.chown(root / name, USER, GROUP)
        yield root
    finally:
        shutil.rmtree(root)


def as_user(home: Path, image: str, command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user whose engine has the image."""
    tar = home / "image.tar"
    saved = subprocess.run(["docker", "save", image, "-o", tar], timeout=WAIT_S)
    assert saved.returncode == 0
    tar.chmod(0o644)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home / "storage"),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "CONTAINERS_CONF": str(home / "containers.conf"),
        "PYTHONPATH": f"{readable_library()}:{home}",
    }
    script = (
        f"cd {home}/project && podman load -q -i {tar} >&2 && {command}; status=$?"
        # Files of other ids than its own can be removed by the user only in there. The process that
        # keeps the user's namespaces ends with `migrate`.
        "; podman unshare rm -rf ~/.local; podman system migrate; exit $status"
    )
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", MACHINE, "sh", str(home)]
        + [*AS_USER, "sh", "-c", script],
        env={**environ, **env},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@needs_root
@pytest.mark.slow("starts an engine of its own for a user")
def test_without_root_it_runs_commands_as_the_user_and_says_which_limits_it_cannot_keep(
    home: Path,
) -> None:
    _need_rootless_podman()
    done = as_user(home, BUSYBOX, f"/usr/bin/python3 {home}/program.py localhost/{BUSYBOX}")
    assert done.returncode == 0, done.stderr
    free, limited = json.loads(done.stdout)
    assert free == [0, f"{USER}\nhi\n"]
    assert (home / "project" / "made").stat().st_uid == USER
    # Only control groups of the second version can be given to a user.
    if limited[0] != 0:
        assert "podman did not set these limits: memory_bytes" in limited[0]
        assert "rootless engines need cgroup v2 with delegation" in limited[1]


@needs_root
@pytest.mark.extended("repetition: conformance as root runs the same code in the container")
@pytest.mark.slow("dozens of tests, and an engine of its own for a user")
def test_without_root_it_passes_the_conformance_suite(home: Path) -> None:
    _need_rootless_podman()
    (home / "rootless_podman.py").write_text(SUBJECT)
    for name in PYTEST:
        _copy_package(name, home)
    names = " ".join(f"$suite/test_{each}.py" for each in SUITE)
    done = as_user(
        home,
        PYTHON,
        f"/usr/bin/python3 -m pytest -q -p no:cacheprovider -p kakoi.conformance.plugin"
        f" --sandbox rootless_podman:rootless -k '{CHOSEN}' {names}",
        suite=str(readable_library() / "kakoi" / "conformance"),
        TMPDIR=str(home / "project"),
    )
    assert done.returncode == 0, done.stdout[:3000] + done.stderr[-1000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found
    assert int(found[1]) > 60
    assert "skipped" not in done.stdout


def _copy_package(name: str, folder: Path) -> None:
    """Copy an installed package to where every user can read it."""
    for file in importlib.metadata.files(name) or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), folder / file)


@pytest.mark.anyio
async def test_a_local_image_that_is_missing_is_not_awaited_from_a_registry() -> None:
    _need_rootless_podman()
    image = "localhost/kakoi-test:no-such-image"
    found = await DockerAdapter(DockerSettings(image=image), program="podman").availability()
    assert not found
    assert found.reason == f"the image `{image}` is not on this machine"
    assert found.fix == "docker save kakoi-test:no-such-image | podman load"
