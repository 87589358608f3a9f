"""`kakoi doctor`: what it finds on this machine, and on one where nothing isolates."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.diagnosis import (
    SANDBOXES,
    area_inside,
    auto_choice,
    check_limits,
    with_alternatives,
)
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.machine_checks import Check, CheckStatus, failed, own_cgroups, passed, run_check
from kakoi.errors import SandboxError
from tests.cli.terminals import KAKOI, PATIENCE_S, Door

NO_ENGINE = {
    "DOCKER_HOST": "unix:///nowhere/docker.sock",
    "CONTAINER_HOST": "unix:///nowhere",
    "KUBECONFIG": "/nowhere/kubeconfig",
}


@pytest.fixture
def lonely(confined_door: Door) -> Door:
    """A machine without an engine."""
    return Door(confined_door.workspace, confined_door.log, NO_ENGINE)


def by_name(told: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(check["area"], check["name"]): check for check in told["checks"]}


def test_a_machine_with_bubblewrap_shows_what_is_enforced_and_what_is_not(lonely: Door) -> None:
    status, out, _ = lonely("doctor")
    assert status == 0
    assert "ok            bubblewrap       ran commands and confined them" in out
    assert "ok            disk             writing too much failed; sized tmpfs: /tmp" in out
    assert "not the workspace" in out
    who = "as root" if os.geteuid() == 0 else "as a normal user"
    assert f"ok            copy-on-write    --cow works {who}: only a copy was written to" in out
    assert "not ok        docker           no docker engine answers" in out
    assert "fix: sudo systemctl start docker" in out
    assert "auto would choose: bubblewrap" in out
    assert "not docker: no docker engine answers" in out


def test_a_security_file_that_is_not_read_is_reported_with_the_place_to_put_it(
    lonely: Door, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    used, stray = home / ".kakoi" / "security.toml", home / ".config" / "security.toml"
    for path in (used, stray):
        path.parent.mkdir(parents=True)
        path.write_text("[shell]\nenabled = false\n")
    (home / ".kakoi" / "config.yaml").write_text("tasks: {enabled: true}\n")
    _, out, err = Door(lonely.workspace, lonely.log, {**lonely.env, "HOME": str(home)})("doctor")
    assert f"not ok        settings file    {home}/.kakoi/config.yaml is not read" in out
    assert f"fix: move its content to {home}/.config/kakoi/config.yaml, or remove it" in out
    assert f"ok            security.toml    {used} is read" in out
    assert f"not ok        security.toml    {stray} is not read" in out
    assert f"fix: move its content to {used}, or remove it" in out
    assert err == ""


def test_the_object_for_programs_holds_all_of_it(lonely: Door) -> None:
    status, out, err = lonely("doctor", "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert set(told) == {"version", "ok", "auto", "checks"}
    assert told["ok"] is True
    assert told["auto"]["choice"] == "bubblewrap"
    assert told["auto"]["because"]
    keys = {"area", "name", "status", "detail", "fix"}
    assert all(set(check) == keys for check in told["checks"])
    assert {check["status"] for check in told["checks"]} <= set(CheckStatus)
    found = by_name(told)
    for limit in ("files", "network", "time", "terminal", "processes"):
        assert found["inside bubblewrap", limit]["status"] == "ok", limit
    for limit in ("open files", "file size", "disk", "memory"):
        assert found["inside bubblewrap", limit]["status"] == "ok", limit
        assert ";" in found["inside bubblewrap", limit]["detail"]  # What keeps it.
    assert ("inside bubblewrap", "cpu") in found
    assert found["inside host", "held processes"]["status"] in ("ok", "not enforced")
    if found["sandboxes", "confined-host"]["status"] == "ok":
        # Nothing there limits the disk, as SECURITY.md says: a trial that cannot write is no proof.
        assert found["inside confined-host", "disk"]["status"] == "not enforced"
    wanted = "python shfmt landlock seccomp cgroups terminals".split()
    assert {*wanted, "audit log", "user namespaces"} <= {
        name for area, name in found if area == "this machine"
    }
    assert found["sandboxes", "docker"]["fix"]
    cluster = found["sandboxes", "kubernetes"]
    assert cluster["status"] == "not ok"
    assert cluster["detail"].startswith(("no cluster answers", "kubectl cannot be started"))
    assert "kubectl" in cluster["fix"]


def test_containers_keep_more(docker_door: Door) -> None:
    status, out, _ = docker_door("doctor", "--json")
    found = by_name(json.loads(out))
    assert (status, found["sandboxes", "docker"]["status"]) == (0, "ok")
    kept = "files network time terminal processes memory cpu disk".split()
    for limit in (*kept, "open files", "file size"):
        assert found["inside docker", limit]["status"] == "ok", limit


@pytest.mark.anyio
async def test_where_nothing_is_enforced_no_check_claims_that_it_is(tmp_path: Path) -> None:
    host = HostAdapter(str(tmp_path))
    try:
        found = {each.name: each.status for each in await check_limits("inside host", host)}
    finally:
        await host.cleanup()
    always = {"time": CheckStatus.OK, "terminal": CheckStatus.OK}  # By the keeper; and no wall.
    assert {name: found.pop(name) for name in always} == always
    assert len(found) > 8
    assert set(found.values()) == {CheckStatus.NOT_ENFORCED}


def test_nothing_is_left_behind(lonely: Door, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir(mode=0o755)
    copies = tmp_path / "copies"
    copies.mkdir()
    env = {**lonely.env, "TMPDIR": str(place), "KAKOI_OVERLAYS": str(copies)}
    tidy = Door(lonely.workspace, lonely.log, env)
    assert tidy("doctor")[0] == 0
    assert list(place.iterdir()) == list(lonely.workspace.iterdir()) == []
    assert list(copies.iterdir()) == []
    assert not lonely.log.exists()


@pytest.mark.parametrize(
    ("world", "why", "fix"),
    [
        (["--ro-bind", "/dev/null", "BWRAP"], "not installed", "apt-get install bubblewrap"),
        (["--unshare-user", "--disable-userns"], "namespace", ""),
    ],
    ids=["no bubblewrap", "no namespaces"],
)
def test_where_only_landlock_isolates_it_says_so_with_causes_and_fixes(
    lonely: Door, world: list[str], why: str, fix: str
) -> None:
    bwrap = shutil.which("bwrap") or ""
    words = [os.path.realpath(bwrap) if word == "BWRAP" else word for word in world]
    done = subprocess.run(
        [bwrap, "--dev-bind", "/", "/", *words, "--", *KAKOI, "doctor", "--json"],
        cwd=lonely.workspace,
        env=lonely.environ,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    told = json.loads(done.stdout)
    found = by_name(told)["sandboxes", "bubblewrap"]
    confined = by_name(told)["sandboxes", "confined-host"]
    choice = "confined-host" if confined["status"] == "ok" else None
    assert (done.returncode, told["ok"]) == ((0, True) if choice else (1, False))
    assert told["auto"]["choice"] == choice
    assert found["status"] == "not ok"
    assert why in found["detail"]
    assert found["fix"]
    assert fix in found["fix"]
    assert any(each.startswith("not bubblewrap: ") for each in told["auto"]["because"])
    assert by_name(told)["sandboxes", "host"]["status"] == "ok"
    # What failed did not keep the rest from being tried.
    assert by_name(told)["this machine", "shfmt"]["status"] == "ok"


# --- What `auto` would do --------------------------------------------------------------------


def sandboxes(**working: bool) -> list[Check]:
    return [
        passed(SANDBOXES, name) if works else failed(SANDBOXES, name, "it is broken")
        for name, works in {
            "bubblewrap": False,
            "docker": False,
            "podman": False,
            "confined-host": False,
            **working,
        }.items()
    ]


def test_auto_takes_the_first_that_works() -> None:
    assert auto_choice(sandboxes(bubblewrap=True, docker=True))[0] == "bubblewrap"
    assert auto_choice(sandboxes(docker=True))[0] == "docker"
    assert auto_choice(sandboxes(**{"confined-host": True}))[0] == "confined-host"
    assert auto_choice(sandboxes(podman=True))[0] is None
    assert auto_choice(sandboxes())[0] is None


def test_what_another_sandbox_also_enforces_is_mentioned() -> None:
    kept = [passed(area_inside("docker"), name) for name in ("memory", "cpu")]
    lacking = Check(area_inside("bubblewrap"), "memory", CheckStatus.NOT_ENFORCED)
    checks = with_alternatives([*sandboxes(bubblewrap=True, docker=True), *kept, lacking])
    assert checks[-1].fix == "kakoi run --sandbox docker"
    choice, because = auto_choice(checks)
    assert choice == "bubblewrap"
    assert because[0].startswith("not docker: it also enforces cpu, memory, but starts slower")
    assert because[2] == "not podman: it is broken"


def test_a_limit_that_nobody_keeps_has_no_way_out() -> None:
    lacking = Check(area_inside("bubblewrap"), "disk", CheckStatus.NOT_ENFORCED)
    assert with_alternatives([*sandboxes(bubblewrap=True), lacking])[-1].fix == ""


# --- One trial -------------------------------------------------------------------------------


async def never() -> Check:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def failing() -> Check:
    raise SandboxError("it is lost", hint="find it")


async def slipping() -> Check:
    raise ZeroDivisionError("one of ours")


def test_a_trial_that_fails_or_never_ends_is_an_answer() -> None:
    def answer(work: Any) -> Check:
        return asyncio.run(run_check("area", "name", work, limit_s=0.01))

    assert answer(never()) == failed("area", "name", "no answer within 0.01 s")
    assert answer(failing()) == failed("area", "name", "it is lost", "find it")
    assert answer(slipping()) == failed("area", "name", "ZeroDivisionError: one of ours")


def test_control_groups_of_both_versions_are_found(tmp_path: Path) -> None:
    (tmp_path / "user/ours").mkdir(parents=True)
    (tmp_path / "user/ours/cgroup.controllers").write_text("cpu memory pids\n")
    version2 = f"31 23 0:28 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate\n"
    assert dict(own_cgroups("0::/user/ours\n", version2)) == dict.fromkeys(
        ("cpu", "memory", "pids"), tmp_path / "user/ours"
    )
    version1 = (
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "22 1 0:20 / / rw - ext4 /dev/vda rw\n"
    )
    joined = "4:memory:/docker/1/a\n1:cpu,cpuacct:/\n0::/\n"
    assert dict(own_cgroups(joined, version1)) == {
        "memory": Path("/sys/fs/cgroup/memory/a"),
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
    }
