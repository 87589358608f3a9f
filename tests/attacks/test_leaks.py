"""What of ours could be lying around inside: descriptors, variables, words, files."""

import os
from pathlib import Path

import pytest

from kakoi.channel.api import Command
from kakoi.conformance.subjects import Subject
from tests.attacks.conftest import PATIENCE_S, Place

pytestmark = pytest.mark.anyio

DESCRIPTORS = """
import os
own = os.open("/proc/self/fd", os.O_RDONLY)
for name in sorted(os.listdir(own), key=int):
    if int(name) not in (0, 1, 2, own):
        try:
            print(name, os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
"""


async def test_a_command_has_three_descriptors_and_no_more(place: Place) -> None:
    assert await place.python(DESCRIPTORS) == []


@pytest.mark.slow("a program that looks at everything")
async def test_what_a_command_inherits_of_us_is_nothing(
    subject: Subject, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened files that would survive an exec, variables, the folder, the mask of modes."""
    secrets = ("KAKOI_TOKEN", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "MY_VAR")
    for name in (*secrets, "DOCKER_HOST_", "LD_PRELOAD_"):
        monkeypatch.setenv(name, mark)
    (tmp_path / "open").write_text(mark)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    fd = os.open(tmp_path / "open", os.O_RDONLY)
    os.set_inheritable(fd, True)
    sandbox = subject.make(workspace)
    try:
        text = "env; cat /proc/[0-9]*/environ; ls -l /proc/[0-9]*/fd; cat /proc/[0-9]*/fd/[0-9]*"
        command = Command(command=text + " </dev/null", timeout_s=PATIENCE_S, idle_timeout_s=5)
        result = await sandbox.run(command)
        umask = await sandbox.run(Command(command="umask; ulimit -c", timeout_s=PATIENCE_S))
    finally:
        os.close(fd)
        await sandbox.cleanup()
    assert mark not in result.stdout + result.stderr
    assert umask.stdout.split()[0] in ("0022", "0002", "0077")


async def test_no_process_in_sight_has_our_words_or_folders(place: Place) -> None:
    text = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    result = await place.bash(text)
    assert text.partition("|")[0] in result.stdout  # At least itself is in sight.
    if place.traits.isolates_processes:
        assert str(Path(__file__).parent) not in result.stdout
        assert "pytest" not in result.stdout


async def test_what_one_command_leaves_in_private_places_another_sandbox_does_not_see(
    place: Place, subject: Subject, tmp_path: Path, mark: str
) -> None:
    await place.bash(f"for d in /tmp /var/tmp /dev/shm ~; do touch $d/{mark}; done")
    other = subject.make(tmp_path)
    try:
        command = Command(command="ls -a /tmp /var/tmp /dev/shm ~", timeout_s=PATIENCE_S)
        result = await other.run(command)
    finally:
        await other.cleanup()
    assert mark not in result.stdout
