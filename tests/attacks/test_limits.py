"""Attacks on what a sandbox may use: each says what must happen, and the sandbox lives on."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.runner.commands import MIB
from tests.attacks.driving import Kind, Place, groups_of_a_user, has_groups
from tests.doors.conftest import has_image, need
from tests.sandbox.boxes import AS_USER, GROUP, IS_ROOT, USER, require_bubblewrap

LIMITS = {
    "memory_bytes": 96 * MIB,
    "cpus": 0.5,
    "processes": 50,
    "open_files": 256,
    "file_bytes": 4 * MIB,
    "disk_bytes": 16 * MIB,
}
ALIVE = "echo alive"
ROOTS = ["root", "root in a container", "root, no python inside", "root, a disk of its own"]
WHO = [*(ROOTS if IS_ROOT else []), "a user", *(["a user with groups"] if has_groups() else [])]
KINDS: dict[str, Kind] = {
    "root": "bubblewrap",
    "root in a container": "python",
    "root, no python inside": "busybox",
    "root, a disk of its own": "own disk",
    "a user": "bubblewrap",
    "a user with groups": "bubblewrap",
}

# Sandboxes of bubblewrap with a control group.
WITH_GROUPS = [who for who in WHO if KINDS[who] == "bubblewrap" and who != "a user"]


@pytest.fixture(params=[who for who in WHO if KINDS[who] == "bubblewrap"])
def confined(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The host, confined."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    if IS_ROOT:
        os.chown(folder, USER, GROUP)
    try:
        if request.param == "a user with groups":
            with groups_of_a_user() as before:
                yield Place("confined", folder, before)
        else:
            yield Place("confined", folder, AS_USER if request.param == "a user" else ())
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=WHO)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    kind = KINDS[request.param]
    if kind == "bubblewrap":
        require_bubblewrap()
    else:
        image = "kakoi-test:base" if kind == "own disk" else f"kakoi-test:{kind}"
        need("docker", is_there=has_image(image))
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    if IS_ROOT:
        os.chown(folder, USER, GROUP)
    try:
        if request.param == "a user with groups":
            with groups_of_a_user() as before:
                yield Place(kind, folder, before)
        else:
            yield Place(kind, folder, AS_USER if "user" in request.param else ())
    finally:
        shutil.rmtree(folder)


def has_group(place: Place) -> bool:
    """Does something keep memory and processor time for all processes together?"""
    return place.kind not in ("bubblewrap", "confined") or place.before != AS_USER


def full_place(place: Place) -> str:
    """Where the disk of /tmp is said to be full: the first directory of those on it."""
    return "/workspace" if place.kind == "own disk" else "/tmp"


def test_a_fork_bomb_stays_in_its_box(place: Place) -> None:
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 60"
    told = place.attack((bomb, 1), ALIVE, limits=LIMITS)
    assert told.results[0].reason in ("timed_out", "exited", "signalled")
    assert told.results[1].stdout == "alive\n"
    assert told.kept["processes"]


def test_a_memory_hog_is_ended_as_what_it_is(place: Place) -> None:
    told = place.attack("exec tail /dev/zero", ALIVE, limits=LIMITS)
    hog = told.results[0]
    if has_group(place):
        assert (hog.reason, hog.exit_code) == ("out_of_memory", 137)
    else:
        # It is told that there is none, and nobody is killed.
        assert (hog.reason, hog.exit_code) == ("exited", 1)
        assert "not of all together" in told.kept["memory_bytes"]
    assert told.results[1].stdout == "alive\n"


def test_what_fills_the_disk_is_refused_and_told_as_that(place: Place) -> None:
    fill = "for i in $(seq 12); do head -c 4000000 /dev/zero > /tmp/f$i || exit 9; done"
    told = place.attack(fill, "rm /tmp/f*", f"{ALIVE} > /tmp/x; cat /tmp/x", limits=LIMITS)
    assert told.results[0].exit_code == 9
    assert told.results[0].disk_full == full_place(place)
    assert (told.results[2].stdout, told.results[2].disk_full) == ("alive\n", "")
    assert "/tmp" in told.kept["disk_bytes"]


def test_no_place_but_the_workspace_is_left_out_of_the_limit_of_the_disk(place: Place) -> None:
    """Everything that can be written is tried: what is not small is the machine's own directory."""
    look = (
        "for d in / /*/ /*/*/ $HOME; do [ -w $d ] && [ $d != /proc/ ] && echo $d; done;"
        "for d in $(find / -xdev -type d -writable 2>/dev/null); do echo $d; done"
    )
    sizes = f"df -Pk $({look}) . | awk 'NR > 1 {{ print $2, $6 }}' | sort -u"
    (found,) = place.attack(sizes, limits=LIMITS).results
    large = {
        line.split(" ")[1]
        for line in found.stdout.splitlines()
        if int(line.split(" ")[0]) * 1024 > LIMITS["disk_bytes"]
    }
    assert found.stdout
    seen = {str(place.workspace)} if place.kind != "own disk" else set()
    # A container's devices are in memory, with a size of their own, and charged to its group.
    assert {
        each for each in large if not each.startswith(("/dev", "/proc/", "/sys/", "/sbin/"))
    } <= seen


def test_files_without_number_are_stopped_where_their_number_is_kept(place: Place) -> None:
    many = "i=0; while true > /tmp/i$i; do i=$((i+1)); [ $i -lt 20000 ] || exit 3; done; exit 9"
    told = place.attack(f"({many}) 2>/dev/null", ALIVE, limits=LIMITS)
    if place.kind == "bubblewrap":
        # Only memory bounds it: bubblewrap has no word for the number of files of a tmpfs.
        assert told.results[0].exit_code == 3
        assert "how many files there are counts as memory only" in told.kept["disk_bytes"]
    else:
        assert (told.results[0].exit_code, told.results[0].disk_full) == (9, full_place(place))
    assert told.results[1].stdout == "alive\n"


@pytest.mark.parametrize("place", WITH_GROUPS, indirect=True)
def test_files_without_number_and_content_take_memory_and_are_told_as_that(place: Place) -> None:
    """Nothing is in them, and none is the command's own: the kernel holds a kilobyte for each."""
    make = "import os; [os.close(os.open(f'/tmp/{n}', os.O_CREAT)) for n in range(10**6)]"
    told = place.attack(f'python3 -c "{make}"', ALIVE, limits=LIMITS)
    assert (told.results[0].reason, told.results[0].exit_code) == ("out_of_memory", 137)
    assert told.results[1].stdout == "alive\n"


def test_descriptors_run_out_for_the_command_alone(place: Place) -> None:
    raised = "ulimit -n 512 2>/dev/null; ulimit -n"
    use = 'for i in 3 100 255 256 300; do eval "exec $i</dev/null" || exit; echo $i; done'
    bash = f'if [ -n "$BASH_VERSION" ]; then {use}; fi 2>/dev/null'
    told = place.attack(raised, bash, ALIVE, limits=LIMITS)
    assert told.results[0].stdout == "256\n"
    opened = [] if place.kind == "busybox" else ["3", "100", "255"]
    assert told.results[1].stdout.split() == opened
    assert told.results[2].stdout == "alive\n"


def test_a_file_does_not_outgrow_its_limit(place: Place) -> None:
    grow = "exec head -c 8000000 /dev/zero > large"
    told = place.attack(grow, "wc -c < large; rm large", ALIVE, limits=LIMITS)
    assert (told.results[0].reason, told.results[0].exit_code) == ("signalled", 128 + 25)
    assert int(told.results[1].stdout) == 4 * MIB
    assert told.results[2].stdout == "alive\n"


def test_a_busy_loop_gets_its_share_where_something_keeps_it(place: Place) -> None:
    burn = "timeout 1 sh -c 'while :; do :; done'"
    told = place.attack(burn, limits=LIMITS)
    if has_group(place):
        assert told.results[0].cpu_ms < 800
        assert "group" in told.kept["cpus"]
    else:
        assert told.not_kept == {"cpus": "no control group can be made here"}


def test_a_limit_that_was_asked_for_and_cannot_be_kept_is_refused(place: Place) -> None:
    told = place.attack(ALIVE, limits={"cpus": 0.5, "asked": ["cpus"]})
    if has_group(place):
        assert told.results[0].stdout == "alive\n"
    else:
        assert told.results == []
        assert told.code == "LIMIT_NOT_KEPT"
        assert told.error.startswith("bubblewrap cannot keep cpus at 0.5: no control group")
        assert "use docker" in told.hint


def test_what_is_on_by_default_never_keeps_a_command_from_running(place: Place) -> None:
    told = place.attack(ALIVE, limits={"asked": None})
    assert told.results[0].stdout == "alive\n"
    assert {*told.kept, *told.not_kept} == set(LIMITS)
    assert set(told.not_kept) <= {"cpus"}


# --- The confined host -----------------------------------------------------------------------


def test_the_confined_host_keeps_what_a_group_keeps_and_says_what_is_not_kept(
    confined: Place,
) -> None:
    # Not bash, which would wait for room for many seconds.
    crowd = "exec dash -c 'i=0; while [ $i -lt 80 ]; do sleep 60 & i=$((i+1)); echo $i; done'"
    commands = ["exec tail /dev/zero", "ulimit -n", "exec head -c 8000000 /dev/zero > large", ALIVE]
    if has_group(confined):  # Without one, nothing but the rights of its user bounds a crowd.
        commands.append(crowd)
    told = confined.attack(*((each, 20.0) for each in commands), limits=LIMITS)
    hog, descriptors, large, alive, *crowded = told.results
    assert descriptors.stdout == "256\n"
    assert (large.reason, large.exit_code) == ("signalled", 128 + 25)
    assert alive.stdout == "alive\n"
    assert told.not_kept["disk_bytes"] == "all that it writes is on file systems of this machine"
    if has_group(confined):
        assert (hog.reason, hog.exit_code) == ("out_of_memory", 137)
        assert len(crowded[0].stdout.split()) < 60
        assert {"memory_bytes", "cpus", "processes"} <= set(told.kept)
    else:
        assert (hog.reason, hog.exit_code) == ("exited", 1)
        assert set(told.not_kept) == {"disk_bytes", "cpus", "processes"}


def test_a_limit_of_the_confined_host_that_was_asked_for_is_kept_or_refused(
    confined: Place,
) -> None:
    told = confined.attack(ALIVE, limits={"disk_bytes": 16 * MIB, "asked": ["disk_bytes"]})
    assert (told.results, told.code) == ([], "LIMIT_NOT_KEPT")
    told = confined.attack(ALIVE, limits={"processes": 40, "asked": ["processes"]})
    if has_group(confined):
        assert told.results[0].stdout == "alive\n"
    else:
        assert told.code == "LIMIT_NOT_KEPT"
