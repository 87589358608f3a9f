"""A user with settings, a project, a scripted model and a tracker, and switches to try on them."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kakoi.settings.model import settings_table
from tests.agents.openai_server import OpenAIServer, Raw, Reacts, Said
from tests.cli.calling import Home
from tests.cli.forked import Forked
from tests.cli.terminals import PATIENCE_S
from tests.tasks.hub import git, make_project

See = Callable[["World"], object]
# Unset, so that only the settings file says where to run and what to record.
_UNSET = ("KAKOI_AUDIT_FILE",)
SLOW = "how often it looks"


@dataclass(frozen=True)
class Switch:
    """Two values of a setting, and what a user sees with each.

    `base`: the other settings that it takes. `{root}` in a text is the user's home.
    """

    path: str
    values: tuple[object, object]
    see: See
    seen: tuple[object, object]
    base: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def written_name(path: str) -> str:
    """How the original design's file spells a setting, if it has it."""
    also = settings_table()[path].also
    return next((each for each in also if each.startswith("command_executor.")), path)


class World:
    """One user, whose settings file has `values`."""

    def __init__(self, root: Path, values: Mapping[str, object], env: Mapping[str, str]) -> None:
        root.mkdir(parents=True)
        unset = dict.fromkeys(_UNSET, "") if "audit.file" in values else {}
        engine = {k: os.environ[k] for k in ("DOCKER_HOST",) if k in os.environ}
        self.root = root
        self.home = Home(root, {**engine, **unset, **self._filled(env)})
        self.home.project.mkdir()
        self.values = {path: self._fill(value) for path, value in values.items()}
        self.settle({})

    def settle(self, more: Mapping[str, object]) -> None:
        """Write the settings file."""
        nested: dict[str, Any] = {}
        for path, value in {**self.values, **more}.items():
            *sections, name = written_name(path).split(".")
            at = nested
            for each in sections:
                at = at.setdefault(each, {})
            at[name] = value
        self.home.write(self.home.config, json.dumps(nested))

    def _fill(self, value: object) -> object:
        if isinstance(value, str):
            return value.replace("{root}", str(self.root))
        return list(map(self._fill, value)) if isinstance(value, list | tuple) else value

    def _filled(self, env: Mapping[str, str]) -> dict[str, str]:
        return {name: str(self._fill(value)) for name, value in env.items()}

    # --- Commands ----------------------------------------------------------------------------

    def kakoi(self, *words: str) -> tuple[int, str, str]:
        status, out, err = self.home(*words)
        assert "Traceback" not in err, err
        return status, out, err

    def run(self, command: str) -> str:
        """The output of a command that runs."""
        status, out, err = self.kakoi("run", command)
        assert status == 0, err
        return out.strip()

    def report(self, command: str) -> dict[str, Any]:
        """What `kakoi run --json` says about a command."""
        _, out, err = self.kakoi("run", "--json", command)
        assert out, err
        found: dict[str, Any] = json.loads(out)
        return found

    def with_path(self, folder: Path) -> "World":
        """The same, with another folder of programs."""
        path = f"{folder}:{os.environ['PATH']}"
        self.home = Home(self.root, {**self.home.env, "PATH": path})
        return self

    # --- An agent ----------------------------------------------------------------------------

    def work(self, *said: Said | Raw | Reacts) -> "Work":
        """`kakoi agent run` on a task about the workspace."""
        task = self.home.write(self.root / "task.md", "# Say hello\n\nSay it.\n")
        return self._agent(task, said)

    def do(self, *said: Said | Raw | Reacts, head: str = "") -> "Work":
        """`kakoi agent run` on a task with a repository."""
        if not self.bare.exists():
            make_project(self.bare)
        text = f"---\ntitle: Adding is broken\nrepository: {self.bare}\n{head}---\nMend it.\n"
        return self._agent(self.home.write(self.root / "adding.md", text), said)

    @property
    def bare(self) -> Path:
        return self.root / "srv" / "project.git"

    @property
    def record(self) -> dict[str, Any]:
        """What is stored beside the task."""
        file = self.root / "adding.md.kakoi.json"
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def set_labels(self, *labels: str) -> None:
        (self.root / "adding.md.kakoi.json").write_text(
            json.dumps({**self.record, "labels": labels})
        )

    def pushed(self, form: str) -> str:
        """Something about the commit that the agent has pushed."""
        branch = git(self.bare, "for-each-ref", "--format=%(refname)", "refs/heads/coding-agent")
        return git(self.bare, "log", "-1", f"--format={form}", branch)

    def _agent(self, task: Path, said: Sequence[Said | Raw | Reacts]) -> "Work":
        with OpenAIServer(*said).listening() as server:
            url = server.url
            given = {path: str(value).replace("{url}", url) for path, value in self.values.items()
                     if "{url}" in str(value)}  # fmt: skip
            models = {"agent.model": "openai:scripted", "agent.base_url": url}
            self.settle({**{k: v for k, v in models.items() if k not in self.values}, **given})
            words = ["agent", "run", str(task), "--json"]
            words += ["--workspace", str(self.home.project)]
            status, out, err = self.kakoi(*words)
            answer = json.loads(out) if out.strip() else {}
        return Work(status, answer, err, server)

    # --- Long runs ---------------------------------------------------------------------------

    def lines(self, *words: str, enough: int, is_often: bool) -> int:
        """How many lines a continuous command prints: `enough` if it looks often, else one."""
        file = self.root / "lines"
        with file.open("wb") as out:
            running = Forked(
                *words, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.home.project, env=self.home.environ,
            )  # fmt: skip
            try:
                self._until(file, enough if is_often else 1, PATIENCE_S)
                if not is_often:
                    self._until(file, enough, 0.3)
            finally:
                running.kill()
                running.communicate()
        return min(len(file.read_bytes().splitlines()), enough)

    def _until(self, file: Path, count: int, patience_s: float) -> None:
        give_up = time.monotonic() + patience_s
        while len(file.read_bytes().splitlines()) < count and time.monotonic() < give_up:
            time.sleep(0.01)


@dataclass(frozen=True)
class Work:
    """What became of an agent's work."""

    status: int
    answer: dict[str, Any]
    err: str
    server: OpenAIServer

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.server.requests
