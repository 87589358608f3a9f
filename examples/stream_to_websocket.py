"""Stream a command's output to a web socket: anything with `send_text`, such as Starlette's.

If the client disconnects, `send_text` raises, and leaving the block ends the command.
"""

import asyncio
import json
from typing import Protocol

from kakoi import Sandbox, SecurityError


class WebSocket(Protocol):
    async def send_text(self, data: str) -> None: ...


async def stream_command(box: Sandbox, command: str, socket: WebSocket) -> None:
    """Send each part of the output as soon as it is written, then how the command ended."""
    try:
        async with box.stream(command, timeout=60) as running:
            async for chunk in running:
                await socket.send_text(json.dumps({chunk.stream: chunk.text}))
        last = {"reason": running.result.reason, "exit_code": running.result.exit_code}
    except SecurityError as refused:
        last = {"reason": "refused", "message": str(refused), "hint": refused.hint}
    await socket.send_text(json.dumps(last))


class Terminal:
    async def send_text(self, data: str) -> None:
        print(data)


async def main() -> None:
    async with Sandbox() as box:
        await stream_command(box, "echo one; echo two >&2; exit 3", Terminal())


if __name__ == "__main__":
    asyncio.run(main())
