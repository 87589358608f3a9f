"""Walls of the kernel, asked for on the command line: the confined host, and lists of programs.

As whoever runs the tests, and as a normal user, who needs nothing but Python and what we need.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER
from tests.cli.conftest import has_bubblewrap, has_image, need
from tests.cli.forked import kakoi
from tests.library import readable_library

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "CONTAINER_HOST": "unix:///nowhere"}


@dataclass(frozen=True)
class Someone:
    """A person with a home, a project and a secret beside it, that others may read as well.

    `argv`: what starts Python as somebody else; for whoever runs this, `kakoi` is forked.
    """

    root: Path
    argv: tuple[str, ...] = ()

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def secret(self) -> Path:
        return self.root / "secret"

    def __call__(self, *words: str, **env: str) -> tuple[int, str, str]:
        own = {"HOME": str(self.root), "KAKOI_AUDIT_FILE": str(self.root / "audit.jsonl")}
        environ = {"PATH": os.environ["PATH"], **own, **NO_ENGINE, **env}
        if not self.argv:
            done = kakoi(*words, cwd=self.project, env=environ, text=True)
            return done.returncode, done.stdout, done.stderr
        done = subprocess.run(
            [*self.argv, "-m", "kakoi", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.project,
            env={**environ, "PYTHONPATH": str(readable_library()), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        return done.returncode, done.stdout, done.stderr

    def configure(self, text: str) -> None:
        path = self.root / ".config" / "kakoi" / "config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")


def _a_users_python() -> tuple[str, ...]:
    """A Python that others can start."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run(["/usr/bin/python3", "-c", check]).returncode:
        pytest.skip("the system has no python3 >= 3.11 for another user")
    return (*AS_USER, "/usr/bin/python3")


@pytest.fixture(params=["whoever runs this", "a user"])
def someone(request: pytest.FixtureRequest) -> Iterator[Someone]:
    root = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    root.chmod(0o755)
    try:
        argv = _a_users_python() if request.param == "a user" else ()
        (root / "project").mkdir()
        (root / "secret").write_text("secret\n", encoding="ascii")
        if IS_ROOT and request.param == "a user":
            for path in (root, root / "project", root / "secret"):
                os.chown(path, USER, GROUP)
        yield Someone(root, argv)
    finally:
        shutil.rmtree(root)


@pytest.fixture(params=["host --confine", "bubblewrap"])
def walled(request: pytest.FixtureRequest, someone: Someone) -> tuple[Someone, list[str]]:
    if request.param == "bubblewrap":
        need("bubblewrap", is_there=has_bubblewrap())
    return someone, ["run", "--yes", "--sandbox", *request.param.split()]


# --- The confined host -----------------------------------------------------------------------


def test_the_confined_host_runs_commands_and_keeps_them_in_the_project(someone: Someone) -> None:
    run = ("run", "--yes", "--json", "--sandbox", "host", "--confine")
    status, out, _ = someone(*run, "echo made > made && cat made")
    told = json.loads(out)
    assert (status, told["stdout"], told["sandbox"]) == (0, "made\n", "confined-host")
    assert (someone.project / "made").read_text() == "made\n"
    assert "file_bytes" in told["limits"]["enforced"]
    for attempt in (f"cat {someone.secret}", f"touch {someone.root}/x"):
        status, out, _ = someone(*run, attempt)
        assert (status, json.loads(out)["exit_code"]) == (1, 1), attempt
        assert "Permission denied" in json.loads(out)["stderr"]
    assert not (someone.root / "x").exists()


def test_the_host_confines_nothing_without_the_word_and_says_so(someone: Someone) -> None:
    status, out, err = someone("run", "--yes", "--sandbox", "host", f"cat {someone.secret}")
    assert (status, out) == (0, "secret\n")
    assert "confined by nothing" in err


def test_a_network_that_the_confined_host_cannot_give_is_refused(someone: Someone) -> None:
    words = ("--sandbox", "host", "--confine", "--allow-domain", "example.org")
    status, _, err = someone("run", *words, "true")
    assert status == 125
    assert "host" in err


def test_a_disk_limit_that_is_asked_for_is_refused_there(someone: Someone) -> None:
    someone.configure("resources:\n  disk_limit: 16MiB\n")
    status, _, err = someone("run", "--sandbox", "host", "--confine", "true")
    assert status == 125
    assert "confined-host cannot enforce disk_bytes at 16777216" in err


# --- A list of programs ----------------------------------------------------------------------


def test_an_unlisted_program_is_not_executed_whatever_starts_it(
    walled: tuple[Someone, list[str]],
) -> None:
    someone, run = walled
    (someone.project / "try.py").write_text(
        "import subprocess\n"
        "print(subprocess.run(['ls', '/usr'], stdout=-3).returncode, flush=True)\n"
        "print(subprocess.run(['mount', '-V'], stdout=-3).returncode)\n"
    )
    assert someone(*run, "python3 try.py")[:2] == (0, "0\n0\n")
    status, out, err = someone(*run, "--kernel-allowlist", "python3 try.py")
    assert (status, out) == (1, "0\n")
    assert "PermissionError: [Errno 13] Permission denied: 'mount'" in err


@pytest.mark.slow("a sandbox for each way to be refused")
def test_that_the_list_refused_it_is_reported_with_a_way_out(
    walled: tuple[Someone, list[str]],
) -> None:
    someone, run = walled
    script = someone.project / "mine"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    status, _, err = someone(*run, "--kernel-allowlist", "--", "./mine")
    assert status == 126
    assert (
        "cannot start `./mine`: the program: Permission denied; the kernel enforces the list" in err
    )
    assert "`sh FILE`, or turn sandbox.kernel_allowlist off" in err
    status, _, err = someone(*run, "--kernel-allowlist", "./mine")
    assert status == 126
    assert "kakoi: the kernel enforces the list of programs (kernel_allowlist); with 126" in err
    assert someone(*run, "--kernel-allowlist", "sh mine")[:2] == (0, "ran\n")
    assert someone(*run, "./mine")[:2] == (0, "ran\n")


def test_a_list_is_refused_on_the_host_as_it_is(someone: Someone) -> None:
    status, _, err = someone("run", "--sandbox", "host", "--kernel-allowlist", "true")
    assert status == 125
    assert "--confine" in err


# --- A copy of the workspace -----------------------------------------------------------------


def test_a_disk_limit_holds_for_scratch_and_the_copy_is_named_as_not_covered(
    someone: Someone,
) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    someone.configure("resources:\n  disk_limit: 16MiB\n")
    fill = "head -c 20000000 /dev/zero > large; echo $?; head -c 20000000 /dev/zero > /tmp/large"
    status, out, err = someone("run", "--yes", "--json", "--cow", fill)
    assert status == 1, err
    told = json.loads(out)
    assert (told["stdout"], told["disk_full"]) == ("0\n", "/tmp")
    assert "not the workspace" in told["limits"]["enforced"]["disk_bytes"]
    assert list(someone.project.iterdir()) == []
    assert someone("copy", "changes")[1] == "A large\n"
    assert someone("copy", "discard")[0] == 0


# --- What doctor says ------------------------------------------------------------------------


def test_doctor_tries_a_list_and_a_copy_as_the_current_user(someone: Someone) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    status, out, err = someone("doctor", "--json")
    assert (status, err) == (0, "")
    checks = {(each["area"], each["name"]): each for each in json.loads(out)["checks"]}
    for place in ("bubblewrap", "confined-host"):
        found = checks[f"inside {place}", "programs"]
        assert found["status"] == "ok", found
        assert "is refused" in found["detail"]
    is_root = IS_ROOT and not someone.argv
    who = "as root" if is_root else "as a normal user"
    found = checks["inside bubblewrap", "copy-on-write"]
    assert (found["status"], found["detail"]) == (
        "ok",
        f"--cow works {who}: only a copy was written to",
    )


@pytest.mark.parametrize(
    ("image", "status", "says"),
    [
        ("kakoi-test:python", "ok", "is refused"),
        ("kakoi-test:busybox", "not enforced", "an image without python3"),
    ],
)
@pytest.mark.slow("tries every sandbox of this machine")
def test_doctor_tries_a_list_in_the_image_at_hand(
    tmp_path: Path, image: str, status: str, says: str
) -> None:
    need("docker", is_there=has_image(image))
    environ = {**os.environ, "KAKOI_AUDIT_FILE": str(tmp_path / "audit.jsonl")}
    done = kakoi("doctor", "--json", "--image", image, cwd=tmp_path, env=environ, timeout=240)
    checks = {(each["area"], each["name"]): each for each in json.loads(done.stdout)["checks"]}
    found = checks["inside docker", "programs"]
    assert (found["status"], says in found["detail"]) == (status, True), found
