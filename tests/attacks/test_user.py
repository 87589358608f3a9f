"""The most telling attacks in sandboxes of a normal user, who has neither root nor control groups."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from kakoi.channel.api import MIB
from tests.attacks.driving import AttackTarget, Result
from tests.attacks.test_privileges import CALLS
from tests.attacks.test_processes import ENVIRONMENTS, SIGNALS, TRACING
from tests.attacks.test_runner import LOOK_INTO_THE_RUNNER
from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER, require_bubblewrap

SECRET = "kakoi-secret-of-a-neighbour"
# Nothing but each process of its own is limited for such a user.
LIMITS = {"memory_bytes": 512 * MIB}
OUTSIDE = """
import os
for path in ("/root", "/var/log", "/etc/shadow", "/etc/ssh"):
    try:
        print(path, os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError:
        pass
for path in ("/etc/planted", "/usr/planted", "/opt/planted", os.environ["ELSEWHERE"] + "/planted"):
    try:
        open(path, "w").close()
        print("planted", path)
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    made.chmod(0o755)
    for name in ("workspace", "elsewhere"):
        (made / name).mkdir()
        if IS_ROOT:
            os.chown(made / name, USER, GROUP)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def neighbour() -> Iterator["subprocess.Popen[bytes]"]:
    """Another process of the same user, with a secret."""
    env = {"PATH": "/usr/bin:/bin", "SECRET": SECRET}
    with subprocess.Popen([*AS_USER, "cat"], stdin=subprocess.PIPE, env=env) as process:
        yield process
        process.kill()


def python(text: str, *words: str) -> str:
    return "exec " + shlex.join(["python3", "-I", "-c", text, *words])


@pytest.mark.parametrize("kind", ["bubblewrap", "confined"])
def test_the_walls_of_a_normal_user_hold(
    kind: Literal["bubblewrap", "confined"], folder: Path, neighbour: "subprocess.Popen[bytes]"
) -> None:
    if kind == "bubblewrap":
        require_bubblewrap()
    target = AttackTarget(kind, folder / "workspace", AS_USER)
    pid = str(neighbour.pid)
    attacks = {
        "power": python(CALLS),
        "signals": python(SIGNALS, pid),
        "tracing": python(TRACING, pid),
        "environments": python(ENVIRONMENTS, SECRET),
        "the runner": python(LOOK_INTO_THE_RUNNER),
        "outside": f"export ELSEWHERE={folder / 'elsewhere'}; {python(OUTSIDE)}",
    }
    if kind == "bubblewrap":  # There such a number is nobody, or by chance one of its own.
        del attacks["signals"], attacks["tracing"]
    report = target.attack(*attacks.values(), limits=LIMITS)
    found = dict(zip(attacks, report.results, strict=True))
    assert {name: gain(result) for name, result in found.items()} == dict.fromkeys(attacks, "")
    assert neighbour.poll() is None
    assert not any((folder / "elsewhere").iterdir())


def gain(result: Result) -> str:
    """What an attack got, or how it failed to be one."""
    return result.stdout if result.exit_code == 0 else f"{result.exit_code} {result.stderr}"
