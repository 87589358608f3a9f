"""Settings of a container → the arguments of the engine, without any engine."""

import dataclasses
from typing import Any

import pytest

from kakoi.backends.adapter import GIB, Limits, Network
from kakoi.backends.docker.arguments import (
    ContainerPlan,
    DockerSettings,
    Program,
    Tag,
    create_args,
    exec_args,
    mount_args,
    new_name,
    run_args,
)
from kakoi.backends.docker.disk import DiskPlan, plan_disk
from kakoi.backends.docker.users import choose_user
from kakoi.backends.workspace import FileIdentity
from kakoi.channel.api import MIB
from kakoi.errors import ConfigurationError

RUNNER = ["sh", "-c", "runner"]


def plan(settings: DockerSettings | None = None, **rest: object) -> ContainerPlan:
    chosen = settings or DockerSettings()
    usual = ContainerPlan(
        settings=chosen, name="n", labels={}, user="1000:1000", uid=1000, gid=1000
    )
    return dataclasses.replace(usual, **rest)  # type: ignore[arg-type]


def pairs(args: list[str], flag: str) -> list[str]:
    return [args[i + 1] for i, word in enumerate(args) if word == flag]


def seen(uid: int, gid: int) -> FileIdentity:
    return FileIdentity("/work/here", 1, 2, uid, gid, True)


@pytest.mark.requirement("B-020", "B-022")
def test_run_has_the_flags_of_the_spec() -> None:
    settings = DockerSettings(env={"A": "1", "B": "x y"}, inside="/w")
    args = run_args(plan(settings, source="/host/dir", own_home=False), RUNNER)
    assert args[:3] == ["run", "--rm", "-i"]
    assert pairs(args, "-v") == ["/host/dir:/w"]
    assert pairs(args, "-w") == ["/w"]
    assert pairs(args, "-e") == ["A=1", "B=x y"]
    assert args[-5:] == ["--entrypoint", "sh", "node:20-alpine", "-c", "runner"]


@pytest.mark.requirement("B-021", "A-029")
@pytest.mark.parametrize(
    ("network", "expected"),
    [("none", ["none"]), ("bridge", ["bridge"]), ("host", ["host"]), (None, [])],
)
def test_the_network_follows_the_settings(network: Network | None, expected: list[str]) -> None:
    settings = DockerSettings(network=network)
    assert pairs(run_args(plan(settings), RUNNER), "--network") == expected
    assert pairs(create_args(plan(settings)), "--network") == expected


@pytest.mark.requirement("B-025", "A-022", "A-023", "A-026")
def test_the_defaults_are_those_of_the_specs() -> None:
    settings = DockerSettings()
    assert (settings.image, settings.timeout_s) == ("node:20-alpine", 300)
    for args in (run_args(plan(), RUNNER), create_args(plan())):
        assert pairs(args, "--cpus") == ["2"]
        assert pairs(args, "--memory") == pairs(args, "--memory-swap") == ["4g"]
        assert pairs(args, "--pids-limit") == ["512"]
        assert pairs(args, "--network") == ["none"]


def test_limits_can_be_set_and_left_out() -> None:
    limits = Limits(memory_bytes=100_000_001, cpus=0.5, processes=7)
    args = create_args(plan(DockerSettings(limits=limits)))
    assert pairs(args, "--memory") == ["100000001b"]
    assert pairs(args, "--cpus") == ["0.5"]
    assert pairs(args, "--pids-limit") == ["7"]
    none = Limits(memory_bytes=None, cpus=None, processes=None)
    args = create_args(plan(DockerSettings(limits=none)))
    assert not {"--memory", "--memory-swap", "--cpus", "--pids-limit"} & set(args)


def test_a_limit_above_the_machine_is_the_machine() -> None:
    assert pairs(create_args(plan(cpus=1.0)), "--cpus") == ["1"]


@pytest.mark.requirement("A-027")
@pytest.mark.parametrize("program", ["docker", "podman"])
def test_every_container_is_unprivileged(program: Program) -> None:
    for args in (run_args(plan(program=program), RUNNER), create_args(plan(program=program))):
        assert "--privileged" not in args
        assert "no-new-privileges" in pairs(args, "--security-opt")
        assert pairs(args, "--cap-drop") == ["ALL"]
        assert "--init" in args
        assert pairs(args, "--pull") == ["never"]
        assert pairs(args, "--log-driver") == ["none"]
        assert not pairs(args, "--cap-add")


def test_a_container_waits_as_another_user_than_its_commands() -> None:
    assert pairs(run_args(plan(), RUNNER), "--user") == ["65530:65530"]
    args = create_args(plan())
    assert args[-4:] == ["--entrypoint", "sleep", "node:20-alpine", "2147483647"]
    assert pairs(args, "--user") == ["65530:65530"]
    assert pairs(args, "--label") == [
        "kakoi.user=1000:1000",
        "kakoi.view=",
        "kakoi.disk=",
        "kakoi.way=",
        "kakoi.inside=/workspace",
    ]
    assert exec_args("n", "1000:1000", ["id"]) == ["exec", "-i", "--user", "1000:1000", "n", "id"]


def test_a_user_of_ours_gets_a_home_and_a_place_to_work() -> None:
    args = run_args(plan(), RUNNER)
    assert "HOME=/home/agent" in pairs(args, "-e")
    assert [each.partition(":")[0] for each in pairs(args, "--tmpfs")] == [
        "/home/agent",
        "/workspace",
    ]
    assert all("uid=1000,gid=1000" in each for each in pairs(args, "--tmpfs"))


def test_a_user_of_the_image_keeps_its_home() -> None:
    args = run_args(plan(own_home=False, user="node"), RUNNER)
    assert pairs(args, "-e") == []
    assert pairs(args, "--tmpfs") == ["/workspace:rw,exec,nosuid,nodev,uid=1000,gid=1000,mode=0755"]


def test_podman_gets_the_same_arguments_except_those_it_lacks() -> None:
    docker = run_args(plan(source="/host/dir"), RUNNER)
    podman = run_args(plan(source="/host/dir", program="podman", rootless=True), RUNNER)
    assert pairs(podman, "--userns") == ["keep-id"]
    assert not any("uid=" in each for each in pairs(podman, "--tmpfs"))
    without = [word for word in podman if word not in ("--userns", "keep-id")]
    assert [w for w in without if "tmpfs" not in w and "mode=" not in w] == [
        w for w in docker if "tmpfs" not in w and "mode=" not in w
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/a,b", ["-v", "/a,b:/w"]),
        ("/a b", ["-v", "/a b:/w"]),
        ("/a:b", ["--mount", "type=bind,source=/a:b,target=/w"]),
        ("/a:b,c", ["--mount", 'type=bind,"source=/a:b,c",target=/w']),
        ('/a:"b', ["--mount", 'type=bind,"source=/a:""b",target=/w']),
    ],
)
def test_a_path_is_mounted_whatever_is_in_it(source: str, expected: list[str]) -> None:
    assert mount_args(source, "/w", "docker") == expected


def test_a_workspace_may_be_seen_at_its_own_path() -> None:
    settings = DockerSettings(workspace="/root/a:b", inside="/root/a:b")
    args = run_args(plan(settings, source="/root/a:b"), RUNNER)
    assert pairs(args, "--mount") == ["type=bind,source=/root/a:b,target=/root/a:b"]
    root = "/root:rw,exec,nosuid,nodev,uid=1000,gid=1000,mode=0755,size=1048576,nr_inodes=1024"
    assert root in pairs(args, "--tmpfs")


def test_what_is_guarded_in_a_workspace_can_be_neither_changed_nor_moved_away() -> None:
    args = run_args(plan(source="/s", guarded=["a/b/c", ".venv"]), RUNNER)
    assert pairs(args, "-v") == [
        "/s:/workspace",
        "/s/.venv:/workspace/.venv:ro",
        "/s/a:/workspace/a",
        "/s/a/b:/workspace/a/b",
        "/s/a/b/c:/workspace/a/b/c:ro",
    ]
    args = run_args(plan(source="/s", lent=seen(0, 0)), RUNNER)
    assert pairs(args, "--mount") == ["type=bind,source=/s,target=/workspace"]
    args = run_args(plan(source="/s:s", guarded=["x"]), RUNNER)
    assert pairs(args, "--mount")[1] == "type=bind,source=/s:s/x,target=/workspace/x,readonly"


@pytest.mark.parametrize("source", ["relative", "/a/../b", "/a\nb", "//a"])
def test_a_path_that_means_something_else_is_not_mounted(source: str) -> None:
    with pytest.raises(ConfigurationError):
        mount_args(source, "/w", "docker")


def test_podman_does_not_accept_some_paths() -> None:
    with pytest.raises(ConfigurationError, match="comma or quote"):
        mount_args("/a:b,c", "/w", "podman")


@pytest.mark.requirement("A-020")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", ""),
        ("image", "--privileged"),
        ("image", "a b"),
        ("network", "container:other"),
        ("network", ""),
        ("timeout_s", 0),
        ("inside", "workspace"),
        ("inside", "/"),
        ("inside", "/a:b"),
        ("inside", "/proc"),
        ("inside", "/a/../b"),
        ("directories", ["/dev/x"]),
        ("user", "0"),
        ("user", "root"),
        ("user", "00:5"),
        ("user", "-x"),
        ("env", {"": "x"}),
        ("env", {"A=B": "x"}),
        ("env", {"BASH_ENV": "/x"}),
        ("env", {"GITHUB_TOKEN": "x"}),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"image|network|timeout_s|inside|user|env"):
        DockerSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.requirement("A-020", "X-20")
@pytest.mark.parametrize(
    ("wanted", "image_user", "workspace", "caller", "user", "own_home", "lend"),
    [
        (None, "", None, (0, 0), "65533:65533", True, False),
        (None, "root", None, (0, 0), "65533:65533", True, False),
        (None, "0:0", None, (1000, 1000), "65533:65533", True, False),
        (None, "node", None, (0, 0), "node", False, False),
        (None, "1000", None, (0, 0), "1000", False, False),
        ("7", "node", None, (0, 0), "7:7", True, False),
        ("7:8", "", None, (0, 0), "7:8", True, False),
        ("node", "node", None, (0, 0), "node", False, False),
        (None, "node", seen(1001, 1002), (0, 0), "1001:1002", True, False),
        (None, "node", seen(1001, 1001), (1000, 100), "1000:100", True, False),
        (None, "", seen(0, 0), (1000, 100), "1000:100", True, False),
        (None, "", seen(0, 0), (0, 0), "65533:65533", True, True),
        (None, "", seen(1001, 0), (0, 0), "1001:65533", True, True),
        ("7", "", seen(0, 0), (0, 0), "7:7", True, True),
        ("7", "", seen(5, 5), (0, 0), "7:7", True, False),
    ],
)
def test_commands_run_as_the_owner_of_the_workspace_and_never_as_root(
    wanted: str | None,
    image_user: str,
    workspace: FileIdentity | None,
    caller: tuple[int, int],
    user: str,
    own_home: bool,
    lend: bool,
) -> None:
    choice = choose_user(wanted, image_user=image_user, workspace=workspace, caller=caller)
    assert (choice.user, choice.own_home, choice.lend) == (user, own_home, lend)


def test_root_cannot_lend_its_workspace_to_a_name() -> None:
    with pytest.raises(ConfigurationError, match="uid and gid"):
        choose_user("agent", image_user="", workspace=seen(0, 0), caller=(0, 0))


def test_labels_say_whose_a_container_is_and_how_long_it_may_live() -> None:
    tag = Tag(owner="me", task="t-1", max_age_s=3600)
    assert tag.labels(now_s=1_700_000_000) == {
        "kakoi.owner": "me",
        "kakoi.task": "t-1",
        "kakoi.created": "2023-11-14T22:13:20+00:00",
        "kakoi.expires": "2023-11-14T23:13:20+00:00",
    }
    assert set(tag.labels(now_s=None)) == {"kakoi.owner", "kakoi.task"}
    args = run_args(plan(labels=tag.labels(now_s=None)), RUNNER)
    assert {"kakoi.owner=me", "kakoi.task=t-1"} <= set(pairs(args, "--label"))


def test_no_label_of_the_image_is_taken_for_one_of_ours() -> None:
    labels = pairs(run_args(plan(), RUNNER), "--label")
    assert {"kakoi.user=1000:1000", "kakoi.view="} <= set(labels)


def test_names_cannot_be_guessed_and_cannot_be_flags() -> None:
    assert len({new_name() for _ in range(100)}) == 100
    assert pairs(create_args(plan(name="coding-agent-exec-7")), "--name") == ["coding-agent-exec-7"]
    for name in ("-f", "a b", "a/b", "x" * 200):
        with pytest.raises(ConfigurationError):
            Tag(name=name)


# --- Where it can write ----------------------------------------------------------------------


def disk(limits: Limits, **rest: Any) -> DiskPlan:
    usual = {"main": None, "home": "", "volumes": (), "why_no_volume": "", **rest}
    found = plan_disk(limits, ["/home/agent", "/workspace", "/workspace/tmp"], **usual)
    assert found is not None
    return found


def test_without_a_limit_of_the_disk_nothing_is_mounted_for_it() -> None:
    none = plan_disk(Limits(disk_bytes=None), [], main=None, home="", volumes=(), why_no_volume="")
    assert none is None
    assert "--read-only" not in create_args(plan(disk=none))
    assert "--read-only" not in create_args(plan(disk=DiskPlan(why="only root can")))


def test_beside_a_workspace_of_this_machine_all_that_can_be_written_is_in_sized_memory() -> None:
    limits = Limits(disk_bytes=40 * MIB)
    made = plan(source="/s", disk=disk(limits))
    args = create_args(made)
    assert "--read-only" in args
    tmpfs = {each.partition(":")[0]: each for each in pairs(args, "--tmpfs")}
    assert set(tmpfs) == {"/home/agent", "/workspace", "/workspace/tmp", "/tmp", "/var/tmp"}
    assert "mode=1777,size=8388608,nr_inodes=1024" in tmpfs["/tmp"]
    assert made.unmade == []
    assert sum(disk(limits).sizes.values()) <= 40 * MIB


def test_memory_for_files_leaves_memory_for_commands() -> None:
    sizes = disk(Limits(disk_bytes=GIB, memory_bytes=100 * MIB)).sizes
    assert sum(sizes.values()) <= 75 * MIB


def test_a_workspace_of_its_own_is_on_one_volume_with_all_that_can_be_written() -> None:
    wanted = disk(Limits(), main="/workspace", home="/home/node", volumes=("/data", "/tmp/x"))
    made = plan(disk=wanted, own_home=False)
    mounts = pairs(create_args(made), "--mount")
    assert wanted.volume_bytes == 10 * GIB
    assert wanted.below["/workspace"] == ["tmp"]
    assert wanted.below["/tmp"] == ["x"]
    assert "type=bind,source=/run/kakoi/volumes/n/1,target=/workspace" in mounts
    options = "volume-opt=type=none,volume-opt=o=bind,volume-opt=device=/run/kakoi/volumes/n"
    assert f"type=volume,dst=/home/node,{options}/4" in mounts
    assert f"type=volume,dst=/data,{options}/5" in mounts
    assert len(mounts) == 6
    label = "kakoi.disk=n:/home/agent:/workspace:/tmp:/var/tmp:/home/node:/data"
    assert label in pairs(create_args(made), "--label")


@pytest.mark.parametrize(
    ("limits", "home", "why"),
    [
        (Limits(), "", "too large to be kept in memory"),
        (Limits(disk_bytes=64 * MIB), "/home/node", "/home/node of the image is written to"),
    ],
)
def test_where_nothing_can_keep_it_the_reason_is_reported(
    limits: Limits, home: str, why: str
) -> None:
    found = disk(limits, main="/workspace", home=home, why_no_volume="only root can")
    assert not found.is_kept
    assert found.why.startswith("only root can, and ")
    assert why in found.why


def test_a_small_one_is_kept_in_memory_where_no_volume_can_be_made() -> None:
    found = disk(Limits(disk_bytes=64 * MIB), main="/workspace", why_no_volume="only root can")
    assert found.sizes["/workspace"] == 32 * MIB
    assert sum(found.sizes.values()) <= 64 * MIB
