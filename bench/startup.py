"""Startup time: imports and the smallest commands, as ratios."""

import statistics
import subprocess
import sys
import time

ROUNDS = 15


def p50_ms(argv: list[str]) -> float:
    samples = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def main() -> None:
    python = sys.executable
    bare = p50_ms([python, "-c", "pass"])
    print(f"{'python -c pass':<40} {bare:6.1f} ms   = 1.0")
    kakoi = python.rpartition("/")[0] + "/kakoi"
    for name, argv in {
        "import kakoi": [python, "-c", "import kakoi"],
        "kakoi --version": [kakoi, "--version"],
        "kakoi --help": [kakoi, "--help"],
        "kakoi check ls": [kakoi, "check", "ls"],
        "kakoi run true": [kakoi, "run", "true"],
    }.items():
        took = p50_ms(argv)
        print(f"{name:<40} {took:6.1f} ms   {took / bare:.1f} x")


if __name__ == "__main__":
    main()
