"""Settings and a machine → what bubblewrap is told. Nothing is started here."""

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kakoi.backends.bubblewrap import arguments as bubblewrap_launch
from kakoi.backends.bubblewrap.arguments import (
    STAGING,
    BubblewrapSettings,
    HostSystem,
    WorkspaceLayers,
    build_launch,
    check_read_only,
    inspect_system,
    runs_as,
)
from kakoi.backends.workspace import FileIdentity, identify
from kakoi.errors import ConfigurationError
from kakoi.process.keeper_client import program_argv
from kakoi.process.stream import Launch

WORK = FileIdentity("/work/it", 1, 100, 1000, 1001, True)
ROOTS = replace(WORK, uid=0, gid=0)
DATA = FileIdentity("/data", 1, 200, 0, 0, True)
INNER = FileIdentity("/work/it/.git", 1, 300, 1000, 1001, True)
MACHINE = HostSystem(
    bwrap="/usr/bin/bwrap",
    uid=1000,
    gid=1001,
    links=(("usr/bin", "/bin"),),
    folders=("/usr", "/lib64"),
    files={"/etc/nsswitch.conf": b"hosts: files\n"},
    python="/usr/bin/python3",
    python_home=None,
)
AS_ROOT = replace(MACHINE, uid=0, gid=0)
PROGRAM = ["python3", "-c", "pass"]


def has(launch: Launch, *words: str) -> bool:
    """Do these words follow one another?"""
    argv = list(launch.argv)
    return any(argv[at : at + len(words)] == list(words) for at in range(len(argv)))


def order(launch: Launch, *words: str) -> list[str]:
    return sorted(words, key=lambda word: _last(launch.argv, word))


def _last(argv: Sequence[str], word: str) -> int:
    return len(argv) - list(reversed(argv)).index(word)


def test_a_user_starts_bubblewrap_itself_and_everything_is_unshared() -> None:
    launch = build_launch(BubblewrapSettings(workspace=WORK), MACHINE, PROGRAM)
    assert launch.argv[0] == "/usr/bin/bwrap"
    assert launch.argv[-4:] == ["--", *PROGRAM]
    for flag in """--unshare-user --disable-userns --unshare-ipc --unshare-pid --unshare-uts
        --unshare-cgroup-try --unshare-net --die-with-parent --new-session --as-pid-1""".split():
        assert flag in launch.argv
    assert has(launch, "--bind", "/work/it", "/work/it")
    assert has(launch, "--chdir", "/work/it")
    assert has(launch, "--ro-bind", "/usr", "/usr", "--ro-bind", "/lib64", "/lib64")
    assert has(launch, "--symlink", "usr/bin", "/bin")
    assert has(launch, "--remount-ro", "/", "--chdir")


def test_only_the_workspace_is_writable() -> None:
    settings = BubblewrapSettings(workspace=WORK, read_only=(DATA, INNER))
    launch = build_launch(settings, MACHINE, PROGRAM)
    assert launch.argv.count("--bind") == 1
    assert "--dev-bind" not in launch.argv


@pytest.mark.parametrize("network", ["none", "host"])
def test_the_network_is_none_unless_asked_for(network: str) -> None:
    settings = BubblewrapSettings(workspace=WORK, network=network)  # type: ignore[arg-type]
    launch = build_launch(settings, MACHINE, PROGRAM)
    assert ("--unshare-net" in launch.argv) is (network == "none")
    # Without a network there is our name server at most, never the machine's.
    ours = launch.files.get("\0/etc/resolv.conf")
    assert ours == (b"nameserver 127.0.0.1\n" if network == "none" else None)
    assert "/etc/resolv.conf" in launch.argv


def test_an_outer_place_is_mounted_before_an_inner_one() -> None:
    outer = replace(DATA, path="/work")
    settings = BubblewrapSettings(workspace=WORK, read_only=(INNER, outer))
    launch = build_launch(settings, MACHINE, PROGRAM)
    assert has(launch, "--ro-bind", "/work", "/work", "--bind", "/work/it", "/work/it")
    assert has(launch, "--bind", "/work/it", "/work/it", "--ro-bind", INNER.path, INNER.path)
    # A workspace below /tmp must come after the /tmp that would hide it.
    assert order(launch, "/tmp", "/dev/shm", "/work") == ["/tmp", "/dev/shm", "/work"]


def test_variables_are_handed_over_where_nobody_else_can_read_them() -> None:
    env = {"TOKEN": "s3cret", "LD_PRELOAD": "/x.so", "PATH": "/mine"}
    launch = build_launch(BubblewrapSettings(workspace=WORK, env=env), MACHINE, PROGRAM)
    assert "s3cret" not in " ".join(launch.argv)
    assert launch.env.keys() == {"PATH", "LANG"}
    assert "/mine" not in launch.env.values()
    words = launch.files[launch.argv[2]].decode().split("\0")
    assert launch.argv[1] == "--args"
    assert words[0] == "--clearenv"
    given = dict(zip(words[2::3], words[3::3], strict=False))
    assert env.items() <= given.items()
    assert given["HOME"] == "/home/agent"


def test_files_of_etc_are_copies_and_the_users_are_ours() -> None:
    launch = build_launch(BubblewrapSettings(workspace=WORK), MACHINE, PROGRAM)
    files = {name.strip("\0"): data for name, data in launch.files.items()}
    assert files["/etc/nsswitch.conf"] == b"hosts: files\n"
    assert files["/etc/passwd"].startswith(b"agent:x:1000:1001:agent:/home/agent:")
    assert files["/etc/group"].startswith(b"agent:x:1001:")
    for name in launch.files:
        assert launch.argv.count(name) == 1
        assert "\0" in name


def test_for_root_there_is_staging_first_and_sources_come_from_there() -> None:
    settings = BubblewrapSettings(workspace=ROOTS, read_only=(DATA,))
    launch = build_launch(settings, AS_ROOT, PROGRAM)
    assert launch.argv[:4] == program_argv(STAGING)
    assert launch.argv[5] == "/usr/bin/bwrap"
    assert has(launch, "--ro-bind", "/tmp/0", "/data", "--bind", "/tmp/1", "/work/it")
    assert launch.files[launch.argv[4]].decode().split("\0") == [
        *("65533", "65533", "/tmp"),
        *("/data", "1 200 0 0", "0", "read"),
        *("/work/it", "1 100 0 0", "1", "write"),
    ]
    assert os.path.isfile(STAGING)


LAYERS = FileIdentity("/state/layers", 1, 500, 1000, 1001, True)


def test_over_an_overlay_nothing_of_the_workspace_itself_is_writable() -> None:
    """Not the way to what is guarded in it, either: that is the overlay's, too."""
    above = Path("/usr/share/doc")
    inner = identify(above / "bash", what="it")
    work = identify("/usr/share", what="it")
    layers = WorkspaceLayers(base=work, folder=LAYERS, names=("work", "3", "1"))
    settings = BubblewrapSettings(workspace=work, guarded=(inner,), layers=layers)
    for machine in (MACHINE, AS_ROOT):
        launch = build_launch(settings, machine, PROGRAM)
        assert launch.argv[:4] == program_argv(STAGING)
        assert has(launch, "--bind", "/tmp/0", "/usr/share")
        assert has(launch, "--bind", "/tmp/0/doc", str(above))
        assert has(launch, "--ro-bind", "/tmp/2", inner.path)
        fields = launch.files[launch.argv[4]].decode().split("\0")[3:]
        sources = {fields[at]: fields[at + 2 : at + 4] for at in range(0, len(fields), 4)}
        assert sources == {
            "/usr/share": ["0", "cow work 3 1"],
            "/usr/share/doc": ["1", "read"],
            inner.path: ["2", "read"],
            LAYERS.path: ["layers", "write"],
        }


@pytest.mark.parametrize(
    ("machine", "owner", "who"),
    [
        (MACHINE, (0, 0), (1000, 1001)),
        (MACHINE, (7, 8), (1000, 1001)),
        (AS_ROOT, (7, 8), (7, 8)),
        (AS_ROOT, (0, 0), (65533, 65533)),
        (AS_ROOT, (7, 0), (7, 65533)),
        (AS_ROOT, (0, 8), (65533, 8)),
    ],
)
def test_commands_are_never_root(
    machine: HostSystem, owner: tuple[int, int], who: tuple[int, int]
) -> None:
    workspace = replace(WORK, uid=owner[0], gid=owner[1])
    assert runs_as(BubblewrapSettings(workspace=workspace), machine) == who


def test_a_python_from_elsewhere_is_bound_at_its_own_path() -> None:
    home = FileIdentity("/root/.pyenv/versions/3.12", 1, 400, 0, 0, True)
    machine = replace(MACHINE, python=f"{home.path}/bin/python3", python_home=home)
    launch = build_launch(BubblewrapSettings(workspace=WORK), machine, PROGRAM)
    assert has(launch, "--ro-bind", home.path, home.path)


@pytest.mark.parametrize("path", ["/", "/proc", "/dev", "/etc", "/home", "/var", "/tmp", "/run"])
def test_read_only_must_not_cover_what_the_sandbox_needs(path: str) -> None:
    with pytest.raises(ConfigurationError, match="would cover"):
        check_read_only([replace(DATA, path=path)], WORK)


def test_read_only_must_not_be_the_workspace() -> None:
    with pytest.raises(ConfigurationError, match="cover the workspace"):
        check_read_only([WORK], WORK)
    check_read_only([DATA, INNER], WORK)


def test_a_file_of_etc_is_shown_only_if_everybody_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("public", 0o644), ("of_a_group", 0o640), ("private", 0o600)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("private")
    monkeypatch.setattr(bubblewrap_launch, "_ETC", [f"..{tmp_path}/*"])
    system = inspect_system()
    if system is None:
        pytest.skip("bubblewrap is not installed")
    assert list(system.files.values()) == [b"public"]
    shown = {*system.files, *system.folders, *(path for _, path in system.links)}
    assert {Path(path).name for path in shown if str(tmp_path) in path} == {"public"}


def test_this_machine_is_seen_without_its_secrets() -> None:
    system = inspect_system()
    if system is None:
        pytest.skip("bubblewrap is not installed")
    shown = {*system.files, *system.folders, *(path for _, path in system.links)}
    assert "/usr" in shown
    for secret in """/etc /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh /etc/ssl /etc/ssl/private
        /etc/environment /etc/machine-id /etc/hostname /etc/gitconfig /etc/npmrc /etc/pip.conf
        /etc/resolv.conf /root /home /var /run /boot /sys""".split():
        assert secret not in shown
    assert Path(system.python).exists()
    assert [
        path for path in system.files if any(path.startswith(f"{f}/") for f in system.folders)
    ] == []


def test_the_files_of_etc_are_those_that_the_patterns_match() -> None:
    patterns = bubblewrap_launch._ETC
    assert all("*" not in pattern.partition("/")[0][:-1] for pattern in patterns)
    found = sorted(path for pattern in patterns for path in glob.glob(f"/etc/{pattern}"))
    assert bubblewrap_launch.harmless_etc() == found
    assert "/etc/nsswitch.conf" in found
