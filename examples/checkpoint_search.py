"""A search that rolls back to a checkpoint after each step that brings it no closer to the goal."""

import asyncio

from kakoi import Sandbox

CODE = "def add(a, b): return a - b\ndef double(a): return a\n"
SCORE = "from calc import add, double; print((add(2, 3) == 5) + (double(4) == 8))"
STEPS = [  # A model would propose them.
    "echo 'def add(a, b): return b - a' >> calc.py",
    "echo 'def add(a, b): return a + b' >> calc.py",
    "rm calc.py",
    "echo 'def double(a): return a + a' >> calc.py",
]


async def score(box: Sandbox) -> int:
    """Return how many tests pass, or -1 if they cannot be run."""
    result = await box.run(["python3", "-B", "-c", SCORE], timeout=30)
    return int(result.stdout) if result.ok else -1


async def main() -> None:
    async with Sandbox("bubblewrap") as box:
        await box.files.write("calc.py", CODE)
        best = await score(box)
        for number, step in enumerate(STEPS):
            await box.checkpoint(f"before-{number}")
            await box.run(step)
            if (reached := await score(box)) > best:
                print(f"kept: {step} ({best} -> {reached})")
                best = reached
            else:
                await box.rollback(f"before-{number}")
                print(f"undone: {step} ({best} -> {reached})")


if __name__ == "__main__":
    asyncio.run(main())
