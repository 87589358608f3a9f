"""The cost of a decision, compared to the bare parser and to the command, and the worst case.

Run with `make bench`. Figures are ratios within one run; absolute times depend on the machine.

With `--corpus FILE`, judges the commands of a JSON Lines file (the key `command`) instead: how many
are allowed, asked about and refused, by which rules, and how long that takes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kakoi.policy.decide import _decide, decide
from kakoi.policy.parsing.fast_path import plain_script
from kakoi.policy.parsing.parser import guard, parser_path
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Policy, Verdict
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


def judge_corpus(file: Path, *, cwd: str, confined: bool, show: bool) -> None:
    """Judge every command of `file`; `show` prints those that are not allowed."""
    commands = [json.loads(line)["command"] for line in file.read_text("utf-8").splitlines()]
    policy = load_policy()
    took: list[float] = []
    verdicts: Counter[Verdict] = Counter()
    rules: Counter[tuple[Verdict, str]] = Counter()
    for command in commands:
        start = time.perf_counter()
        decision = _decide(policy, command, cwd, confined=confined)
        took.append((time.perf_counter() - start) * 1000)
        verdicts[decision.verdict] += 1
        stops = [each for each in decision.findings if each.verdict is not Verdict.ALLOW]
        rules.update({(each.verdict, each.rule) for each in decision.findings})
        if show and stops:
            print(json.dumps({"command": command, "rules": sorted({s.rule for s in stops})}))
    where = "confined" if confined else "unconfined"
    row(f"commands, judged in {cwd} as {where}", f"{len(commands):,}")
    for verdict in Verdict:
        row(f"  {verdict.value}", f"{verdicts[verdict]:,}", f"{verdicts[verdict] / len(took):.2%}")
    print("\nrules, by the commands that they have a finding in")
    for (verdict, rule), count in sorted(rules.items(), key=lambda each: (-each[1], each[0])):
        row(f"  {verdict.value:<5} {rule}", f"{count:,}", f"{count / len(took):.2%}")
    ordered = sorted(took)
    print()
    row("time, cold: median", f"{statistics.median(took):.2f} ms")
    row("  95 of 100", f"{ordered[int(len(ordered) * 0.95)]:.2f} ms")
    row("  slowest", f"{ordered[-1]:.2f} ms")
    row("  all", f"{sum(took) / 1000:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="judge the commands of FILE")
    parser.add_argument("--cwd", default="/workspace", help="where they would start (%(default)s)")
    parser.add_argument("--unconfined", action="store_true", help="no sandbox stands behind them")
    parser.add_argument("--stops", action="store_true", help="print what is not allowed")
    given = parser.parse_args()
    if given.corpus is None:
        measure()
    else:
        judge_corpus(given.corpus, cwd=given.cwd, confined=not given.unconfined, show=given.stops)


def measure() -> None:
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
