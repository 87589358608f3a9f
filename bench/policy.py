"""What a decision costs: against the bare parser, against the command itself, and at its worst.

Run with `make bench`. Figures are ratios within one run; absolute times depend on the machine.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kakoi.policy.decide import _decide, decide
from kakoi.policy.parsing.guards import guard
from kakoi.policy.parsing.plain import plain_script
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Policy
from kakoi.policy.syntax import parser_path
from kakoi.process import run_filter
from tests.policy.corpus.hostile_generated import generate

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "policy" / "corpus"
CWD = "/workspace/project"


def p50_ms(work: Callable[[], object], times: int = 60) -> float:
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def per_second(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def cold_ms(policy: Policy, command: str) -> float:
    return p50_ms(lambda: _decide(policy, command, CWD), 3)


def row(what: str, value: str, note: str = "") -> None:
    print(f"{what:<58} {value:>12}  {note}")


def main() -> None:
    start = time.perf_counter()
    policy = load_policy()
    row(
        "load the default policy, examples checked",
        f"{(time.perf_counter() - start) * 1000:.0f} ms",
    )
    lines = (CORPUS / "everyday.jsonl").read_text("utf-8").splitlines()
    commands = [json.loads(line)["command"] for line in lines]
    plain = [c for c in commands if guard(c) is None and plain_script(c) is not None]
    other = [c for c in commands if c not in plain]
    row("everyday lines that take the fast path", f"{len(plain)}/{len(commands)}")

    true = p50_ms(lambda: subprocess.run(["true"], check=True))
    argv = [parser_path(), "-ln", "bash", "--to-json"]
    text = b'for f in *.py; do echo "$f"; done'
    shfmt = p50_ms(lambda: run_filter(argv, text, timeout_s=2, max_output_bytes=1 << 20))
    row("subprocess.run(['true']), p50", f"{true:.2f} ms", "= 1.0")
    row("bare shfmt, p50", f"{shfmt / true:.2f} x")
    for name, sample in {"plain": plain, "all other": other}.items():
        each = statistics.median(cold_ms(policy, command) for command in sample)
        row(
            f"decide, cold, {name} everyday lines, p50",
            f"{each / true:.2f} x",
            f"{each / shfmt:.2f} x shfmt",
        )
    row(
        "decisions/s, cold, plain lines",
        f"{per_second(lambda: [_decide(policy, c, CWD) for c in plain], len(plain)):,.0f}",
    )
    row(
        "decisions/s, cold, all lines",
        f"{per_second(lambda: [_decide(policy, c, CWD) for c in commands], len(commands)):,.0f}",
    )
    for command in commands:
        decide(policy, command, cwd=CWD)
    warm = per_second(
        lambda: [decide(policy, c, cwd=CWD) for _ in range(50) for c in commands],
        50 * len(commands),
    )
    row("decisions/s, warm", f"{warm:,.0f}")
    print("\nthe worst of the hostile inputs")
    worst = []
    for topic, command in generate():
        start = time.perf_counter()
        verdict = _decide(policy, command, CWD).verdict.value
        worst.append(((time.perf_counter() - start) * 1000, topic, len(command), verdict))
    for took, topic, size, verdict in sorted(worst, reverse=True)[:6]:
        row(f"  {topic} ({size} characters): {verdict}", f"{took:.0f} ms")


if __name__ == "__main__":
    main()
