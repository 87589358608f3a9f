"""install.sh with the test's own lists, fake package managers that only record their arguments, and
a user who is not root."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kakoi.images.description import FOLDER

IS_ROOT = os.geteuid() == 0
USER, GROUP = (65431, 65432) if IS_ROOT else (os.getuid(), os.getgid())
AS_USER = (
    [shutil.which("setpriv") or "setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"]
    if IS_ROOT
    else []
)
SHELLS: Mapping[str, Sequence[str]] = {"dash": ["dash"], "busybox": ["busybox", "sh"]}
# Every program that the script calls, as in an image that has nothing else.
APPLETS = (
    "sh id tr cut sed grep date env cat tail mktemp rm stat printf head mkdir mv ln chmod readlink"
).split()
MANAGER = """#!/bin/sh
printf '%s\\n' "${0##*/}" "$@" >>"$HOME/calls"
echo >>"$HOME/calls"
env >"$HOME/environment"
while [ -e "$HOME/slow" ]; do sleep 0.05; done
if [ -e "$HOME/broken" ]; then cat "$HOME/broken" >&2; exit 1; fi
for last; do :; done
name=${last%"${last#?*@}"}
if [ "${0##*/}" = npm ]; then mkdir -p "node_modules/${name%@}"; fi
"""


@dataclass(frozen=True)
class Ran:
    status: int
    stderr: str


@dataclass(frozen=True)
class Script:
    """The script, in its own folder that every user can reach."""

    folder: Path
    shell: str

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def write_list(self, kind: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        (self.folder / "lists" / f"{kind}.txt").write_bytes(data)

    def remove_list(self, kind: str) -> None:
        (self.folder / "lists" / f"{kind}.txt").unlink(missing_ok=True)

    def start(self, *words: str | bytes, **env: str) -> "subprocess.Popen[bytes]":
        environ = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": f"{self.folder}/home",
            "INSTALL_VENV": f"{self.folder}/venv",
            "INSTALL_LOG_DIR": str(self.logs),
            **env,
        }
        argv = [*AS_USER, *SHELLS[self.shell], str(self.folder / "install.sh"), *words]
        return subprocess.Popen(
            argv,
            env=environ,
            cwd=self.folder / "home",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *words: str | bytes, **env: str) -> Ran:
        with self.start(*words, **env) as running:
            _, said = running.communicate(timeout=120)
        return Ran(running.returncode, said.decode(errors="replace"))

    def calls(self) -> list[list[str]]:
        """Return the calls of package managers since the last time, each as its words."""
        path = self.folder / "home" / "calls"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return [call.splitlines() for call in text.split("\n\n") if call]

    def logged(self) -> list[dict[str, Any]]:
        """Return the log entries since the last time."""
        found = []
        for path in sorted(self.logs.glob("install-*.jsonl")):
            found += [json.loads(line) for line in path.read_bytes().splitlines()]
            path.unlink()
        return found

    def break_managers(self, said: str) -> None:
        (self.folder / "home" / "broken").write_text(said)

    def mend_managers(self) -> None:
        (self.folder / "home" / "broken").unlink(missing_ok=True)


@contextlib.contextmanager
def a_script(shell: str) -> Iterator[Script]:
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    try:
        for name in ("bin", "home", "lists", "logs", "venv"):
            (folder / name).mkdir()
        (folder / "venv" / "pyvenv.cfg").touch()
        text = (FOLDER / "install.sh").read_text()
        assert text.count("\nlists=/etc/allowlist\n") == 1
        assert text.count("=/usr/local/share/kakoi/npm.sh\n") == 1
        text = text.replace("=/usr/local/share/kakoi/npm.sh\n", f"={folder}/npm.sh\n")
        shutil.copy(FOLDER / "npm.sh", folder)
        (folder / "install.sh").write_text(text.replace("/etc/allowlist\n", f"{folder}/lists\n", 1))
        if shell == "busybox":
            for applet in APPLETS:
                (folder / "bin" / applet).symlink_to(shutil.which("busybox") or "busybox")
        for manager in ("apt-get", "pip", "npm"):
            (folder / "bin" / manager).write_text(MANAGER)
            (folder / "bin" / manager).chmod(0o755)
        folder.chmod(0o755)
        if IS_ROOT:
            for name in ("home", "logs", "venv"):
                os.chown(folder / name, USER, GROUP)
        yield Script(folder, shell)
    finally:
        shutil.rmtree(folder)
