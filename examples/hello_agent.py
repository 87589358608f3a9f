"""Hello, agent: a model proposes commands, kakoi runs them, the model sees what came of it."""

import asyncio

from kakoi.errors import KakoiError
from kakoi.shell import ShellExecutor

PLAN = ["ls -la", "sudo apt-get install cowsay", "echo 'Hello, agent' > hello", "cat hello"]


def model(seen: list[str]) -> str | None:
    """Stands in for a language model: ask yours for the next command; None when it is done."""
    return PLAN[len(seen)] if len(seen) < len(PLAN) else None


async def main() -> None:
    executor = ShellExecutor(timeout=20)
    seen: list[str] = []
    while command := model(seen):
        try:
            observation = str(await executor.exec(command))
        except KakoiError as refused:  # It is told why, and can try another way.
            observation = f"{refused}\n{refused.hint}\n"
        print(f"$ {command}\n{observation}", end="")
        seen.append(observation)


if __name__ == "__main__":
    asyncio.run(main())
