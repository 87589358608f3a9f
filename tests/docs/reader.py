"""A reader that follows a page in its own home directory and compares the output."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.cli.forked import warm_folder
from tests.docs.pages import ROOT, Block

PATIENCE_S = 120  # `kakoi doctor` on a busy machine
GIT_SETTINGS = (
    "[user]\n\tname = A Reader\n\temail = reader@example.org\n[init]\n\tdefaultBranch = main\n"
)
PROJECTS_OWN = (".kakoi.yaml", "kakoi.yaml")
SETTINGS = (*PROJECTS_OWN, "config.yaml")
WORKFLOWS = ".github/workflows/"
# Blocks that are not run: a drawing, a listing, or the output of a program elsewhere.
SILENT = ("", "text")


@dataclass(frozen=True)
class Step:
    """A command of a terminal example, and the output that the page shows."""

    command: str
    output: list[str]


def steps(text: str) -> list[Step]:
    """Return the commands. `$ ` begins one, `> ` right below continues it, the rest is output."""
    found: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], []))
        elif found and line.startswith("> ") and not found[-1].output:
            found[-1] = Step(f"{found[-1].command}\n{line[2:]}", [])
        elif found:
            found[-1].output.append(line)
    return found


def fits(real: str, expected: list[str]) -> bool:
    """Return whether the output matches. `…` is any text, or any lines if alone on a line."""
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += "[^\n]*".join(map(re.escape, line.rstrip().split("…"))) + "\n"
    lines = "".join(f"{line.rstrip()}\n" for line in real.strip("\n").splitlines())
    return re.fullmatch(pattern, lines) is not None


@dataclass(frozen=True)
class Given:
    """Prerequisites of a page: variables, words to replace in a test, and its interpreter."""

    environ: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    python: tuple[str, ...] = (sys.executable, "-W", "error")


@dataclass
class Reader:
    """Follows a page from the top. Directory, variables and files persist, as in a terminal."""

    home: Path
    given: Given = Given()

    def __post_init__(self) -> None:
        self.home.mkdir()
        (self.home / ".gitconfig").write_text(GIT_SETTINGS)
        self.cwd = self.home / "project"  # A workspace. The audit log is elsewhere in the home.
        self.cwd.mkdir()
        self.status = 0
        kept = {name: os.environ[name] for name in ("DOCKER_HOST",) if name in os.environ}
        # The first `kakoi` on PATH is forked, not started cold: pages have hundreds of commands.
        path = f"{warm_folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.variables = {
            "PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", **kept, **self.given.environ,
        }  # fmt: skip

    def follow(self, block: Block) -> list[str]:
        """Do what the block says, and return where the page is wrong."""
        text = block.text
        for word, meant in self.given.words.items():
            text = text.replace(word, meant)
        if block.file:
            return self._write(block.file, text)
        if block.language == "console":
            return self._terminal(text)
        if block.language == "sh":
            return self._make(text) if text.startswith("make ") else self._succeeds(text)
        if block.language == "python":
            return self._succeeds(text, argv=[*self.given.python, "-c"])
        if block.language == "yaml":
            if "apiVersion" in yaml.safe_load(text):
                return []  # For a cluster. Only its YAML syntax can be checked here.
            # Without a file name, it is the reader's own settings file.
            return self._write("~/settings/config.yaml", text)
        if block.language == "json":
            return [] if json.loads(text) else ["it is empty"]
        if block.language in SILENT:
            return (
                ["a terminal's example must be `console`"] if re.search("^\\$ ", text, re.M) else []
            )
        return [f"nobody tries `{block.language}`: name its file before it, or say why not"]

    def _write(self, name: str, text: str) -> list[str]:
        path = Path(name.replace("~", str(self.home), 1)) if name[0] == "~" else self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.name in SETTINGS:
            return self._settings(path)
        return self._pipeline(text) if path.name == ".gitlab-ci.yml" or WORKFLOWS in name else []

    def _pipeline(self, text: str) -> list[str]:
        """Follow the kakoi lines of a CI file. The others are for the CI machine."""
        lines = re.findall(r"^\s*- (?:run: )?(kakoi .*)$|^\s*run: (kakoi .*)$", text, re.MULTILINE)
        found = [first or second for first, second in lines]
        yaml.safe_load(text)
        return [each for line in found for each in self._succeeds(line)] if found else ["no kakoi"]

    def _terminal(self, text: str) -> list[str]:
        complaints = []
        if not text.startswith("$ "):
            complaints.append("it must begin with a prompt: `$ `")
        for step in steps(text):
            real = self._run(step.command)
            if not fits(real, step.output):
                expected = "\n".join(step.output)
                complaints.append(f"$ {step.command}\n--- shown\n{expected}\n--- is\n{real}")
        return complaints

    def _succeeds(self, text: str, argv: list[str] | None = None) -> list[str]:
        if argv is None:
            said = self._run(f"set -e\n{text}")
            return [f"exit status {self.status}: {said}"] if self.status else []
        done = self._start([*argv, text])
        return [f"exit status {done.returncode}: {done.stdout}"] if done.returncode else []

    def _make(self, text: str) -> list[str]:
        """Check that the Makefile has these targets. Tests cannot run them."""
        complaints = []
        for line in text.splitlines():
            words = line.partition("#")[0].split()
            done = subprocess.run(
                [*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
            )
            complaints += [done.stderr] if done.returncode or words[0] != "make" else []
        return complaints

    def _settings(self, path: Path) -> list[str]:
        """Check that the settings load without errors."""
        yours = ["--config", str(path)] if path.name not in PROJECTS_OWN else []
        done = self._start(["kakoi", "config", "show", *yours])
        return [done.stdout] if done.returncode else []

    def _run(self, command: str) -> str:
        """Return bash's interleaved stdout and stderr, and keep its directory and exports."""
        left = self.home.parent / "left"
        # In a trap, because a command can exit the shell itself.
        after = f"trap 'pwd > {left}.cwd; env -0 > {left}.env' EXIT"
        done = self._start(["bash", "-c", f"{after}\n(exit {self.status})\n{command}"])
        self.status = done.returncode
        self.cwd = Path(left.with_suffix(".cwd").read_text().rstrip("\n"))
        pairs = left.with_suffix(".env").read_text().split("\0")
        self.variables = dict(each.split("=", 1) for each in pairs if "=" in each)
        return done.stdout

    def _start(self, argv: list[str]) -> "subprocess.CompletedProcess[str]":
        program = shutil.which(argv[0], path=self.variables["PATH"]) or argv[0]
        return subprocess.run(
            [program, *argv[1:]],
            cwd=self.cwd,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
