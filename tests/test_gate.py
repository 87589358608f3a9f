"""The gate: what is refused never runs, what runs is recorded, and not too much runs at once."""

import asyncio
import fcntl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kakoi.audit import AuditEntry, AuditLog, AuditRecord, Event, read, verify
from kakoi.backends.adapter import Availability, ExecuteOptions, LimitReport
from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Channel, Command
from kakoi.errors import (
    AuditError,
    CommandNotAllowedError,
    ConfigurationError,
    SecurityError,
    UserCancelledError,
)
from kakoi.gate import Call, Gate, RecordLabels
from kakoi.policy.decide import Decision
from kakoi.policy.file_access import FileAccess
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.results import BlockedConnection, ExecutionResult, Reason

pytestmark = pytest.mark.anyio
WAIT_S = 60.0
POLICY = load_policy(allowed=AllowedCommands(additional=("sleep", "bash", "sh")))
STRICT = load_policy(allowed=AllowedCommands(exclude=("echo",)))


class RecordingSandbox:
    """Runs on the host, and remembers what it was asked to run."""

    name = "recording"

    def __init__(self, workspace: Path) -> None:
        self._host = HostAdapter(workspace, warn_on_start=False)
        self.asked: list[str | Sequence[str]] = []
        self.running = 0
        self.began = asyncio.Event()
        self.most_at_once = 0

    async def availability(self) -> Availability:
        return Availability(True)

    async def is_available(self) -> bool:
        return True

    async def run(self, command: Command) -> ExecutionResult:
        self.asked.append(command.command)
        self.running += 1
        self.began.set()
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await self._host.run(command)
        finally:
            self.running -= 1

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        return await self._host.execute(command, options)

    async def channel(self) -> Channel:
        return await self._host.channel()

    async def shell(self) -> str:
        return await self._host.shell()

    @property
    def limit_report(self) -> LimitReport:
        return self._host.limit_report

    async def cleanup(self) -> None:
        await self._host.cleanup()


class Person:
    """Answers as told, and remembers what was asked."""

    def __init__(self, *, agrees: bool) -> None:
        self._agrees = agrees
        self.asked: list[str] = []

    async def __call__(self, decision: Decision) -> bool:
        self.asked.append(decision.command)
        return self._agrees


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[RecordingSandbox]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    sandbox = RecordingSandbox(workspace)
    yield sandbox
    await sandbox.cleanup()


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return AuditLog(tmp_path / "audit" / "log.jsonl", clock=lambda: moment)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "log.jsonl"


def events(log_file: Path) -> list[str]:
    return [record.event for record in read(log_file)]


class WithoutBash(RecordingSandbox):
    """Says that it has none. What is refused for it would be arithmetic to the bash that it has."""

    async def shell(self) -> str:
        return "sh"


async def test_an_allowed_command_runs_and_is_recorded_twice(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(
        POLICY, sandbox, audit=audit, labels=RecordLabels(session="s1", task="t1", user="me")
    )
    command = Command(command="echo hello")
    result = await gate.run(command)
    assert (result.stdout, result.reason) == ("hello\n", Reason.EXITED)
    started, ended = read(log_file)
    assert (started.event, started.command, started.sandbox) == (
        Event.STARTED,
        "echo hello",
        "recording",
    )
    assert (started.session, started.task, started.user) == ("s1", "t1", "me")
    assert (ended.event, ended.id, ended.exit_code) == (Event.ENDED, command.id, 0)
    assert (ended.reason, ended.stdout_bytes) == (Reason.EXITED, 6)
    assert verify(log_file).ok


async def test_a_text_is_judged_for_the_shell_that_will_read_it(
    tmp_path: Path, audit: AuditLog, log_file: Path
) -> None:
    hidden = Command(command="((reboot))")
    sandbox = WithoutBash(tmp_path)
    opened: list[str] = []

    async def open_it() -> RecordingSandbox:
        opened.append("")
        return sandbox

    gate = Gate(POLICY, open_it, audit=audit, approver=Person(agrees=True), ask_always=True)
    for attempt in (gate.run, gate.start):
        with pytest.raises(SecurityError, match="reboot"):
            await attempt(hidden)
    with pytest.raises(SecurityError, match="reboot"):
        async with gate.open(hidden):
            pytest.fail("it was let in")
    assert (sandbox.asked, events(log_file)) == ([], [Event.REFUSED] * 3)
    # Whoever only wants to know is told the same, now that there is a place.
    assert (await gate.judge(hidden)).findings[0].rule == "system-control"
    # A program and its words are read by no shell.
    result = await gate.run(Command(command=["echo", "((reboot))"]))
    assert result.stdout == "((reboot))\n"
    await sandbox.cleanup()
    assert opened == [""]


async def test_no_place_is_opened_to_learn_its_shell_for_what_is_refused_or_plain(
    tmp_path: Path,
) -> None:
    async def open_it() -> RecordingSandbox:
        raise AssertionError("it was opened")

    gate = Gate(POLICY, open_it)
    with pytest.raises(SecurityError):
        await gate.run(Command(command="if true; then sudo ls; fi"))
    with pytest.raises(UserCancelledError):
        await Gate(POLICY, open_it, ask_always=True).run(Command(command="ls -l | head"))


@pytest.mark.requirement("A-066")
async def test_a_program_of_the_project_runs_unasked_only_where_it_is_confined(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path, tmp_path: Path
) -> None:
    command = Command(command="./tool")
    with pytest.raises(UserCancelledError):
        await Gate(POLICY, sandbox, audit=audit).run(command)
    gate = Gate(POLICY, sandbox, audit=audit, confined=True)
    result = await gate.with_policy(POLICY, approver=None, session="s").run(command)
    assert result.exit_code == 127  # It ran: there is no such file.
    started = [record for record in read(log_file) if record.event == "started"]
    assert [record.rules for record in started] == [("runs-project-file",)]
    bare = HostAdapter(tmp_path, warn_on_start=False)
    with pytest.raises(UserCancelledError):
        await Gate(POLICY, bare, confined=True).run(command)


async def test_a_refused_command_never_reaches_the_sandbox_and_is_recorded(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    with pytest.raises(SecurityError) as refused:
        await gate.run(Command(command="git status && sudo rm -rf /"))
    assert isinstance(refused.value.decision, Decision)
    with pytest.raises(CommandNotAllowedError):
        await gate.start(Command(command="frobnicate x"))
    with pytest.raises(CommandNotAllowedError):
        async with gate.open(Command(command="frobnicate x")):
            pytest.fail("it was let in")
    assert sandbox.asked == []
    assert events(log_file) == [Event.REFUSED] * 3


async def test_a_program_with_arguments_is_judged_as_what_it_runs(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    result = await gate.run(Command(command=["echo", "a; sudo b", "$(id)"]))
    assert result.stdout == "a; sudo b $(id)\n"
    with pytest.raises(SecurityError):
        await gate.run(Command(command=["sudo", "id"]))
    assert events(log_file) == [Event.STARTED, Event.ENDED, Event.REFUSED]


async def test_paths_are_judged_from_the_directory_of_the_command(
    sandbox: RecordingSandbox,
) -> None:
    gate = Gate(POLICY, sandbox, cwd="/workspace/project")
    with pytest.raises((SecurityError, UserCancelledError)):
        await gate.run(Command(command="touch ../../etc/kakoi"))
    assert sandbox.asked == []


async def test_where_the_policy_asks_and_nobody_is_there_the_answer_is_no(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    with pytest.raises(UserCancelledError, match="there was nobody to ask"):
        await gate.run(Command(command="git commit -m x"))
    assert sandbox.asked == []
    assert events(log_file) == [Event.ASKED, Event.DECLINED]


async def test_a_person_decides_where_the_policy_asks(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    no, yes = Person(agrees=False), Person(agrees=True)
    with pytest.raises(UserCancelledError, match="declined"):
        await Gate(POLICY, sandbox, audit=audit, approver=no).run(Command(command="git init x"))
    assert sandbox.asked == []
    await Gate(POLICY, sandbox, audit=audit, approver=yes).run(Command(command="git init x"))
    assert sandbox.asked == no.asked == yes.asked == ["git init x"]
    assert events(log_file) == [
        *(Event.ASKED, Event.DECLINED),
        *(Event.ASKED, Event.APPROVED, Event.STARTED, Event.ENDED),
    ]


async def test_an_approval_in_advance_is_recorded_with_its_giver_and_overrules_no_denial(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate, call = Gate(POLICY, sandbox, audit=audit), Call(approved_by="the setting x")
    await gate.run(Command(command="git init x"), call)
    with pytest.raises(SecurityError):
        await gate.run(Command(command="rm -rf /"), call)
    assert sandbox.asked == ["git init x"]
    records = list(read(log_file))
    assert [(each.event, each.reason) for each in records if each.event is Event.APPROVED] == [
        (Event.APPROVED, "approved by the setting x")
    ]
    assert records[-1].event is Event.REFUSED


async def test_a_question_that_is_interrupted_was_answered_no(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    async def leaves(_decision: Decision) -> bool:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Gate(POLICY, sandbox, audit=audit, approver=leaves).run(Command(command="git init x"))
    assert sandbox.asked == []
    assert events(log_file) == [Event.ASKED, Event.DECLINED]


async def test_nobody_is_asked_about_what_is_refused_or_allowed(sandbox: RecordingSandbox) -> None:
    person = Person(agrees=True)
    gate = Gate(POLICY, sandbox, approver=person)
    await gate.run(Command(command="echo a"))
    with pytest.raises(SecurityError):
        await gate.run(Command(command="sudo id"))
    assert person.asked == []


async def opened(gate: Gate, command: Command) -> None:
    async with gate.open(command):
        pass


async def performed(gate: Gate, command: Command) -> None:
    await gate.perform(command, lambda channel: channel.run(command))


async def accessed(gate: Gate, command: Command) -> None:
    await gate.access(FileAccess("read", "a"), lambda channel: channel.run(command))


@pytest.mark.parametrize("road", [Gate.run, Gate.start, opened, performed, accessed])
async def test_on_no_road_does_anything_run_that_cannot_be_recorded(
    sandbox: RecordingSandbox, tmp_path: Path, road: Callable[[Gate, Command], Awaitable[object]]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    broken = AuditLog(tmp_path / "file" / "log.jsonl", clock=lambda: datetime.now(UTC))
    with pytest.raises(AuditError):
        await road(Gate(POLICY, sandbox, audit=broken), Command(command="echo a"))
    assert (sandbox.asked, await (await sandbox.channel()).list_jobs()) == ([], [])


class Refusing:
    """Decides what may be reached, and has just refused something."""

    blocked = (BlockedConnection("evil.example", 443, "it is not listed"),)

    def watch_refusals(self) -> "Refusing":
        return self


async def test_under_another_policy_the_same_sandbox_reports_what_was_refused(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    refusing = Refusing()
    gate = Gate(POLICY, sandbox, audit=audit, labels=RecordLabels(task="t"), proxy=refusing)
    other = gate.with_policy(POLICY, approver=None, session="s")
    result = await other.run(Command(command="echo a"))
    assert result.blocked_connections == refusing.blocked
    assert {(each.task, each.session) for each in read(log_file)} == {("t", "s")}
    with pytest.raises(SecurityError):
        await gate.with_policy(STRICT, approver=None, session="s").run(Command(command="echo a"))


@pytest.mark.requirement("D-044")
async def test_no_more_commands_run_at_once_than_the_limit(sandbox: RecordingSandbox) -> None:
    gate = Gate(POLICY, sandbox, concurrency=3)
    # None of them ends before three have come.
    meeting = 'touch {0}; while [ "$(ls | wc -l)" -lt 3 ]; do sleep 0.01; done'
    texts = [meeting.format(number) for number in range(12)]
    work = asyncio.gather(*(gate.run(Command(command=text, timeout_s=60)) for text in texts))
    assert [result.exit_code for result in await work] == [0] * 12
    assert sandbox.most_at_once == 3
    assert len(sandbox.asked) == 12
    with pytest.raises(ConfigurationError):
        Gate(POLICY, sandbox, concurrency=0)


async def test_gates_to_one_sandbox_share_their_turns(sandbox: RecordingSandbox) -> None:
    gate = Gate(POLICY, sandbox, concurrency=1)
    other = gate.with_policy(POLICY, approver=None, session="s")
    texts = ["sleep 0.02; echo a"] * 4
    gates = [gate, other] * 2
    await asyncio.gather(
        *(
            each.run(Command(command=text, timeout_s=60))
            for each, text in zip(gates, texts, strict=True)
        )
    )
    assert sandbox.most_at_once == 1


async def test_a_question_that_is_put_off_is_neither_recorded_nor_asked(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    class LaterError(Exception):
        pass

    def put_off(decision: Decision) -> None:
        raise LaterError(decision.command)

    async def never(_decision: Decision) -> bool:
        raise AssertionError

    gate = Gate(POLICY, sandbox, audit=audit)
    call = Call(approver=never, before_asking=put_off)
    with pytest.raises(LaterError, match="git push"):
        await gate.run(Command(command="git push"), call)
    assert (await gate.run(Command(command="echo hi"), call)).stdout == "hi\n"
    assert [each.command for each in read(log_file) if each.event == Event.STARTED] == ["echo hi"]
    assert Event.ASKED not in [each.event for each in read(log_file)]


async def test_a_cancelled_command_is_recorded_as_cancelled_and_gives_its_turn_back(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit, concurrency=1)
    task = asyncio.ensure_future(gate.run(Command(command="sleep 600")))
    await asyncio.wait_for(sandbox.began.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await gate.run(Command(command="echo next"))
    assert result.stdout == "next\n"
    records = list(read(log_file))
    assert [record.event for record in records] == [Event.STARTED, Event.ENDED] * 2
    assert records[1].reason == Reason.CANCELLED


class SlowDisk(AuditLog):
    """Takes its time for each record, until `go_on` is set."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.is_writing = threading.Event()
        self.go_on = threading.Event()

    def append_now(self, entry: AuditEntry) -> AuditRecord | None:
        return None

    def append(self, entry: AuditEntry) -> AuditRecord:
        self.is_writing.set()
        assert self.go_on.wait(30)
        return super().append(entry)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("command", "recorded"),
    [
        ("echo a", [Event.STARTED, Event.ENDED]),
        ("git init x", [Event.ASKED, Event.DECLINED]),
    ],
)
async def test_interrupting_the_first_record_still_records_an_end(
    sandbox: RecordingSandbox, log_file: Path, command: str, recorded: list[Event], times: int
) -> None:
    log = SlowDisk(log_file)
    gate = Gate(POLICY, sandbox, audit=log, approver=Person(agrees=True))
    for run in (gate.run, lambda asked: gate.perform(asked, nothing)):
        log.is_writing.clear()
        log.go_on.clear()
        task = asyncio.ensure_future(run(Command(command=command)))
        assert await asyncio.to_thread(log.is_writing.wait, 30)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        log.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sandbox.asked == []
    assert events(log_file) == recorded * 2
    assert verify(log_file).ok


async def test_a_log_that_another_writer_locks_keeps_the_command_waiting_and_not_the_loop(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    await gate.run(Command(command="echo first"))
    with log_file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = asyncio.ensure_future(gate.run(Command(command="echo second")))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert (done, sandbox.asked) == (set(), ["echo first"])
    assert (await waiting).stdout == "second\n"
    assert events(log_file) == [Event.STARTED, Event.ENDED] * 2
    assert verify(log_file).ok


async def test_what_was_decided_before_is_decided_the_same_and_recorded_again(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    strict = gate.with_policy(STRICT, approver=None, session="s")
    for _ in range(2):
        await gate.run(Command(command="echo a"))
        for refusing, command in ((gate, "sudo id"), (strict, "echo a")):
            with pytest.raises(SecurityError):
                await refusing.run(Command(command=command))
    assert sandbox.asked == ["echo a"] * 2
    assert events(log_file) == [Event.STARTED, Event.ENDED, Event.REFUSED, Event.REFUSED] * 2
    assert verify(log_file).ok


async def nothing(_channel: Channel) -> None:
    """No work."""


async def test_live_output_arrives_and_the_end_is_recorded(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    async with gate.open(Command(command="cat", stdin_open=True)) as running:
        await running.write(b"one")
        stream, data = await anext(aiter(running.output()))
        assert (stream, data) == ("stdout", b"one")
        await running.close_stdin()
    assert [(record.event, record.reason) for record in read(log_file)] == [
        (Event.STARTED, ""),
        (Event.ENDED, Reason.EXITED),
    ]


async def test_a_job_is_judged_too_and_its_end_is_recorded(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    job = await gate.start(Command(command="cat", stdin_open=True))
    channel = await sandbox.channel()
    await channel.write_stdin(job, b"x", close=True)
    assert await gate.wait(job, wait_s=WAIT_S) is not None
    await gate.close()
    assert events(log_file) == [Event.STARTED, Event.ENDED]
    assert [record.truncated for record in read(log_file)] == [None, False]


async def test_a_recalled_result_is_judged_and_recorded_and_nothing_runs(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    before = ExecutionResult(0, "a\n", "", 5, stdout_bytes=2)
    assert await gate.recall(Command(command="echo a"), before) is before
    with pytest.raises(SecurityError):
        await gate.recall(Command(command="sudo id"), before)
    assert sandbox.asked == []
    assert events(log_file) == [Event.STARTED, Event.ENDED, Event.REFUSED]
    assert [record.sandbox for record in read(log_file)][:2] == ["cache", "cache"]


async def test_a_job_can_be_waited_for_and_ended_and_its_end_is_recorded_by_then(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    job = await gate.start(Command(command="sleep 600 & sleep 600"))
    assert await gate.wait(job, wait_s=0) is None
    assert gate.running_jobs == [job]
    assert (await gate.stop(job)).reason is Reason.CANCELLED
    assert gate.running_jobs == []
    assert [record.reason for record in read(log_file)] == ["", Reason.CANCELLED]
    again = await gate.wait(job, wait_s=0)
    assert again is not None
    assert again.reason is Reason.CANCELLED


async def test_who_waits_for_a_job_is_not_cancelled_with_the_gate(
    sandbox: RecordingSandbox,
) -> None:
    gate = Gate(POLICY, sandbox)
    job = await gate.start(Command(command="sleep 600"))
    waiting = asyncio.ensure_future(gate.wait(job, wait_s=WAIT_S))
    await asyncio.sleep(0)
    await gate.close()
    assert await waiting is None
    assert (await gate.stop(job)).reason is Reason.CANCELLED


async def test_a_start_that_is_interrupted_leaves_no_job_behind(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    await gate.run(Command(command="true"))
    channel = await sandbox.channel()
    for turns in range(12):  # Wherever it is just then.
        command = Command(command="sleep 600")
        task = asyncio.ensure_future(gate.start(command))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await gate.stop(await task)
        for job in gate.running_jobs:
            await gate.wait(job, wait_s=WAIT_S)
        assert [each for each in await channel.list_jobs() if each.running] == []
    begun = events(log_file).count(Event.STARTED)
    assert events(log_file).count(Event.ENDED) == begun


async def test_variables_of_an_agent_are_judged_with_its_command(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit)
    for variables in ({"LD_PRELOAD": "/tmp/x.so"}, {"GIT_DIR": "/x"}, {"PATH": "."}):
        with pytest.raises(SecurityError, match="changes which programs"):
            await gate.start(Command(command="ls"), Call(variables=variables))
    with pytest.raises(ConfigurationError):
        await gate.start(Command(command="ls"), Call(variables={"A=1; sudo id;B": "x"}))
    with pytest.raises(SecurityError):
        await gate.start(Command(command="$A id"), Call(variables={"A": "sudo"}))
    job = await gate.start(
        Command(command='echo "$GREETING"'), Call(variables={"GREETING": "a'b\n$(id)"}, session="s")
    )
    assert (await gate.wait(job, wait_s=10)) is not None
    part = await (await sandbox.channel()).read_output(job, "stdout")
    assert part.data == b"a'b\n$(id)\n"
    assert list(read(log_file))[-1].session == "s"


async def test_work_over_the_channel_is_judged_and_recorded_as_the_command_that_does_the_same(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path, tmp_path: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit, cwd=str(tmp_path))

    async def reading(channel: Channel) -> bytes:
        return await channel.read_file(f"{tmp_path}/a.txt")

    with pytest.raises(FileNotFoundError):
        await gate.perform(Command(command="cat a.txt"), reading)
    (tmp_path / "a.txt").write_bytes(b"x")
    assert await gate.perform(Command(command="cat a.txt"), reading) == b"x"
    with pytest.raises(SecurityError):
        await gate.perform(Command(command="cat /etc/shadow"), reading)
    assert [(record.event, record.exit_code) for record in read(log_file)] == [
        *((Event.STARTED, None), (Event.ENDED, 1)),
        *((Event.STARTED, None), (Event.ENDED, 0)),
        (Event.REFUSED, None),
    ]


async def test_a_file_access_is_judged_done_and_recorded(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path, tmp_path: Path
) -> None:
    gate = Gate(POLICY, sandbox, audit=audit, cwd=str(tmp_path), labels=RecordLabels(user="u"))
    path = f"{tmp_path}/a b.txt"

    async def reading(channel: Channel) -> bytes:
        return await channel.read_file(path)

    async def misread(channel: Channel) -> bytes:
        raise ConfigurationError("it is too big")

    with pytest.raises(FileNotFoundError):
        await gate.access(FileAccess("read", path), reading)
    (tmp_path / "a b.txt").write_bytes(b"x")
    assert (
        await gate.access(FileAccess("read", "sub/../a b.txt"), reading, Call(session="s")) == b"x"
    )
    with pytest.raises(ConfigurationError, match="too big"):
        await gate.access(FileAccess("read", path), misread)
    with pytest.raises(SecurityError, match="Blocked file access: /etc/shadow"):
        await gate.access(FileAccess("read", "/etc/shadow"), reading)
    found = [(each.event, each.command, each.exit_code, each.error) for each in read(log_file)]
    start = (Event.STARTED, f"read '{path}'", None, "")
    missing = f"[Errno 2] No such file or directory: '{path}'"
    assert found == [
        *(start, (Event.ENDED, "", 1, missing)),
        *(start, (Event.ENDED, "", 0, "")),
        *(start, (Event.ENDED, "", 1, "it is too big")),
        (Event.REFUSED, "read /etc/shadow", None, ""),
    ]
    records = list(read(log_file))
    assert [each.session for each in records] == ["", "", "s", "s", "", "", ""]
    assert {each.user for each in records} == {"u"}
    assert len({each.id for each in records}) == 4
    assert records[-1].rules == ("read-secret",)
    assert {each.kind for each in records if each.command} == {"file access"}
    assert sandbox.asked == []


async def test_a_person_is_asked_about_file_accesses(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path, tmp_path: Path
) -> None:
    no, yes = Person(agrees=False), Person(agrees=True)
    hook = FileAccess("write", ".git/hooks/x")
    for gate in (Gate(POLICY, sandbox, audit=audit, cwd="/w"), Gate(POLICY, sandbox, approver=no)):
        with pytest.raises(UserCancelledError, match="this file access needs approval"):
            await gate.access(hook, nothing)
    assert events(log_file) == [Event.ASKED, Event.DECLINED]
    gate = Gate(POLICY, sandbox, cwd="/w", approver=no, ask_always=True)
    with pytest.raises(UserCancelledError, match="every file access needs approval here"):
        await gate.access(FileAccess("list", "a"), nothing)
    await gate.access(hook, nothing, Call(approver=yes))
    assert yes.asked == ["write /w/.git/hooks/x"]


async def test_validators_see_file_accesses(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    def closed(text: str) -> None:
        raise SecurityError(f"closed for {text}")

    gate = Gate(POLICY, sandbox, audit=audit, cwd="/w", validators=[closed])
    with pytest.raises(SecurityError, match="closed for remove /w/a"):
        await gate.access(FileAccess("remove", "a"), nothing)
    assert [(each.event, each.reason) for each in read(log_file)] == [
        (Event.REFUSED, "closed for remove /w/a")
    ]


async def test_under_the_open_profile_what_cannot_be_read_runs_and_is_recorded_as_unread(
    sandbox: RecordingSandbox, audit: AuditLog, log_file: Path
) -> None:
    gate = Gate(load_policy("open"), sandbox, audit=audit)
    assert (await gate.run(Command(command="echo a; echo 'b"))).exit_code == 2
    assert (await gate.run(Command(command="echo a\x01b"))).stdout == "a\x01b\n"
    with pytest.raises(SecurityError):
        await gate.run(Command(command=" "))
    await gate.access(FileAccess("list", "/etc/odd\udcff\x1b\n"), nothing)
    started = [each for each in read(log_file) if each.event is Event.STARTED]
    assert [(each.verdict, each.rules) for each in started] == [
        ("allow", ("unreadable",)),
        ("allow", ("unreadable",)),
        ("allow", ()),
    ]
    assert started[0].reason.startswith("it is not valid shell")
    asking = Gate(load_policy("open"), sandbox, ask_always=True)
    with pytest.raises(UserCancelledError, match="every command needs approval here"):
        await asking.run(Command(command="echo 'b"))


async def test_the_warning_that_nothing_protects_the_machine_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = HostAdapter(tmp_path, warn_on_start=False)
    gates = [Gate(load_policy(), host), Gate(load_policy("open"), host)]
    try:
        for gate in gates:
            for _ in range(2):
                await gate.run(Command(command="true"))
                await gate.access(FileAccess("list", "a"), nothing)
        other = gates[1].with_policy(load_policy("open"), approver=None, session="")
        await other.access(FileAccess("list", "odd\udcff\x1b"), nothing)
    finally:
        await host.cleanup()
    said = [each.getMessage() for each in caplog.records if "nothing protects" in each.getMessage()]
    assert said == ["nothing protects this machine: policy `open` refuses nothing on the bare host"]


async def test_a_sandbox_is_protection_enough_for_the_open_profile(
    sandbox: RecordingSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    await Gate(load_policy("open"), sandbox).run(Command(command="true"))
    assert "nothing protects" not in caplog.text


async def test_a_call_may_have_a_person_of_its_own(sandbox: RecordingSandbox) -> None:
    no, yes = Person(agrees=False), Person(agrees=True)
    gate = Gate(POLICY, sandbox, approver=no)
    job = await gate.start(Command(command="git init x"), Call(approver=yes))
    assert (await gate.wait(job, wait_s=30)) is not None
    assert (no.asked, yes.asked) == ([], ["git init x"])
