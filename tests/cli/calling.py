"""`kakoi` in a separate process, with its own home, audit log and settings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.forked import kakoi


@dataclass(frozen=True)
class Home:
    """A user's home below `root`, so that no command reads or writes the real user's files."""

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def config(self) -> Path:
        return self.root / ".config" / "kakoi" / "config.yaml"

    @property
    def environ(self) -> dict[str, str]:
        own = {"HOME": str(self.root), "KAKOI_AUDIT_FILE": str(self.root / "audit.jsonl")}
        return {"PATH": os.environ["PATH"], **own, **self.env}

    def __call__(self, *arguments: str, stdin: bytes = b"", **env: str) -> tuple[int, str, str]:
        """Run `kakoi` in the project and return its exit code, stdout and stderr."""
        done = kakoi(*arguments, stdin=stdin, cwd=self.project, env={**self.environ, **env})
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
