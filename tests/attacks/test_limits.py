"""Attacks on what a sandbox may use: each says what must happen, and the sandbox lives on."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.channel.api import MIB
from tests.attacks.driving import AttackTarget, Kind, Result, groups_of_a_user, has_groups
from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER, require_bubblewrap
from tests.cli.conftest import has_image, need

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
def confined(request: pytest.FixtureRequest) -> Iterator[AttackTarget]:
    """The host, confined."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    if IS_ROOT:
        os.chown(folder, USER, GROUP)
    try:
        if request.param == "a user with groups":
            with groups_of_a_user() as before:
                yield AttackTarget("confined", folder, before)
        else:
            yield AttackTarget("confined", folder, AS_USER if request.param == "a user" else ())
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def target_of(who: str) -> Iterator[AttackTarget]:
    kind = KINDS[who]
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
        if who == "a user with groups":
            with groups_of_a_user() as before:
                yield AttackTarget(kind, folder, before)
        else:
            yield AttackTarget(kind, folder, AS_USER if "user" in who else ())
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=WHO)
def target(request: pytest.FixtureRequest) -> Iterator[AttackTarget]:
    with target_of(request.param) as target:
        yield target


def has_group(target: AttackTarget) -> bool:
    """Does something keep memory and processor time for all processes together?"""
    return target.kind not in ("bubblewrap", "confined") or target.before != AS_USER


def full_directory(target: AttackTarget) -> str:
    """Where the disk of /tmp is said to be full: the first directory of those on it."""
    return "/workspace" if target.kind == "own disk" else "/tmp"


# --- All of them in one sandbox, one after the other -----------------------------------------

# Everything that can be written: what is not small is the machine's own directory.
WRITABLE = (
    "for d in / /*/ /*/*/ $HOME; do [ -w $d ] && [ $d != /proc/ ] && echo $d; done;"
    "for d in $(find / -xdev -type d -writable 2>/dev/null); do echo $d; done"
)
MANY = "i=0; while true > /tmp/i$i; do i=$((i+1)); [ $i -lt 20000 ] || exit 3; done; exit 9"
OPEN = 'for i in 3 100 255 256 300; do eval "exec $i</dev/null" || exit; echo $i; done'
ATTACKS: dict[str, str | tuple[str, float]] = {
    "bomb": ("bomb() { bomb | bomb & }; bomb; sleep 60", 1),
    "hog": "exec tail /dev/zero",
    "disk": "for i in $(seq 12); do head -c 4000000 /dev/zero > /tmp/f$i || exit 9; done",
    "disk emptied": "rm /tmp/f*",
    "disk used again": f"{ALIVE} > /tmp/x; cat /tmp/x",
    "sizes": f"df -Pk $({WRITABLE}) . | awk 'NR > 1 {{ print $2, $6 }}' | sort -u",
    "many files": f"({MANY}) 2>/dev/null",
    "many files removed": "find /tmp -name 'i*' -exec rm {} +",
    "descriptors": "ulimit -n 512 2>/dev/null; ulimit -n",
    "descriptors used": f'if [ -n "$BASH_VERSION" ]; then {OPEN}; fi 2>/dev/null',
    "large file": "exec head -c 8000000 /dev/zero > large",
    "large file seen": "wc -c < large; rm large",
    "busy": "timeout 1 sh -c 'while :; do :; done'",
}


@dataclass(frozen=True)
class Attacked:
    """A sandbox that all attacks have been tried in, and what came of each."""

    target: AttackTarget
    results: dict[str, Result]
    alive: dict[str, str]
    enforced: dict[str, str]
    unenforced: dict[str, str]


@pytest.fixture(scope="module", params=WHO)
def attacked(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    with target_of(request.param) as target:
        commands = [each for attack in ATTACKS.values() for each in (attack, ALIVE)]
        report = target.attack(*commands, limits=LIMITS)
        assert not report.error, report
        yield Attacked(
            target,
            dict(zip(ATTACKS, report.results[::2], strict=True)),
            {name: each.stdout for name, each in zip(ATTACKS, report.results[1::2], strict=True)},
            report.enforced,
            report.unenforced,
        )


def test_the_sandbox_lives_on_after_each_attack(attacked: Attacked) -> None:
    assert attacked.alive == dict.fromkeys(ATTACKS, "alive\n")


def test_a_fork_bomb_stays_in_its_box(attacked: Attacked) -> None:
    assert attacked.results["bomb"].reason in ("timed_out", "exited", "signalled")
    assert attacked.enforced["processes"]


def test_a_memory_hog_is_ended_as_what_it_is(attacked: Attacked) -> None:
    hog = attacked.results["hog"]
    if has_group(attacked.target):
        assert (hog.reason, hog.exit_code) == ("out_of_memory", 137)
    else:
        # The command learns that there is none, and no process is killed.
        assert (hog.reason, hog.exit_code) == ("exited", 1)
        assert "not of all together" in attacked.enforced["memory_bytes"]


def test_what_fills_the_disk_is_refused_and_reported_as_that(attacked: Attacked) -> None:
    full, again = attacked.results["disk"], attacked.results["disk used again"]
    assert (full.exit_code, full.disk_full) == (9, full_directory(attacked.target))
    assert (again.stdout, again.disk_full) == ("alive\n", "")
    assert "/tmp" in attacked.enforced["disk_bytes"]


def test_no_place_but_the_workspace_is_left_out_of_the_limit_of_the_disk(
    attacked: Attacked,
) -> None:
    found = attacked.results["sizes"]
    large = {
        line.split(" ")[1]
        for line in found.stdout.splitlines()
        if int(line.split(" ")[0]) * 1024 > LIMITS["disk_bytes"]
    }
    assert found.stdout
    seen = {str(attacked.target.workspace)} if attacked.target.kind != "own disk" else set()
    # A container's devices are in memory, with a size of their own, and charged to its group.
    assert {
        each for each in large if not each.startswith(("/dev", "/proc/", "/sys/", "/sbin/"))
    } <= seen


def test_files_without_number_are_stopped_where_their_number_is_kept(attacked: Attacked) -> None:
    many = attacked.results["many files"]
    if attacked.target.kind == "bubblewrap":
        # Only memory bounds it: bubblewrap has no word for the number of files of a tmpfs.
        assert many.exit_code == 3
        assert "how many files there are counts as memory only" in attacked.enforced["disk_bytes"]
    else:
        assert (many.exit_code, many.disk_full) == (9, full_directory(attacked.target))


def test_descriptors_run_out_for_the_command_alone(attacked: Attacked) -> None:
    assert attacked.results["descriptors"].stdout == "256\n"
    opened = [] if attacked.target.kind == "busybox" else ["3", "100", "255"]
    assert attacked.results["descriptors used"].stdout.split() == opened


def test_a_file_does_not_outgrow_its_limit(attacked: Attacked) -> None:
    large = attacked.results["large file"]
    assert (large.reason, large.exit_code) == ("signalled", 128 + 25)
    assert int(attacked.results["large file seen"].stdout) == 4 * MIB


def test_a_busy_loop_gets_its_share_where_something_keeps_it(attacked: Attacked) -> None:
    if has_group(attacked.target):
        assert attacked.results["busy"].cpu_ms < 800
        assert "group" in attacked.enforced["cpus"]
    else:
        assert attacked.unenforced == {"cpus": "no control group can be made here"}


# --- Sandboxes with other limits -------------------------------------------------------------


@pytest.mark.parametrize("target", WITH_GROUPS, indirect=True)
def test_files_without_number_and_content_take_memory_and_are_reported_as_that(
    target: AttackTarget,
) -> None:
    """Nothing is in them, and none is the command's own: the kernel holds a kilobyte for each."""
    make = "import os; [os.close(os.open(f'/tmp/{n}', os.O_CREAT)) for n in range(10**6)]"
    report = target.attack(f'python3 -c "{make}"', ALIVE, limits=LIMITS)
    assert (report.results[0].reason, report.results[0].exit_code) == ("out_of_memory", 137)
    assert report.results[1].stdout == "alive\n"


def test_a_requested_limit_that_cannot_be_enforced_is_refused(target: AttackTarget) -> None:
    report = target.attack(ALIVE, limits={"cpus": 0.5, "asked": ["cpus"]})
    if has_group(target):
        assert report.results[0].stdout == "alive\n"
    else:
        assert report.results == []
        assert report.code == "LIMIT_NOT_ENFORCED"
        assert report.error.startswith("bubblewrap cannot enforce cpus at 0.5: no control group")
        assert "use docker" in report.hint


def test_what_is_on_by_default_never_keeps_a_command_from_running(target: AttackTarget) -> None:
    report = target.attack(ALIVE, limits={"asked": None})
    assert report.results[0].stdout == "alive\n"
    assert {*report.enforced, *report.unenforced} == set(LIMITS)
    assert set(report.unenforced) <= {"cpus"}


# --- The confined host -----------------------------------------------------------------------


def test_the_confined_host_enforces_what_a_group_can_and_reports_the_rest(
    confined: AttackTarget,
) -> None:
    # Not bash, which would wait for room for many seconds.
    crowd = "exec dash -c 'i=0; while [ $i -lt 80 ]; do sleep 60 & i=$((i+1)); echo $i; done'"
    commands = ["exec tail /dev/zero", "ulimit -n", "exec head -c 8000000 /dev/zero > large", ALIVE]
    if has_group(confined):  # Without one, nothing but the rights of its user bounds a crowd.
        commands.append(crowd)
    report = confined.attack(*((each, 20.0) for each in commands), limits=LIMITS)
    hog, descriptors, large, alive, *crowded = report.results
    assert descriptors.stdout == "256\n"
    assert (large.reason, large.exit_code) == ("signalled", 128 + 25)
    assert alive.stdout == "alive\n"
    assert (
        report.unenforced["disk_bytes"] == "all that it writes is on file systems of this machine"
    )
    if has_group(confined):
        assert (hog.reason, hog.exit_code) == ("out_of_memory", 137)
        assert len(crowded[0].stdout.split()) < 60
        assert {"memory_bytes", "cpus", "processes"} <= set(report.enforced)
    else:
        assert (hog.reason, hog.exit_code) == ("exited", 1)
        assert set(report.unenforced) == {"disk_bytes", "cpus", "processes"}


def test_a_requested_limit_of_the_confined_host_is_enforced_or_refused(
    confined: AttackTarget,
) -> None:
    report = confined.attack(ALIVE, limits={"disk_bytes": 16 * MIB, "asked": ["disk_bytes"]})
    assert (report.results, report.code) == ([], "LIMIT_NOT_ENFORCED")
    report = confined.attack(ALIVE, limits={"processes": 40, "asked": ["processes"]})
    if has_group(confined):
        assert report.results[0].stdout == "alive\n"
    else:
        assert report.code == "LIMIT_NOT_ENFORCED"
