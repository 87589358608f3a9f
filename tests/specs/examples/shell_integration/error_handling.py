# Changed: the statements are in a coroutine, because a file has no top-level `await`.
import asyncio

from kakoi.builtin import shell
from kakoi.shell import SecurityError, TimeoutError


async def main():
    try:
        result = await shell("git push")
    except SecurityError as e:
        print(f"Security violation: {e}")
    except TimeoutError as e:
        print(f"Command timed out: {e}")
    except Exception as e:
        print(f"Execution failed: {e}")


asyncio.run(main())
