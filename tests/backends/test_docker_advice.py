"""What an engine says → what we say; what the kernel says → what holds."""

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.adapter import GIB, Limits
from kakoi.backends.docker.checks import (
    confinement_faults,
    disk_faults,
    engine_limits,
    ignored_limits,
    parse_limit,
    sees_view,
)
from kakoi.backends.docker.disk import DiskPlan
from kakoi.backends.docker.engine import Engine, directories_archive, parse_state
from kakoi.backends.docker.errors import explain, pull_error
from kakoi.backends.docker.users import find_user
from kakoi.channel.api import MIB
from kakoi.errors import (
    EnvironmentUnavailableError,
    ImagePullError,
    SandboxError,
    UnsupportedError,
)
from kakoi.process import ProcessExecutor
from tests.fakes import ScriptedChannel

SAYINGS = [
    (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        EnvironmentUnavailableError,
        "no docker engine answers",
        "systemctl start docker",
    ),
    (
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        EnvironmentUnavailableError,
        "cannot use the docker engine",
        "usermod -aG docker",
    ),
    (
        'error during connect: Get "http://other:2375/v1.24/info": dial tcp: lookup other: no such host',
        EnvironmentUnavailableError,
        "no docker engine answers",
        "docker info",
    ),
    (
        "Error: runc: runc create failed: unable to start container process: error during container init: error setting rlimits for ready process: error setting rlimit type 7: operation not permitted: OCI permission denied",
        SandboxError,
        "not allowed to give a container its default ulimits",
        "default_ulimits",
    ),
    (
        "Error: No such image: thing:1",
        ImagePullError,
        "`it` is not on this machine",
        "docker pull it",
    ),
    (
        "docker: Error response from daemon: mkdir /var/lib/docker/x: no space left on device.\nSee 'docker run --help'.",
        SandboxError,
        "no disk space left",
        "docker system df",
    ),
    (
        'Error response from daemon: Conflict. The container name "/it" is already in use by container "abc".',
        SandboxError,
        "already a container with the name `it`",
        "docker rm -f it",
    ),
    (
        "docker: Error response from daemon: OCI runtime create failed: unable to apply cgroup configuration: no such controller: unknown.",
        SandboxError,
        "could not set up the limits",
        "docker info",
    ),
    (
        "Error response from daemon: Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
        SandboxError,
        "fewer CPUs",
        "limits.cpus",
    ),
    (
        "Error response from daemon: Minimum memory limit allowed is 6MB",
        SandboxError,
        "memory limit is lower",
        "limits.memory_bytes",
    ),
    (
        'docker: Error response from daemon: failed to create shim: OCI runtime create failed: exec: "sh": executable file not found in $PATH: unknown.',
        SandboxError,
        "has no `sh`",
        "image with a shell",
    ),
    (
        "Error response from daemon: Container it is not running",
        SandboxError,
        "is no longer running",
        "docker inspect it",
    ),
    ("unknown flag: --pull", SandboxError, "too old", "20.10"),
    ("something new", SandboxError, "failed while testing: something new", "docker info"),
    ("", SandboxError, "no reason given", "docker info"),
]


@pytest.mark.parametrize(("said", "kind", "fact", "hint"), SAYINGS)
def test_a_complaint_of_the_engine_becomes_a_fact_and_a_next_step(
    said: str, kind: type[SandboxError], fact: str, hint: str
) -> None:
    error = explain(said, program="docker", doing="testing", about="it")
    assert type(error) is kind
    assert fact in str(error)
    assert hint in error.hint
    assert error.details["stderr"] == said


def test_secrets_in_what_the_engine_says_stay_out_of_the_error() -> None:
    said = "Error response from daemon: Get https://user:hunter2secret@registry/v2/: unauthorized"
    error = explain(said, program="docker", doing="pulling", about="it")
    assert "hunter2secret" not in str(error) + str(error.details)


def test_a_failed_pull_names_image_and_reason() -> None:
    error = pull_error("a/b:1", "pulling\nError response from daemon: no route\n", program="docker")
    assert error.code == "IMAGE_PULL_FAILED"
    assert str(error) == "cannot get the image `a/b:1`: no route"
    assert error.details["image"] == "a/b:1"


STATUS = "Name:\tx\nUid:\t{}\t{}\t{}\t{}\nCapPrm:\t{}\nCapEff:\t{}\nCapBnd:\t{}\nNoNewPrivs:\t{}\n"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ((5, 5, 5, 5, "0000000000000000", "0", "0", 1), ""),
        ((0, 0, 0, 0, "0", "0", "0", 1), "as root"),
        ((5, 0, 5, 5, "0", "0", "0", 1), "as root"),
        ((5, 5, 5, 5, "0", "0", "00000000a80425fb", 1), "capabilities"),
        ((5, 5, 5, 5, "0", "0", "0", 0), "privileges"),
    ],
)
def test_a_process_that_could_do_more_than_it_should_is_noticed(
    values: tuple[object, ...], fault: str
) -> None:
    faults = confinement_faults(STATUS.format(*values))
    assert bool(faults) == bool(fault)
    assert fault in " ".join(faults)


def test_a_state_that_says_nothing_is_not_a_good_state() -> None:
    assert len(confinement_faults("")) == 3


@pytest.mark.parametrize(
    ("name", "text", "period", "expected"),
    [
        ("memory_bytes", "4294967296\n", None, 4 * GIB),
        ("memory_bytes", "max\n", None, float("inf")),
        ("processes", "-1\n", None, float("inf")),
        ("processes", "512", None, 512),
        ("cpus", "200000 100000\n", None, 2),
        ("cpus", "max 100000\n", None, float("inf")),
        ("cpus", "50000\n", "100000\n", 0.5),
        ("cpus", "-1\n", "100000\n", float("inf")),
        ("cpus", "50000\n", None, None),
        ("memory_bytes", "garbage", None, None),
        ("memory_bytes", "", None, None),
    ],
)
def test_limits_are_read_as_either_version_of_cgroups_writes_them(
    name: str, text: str, period: str | None, expected: float | None
) -> None:
    assert parse_limit(name, text, period) == expected


def test_a_limit_that_does_not_hold_is_named_with_what_holds_instead() -> None:
    kernel = {"memory_bytes": float("inf"), "processes": 512.0, "cpus": 2.0}
    assert ignored_limits(Limits(), kernel, {}) == ["memory_bytes 4294967296 (in force: nothing)"]
    assert ignored_limits(Limits(memory_bytes=None), kernel, {}) == []


@pytest.mark.parametrize("name", ["memory_bytes", "processes", "cpus"])
@pytest.mark.parametrize(("factor", "is_held"), [(0.5, True), (1, True), (1.1, False), (2, False)])
def test_a_limit_that_was_set_too_high_does_not_hold(
    name: str, factor: float, *, is_held: bool
) -> None:
    limits = Limits()
    asked = {each: float(getattr(limits, each)) for each in ("memory_bytes", "processes", "cpus")}
    found = {**asked, name: asked[name] * factor}
    faults = [f"{name} {asked[name]:.12g} (in force: {found[name]:.12g})"]
    assert ignored_limits(limits, found, {}) == ([] if is_held else faults)
    silent = dict.fromkeys(asked)
    assert ignored_limits(limits, silent, found) == ([] if is_held else faults)


MOUNTS = """\
1 0 0:1 / / {root} - overlay overlay rw
2 1 0:2 / /tmp rw,nosuid - tmpfs tmpfs rw,size={tmp_kib}k
3 1 7:0 /w /workspace rw - ext4 /dev/loop7 rw
"""
SIZED = DiskPlan(sizes={"/tmp": MIB})
ON_A_VOLUME = DiskPlan(volume_bytes=MIB, tops=("/workspace",))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("disk", "found", "fault"),
    [
        (SIZED, {}, ""),
        (SIZED, {"tmp_kib": 2048}, "/tmp (in force: 2097152)"),
        (SIZED, {"tmp_kib": 0}, "/tmp (in force: nothing)"),
        (SIZED, {"root": "rw"}, "/ can be written"),
        (ON_A_VOLUME, {}, ""),
        (ON_A_VOLUME, {"sectors": 2049}, "/workspace is not on the disk"),
        (DiskPlan(volume_bytes=MIB, tops=("/tmp",)), {}, "/tmp is not on the disk"),
    ],
)
async def test_a_disk_that_is_larger_than_was_asked_for_is_noticed(
    disk: DiskPlan, found: dict[str, Any], fault: str
) -> None:
    machine = {"root": "ro", "tmp_kib": 1024, "sectors": 2048, **found}
    files = {
        "/proc/self/mountinfo": MOUNTS.format(**machine).encode(),
        "/sys/block/loop7/size": b"%d\n" % machine["sectors"],
    }
    faults = await disk_faults(ScriptedChannel(files=files), disk)
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("line", "is_view"),
    [
        ("3 1 7:0 /w /workspace rw,relatime,idmapped - ext4 /dev/sda rw", True),
        ("3 1 7:0 /w /workspace rw,relatime - ext4 /dev/sda rw", False),
        ("3 1 7:0 /w /workspace/idmapped rw,idmapped - ext4 /dev/sda rw", False),
        ("3 1 7:0 /idmapped /workspace rw - ext4 /dev/idmapped rw,idmapped", False),
        ("", False),
    ],
)
async def test_a_mount_shows_other_owners_only_if_the_kernel_says_so(
    line: str, *, is_view: bool
) -> None:
    channel = ScriptedChannel(files={"/proc/self/mountinfo": f"{line}\n".encode()})
    assert await sees_view(channel, "/workspace") is is_view


def test_the_engine_is_believed_only_where_the_kernel_is_silent() -> None:
    silent = {"memory_bytes": None, "processes": None, "cpus": None}
    engine = engine_limits('{"Memory": 4294967296, "PidsLimit": 512, "NanoCpus": 2000000000}')
    assert ignored_limits(Limits(), silent, engine) == []
    assert len(ignored_limits(Limits(), silent, {})) == 3
    loud = {**silent, "processes": float("inf")}
    assert ignored_limits(Limits(), loud, engine) == ["processes 512 (in force: nothing)"]
    assert engine_limits("garbage") == {}


USERS = "root:x:0:0:root:/root:/bin/sh\nagent:x:1001:1002::/home/agent:/bin/sh\nbad:x:y:z::/:\n"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("agent", (1001, 1002)),
        ("1001", (1001, 1002)),
        ("agent:5", (1001, 5)),
        ("1234", (1234, 0)),
        ("1234:5", (1234, 5)),
        ("nobody-knows", None),
        ("root", (0, 0)),
        ("bad", None),
    ],
)
def test_the_numbers_of_a_user_come_from_the_image(
    user: str, expected: tuple[int, int] | None
) -> None:
    assert find_user(USERS, user) == expected


def test_directories_come_with_their_owner_and_parents_first() -> None:
    data = directories_archive(["/w/b/c", "/w", "/w/b"], uid=7, gid=8)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    assert [(each.name, each.uid, each.gid, each.isdir()) for each in members] == [
        ("w", 7, 8, True),
        ("w/b", 7, 8, True),
        ("w/b/c", 7, 8, True),
    ]


def test_the_state_of_a_container_is_read_and_garbage_is_refused() -> None:
    state = parse_state('{"Status":"exited","ExitCode":137,"OOMKilled":true} {"a":"b"}')
    assert str(state) == "exited with status 137, out of memory"
    assert not state.running
    assert state.labels == {"a": "b"}
    for text in ("", "{}", "[] {}", '{"Status":"x"} 5'):
        with pytest.raises(SandboxError, match="cannot be read"):
            parse_state(text)


def test_an_engine_that_cannot_pause_for_a_normal_user_says_so(tmp_path: Path) -> None:
    program = tmp_path / "podman"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'Error: can not pause containers on rootless containers with cgroup V1' >&2\n"
        "exit 125\n"
    )
    program.chmod(0o755)
    engine = Engine(ProcessExecutor(), program="podman", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with pytest.raises(UnsupportedError, match="podman cannot pause") as caught:
        asyncio.run(engine.pause("it"))
    assert "cgroup v2" in caught.value.hint
