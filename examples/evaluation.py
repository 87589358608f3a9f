"""Evaluate answers: each gets a typed outcome, and a sandbox failure never counts against it."""

import asyncio
from typing import Literal

from kakoi import Reason, Sandbox, SandboxError

Outcome = Literal["passed", "failed", "too slow", "out of memory", "not evaluated"]
ANSWERS = {
    "right": "def square(x): return x * x",
    "wrong": "def square(x): return x + x",
    "endless": "def square(x):\n    while True: pass",
    "greedy": "def square(x): return len(bytearray(10**9))",
}
TEST = "assert square(3) == 9"


async def evaluate(answer: str) -> Outcome:
    try:
        async with Sandbox(memory="256MiB", timeout=10) as box:
            result = await box.run(["python3", "-"], stdin=f"{answer}\n{TEST}")
    except SandboxError:
        return "not evaluated"
    match result.reason:
        case Reason.EXITED | Reason.SIGNALLED:
            return "passed" if result.ok else "failed"
        case Reason.TIMED_OUT:
            return "too slow"
        case Reason.OUT_OF_MEMORY:
            return "out of memory"
    return "not evaluated"


async def main() -> None:
    outcomes = await asyncio.gather(*map(evaluate, ANSWERS.values()))
    print(*map(": ".join, zip(ANSWERS, outcomes, strict=True)), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
