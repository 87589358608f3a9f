"""What mount_stage.py does before bubblewrap, seen by the program that it becomes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kakoi.process import mount_stage as staging
from kakoi.process.stream import Launch
from tests.backends.boxes import Said, needs_root, run

UID, GID = 65421, 65422
PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# --- Which ids change places -----------------------------------------------------------------


def swapped(number: int, other: int) -> int:
    for line in staging.swap_with_root(other).splitlines():
        on_disk, seen, count = map(int, line.split())
        if on_disk <= number < on_disk + count:
            return seen + number - on_disk
    raise AssertionError(f"{number} is nobody")


@pytest.mark.parametrize("other", [0, 1, 2, 65533, 2**32 - 2])
def test_root_and_the_other_change_places_and_nobody_else_does(other: int) -> None:
    assert swapped(0, other) == other
    assert swapped(other, other) == 0
    for number in {1, 2, 3, 1000, 65532, 65533, 65534, 2**31, 2**32 - 3, 2**32 - 2} - {other}:
        assert swapped(number, other) == number


# --- For real --------------------------------------------------------------------------------


def stage(
    sources: Sequence[tuple[Path, str]],
    *program: str,
    who: tuple[int, int] = (UID, GID),
    before: Sequence[str] = (),
    seen: str = "",
) -> Said:
    """Become `program` as `who`, with each (path, access) at /tmp/0, /tmp/1, …"""
    fields = [*map(str, who), "/tmp"]
    for number, (path, access) in enumerate(sources):
        status = path.stat() if path.exists() else path.parent.stat()
        found = f"{status.st_dev} {status.st_ino} {status.st_uid} {status.st_gid}"
        fields += [str(path), seen or found, str(number), access]
    script = str(Path(staging.__file__))
    argv = [*before, sys.executable, "-I", "-S", script, "\0spec", *program]
    return run(Launch(argv=argv, env=PATH, files={"\0spec": os.fsencode("\0".join(fields))}))


def bash(script: str) -> tuple[str, ...]:
    return ("/bin/bash", "-c", script)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A directory of root's that nobody else can reach."""
    tmp_path.chmod(0o700)
    folder = tmp_path / "deep"
    folder.mkdir(mode=0o755)
    return folder


@needs_root
def test_the_program_has_nothing_of_root_left(deep: Path) -> None:
    said = stage([(deep, "write")], *bash("cat /proc/self/status; id -G; pwd; ls /proc/self/fd"))
    assert said.status == 0, said.stderr
    fields = dict(line.split(":\t", 1) for line in said.lines if ":\t" in line)
    assert fields["Uid"].split() == [str(UID)] * 4
    assert fields["Gid"].split() == [str(GID)] * 4
    assert fields["Groups"].split() == []
    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert said.lines[-6:] == [str(GID), "/", "0", "1", "2", "3"]


@needs_root
def test_what_is_roots_can_be_written_and_stays_roots_on_the_disk(deep: Path) -> None:
    (deep / "old").write_text("old\n")
    (deep / "old").chmod(0o600)
    said = stage(
        [(deep, "write")],
        *bash("cd /tmp/0; cat old; echo new > old; mkdir d; echo x > d/made; stat -c %u:%g d/made"),
    )
    assert said.lines == ["old", f"{UID}:{GID}"], said.stderr
    assert (deep / "old").read_text() == "new\n"
    for made in ("old", "d", "d/made"):
        assert ((deep / made).stat().st_uid, (deep / made).stat().st_gid) == (0, 0)


@needs_root
def test_what_is_a_users_stays_as_it_is(deep: Path) -> None:
    os.chown(deep, UID, GID)
    (deep / "roots").touch(0o600)
    said = stage(
        [(deep, "write")],
        *bash(
            "cd /tmp/0; touch made; cat roots; grep -c ' /tmp/0 .*idmapped' /proc/self/mountinfo"
        ),
    )
    assert said.lines == ["0"]
    assert "Permission denied" in said.stderr
    assert ((deep / "made").stat().st_uid, (deep / "made").stat().st_gid) == (UID, GID)


@needs_root
@pytest.mark.parametrize(("owner", "group"), [(UID, 0), (0, GID)])
def test_only_the_half_that_is_roots_changes_places(deep: Path, owner: int, group: int) -> None:
    os.chown(deep, owner, group)
    said = stage([(deep, "write")], *bash("cd /tmp/0; touch made; stat -c %u:%g . made"))
    assert said.lines == [f"{UID}:{GID}"] * 2, said.stderr
    assert ((deep / "made").stat().st_uid, (deep / "made").stat().st_gid) == (owner, group)


@needs_root
def test_a_read_source_is_reached_but_not_written_and_nobody_else_becomes_its_owner(
    deep: Path,
) -> None:
    deep.chmod(0o777)
    (deep / "public").write_text("public\n")
    (deep / "secret").write_text("secret\n")
    (deep / "secret").chmod(0o600)
    file = deep.parent / "file"
    file.write_text("a file\n")
    said = stage(
        [(deep, "read"), (file, "read")],
        *bash("cat /tmp/1; cd /tmp/0; cat public secret; touch made; echo x > public"),
    )
    assert said.lines == ["a file", "public"]
    assert said.stderr.count("Read-only file system") == 2
    assert said.stderr.count("Permission denied") == 1


@needs_root
def test_only_the_sources_are_there_and_only_for_us(deep: Path) -> None:
    said = stage([(deep, "write")], *bash(f"ls -A /tmp; ls {deep}; touch /tmp/x"))
    assert said.lines == ["0"]
    assert "No such file" in said.stderr
    assert "cannot touch '/tmp/x': Permission denied" in said.stderr
    mounted = [line.split()[3:5] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert [where for where in mounted if str(deep) in where or where[1] == "/tmp/0"] == []


@needs_root
def test_another_directory_than_the_one_that_was_seen_is_refused(deep: Path) -> None:
    status = deep.stat()
    seen = f"{status.st_dev} {status.st_ino} 0 0"
    deep.rename(deep.with_name("moved"))
    for trick in ("another", "a link"):
        if trick == "another":
            deep.mkdir()
        else:
            deep.rmdir()
            deep.symlink_to("/etc")
        said = stage([(deep, "write")], "/bin/true", seen=seen)
        assert said.status == staging.FAILED
        assert "was replaced" in said.stderr


PRIVATE = ("unshare", "--mount", "--propagation", "private", "bash", "--norc", "-c")


@needs_root
def test_what_is_mounted_below_comes_along(deep: Path) -> None:
    (deep / "sub").mkdir()
    mount = f"mount -t tmpfs none {deep}/sub; echo inner > {deep}/sub/file; " + 'exec "$@"'
    said = stage(
        [(deep, "write")],
        *bash("cd /tmp/0/sub; cat file; echo x > file; stat -c %u file"),
        before=[*PRIVATE, mount, "bash"],
    )
    assert said.lines == ["inner", str(UID)], said.stderr


@needs_root
def test_where_it_cannot_be_lent_the_error_has_a_fix(deep: Path) -> None:
    """proc is one of the filesystems that know no other owners."""
    (deep / "sub").mkdir()
    mount = f'mount -t proc none {deep}/sub; exec "$@"'
    said = stage([(deep, "write")], "/bin/true", before=[*PRIVATE, mount, "bash"])
    assert said.status == staging.FAILED
    what, fix = said.stderr.splitlines()
    assert what.startswith(f"staging: {deep} belongs to root")
    assert "no idmapped mounts there" in what
    assert fix == f"fix: chown -R {UID}:{GID} {deep}"
    os.chown(deep, UID, GID)
    assert stage([(deep, "write")], "/bin/true", before=[*PRIVATE, mount, "bash"]).status == 0


@needs_root
def test_a_root_without_capabilities_gets_an_error(deep: Path) -> None:
    said = stage([(deep, "write")], "/bin/true", before=["setpriv", "--bounding-set", "-sys_admin"])
    assert said.status == staging.FAILED
    assert "root may not mount anything here" in said.stderr
    assert "fix: run kakoi outside of the container" in said.stderr


@needs_root
def test_a_source_that_is_gone_and_a_program_out_of_reach_are_reported(deep: Path) -> None:
    said = stage([(deep / "gone", "write")], "/bin/true")
    assert (said.status, "No such file" in said.stderr) == (staging.FAILED, True)
    program = deep / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    said = stage([], str(program))
    assert said.status == staging.FAILED
    assert f"user {UID} cannot start {program}" in said.stderr


@needs_root
def test_capabilities_that_would_outlive_root_are_noticed(deep: Path) -> None:
    keep = ["setpriv", "--securebits=+no_setuid_fixup"]
    said = stage([(deep, "write")], "/bin/true", before=keep)
    assert said.status == staging.FAILED
    assert "root privileges could not be dropped" in said.stderr
