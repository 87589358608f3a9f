"""The program that starts one command and ends every process below it.

    python3 -I -S keeper.py LINE        run the command that is requested on descriptor LINE
    python3 -I -S keeper.py end PID     help keeper PID, which does not answer, to end its command

Standard library only, Python >= 3.8, no import of kakoi: it is started by its path.

    our process ──line── guard ──report── second ── the command ── its descendants

Guard and second are *child subreapers*: an orphan below them becomes their child, not init's. The
second starts the command on our standard streams and waits for it. The guard watches the line, the
clock and the second. When the command exits, the timeout expires, the line ends (we cancel, or we
are dead) or the second is killed, the guard kills every process below itself until it has no child
left. Then it writes one record to the line and exits. There are two processes because a command can
kill its parent.

The request is a length in ten digits and that many bytes: fields joined by NUL. The fields are the
timeout in ms (0: none), the time limit for ending all processes in ms, the working directory
(empty: ours), the number of arguments, the arguments, and NAME=VALUE for each variable.
The record is one line, `kind number duration_ms cpu_ms max_rss_kib ended survivors`. It begins with

    exited CODE, signalled SIGNAL, timed_out 0, cancelled 0, second_lost 0, or
    no_cwd, no_program, no_start, no_keeper ERRNO: nothing was started

`ended` counts the processes that had to be killed, `survivors` those that could not be killed. CPU
time and memory cover every process that was reaped below the guard, including the second.
"""

from __future__ import annotations

# Not `signal` and `ctypes`: their classes would take half of our start-up time.
import _ctypes
import _signal as signal  # type: ignore[import-not-found]
import errno
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False  # `typing` would cost more than this whole module.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
_LONGEST_WAIT_MS = 3_600_000
_PATIENCE_FROM_OUTSIDE_S = 60.0
# Processes that we are not allowed to kill (sudo) either exit by themselves soon, or never.
_PATIENCE_WITH_STRANGERS_S = 1.0


class KeeperRequest:
    """The command to run, and its timeout."""

    def __init__(self, body: bytes) -> None:
        fields = body.split(b"\0")
        self.timeout_s = int(fields[0]) / 1000
        self.patience_s = int(fields[1]) / 1000
        self.cwd = fields[2]
        arguments_end = 4 + int(fields[3])
        self.argv = fields[4:arguments_end]
        self.env = dict(entry.split(b"=", 1) for entry in fields[arguments_end:])


class Process:
    """A process as /proc shows it. Its start time tells it from a later one with the same pid."""

    __slots__ = ("alive", "born", "parent", "pid")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses can contain anything, including closing parentheses.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.parent = int(fields[1])
        self.born = int(fields[19])
        # A zombie with threads is a main thread that ended before the others.
        self.alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def main() -> None:
    become_keeper()
    if sys.argv[1] == "end":
        end_from_outside(int(sys.argv[2]))
    else:
        keep(int(sys.argv[1]))
    os._exit(0)


def become_keeper() -> None:
    """Let only SIGKILL end this process, and deny others access to its memory and descriptors."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGCHLD])
    prctl(_PR_SET_DUMPABLE, 0)


class _Function(_ctypes.CFuncPtr):
    """A function of the C library that takes and returns an int and sets errno."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO


def prctl(option: int, argument: int) -> None:
    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program.
    call = _Function(_ctypes.dlsym(library, "prctl"))
    if call(option, argument, 0, 0, 0) != 0:
        raise OSError(_ctypes.get_errno(), "prctl")


def keep(line: int) -> None:
    os.set_inheritable(line, False)
    with open(line, "rb", closefd=False) as file:
        size = int(file.read(10) or 0)
        body = file.read(size)
    if not body or len(body) < size:
        return  # Cancelled before it started.
    request = KeeperRequest(body)
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.stat("/proc/self/stat")  # Without /proc, descendants cannot be found.
        report, report_end = os.pipe()
        second = os.fork()
    except OSError as error:
        return answer(line, b"no_keeper %d 0" % (error.errno or 0))
    if second == 0:
        os.close(line)
        run_command(request, report_end)
    os.close(report_end)
    leave_streams()
    guard(request, line, report, second)


def leave_streams() -> None:
    """Close our copies of the command's streams: readers must not wait for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


def run_command(request: KeeperRequest, report: int) -> None:
    """Run the command and report how it ended, or why it did not start. Never returns."""
    failing = b"no_keeper"
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        failing = b"no_cwd"
        if request.cwd:
            os.chdir(request.cwd)
        failing = b"no_program"
        program = find_program(request.argv[0], request.env.get(b"PATH", os.defpath.encode()))
        failing = b"no_start"
        started = time.monotonic()
        signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        command = os.posix_spawn(
            program, request.argv, request.env, setsid=True, setsigmask=[], setsigdef=signals
        )
    except OSError as error:
        os.write(report, b"%s %d 0" % (failing, error.errno or 0))
        os._exit(0)
    leave_streams()
    ending = wait_for(command)
    os.write(report, b"%s %d %d" % (*ending, (time.monotonic() - started) * 1000))
    os._exit(0)


def find_program(name: bytes, path: bytes) -> bytes:
    """Return the program's path. Ignores relative folders on PATH: "." would run any stray file."""
    if b"/" in name:
        return name
    found = errno.ENOENT
    for folder in path.split(b":"):
        candidate = folder + b"/" + name
        # `access` first: most folders do not have it, and `isfile` takes three times as long.
        if folder.startswith(b"/") and os.access(candidate, os.F_OK) and os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            found = errno.EACCES
    raise OSError(found, os.strerror(found))


def wait_for(command: int) -> tuple[bytes, int]:
    """Reap children, including orphans, until the command has ended; return how it ended."""
    pid, status = os.wait()
    while pid != command:
        pid, status = os.wait()
    if os.WIFSIGNALED(status):
        return b"signalled", os.WTERMSIG(status)
    return b"exited", os.WEXITSTATUS(status)


def guard(request: KeeperRequest, line: int, report: int, second: int) -> None:
    try:
        outcome = watch(line, report, request.timeout_s) or b"second_lost 0 0"
    finally:
        ended, survivors = end_below_us(request.patience_s)
    answer(line, outcome, len(ended - {second}), survivors)


def watch(line: int, report: int, timeout_s: float) -> bytes:
    """Return the second's report (empty if it was killed), or `timed_out` or `cancelled`."""
    poll = select.poll()
    # Watch our parent as well: a child that it forked can keep the line open after its death.
    parent = open_pidfd(os.getppid())
    for fd in (report, line) if parent is None else (report, line, parent):
        poll.register(fd, select.POLLIN)
    started = time.monotonic()
    spent_ms = 0.0
    while True:
        left_ms = timeout_s * 1000 - spent_ms if timeout_s else _LONGEST_WAIT_MS
        ready = {fd for fd, _ in poll.poll(min(max(left_ms, 0), _LONGEST_WAIT_MS))}
        spent_ms = (time.monotonic() - started) * 1000
        if report in ready:
            # The second is about to exit. After that, there is usually nothing left to kill.
            signal.sigtimedwait([signal.SIGCHLD], 0.02)
            return os.read(report, 4096)
        if ready:
            return b"cancelled 0 %d" % spent_ms
        if left_ms <= 0:
            return b"timed_out 0 %d" % spent_ms


def answer(line: int, outcome: bytes, ended: int = 0, survivors: int = 0) -> None:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_ms = (usage.ru_utime + usage.ru_stime) * 1000
    os.write(line, b"%s %d %d %d %d\n" % (outcome, cpu_ms, usage.ru_maxrss, ended, survivors))


def end_below_us(patience_s: float) -> tuple[set[int], int]:
    """Kill and reap until we have no child: every orphan below becomes our child.

    Returns the pids that were killed, and how many processes are still alive after `patience_s`.
    """
    give_up = time.monotonic() + patience_s
    pause_s = 0.001
    ended: set[int] = set()
    while not reap():
        alive = kill_children()
        if alive <= ended:
            # No new orphan has become our child: walk the tree below and kill what is there.
            alive |= kill_below(os.getpid())
            if not any(send(pid, 0) for pid in alive):
                give_up = min(give_up, time.monotonic() + _PATIENCE_WITH_STRANGERS_S)
        ended |= alive
        if reap():
            break
        if time.monotonic() > give_up:
            return ended, sum(process.alive for process in below(os.getpid()))
        signal.sigtimedwait([signal.SIGCHLD], pause_s)
        pause_s = min(pause_s * 2, 0.05)
    return ended, 0


def kill_children() -> set[int]:
    """Kill our own children and their process groups; return the children that were alive.

    This is fast and kills a whole group at once, so it catches processes that fork and exit faster
    than the tree can be walked. Using pids is safe: none is reused before we reap its owner. These
    groups contain only descendants, because the command started its own session.
    """
    children = children_lister()(os.getpid())
    # Never 0 or 1, as seen for a group outside our PID namespace: kill(-1) signals every process.
    groups = {os.getpgid(pid) for pid in children} - {os.getpgid(0), 0, 1}
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    alive = {pid for pid in children if os.waitid(os.P_PID, pid, options) is None}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in [-group for group in groups] + children:
            send(pid, number)
    return alive


def reap() -> bool:
    """Reap the children that have ended; True if no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def end_from_outside(pid: int) -> None:
    """Continue a stopped keeper, and kill what is below it, until it has exited."""
    give_up = time.monotonic() + _PATIENCE_FROM_OUTSIDE_S
    keeper = look(pid)
    while keeper is not None and keeper.alive:
        kill_below(pid)
        send_to(keeper, signal.SIGCONT if time.monotonic() < give_up else signal.SIGKILL)
        time.sleep(0.001)
        keeper = keeper if is_same(keeper) else None


def kill_below(root: int) -> set[int]:
    """Kill every process below `root` and return their pids.

    All are stopped first, so that none can react to the death of another.
    """
    for process in below(root):
        send_to(process, signal.SIGSTOP)
    # List all of them before killing the first: its orphans would move away during the walk.
    return {process.pid for process in list(below(root)) if send_to(process, signal.SIGKILL)}


def send_to(process: Process, number: int) -> bool:
    """Signal exactly this process, never another one that has reused its pid."""
    pidfd = open_pidfd(process.pid)
    meant = process.alive and is_same(process)
    if meant:
        send(process.pid, number, pidfd)
    if pidfd is not None:
        os.close(pidfd)
    return meant


def send(pid: int, number: int, pidfd: int | None = None) -> bool:
    """Signal a process; False if it is gone, or if we are not allowed to."""
    try:
        if pidfd is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(pidfd, number)
    except (PermissionError, ProcessLookupError):
        return False
    return True


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, or None where Python (3.8) or the kernel (before 5.3) has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def below(root: int) -> Iterator[Process]:
    """Yield every descendant of `root`. A parent is yielded before its children are listed."""
    children_of = children_lister()
    seen = {root}
    parents = [look(root)]
    for parent in parents:
        if parent is None:
            continue
        children = [look(pid) for pid in children_of(parent.pid) if pid not in seen]
        if not children or not is_same(parent):
            continue
        for child in children:
            if child is not None and child.parent == parent.pid:
                seen.add(child.pid)
                yield child
                parents.append(child)


def is_same(process: Process) -> bool:
    """Does the pid still belong to that process?"""
    now = look(process.pid)
    return now is not None and now.born == process.born


def look(pid: int) -> Process | None:
    stat = read_file(b"/proc/%d/stat" % pid)
    return Process(pid, stat) if stat else None


def children_lister() -> Callable[[int], list[int]]:
    """Return a function that lists the children of a process.

    A kernel without CONFIG_PROC_CHILDREN has no lists of children: then all processes are scanned.
    """
    has_lists = os.path.exists(b"/proc/self/task/%d/children" % os.getpid())
    return list_children if has_lists else scan_for_children()


def list_children(pid: int) -> list[int]:
    """Return the children of all threads: a child belongs to the thread that forked it."""
    found: list[int] = []
    for thread in list_folder(b"/proc/%d/task" % pid):
        found += map(int, read_file(b"/proc/%d/task/%s/children" % (pid, thread)).split())
    return found


def scan_for_children() -> Callable[[int], list[int]]:
    """Scan all processes once, and return a function that looks up children in the result."""
    children: dict[int, list[int]] = {}
    for name in list_folder(b"/proc"):
        process = look(int(name)) if name.isdigit() else None
        if process is not None:
            children.setdefault(process.parent, []).append(process.pid)
    return lambda pid: children.get(pid, [])


def list_folder(path: bytes) -> list[bytes]:
    try:
        return os.listdir(path)
    except OSError:  # Its process is gone.
        return []


def read_file(path: bytes) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # Its process is gone.
        return b""


if __name__ == "__main__":
    main()
