"""Parallel workers: prepare one sandbox, fork it, and give each worker a copy of its own."""

import asyncio

from kakoi import Sandbox

WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"]


async def worker(box: Sandbox, jobs: asyncio.Queue[str], found: dict[str, str]) -> None:
    """Take jobs from the queue until it is empty."""
    while not jobs.empty():
        word = jobs.get_nowait()
        result = await box.run(["python3", "tool.py", word], timeout=60, check=True)
        found[word] = result.stdout.strip()


async def main() -> None:
    jobs: asyncio.Queue[str] = asyncio.Queue()
    for word in WORDS:
        jobs.put_nowait(word)
    found: dict[str, str] = {}
    async with Sandbox() as prepared:
        await prepared.files.write("tool.py", "import sys; print(sys.argv[1].upper())")
        copies = await prepared.fork(3)
        try:
            async with asyncio.TaskGroup() as group:
                for box in copies:
                    group.create_task(worker(box, jobs, found))
        finally:
            await asyncio.gather(*(box.close() for box in copies))
    print(*(f"{word}: {found[word]}" for word in WORDS), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
