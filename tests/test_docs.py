"""The documents are true: links lead somewhere, examples run and print what is shown."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KAKOI = Path(sys.executable).with_name("kakoi")

# Of the hidden folders only the one that holds the entry point of the build is ours.
NOT_OURS = {"__pycache__", "build", "dist"}


def our_files(suffix: str = "") -> list[Path]:
    found = []
    # os.walk, not rglob: other tests write caches meanwhile, and a folder may vanish on the way.
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in NOT_OURS and (name == ".ci" or not name.startswith("."))
        )
        # In a worktree `.git` is a file that says where the repository is.
        names = sorted(name for name in files if name != ".git" and name.endswith(suffix))
        found += [Path(folder, name) for name in names]
    return found


DOCUMENTS = our_files(".md")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block of a document: its language, its text, and the line it begins on."""

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(path, line, match[1], match[2])


BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]


# --- Links -----------------------------------------------------------------------------------


def dead_links(path: Path, text: str) -> list[str]:
    """Relative link targets that do not exist. Code is not searched: brackets mean other things."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    files = [target.partition("#")[0] for target in targets if not re.match(r"\w+:|#", target)]
    return [target for target in files if not (path.parent / target).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert dead_links(path, path.read_text(encoding="utf-8")) == []


def test_a_dead_link_is_noticed() -> None:
    text = "[a](README.md) [b](gone.md#part) [c](https://example.org/x) `[d](gone2.md)`"
    assert dead_links(ROOT / "x.md", text) == ["gone.md"]


# --- Examples --------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_a_python_example_runs(block: Block, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", block.text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Step:
    """A command of a terminal example, and what the document says it prints."""

    command: str
    output: list[str]


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], []))
        elif found:
            found[-1].output.append(line)
    return found


def differences(example: list[Step], cwd: Path) -> list[str]:
    """What a terminal example shows and the real program does not do.

    `$ kakoi …` is run, and must begin its output with the lines shown; `$ echo $?` right after it
    shows the exit status. Other commands are for people and are not run.
    """
    complaints = []
    status = ""
    for step in example:
        if step.command == "echo $?":
            if step.output != [status]:
                complaints.append(f"exit status: shown {step.output}, is {status}")
        elif step.command.startswith("kakoi "):
            argv = [str(KAKOI), *shlex.split(step.command)[1:]]
            done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60)
            status = str(done.returncode)
            real = (done.stdout + done.stderr).splitlines()[: len(step.output)]
            if real != step.output:
                complaints.append(f"{step.command}: shown {step.output}, is {real}")
    return complaints


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in ("console", "sh")], ids=str)
def test_a_terminal_example_shows_what_happens(block: Block, tmp_path: Path) -> None:
    assert differences(steps(block.text), tmp_path) == []


def test_a_wrong_terminal_example_is_noticed(tmp_path: Path) -> None:
    example = steps("$ kakoi --version\nkakoi 0.0.0-no\n$ echo $?\n77\n$ make run\nanything\n")
    assert len(differences(example, tmp_path)) == 2


def test_the_reference_is_what_the_code_says() -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "reference"), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- Nothing of one machine ------------------------------------------------------------------

# Put together from pieces, so that this file does not hold what it looks for.
WORK, DOT = "/" + "work" + "/", "."
MACHINE_PATHS = tuple(WORK + folder for folder in ("main", "shared", "steering", "in/"))
REGISTRIES = tuple(
    DOT.join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("registry", "npmjs", "org"),
        ("proxy", "golang", "org"),
    )
)


def machine_traces(text: str) -> list[str]:
    return [needle for needle in (*MACHINE_PATHS, *REGISTRIES) if needle in text]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    texts = {shown(path): path.read_text("utf-8", errors="replace") for path in our_files()}
    traces = {path: machine_traces(text) for path, text in texts.items()}
    assert {path: found for path, found in traces.items() if found} == {}


def test_a_registry_is_noticed() -> None:
    assert machine_traces("--index-url https://" + REGISTRIES[0]) == [REGISTRIES[0]]


def test_the_pinned_requirements_hold_no_index_options() -> None:
    options = re.compile(r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", re.M)
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert files
    assert [shown(path) for path in files if options.search(path.read_text("utf-8"))] == []
