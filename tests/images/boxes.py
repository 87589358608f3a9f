"""Helpers to run docker, kakoi, and programs in a container."""

import io
import os
import subprocess
import tarfile
from dataclasses import dataclass

from tests.cli import forked

LABEL = "kakoi.owner=test"
Said = subprocess.CompletedProcess[str]


def docker(*words: str, stdin: bytes | None = None, check: bool = True) -> Said:
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, timeout=300)
    said = Said(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert not check or said.returncode == 0, said.stderr
    return said


def kakoi(*words: str, timeout_s: float = 120, cwd: str = "/", **env: str) -> Said:
    return forked.kakoi(*words, cwd=cwd, env={**os.environ, **env}, text=True, timeout=timeout_s)


@dataclass(frozen=True)
class Box:
    """A running container."""

    name: str

    def __call__(self, script: str, *, user: str = "") -> Said:
        who = ["--user", user] if user else []
        return docker("exec", *who, self.name, "sh", "-c", script, check=False)

    def put(self, files: dict[str, bytes]) -> None:
        """Copy files into the container, owned by root."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for path, content in files.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
        docker("cp", "-", f"{self.name}:/", stdin=data.getvalue())
