"""Progress: a client that wants to know hears now and then that what it asked for goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from kakoi.mcp_server.house import ToolCall

_T = TypeVar("_T")
_FIRST_S: Final = 1.0
_PAUSE_S: Final = 5.0
_PATIENCE_S: Final = 1.0


async def telling_progress(
    call: ToolCall, wait: Callable[[float], Awaitable[_T | None]], *, yield_s: float, doing: str
) -> _T | None:
    """What `wait` gives, or None if there is nothing after `yield_s`; tells meanwhile of it.

    `wait`: waits so many seconds, and gives None if that is too short. `doing`: "running", …
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    pause_s = _FIRST_S
    while True:
        left_s = began + yield_s - clock()
        result = await wait(max(0.0, min(left_s, pause_s)))
        if result is not None or left_s <= pause_s:
            return result
        pause_s = _PAUSE_S
        spent_s = clock() - began
        # Whoever asked to be told and does not read is not waited for.
        with anyio.move_on_after(_PATIENCE_S):
            await call.context.session.report_progress(
                spent_s, None, f"{doing} for {spent_s:.0f} s"
            )
