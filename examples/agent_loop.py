"""An agent loop: your model names a command, kakoi runs it, and the model sees the result."""

import asyncio

from kakoi import Sandbox, SecurityError, UserCancelledError

SCRIPT = ["ls -A", "sudo apt install cowsay", "echo 'Hello, agent' > hello", "cat hello"]


def ask_model(seen: list[str]) -> str | None:
    """Stand in for a model: return its next command, or None when it is done."""
    return SCRIPT[len(seen)] if len(seen) < len(SCRIPT) else None


async def observe(box: Sandbox, command: str) -> str:
    """Run a command, and return what the model sees of it."""
    try:
        result = await box.run(command, timeout=60, max_output="32KiB")
    except (SecurityError, UserCancelledError) as refused:  # The hint says what to do instead.
        return f"Refused: {refused} {refused.hint}\n"
    return f"{result.stdout}{result.stderr}[{result.reason}, exit code {result.exit_code}]\n"


async def main() -> None:
    seen: list[str] = []
    async with Sandbox() as box:  # workspace="." lets it work on this directory.
        while command := ask_model(seen):
            seen.append(await observe(box, command))
            print(f"$ {command}\n{seen[-1]}", end="")


if __name__ == "__main__":
    asyncio.run(main())
