"""Which directories commands may have."""

import os
import sys
from pathlib import Path

import pytest

from kakoi.backends.workspace import identify_workspace, workspace_objection
from kakoi.errors import ConfigurationError

HOMES = ["/home/ann", "/data/homes/bob"]
OURS = ["/home/ann/tools/kakoi", "/srv/app/.venv"]

FINE = """/home/ann/project /home/ann/tools/other /root/project /tmp/x /var/tmp/x /work /data/checkout
    /data/project /opt/project /srv/www /mnt/disk/project /var/lib/jenkins/job /usr/src/app
    /usr/local/src/app /dev/shm/fast /home/annex /usrlocal /etcetera /nixos""".split()

REFUSED = {
    "/": "much more than one project",
    "/home": "much more than one project",
    "/root": "much more than one project",
    "/tmp": "much more than one project",
    "/var": "much more than one project",
    "/opt": "much more than one project",
    "/usr": "part of the system",
    "/usr/lib/python3": "part of the system",
    "/usr/local": "part of the system",
    "/usr/src": "part of the system",
    "/bin": "part of the system",
    "/etc": "part of the system",
    "/etc/ssh": "part of the system",
    "/proc": "part of the system",
    "/proc/1/root": "part of the system",
    "/sys/fs/cgroup": "part of the system",
    "/dev": "part of the system",
    "/dev/shm": "part of the system",
    "/run/user/1000": "part of the system",
    "/boot": "part of the system",
    "/var/lib/docker/volumes": "part of the system",
    "/home/ann": "home directory /home/ann",
    "/data/homes": "home directory /data/homes/bob",
    "/data": "home directory /data/homes/bob",
    "/home/ann/tools": "kakoi itself is in it (/home/ann/tools/kakoi)",
    "/srv/app": "kakoi itself is in it (/srv/app/.venv)",
}


@pytest.mark.parametrize("path", FINE)
def test_a_project_is_a_workspace(path: str) -> None:
    assert workspace_objection(path, homes=HOMES[:1], ours=OURS) == ""


@pytest.mark.parametrize(("path", "why"), REFUSED.items())
def test_what_is_more_than_a_project_is_not(path: str, why: str) -> None:
    assert why in workspace_objection(path, homes=HOMES, ours=OURS)


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    seen = identify_workspace(tmp_path / "link")
    status = (tmp_path / "real").stat()
    assert seen.path == str(tmp_path / "real")
    assert (seen.device, seen.inode) == (status.st_dev, status.st_ino)


@pytest.mark.parametrize("target", ["/", "/etc", "/usr/lib", "/tmp"])
def test_a_link_to_the_system_is_refused_for_what_it_leads_to(tmp_path: Path, target: str) -> None:
    (tmp_path / "innocent").symlink_to(target)
    with pytest.raises(ConfigurationError, match="the workspace is") as raised:
        identify_workspace(tmp_path / "innocent")
    assert os.path.realpath(target) in str(raised.value)
    assert "a directory for this project" in raised.value.hint


def test_what_is_not_there_or_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name, why in {
        "missing": "No such file",
        "file": "not a directory",
        "file/below": "Not a directory",
        "loop": "symbolic links",
        "nul\0": "null byte",
    }.items():
        with pytest.raises(ConfigurationError, match=why):
            identify_workspace(tmp_path / name)


def test_the_program_that_confines_must_not_be_in_it(tmp_path: Path) -> None:
    package = Path(__file__).parents[2]
    for place in (package, Path(sys.prefix), Path(sys.base_prefix), Path(sys.prefix).parent):
        with pytest.raises(ConfigurationError):
            identify_workspace(place)
