"""Compare kakoi with other tools: the cost of a command, and what survives a stopped one.

    python bench/others.py [--image IMAGE] [--only NAME]... [--cache FOLDER] [--save]

The newest available version of each tool is installed in its own environment below the cache
folder, and as root also the programs of the system that it needs. A tool that cannot be installed
or does not run here has a row with the reason. All containers use the same image, which need not
have a default command. Each row is printed as soon as it is measured. `--save` adds the table to
bench/results/ and writes it to both READMEs (tests/test_readme.py checks that they agree).
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _measurements import FLOOD_PATIENCE_S
from _results import save

HERE = Path(__file__).parent
INSTALLING_S, MEASURING_S = 600, 600
HEAD = (
    "| | `true`, p50 | new environment | 32 at once | 64 MiB of output | memory used for it "
    "| timeout to all dead | left alive, of 21 |"
)
HEADS = {
    "README.md": HEAD,
    "README.ja.md": "| | `true`（中央値） | 新しい環境 | 32 並列 | 64 MiB の出力 | 使用メモリ "
    "| タイムアウトから全終了まで | 生き残り（21 中） |",
}
COLUMNS = 8
RULE = "|---" + "|---:" * (COLUMNS - 1) + "|"
MOST_REASON = 160
BLOCK = re.compile(r"(?<=<!-- bench/others\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


SANDBOX_RUNTIME_NEEDS = {
    "npm": "npm",
    "socat": "socat",
    "rg": "ripgrep",
    "bwrap": "bubblewrap",
}


class LeftOut(Exception):
    """The tool is not available here. The message gives the reason."""


@dataclass(frozen=True)
class Machine:
    """The arguments of every measurement."""

    image: str
    label: str
    cache: Path


@dataclass(frozen=True)
class Tool:
    """A row: its title, and a function that installs the tool and returns the measuring command."""

    title: str
    command: Callable[[Machine], list[str]]


def own(name: str) -> Callable[[Machine], list[str]]:
    """Return the command for a tool that needs no installation."""

    def command(machine: Machine) -> list[str]:
        script = str(HERE / "_own_sandboxes.py")
        return [sys.executable, script, name, machine.image, machine.label]

    return command


def installed(argv: list[str]) -> None:
    """Run an installer. If it fails, the end of its output is the reason."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALLING_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        raise LeftOut(" ".join(done.stderr.strip().splitlines()[-1:]) or f"{argv[0]} failed")


def program(name: str, package: str) -> None:
    """See to it that the system has a program. Raises `LeftOut` if it cannot be installed."""
    if shutil.which(name) is None and os.getuid() == 0 and shutil.which("apt-get"):
        installed(["apt-get", "install", "--yes", "--quiet", package])
    if shutil.which(name) is None:
        raise LeftOut(f"no {name} here: sudo apt-get install {package}")


def virtual_environment(folder: Path, *requirements: str) -> str:
    """Return the Python of an environment with these requirements and without kakoi."""
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        installed([sys.executable, "-m", "venv", "--clear", str(folder)])
        installed([str(python), "-m", "pip", "install", "--quiet", *requirements])
        (folder / "whole").touch()
    return str(python)


def swe_rex(machine: Machine) -> list[str]:
    """Install SWE-ReX twice: on the host, and for the system Python of the image."""
    # SWE-ReX imports aiohttp without declaring it as a dependency.
    python = virtual_environment(machine.cache / "swe-rex", "swe-rex", "aiohttp")
    inside = machine.cache / "swe-rex-inside"
    if not (inside / "swerex").exists():
        asked = ["install", "--quiet", "--python-version", "3.11", "--only-binary", ":all:"]
        installed([python, "-m", "pip", *asked, "--target", str(inside), "swe-rex"])
    script = str(HERE / "_swerex.py")
    return [python, script, machine.image, machine.label, str(inside)]


def llm_sandbox(machine: Machine) -> list[str]:
    """Install llm-sandbox with its `docker` extra."""
    python = virtual_environment(machine.cache / "llm-sandbox", "llm-sandbox[docker]")
    return [python, str(HERE / "_llm_sandbox.py"), machine.image, machine.label]


def inspect_ai(machine: Machine) -> list[str]:
    """Install inspect_ai, which controls Docker through compose."""
    python = virtual_environment(machine.cache / "inspect-ai", "inspect-ai")
    try:
        installed(["docker", "compose", "version"])
    except LeftOut:
        program("docker-compose", "docker-compose")
        installed(["docker", "compose", "version"])
    return [python, str(HERE / "_inspect_ai.py"), machine.image, machine.label]


def sandbox_runtime(machine: Machine) -> list[str]:
    """Install sandbox-runtime from npm. Raises `LeftOut` if a program that it needs is missing."""
    for name, package in SANDBOX_RUNTIME_NEEDS.items():
        program(name, package)
    folder = machine.cache / "sandbox-runtime"
    if not (folder / "node_modules" / "@anthropic-ai").exists():
        folder.mkdir(parents=True, exist_ok=True)
        asked = ["--silent", "--no-audit", "--no-fund", "@anthropic-ai/sandbox-runtime"]
        installed(["npm", "install", "--prefix", str(folder), *asked])
    return [sys.executable, str(HERE / "_sandbox_runtime.py"), str(folder)]


def container_use(machine: Machine) -> list[str]:
    """Skip container-use: it is not in Python, and it downloads its own engine."""
    raise LeftOut("it is no package of a registry that this script can install from")


TOOLS = {
    "host": Tool("`subprocess.run`, no sandbox", own("host")),
    "bubblewrap": Tool("kakoi, bubblewrap", own("bubblewrap")),
    "docker": Tool("kakoi, Docker", own("docker")),
    "docker-exec": Tool("`docker exec`", own("docker-exec")),
    "swe-rex": Tool("SWE-ReX", swe_rex),
    "llm-sandbox": Tool("llm-sandbox, Docker", llm_sandbox),
    "inspect-ai": Tool("inspect_ai, Docker", inspect_ai),
    "sandbox-runtime": Tool("sandbox-runtime", sandbox_runtime),
    "container-use": Tool("container-use", container_use),
}


def measured(tool: Tool, machine: Machine) -> dict[str, float | str | None]:
    """Run the tool's script and return its figures."""
    argv = tool.command(machine)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=MEASURING_S)
    except subprocess.TimeoutExpired as error:
        raise LeftOut(f"not done after {MEASURING_S} s") from error
    if done.returncode != 0:
        raise LeftOut(" ".join(done.stderr.strip().splitlines()[-1:]) or "it failed")
    # Some tools print a message when they exit.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, float | str | None] = json.loads(lines[-1])
    return found


def row(title: str, found: dict[str, float | str | None]) -> str:
    """Return a line of the table. Times have at most three digits, as more would be noise."""
    number = {name: value for name, value in found.items() if isinstance(value, float | int)}
    ratio = number["true_ms"] / number["run_ms"]
    late = f"{number['late_ms']:.0f} ms" if "late_ms" in number else "never"
    flood = [f"> {FLOOD_PATIENCE_S} s", "–"]
    if "flood_ms" in number:
        flood = [f"{number['flood_ms']:.0f} ms", f"{number['flood_mib']:.0f} MiB"]
    cells = [
        f"{title} {found['version']}".strip(),
        f"{number['true_ms']:.1f} ms ({ratio:.1f} ×)",
        f"{number['start_ms']:.0f} ms",
        f"{number['per_s']:.0f} /s",
        *flood,
        late,
        f"{number['survivors']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def row_of_reason(title: str, reason: str) -> str:
    """Return a line of the table for a tool that could not be measured."""
    reason = reason.replace("|", "/").replace("\n", " ")[:MOST_REASON]
    return f"| {title} | not measured: {reason} |{' – |' * (COLUMNS - 2)}"


def table(names: list[str], machine: Machine) -> str:
    """Measure, print each row as soon as it is there, and return all of them."""
    rows = []
    for name in names:
        print(f"measuring {name} …", file=sys.stderr)
        title = TOOLS[name].title
        try:
            rows.append(row(title, measured(TOOLS[name], machine)))
        except LeftOut as error:
            rows.append(row_of_reason(title, str(error)))
        print(rows[-1], flush=True)
    return "\n".join(rows)


def fill(readme: Path, rows: str) -> None:
    """Write the table to its place in the document."""
    text = readme.read_text("utf-8")
    filled = f"\n{HEADS[readme.name]}\n{RULE}\n{rows}\n\n"
    readme.write_text(BLOCK.sub(lambda _: filled, text), "utf-8")


def take_away(label: str) -> None:
    """Remove the containers of a tool that did not finish."""
    with contextlib.suppress(OSError):
        asked = ["docker", "ps", "--all", "--quiet", "--filter", f"label={label}"]
        left = subprocess.run(asked, capture_output=True, text=True).stdout.split()
        if left:
            subprocess.run(["docker", "rm", "--force", *left], capture_output=True)


def main() -> None:
    """Measure and print the table, and save it if `--save` is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="kakoi-test:python")
    parser.add_argument("--only", action="append", choices=TOOLS, default=[])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "kakoi-others")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.save and options.only:
        parser.error("what is saved is everything: --save or --only")
    machine = Machine(options.image, f"kakoi.bench={os.getpid()}", options.cache.resolve())
    print(f"{HEAD}\n{RULE}", flush=True)
    try:
        rows = table(options.only or list(TOOLS), machine)
    finally:
        take_away(machine.label)
    if options.save:
        save("others", f"{HEAD}\n{RULE}\n{rows}")
        for name in HEADS:
            fill(HERE.parent / name, rows)


if __name__ == "__main__":
    main()
