"""What a start costs: commands beside `python -c pass` of the same environment.

Each ratio is of the least times of many starts by turns: the processor time, with all that the
command started, and the time on the clock. Only the processor time holds on a busy machine.
`--save` writes the table to bench/results/.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _results import save

ROUNDS = 25
PYTHON = sys.executable
KAKOI = str(Path(PYTHON).with_name("kakoi"))


@dataclass(frozen=True)
class Start:
    """A program to start. `bar`: the ratio that it must not exceed; 0 if there is none."""

    name: str
    argv: Sequence[str]
    bar: float = 0
    stdin: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Least:
    """The least times so far, in milliseconds."""

    processor_ms: float = float("inf")
    clock_ms: float = float("inf")


def starts(project: str) -> list[Start]:
    event = {
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "git status --short && pytest -q tests | tail -5"},
        "cwd": project,
    }
    word = {"_KAKOI_COMPLETE": "bash_complete", "COMP_WORDS": "kakoi ch", "COMP_CWORD": "1"}
    value = {**word, "COMP_WORDS": "kakoi run --sandbox b", "COMP_CWORD": "3"}
    return [
        Start("python -c pass", [PYTHON, "-c", "pass"]),
        Start("import kakoi", [PYTHON, "-c", "import kakoi"]),
        Start("kakoi --version", [KAKOI, "--version"]),
        Start("kakoi --help", [KAKOI, "--help"], 4),
        Start("completion of a command", [KAKOI], 6, variables=word),
        Start("completion of a value", [KAKOI], 6, variables=value),
        Start("kakoi check ls", [KAKOI, "check", "ls"], 6),
        Start("kakoi check 'rm -rf /; ls'", [KAKOI, "check", "rm -rf /; ls"], 6),
        Start("kakoi check --profile shell ls", [KAKOI, "check", "--profile", "shell", "ls"], 6),
        Start("kakoi hook claude-code", [KAKOI, "hook", "claude-code"], 6, json.dumps(event)),
        Start("kakoi run true (bubblewrap)", [KAKOI, "run", "--sandbox", "bubblewrap", "true"], 10),
    ]


def measure(start: Start, folder: Path, least: Least) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **start.variables}
    with tempfile.TemporaryFile() as stdin:
        stdin.write(start.stdin.encode())
        stdin.seek(0)
        began = time.perf_counter()
        process = subprocess.Popen(
            start.argv,
            cwd=folder / "project",
            env=environ,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        clock_ms = (time.perf_counter() - began) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 126):  # 126: refused
        raise SystemExit(f"{start.name}: exit code {process.returncode}")
    least.processor_ms = min(least.processor_ms, (used.ru_utime + used.ru_stime) * 1000)
    least.clock_ms = min(least.clock_ms, clock_ms)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        (folder / "project").mkdir()
        every = [(start, Least()) for start in starts(str(folder / "project"))]
        for start, _ in every:
            measure(start, folder, Least())  # Byte code and the cache of the policy.
        for _ in range(ROUNDS):
            for start, least in every:
                measure(start, folder, least)
    bare = every[0][1]
    lines = [f"{'':<34}{'processor':>12}{'ratio':>8}{'clock':>12}{'ratio':>8}{'bar':>8}"]
    for start, least in every:
        processor, clock = least.processor_ms, least.clock_ms
        ratios = f"{processor / bare.processor_ms:>6.1f} x", f"{clock / bare.clock_ms:>6.1f} x"
        bar = f"<= {start.bar:g} x" if start.bar else ""
        line = f"{start.name:<34}{processor:>9.1f} ms{ratios[0]}{clock:>9.1f} ms{ratios[1]}"
        lines.append(f"{line}{bar:>10}".rstrip())
    table = "\n".join(lines)
    print(table)
    if "--save" in sys.argv[1:]:
        save("startup", table)


if __name__ == "__main__":
    main()
