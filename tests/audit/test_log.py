"""AuditLog: what is appended is there, without its secrets, or nothing may run."""

import base64
import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kakoi.audit import AuditEntry, AuditLog, Event, end_entry, read, verify
from kakoi.errors import AuditError, ConfigurationError
from kakoi.results import ExecutionResult, Reason
from tests.audit.logs import TEXTS, Clock, Stopwatch, filled, log_at, run_python, started


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.jsonl"


def refused(**fields: Any) -> AuditEntry:
    return AuditEntry(event=Event.REFUSED, id="ab12", **fields)


# --- What is recorded ------------------------------------------------------------------------


@pytest.mark.requirement("D-045")
def test_commands_their_success_or_failure_and_refusals_have_one_record_each(path: Path) -> None:
    log = log_at(path)
    good, bad = started(1, "make test"), started(2, "make release")
    log.append(good)
    log.append(end_entry(good, ExecutionResult(0, "", "", 12)))
    log.append(refused(command="sudo id", verdict="deny", rules=("privilege",), reason="no root"))
    log.append(bad)
    log.append(end_entry(bad, ExecutionResult(2, "", "", 40, Reason.EXITED)))
    assert [(r.event, r.id, r.command, r.exit_code) for r in read(path)] == [
        ("started", "0001", "make test", None),
        ("ended", "0001", "", 0),
        ("refused", "ab12", "sudo id", None),
        ("started", "0002", "make release", None),
        ("ended", "0002", "", 2),
    ]


@pytest.mark.parametrize("event", [Event.ASKED, Event.APPROVED, Event.DECLINED])
def test_what_a_person_was_asked_and_answered_is_recorded(path: Path, event: Event) -> None:
    log_at(path).append(AuditEntry(event=event, id="ab", command="git push", user="mika"))
    (record,) = read(path)
    assert (record.event, record.command, record.user) == (event, "git push", "mika")


def test_append_returns_the_record_as_it_stands_in_the_log(path: Path) -> None:
    log = log_at(path)
    assert [log.append(started(1)), log.append(started(2))] == list(read(path))


def test_the_records_are_numbered_and_chained(path: Path) -> None:
    filled(path, 5)
    records = list(read(path))
    assert [record.seq for record in records] == [1, 2, 3, 4, 5]
    assert [record.prev for record in records[1:]] == [record.hash for record in records[:-1]]


def test_times_are_in_utc_with_milliseconds(path: Path) -> None:
    tokyo = timezone(timedelta(hours=9))
    log = AuditLog(path, clock=lambda: datetime(2026, 1, 1, 8, 0, 0, 123_999, tokyo))
    assert log.append(started()).time == "2025-12-31T23:00:00.123Z"


@pytest.mark.parametrize("event", [Event.ROTATED, Event.RECOVERED, Event.CUT])
def test_others_cannot_forge_what_the_log_records_about_itself(path: Path, event: Event) -> None:
    with pytest.raises(ConfigurationError):
        log_at(path).append(AuditEntry(event=event, id="ab"))


def test_nothing_is_touched_before_the_first_record(path: Path) -> None:
    log_at(path)
    assert not path.parent.exists()


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"keep": 0}], ids=str)
def test_limits_that_keep_nothing_are_refused(path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        AuditLog(path, clock=Clock(), **wrong)  # type: ignore[arg-type]


# --- Secrets ---------------------------------------------------------------------------------

TOLD = "zz-sentinel-hunter2-zz"
SHAPED = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0bC3dE6"


@pytest.mark.requirement("X-40")
@pytest.mark.parametrize("secret", [TOLD, SHAPED, base64.b64encode(TOLD.encode()).decode()])
def test_no_secret_reaches_the_file_from_any_field(path: Path, secret: str) -> None:
    log = log_at(path, secrets=[TOLD])
    assert {"command", "target", "user"} <= set(TEXTS)
    record = log.append(refused(**dict.fromkeys(TEXTS, f"/a/{secret}/b"), rules=(secret,)))
    assert secret.encode() not in path.read_bytes()
    assert secret not in repr(record)
    assert path.read_bytes().count(b"[redacted]") == len(TEXTS) + 1


@pytest.mark.requirement("X-40")
def test_a_secret_at_the_cut_is_gone_too(path: Path) -> None:
    log = log_at(path, secrets=[TOLD])
    for before in range(8192 - len(TOLD), 8192):
        log.append(started(1, "x" * before + TOLD + "y" * 9000))
    assert TOLD[:4].encode() not in path.read_bytes()


def test_one_secret_may_be_given_as_a_plain_text(path: Path) -> None:
    log = AuditLog(path, clock=Clock(), secrets=TOLD)
    assert log.append(started(1, f"echo h {TOLD}")).command == "echo h [redacted]"


# --- The file --------------------------------------------------------------------------------


def test_file_and_folder_are_ours_alone(path: Path) -> None:
    filled(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    victim = tmp_path / "victim"
    for target in (victim, tmp_path / "not-there"):
        victim.write_text("precious")
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(AuditError, match="symbolic link"):
            log_at(path).append(started())
        with pytest.raises(AuditError, match="symbolic link"):
            verify(path)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "not-there").exists()


def test_a_link_put_in_place_of_a_file_in_use_is_not_followed(path: Path, tmp_path: Path) -> None:
    log = filled(path, 2)
    victim = tmp_path / "victim"
    victim.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(AuditError):
        log.append(started())
    assert len(victim.read_bytes().splitlines()) == 2


def test_a_pipe_or_a_folder_is_not_a_log(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(AuditError, match="not a regular file"):
        log_at(path).append(started())
    with pytest.raises(AuditError, match="not a regular file"):
        verify(path)
    with pytest.raises(AuditError):
        log_at(path.parent).append(started())


def test_a_log_that_others_can_write_is_refused_with_the_way_out(path: Path) -> None:
    filled(path, 1)
    path.chmod(0o620)
    with pytest.raises(AuditError, match="other users") as caught:
        log_at(path).append(started())
    assert caught.value.hint == f"chmod 600 {path}"
    path.chmod(0o640)
    log_at(path).append(started())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_log_of_somebody_else_is_refused(path: Path) -> None:
    filled(path, 1)
    os.chown(path, 12345, 12345)
    with pytest.raises(AuditError, match="belongs to user 12345"):
        log_at(path).append(started())


# --- When it cannot be written ---------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_an_audit_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError) as caught:
        log_at(tmp_path / "file" / "audit.jsonl").append(started())
    assert caught.value.code == "AUDIT_FAILED"
    assert caught.value.details["errno"] == errno.errorcode[errno.ENOTDIR]
    assert caught.value.hint


# A limit on the size of files stands for a full disk: part of a line fits, then nothing does.
FULL_DISK = """
import resource, sys
from pathlib import Path
from kakoi.errors import AuditError
from tests.audit.logs import log_at, started
path, room = Path(sys.argv[1]), int(sys.argv[2])
log = log_at(path)
log.append(started(2))
before = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, resource.RLIM_INFINITY))
try:
    log.append(started(3))
except AuditError as error:
    assert error.code == "AUDIT_FAILED" and error.hint, error
    assert path.read_bytes() == before, "half a line is left"
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(started(4))
"""


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_is_an_error_and_leaves_no_half_line(path: Path, room: int) -> None:
    filled(path, 1)
    assert run_python(FULL_DISK, str(path), str(room)) == "refused\n"
    answer = verify(path)
    assert (answer.ok, answer.torn, answer.records) == (True, (), 3)


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "rb")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_log_that_somebody_keeps_locked_is_an_error_and_no_hang(path: Path) -> None:
    filled(path, 1)
    log = AuditLog(path, clock=Clock(), lock_timeout_s=0.05)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(AuditError, match="locked by another process"):
            log.append(started(2))
        holder.communicate()
    log.append(started(2))
    assert verify(path).records == 2


def test_an_end_that_hides_the_last_record_is_refused_unread(path: Path) -> None:
    log = filled(path, 1)
    os.truncate(path, 1 << 30)  # A hole: it takes no room on the disk.
    with pytest.raises(AuditError, match="too much data that is not a record"):
        log.append(started(2))


# --- Without waiting -------------------------------------------------------------------------


def test_after_the_first_record_the_next_ones_can_be_written_at_once(path: Path) -> None:
    log = log_at(path)
    assert log.append_now(started(1)) is None
    assert not path.exists()
    first = log.append(started(1))
    others = [log.append_now(started(number, f"echo {number}")) for number in (2, 3)]
    assert [first, *others] == list(read(path))
    assert verify(path).ok


def test_a_record_that_is_written_at_once_has_no_secrets_either(path: Path) -> None:
    log = log_at(path, secrets=["hunter2hunter2"])
    log.append(started(1))
    assert log.append_now(started(2, "echo hunter2hunter2")) is not None
    assert b"hunter2" not in path.read_bytes()
    with pytest.raises(ConfigurationError):
        log.append_now(AuditEntry(event=Event.CUT, id="ab"))


def unlink(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def replaced(path: Path) -> None:
    """The same size, with another end."""
    path.write_bytes(path.read_bytes()[:-10] + b"x" * 9 + b"\n")


def written_by_another(path: Path) -> None:
    log_at(path).append(started(9))


def torn(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"seq":4,"ti')


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def opened_to_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize(
    "change",
    [unlink, cut_off, replaced, written_by_another, torn, linked, piped, opened_to_all],
)
def test_a_log_that_is_not_as_we_left_it_is_not_written_at_once(
    path: Path, change: Callable[[Path], None]
) -> None:
    log = filled(path, 3)
    change(path)
    before = path.read_bytes() if path.is_file() else None
    assert log.append_now(started(4)) is None
    assert (path.read_bytes() if path.is_file() else None) == before


def test_what_takes_time_is_not_done_at_once(path: Path) -> None:
    log = log_at(path, max_bytes=1500)
    log.append(started(1))
    assert log.append_now(started(2, "x" * 2000)) is None
    assert log.append_now(AuditEntry(event=Event.JUDGED, id="ab", session="s" * 2000)) is None
    while path.stat().st_size < 1500:
        assert log.append_now(started(3)) is not None
    assert log.append_now(started(4)) is None
    log.append(started(4))
    assert log.append_now(started(5)) is not None
    answer = verify(path)
    assert (answer.ok, answer.files) == (True, 2)


def test_a_lock_is_not_waited_for_at_once(path: Path) -> None:
    log = filled(path, 1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert log.append_now(started(2)) is None
        holder.communicate()
    assert log.append_now(started(2)) is not None
    assert verify(path).records == 2


def test_after_a_slow_record_the_next_ones_are_not_written_at_once(path: Path) -> None:
    stopwatch = Stopwatch()

    class SlowDisk(Clock):
        """Asked for the time in the middle of each record, so it can make one take long."""

        delay_s = 0.0

        def __call__(self) -> datetime:
            stopwatch.now += self.delay_s
            return super().__call__()

    disk = SlowDisk()
    log = log_at(path, clock=disk, stopwatch=stopwatch)
    log.append(started(1))
    disk.delay_s = 0.1
    assert log.append_now(started(2)) is not None
    disk.delay_s = 0.001
    later = [log.append_now(started(number)) for number in range(3, 200)]
    assert later[0] is None
    assert later[-1] is not None
    assert verify(path).ok


AT_ONCE_ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.audit.logs import log_at, started
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
log = log_at(path)
log.append(started(2))
before = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, resource.RLIM_INFINITY))
assert log.append_now(started(3)) is None
assert path.read_bytes() == before, "half a line is left"
"""


def test_on_a_full_disk_nothing_is_written_at_once(path: Path) -> None:
    filled(path, 1)
    run_python(AT_ONCE_ON_A_FULL_DISK, str(path))
    answer = verify(path)
    assert (answer.ok, answer.torn, answer.records) == (True, (), 2)


# --- When a record of ours is gone -----------------------------------------------------------


def cut_records(path: Path) -> list[tuple[int | None, str]]:
    return [(r.lost_seq, r.lost_hash) for r in read(path) if r.event is Event.CUT]


def test_a_living_writer_finds_that_the_end_was_cut_off(path: Path) -> None:
    log = filled(path, 4)
    last = log.append(started(5))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    log.append(started(6))
    assert cut_records(path) == [(5, last.hash)]
    (problem,) = verify(path).problems
    assert problem.line == 4
    assert last.hash in problem.why


def test_a_living_writer_finds_that_the_log_was_removed(path: Path) -> None:
    log = filled(path, 3)
    last = log.append(started(4))
    path.unlink()
    log.append(started(5))
    log.append(started(6))
    assert cut_records(path) == [(4, last.hash)]
    assert not verify(path).ok


def test_a_living_writer_finds_that_the_end_was_replaced(path: Path) -> None:
    log = filled(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    log_at(path).append(started(4, "harmless"))
    log.append(started(5))
    assert cut_records(path) == [(4, json.loads(lines[3])["hash"])]


def test_records_of_other_writers_do_not_count_as_truncation(path: Path) -> None:
    log = log_at(path, max_bytes=400, keep=1)
    log.append(started(1))
    other = log_at(path, max_bytes=400, keep=1)
    for number in range(20):
        other.append(started(number))
    log.append(started(2))
    assert cut_records(path) == []
    assert verify(path).ok
