"""A Docker engine for one test, which can stop and start without affecting others.

It has its own pid, mount and network namespaces, so nothing is left when it ends.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.engine import ask
from tests.tasks.hosting import WAIT_S, wait_until

_BOX = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


class OwnEngine:
    """Call `start` and `stop` as often as needed, and `end` at last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/socket"
        self._group = f"kakoi-test-{folder.name}-{os.getpid()}"
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = ["dockerd", "--host", self.host, "--data-root", f"{self.folder}/data"]
        argv += ["--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid"]
        argv += ["--cgroup-parent", f"/{self._group}"]
        argv += ["--config-file", f"{self.folder}/settings.json", "--shutdown-timeout", "5"]
        (self.folder / "settings.json").write_text("{}")
        # These contain pids of dead processes, which other processes have in a new namespace.
        for name in ("pid", "exec"):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._running = subprocess.Popen([*_BOX, *argv], stdout=log, stderr=log)
        wait_until(lambda: self.is_up() or (self._running and self._running.poll() is not None))
        assert self.is_up(), (self.folder / "log").read_text()[-3000:]

    def is_up(self) -> bool:
        try:
            return bool(ask("/version", self.host))
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the engine as a service manager would. It stops its containers."""
        assert self._running is not None
        for pid in self.processes("dockerd"):
            os.kill(pid, signal.SIGTERM)
        self._running.wait(WAIT_S)

    def end(self) -> None:
        if self._running is not None and self._running.poll() is None:
            self._running.kill()  # The kernel kills its namespaces with it.
            self._running.wait(WAIT_S)
        limit = time.monotonic() + WAIT_S
        while self.folder.exists() and time.monotonic() < limit:
            shutil.rmtree(self.folder, ignore_errors=True)
        # Not with a pattern: other tests remove groups while it is matched, and then it fails.
        top = Path("/sys/fs/cgroup")
        for group in [top / self._group, *(each / self._group for each in top.iterdir())]:
            for folder, _groups, _files in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()

    def processes(self, word: str = "") -> list[int]:
        """Return the processes in its namespaces, by their pids outside."""
        assert self._running is not None
        found = []
        first = _children(self._running.pid)
        while first:
            pid = first.pop()
            first += _children(pid)
            words = _read(f"/proc/{pid}/cmdline").replace("\0", " ")
            # A zombie has no arguments. dockerd is the init of its namespace but does not reap.
            if words and word in words.split(" ")[0]:
                found.append(pid)
        return found

    def mounts(self) -> list[str]:
        """Return its mounts for containers."""
        (pid,) = self.processes("dockerd")
        lines = _read(f"/proc/{pid}/mountinfo").splitlines()
        return [line for line in lines if f"{self.folder}/" in line and "/data " not in line]

    def docker(self, *args: str) -> str:
        argv = ["docker", "-H", self.host, *args]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def load(self, image: str) -> None:
        """Copy the image from the shared engine."""
        argv = ["docker", "-H", self.host, "load", "--quiet"]
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            given = saved.stdout
            subprocess.run(argv, stdin=given, check=True, timeout=WAIT_S, capture_output=True)
        assert saved.returncode == 0


def _children(pid: int) -> list[int]:
    # For each thread, because a child belongs to the thread that started it.
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for file in files for each in _read(str(file)).split()]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
