"""The program inside a sandbox: starts commands, forwards their streams, and reliably ends them.

It is sent over its own stream (channel/delivery.py) and speaks the protocol of frames.py. One
runner serves a sandbox. In a sandbox that outlives its clients (`linger`), the runner stays while
jobs run; a later client's runner finds it by a socket and passes its stream to it, so the jobs are
found again.

Standard library only, Python >= 3.8. It needs no file of its own in the sandbox.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import fcntl
import gc
import os
import struct
import sys
import termios
from _collections import deque  # type: ignore[import-not-found]  # Without four more modules.

from kakoi.runner import frames, plain_json
from kakoi.runner import keeper as keeper_program
from kakoi.runner.allowlist import Programs, find_programs, kept_out
from kakoi.runner.clients import Client
from kakoi.runner.frames import changes_the_shell
from kakoi.runner.jobs import RunnerJob
from kakoi.runner.loop import READ, Loop
from kakoi.runner.memory import MemoryGroups, OomCounter, OomScores
from kakoi.runner.orders import Orders, check_run
from kakoi.runner.resident_keeper import (
    CommandRecord,
    Keeper,
    KeeperOptions,
    end_orphans,
    start_fork_server,
)
from kakoi.runner.restrictions import (
    RestrictionError,
    landlock_abi,
    restrict_commands,
    restrict_runner,
)
from kakoi.runner.rlimits import apply_rlimits, find_full_disk
from kakoi.runner.runner_socket import RunnerListener, RunnerSilentError, StartLock
from kakoi.runner.streams import CommandInput, CommandOutput, ReadBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from typing import Any

    from kakoi.runner.clients import Request
    from kakoi.runner.fork_server import ForkServer
    from kakoi.runner.loop import Timer

_SPARE_KEEPERS = 4
_TRIM_AFTER_S = 10.0
_REMEMBERED_MEMORY = 8 * 1024 * 1024
_REMEMBERED_FILES = 256 * 1024 * 1024
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh")


class Runner:
    """All clients and all jobs of one sandbox."""

    def __init__(
        self,
        settings: dict[str, Any],
        options: KeeperOptions,
        fork_server: ForkServer | None = None,
        landlock: int = 0,
        programs: Programs | None = None,
    ) -> None:
        self.loop = Loop()
        self._keeper_options = options
        self._fork_server = fork_server
        self._programs = programs
        self._landlock = landlock
        self.closing = False
        self.expired = False
        if settings.get("lifetime_s") is not None:
            self.loop.after(settings["lifetime_s"], self._expire)
        self._lingers: bool = settings.get("linger", False)
        self._clients: list[Client] = []
        self._jobs: dict[str, RunnerJob] = {}
        self._over: deque[RunnerJob] = deque()
        self._stored_memory = 0
        self._stored_files = 0
        self._orders = Orders(self.loop, self._jobs)
        self._idle: list[Keeper] = []
        self._keepers: dict[int, Keeper] = {}
        self._busy: dict[int, RunnerJob] = {}
        self._least_idle = 0
        self._trimming: Timer | None = None
        self._read_buffer = ReadBuffer()
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._shell = usual_shell()
        self._cwd = os.getcwd()
        self._groups = MemoryGroups(settings.get("job_groups", []))
        self._memories = self._groups.memories or [OomCounter(settings.get("oom_counter", ""))]
        self._env = {
            name: value
            for name, value in os.environb.items()
            if not changes_the_shell(os.fsdecode(name))
        }

    # --- Clients -----------------------------------------------------------------------------

    def welcome(self, reading: int, writing: int, held: socket.socket | None = None) -> None:
        """Serve one more client. `held` is closed when its stream ends."""
        client = Client(self, reading, writing, held)
        self._clients.append(client)
        self.closing = False
        hello = {
            "version": frames.VERSION,
            "shell": self._shell,
            "uid": os.getuid(),
            "cwd": self._cwd,
            "landlock": self._landlock,
        }
        client.send(frames.frame(frames.HELLO, 0, plain_json.dumps(hello)))

    def leave(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
        self._close_if_done()

    def _close_if_done(self) -> None:
        running = any(job.running and job.in_background for job in self._jobs.values())
        self.closing = not self._clients and not (self._lingers and running)

    def _expire(self) -> None:
        self.expired = True

    def obey(self, request: Request, order: dict[str, Any]) -> None:
        """Carry out an order. OSError becomes the answer; any other error is the client's fault."""
        if order["op"] == "run":
            self._run(request, order)
        else:
            self._orders.obey(request, order)

    # --- Commands ----------------------------------------------------------------------------

    def _run(self, request: Request, order: dict[str, Any]) -> None:
        check_run(order)
        known = self._jobs.get(order["id"])
        job = known or RunnerJob(self.loop, order, self._read_buffer, self._on_over)
        self._jobs[job.id] = job
        if job.in_background:
            if known is None:
                self._start(job)
            request.answer({"id": job.id})
        elif known is None:
            request.job, job.follower = job, request
            self._start(job)
        else:  # A repeated id does not run the command again.
            self._orders.answer_when_over(request, job, None)

    def _start(self, job: RunnerJob) -> None:
        theirs: list[int] = []
        try:
            words = self._words(job.order)
            terminal = self._connect(job, theirs)
            keeper = self._take_keeper()
            self._busy[keeper.pid] = job
            job.keeper = keeper
            keeper.start((*words, terminal, self._asked_shell(job)), theirs)
            # Only now, while the keeper is at work: it does not need the rest.
            for output in job.outputs:
                output.watch()
            job.arm()
        except OSError as error:
            if job.keeper is not None:
                del self._busy[job.keeper.pid]
                self._dismiss(job.keeper)
            job.fail("no_keeper", error.errno or errno.EIO)
        except UnicodeEncodeError:
            job.fail("no_start", errno.EILSEQ)
        finally:
            for fd in theirs:
                if fd != self._null:
                    os.close(fd)

    def _words(self, order: dict[str, Any]) -> tuple[list[bytes], dict[bytes, bytes], bytes]:
        command = order["command"]
        if isinstance(command, str):
            options = ["--norc", "--noprofile"] if self._shell.endswith("bash") else []
            command = [self._shell, *options, "-c", "--", command]
        env = dict(self._env)
        for name, value in order["env"].items():
            env[encode(name)] = encode(value)
        return [encode(word) for word in command], env, encode(order.get("cwd") or self._cwd)

    def _asked_shell(self, job: RunnerJob) -> str:
        if not job.order.get("report_shell") or not isinstance(job.order["command"], str):
            return ""
        return "bash" if self._shell.endswith("bash") else "sh"

    def _connect(self, job: RunnerJob, theirs: list[int]) -> bool:
        """Create the job's streams and add the command's ends to `theirs`. True for a terminal."""
        spill = job.order["spill"]
        limit = job.order["send_limit"]
        size = job.order.get("terminal")
        if size:
            ours, slave = os.openpty()
            theirs.append(slave)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            job.terminal = ours
            job.outputs = [
                CommandOutput(job, ours, frames.STDOUT, send_limit=limit, spill_limit=spill)
            ]
            job.stdin = CommandInput(job, os.dup(ours), terminal=True)
            if not job.order["stdin"]:
                job.stdin.feed(b"")
            return True
        if job.order["stdin"]:
            reading, writing = os.pipe()
            theirs.append(reading)
            job.stdin = CommandInput(job, writing)
        else:
            theirs.append(self._null)
        for kind in (frames.STDOUT, frames.STDERR):
            reading, writing = os.pipe()
            theirs.append(writing)
            job.outputs.append(
                CommandOutput(job, reading, kind, send_limit=limit, spill_limit=spill)
            )
        return False

    # --- Keepers -----------------------------------------------------------------------------

    def _take_keeper(self) -> Keeper:
        keeper = self._idle.pop() if self._idle else self._new_keeper()
        self._least_idle = min(self._least_idle, len(self._idle))
        return keeper

    def _new_keeper(self) -> Keeper:
        keeper = Keeper(self._keeper_options, self._fork_server)
        if self._groups.memories:
            try:
                taken = [each.group for each in self._keepers.values()]
                keeper.group = self._groups.enter(keeper.pid, taken)
            except OSError:
                keeper.close()
                raise
        self._keepers[keeper.pid] = keeper
        self.loop.watch(keeper.fileno(), READ, lambda _events: self._on_record(keeper))
        return keeper

    def prepare(self) -> None:
        """Start one keeper before the first command arrives."""
        self._idle.append(self._new_keeper())

    def _on_record(self, keeper: Keeper) -> None:
        record = keeper.record()
        job = self._busy.pop(keeper.pid, None)
        failed = record.kind != "exited" or record.number != 0
        ran_out = failed and self._memories[keeper.group].ran_out()
        if record.kind == "lost":
            self._dismiss(keeper)
            # Without its keeper, the runner inherits what the command started.
            del self._keepers[keeper.pid]
            record.survivors = end_orphans(self._ours())
        elif record.survivors or (ran_out and self._groups.memories):
            # The memory that filled its group may stay forever: the next command gets another one.
            self._dismiss(keeper)
        else:
            self._idle.append(keeper)
            if len(self._idle) > _SPARE_KEEPERS:
                self._trim_later()
        if job is not None:
            if ran_out and not job.why:
                job.why = "out_of_memory" if _was_killed(record) else ""
            if failed:
                job.disk_full = find_full_disk(self._places(job))
                job.kept_out = self._kept_out(job, record)
            job.over(record)

    def _kept_out(self, job: RunnerJob, record: CommandRecord) -> str:
        is_text = isinstance(job.order["command"], str)
        return kept_out(self._programs, record, self._words(job.order), is_text=is_text)

    def _ours(self) -> set[int]:
        return {*self._keepers, *([self._fork_server.pid] if self._fork_server else [])}

    def _places(self, job: RunnerJob) -> list[bytes]:
        """Return the directories where a command usually writes."""
        env = {**self._env, **{encode(k): encode(v) for k, v in job.order["env"].items()}}
        temporary = env.get(b"TMPDIR", b"/tmp")
        cwd = encode(job.order.get("cwd") or self._cwd)
        return [cwd, encode(self._cwd), temporary, env.get(b"HOME", b"/")]

    def _trim_later(self) -> None:
        if self._trimming is None:
            self._trimming = self.loop.after(_TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        """Dismiss keepers that were not needed for a while, and reap those that have exited."""
        for keeper in self._idle[: max(0, self._least_idle - _SPARE_KEEPERS)]:
            self._dismiss(keeper)
        self._least_idle = len(self._idle)
        for pid in [pid for pid, keeper in self._keepers.items() if keeper.gone()]:
            del self._keepers[pid]
        self._trimming = None
        if len(self._idle) > _SPARE_KEEPERS or len(self._keepers) > len(self._idle) + len(
            self._busy
        ):
            self._trim_later()

    def _dismiss(self, keeper: Keeper) -> None:
        self.loop.forget(keeper.fileno())
        keeper.close()
        if keeper in self._idle:
            self._idle.remove(keeper)
        self._trim_later()

    def _on_over(self, job: RunnerJob) -> None:
        """A job has ended: remember it, and forget the oldest if there are too many."""
        self._over.append(job)
        self._stored_memory += job.memory_bytes()
        self._stored_files += job.file_bytes()
        while (
            len(self._over) > frames.REMEMBERED_JOBS
            or self._stored_memory > _REMEMBERED_MEMORY
            or self._stored_files > _REMEMBERED_FILES
        ):
            oldest = self._over.popleft()
            self._stored_memory -= oldest.memory_bytes()
            self._stored_files -= oldest.file_bytes()
            oldest.forget()
            del self._jobs[oldest.id]
        if not self._clients:
            self._close_if_done()

    def end(self) -> None:
        """End every command and every keeper."""
        if self._fork_server is not None:
            self._fork_server.close()
        for keeper in self._keepers.values():
            keeper.close()
        for keeper in self._keepers.values():
            keeper.wait()
        end_orphans(set())


def _was_killed(record: CommandRecord) -> bool:
    """Does it look like an OOM kill: of the command, of a child of its shell, or of its keeper?"""
    by_signal = record.kind == "signalled" and record.number == signal.SIGKILL
    return by_signal or record.kind == "lost" or (record.kind, record.number) == ("exited", 137)


def usual_shell() -> str:
    """Return the shell that runs commands given as text."""
    return next((path for path in _SHELLS if os.access(path, os.X_OK)), "/bin/sh")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _restricted(
    settings: dict[str, Any], options: KeeperOptions
) -> tuple[ForkServer | None, int, Programs | None]:
    """Apply the requested restrictions; returns the fork server, the Landlock version, and the
    programs that can be executed."""
    if settings.get("cwd"):
        try:
            os.chdir(settings["cwd"])
        except OSError as error:
            fix = "move it, or chmod a+x every directory above it"
            raise RestrictionError(
                f"user {os.getuid()} cannot get to {error.filename}", fix
            ) from None
    restrictions = settings.get("restrictions") or {}
    if not restrictions:
        return None, 0, None
    path = os.fsdecode(os.environb.get(b"PATH", os.defpath.encode()))
    programs = find_programs(restrictions, path, usual_shell())
    restrict_runner(restrictions)
    try:
        fork_server = start_fork_server(lambda: restrict_commands(restrictions), options)
        return fork_server, landlock_abi(), programs
    except OSError as error:
        if restrictions.get("needs_abi"):
            raise RestrictionError(
                f"commands cannot be confined: {error}", "kakoi doctor"
            ) from None
        return None, 0, None


def main(settings: dict[str, Any]) -> None:
    """Serve standard input and output until they end."""
    reading = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    writing = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    turn = StartLock(settings.get("key", "")) if settings.get("linger") else None
    try:
        if turn is not None and turn.held and turn.hand_over(reading, writing):
            return
    except RunnerSilentError:
        sys.exit("kakoi: there is a runner already, and it does not answer")
    options = KeeperOptions(settings.get("rlimits", {}), OomScores())
    keeper_program.become_keeper()
    keeper_program.prctl(keeper_program.PR_SET_CHILD_SUBREAPER, 1)
    if settings.get("max_processes"):
        apply_rlimits({"processes": settings["max_processes"]})
    gc.freeze()  # Before forking: a garbage collection would copy every page it touches.
    try:
        runner = Runner(settings, options, *_restricted(settings, options))
    except RestrictionError as error:
        sys.exit(f"kakoi-unenforced: {error}\nfix: {error.fix}")
    meeting = None if turn is None else RunnerListener(turn, runner.loop, runner.welcome)
    runner.prepare()
    runner.welcome(reading, writing)
    while not runner.expired and (not runner.closing or (meeting is not None and meeting.expects)):
        runner.loop.turn()
    if meeting is not None:
        meeting.close()
    runner.end()
