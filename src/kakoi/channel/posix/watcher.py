"""The client of the watcher: a shell in a sandbox without Python that ends processes.

It exists as long as the channel. It ends processes without starting one, and when its client is
gone it ends everything that was started for that client (watch.sh).
"""

import asyncio
import contextlib
from collections.abc import Callable

from kakoi._support.asyncio import cancel_and_wait
from kakoi._support.late import pattern
from kakoi.channel.posix.protocol import ProcessTree, request
from kakoi.channel.posix.resident_shell import ResidentShell, ShellConfig
from kakoi.errors import SandboxError

# It tries for five seconds to end a process that does not die.
_ANSWER_S = 10.0
_CLOSE_S = 20.0
_GRACE_S = 0.5
_LONGEST_REPLY = 100
_REPLY = pattern(rb"([0-9]{1,9}) ([0-9]{1,6}) ([0-9]{1,6})")


class Watcher:
    """Sends requests to the watcher. `on_lost` is called when it no longer works."""

    def __init__(
        self, shell: ResidentShell, config: ShellConfig, on_lost: Callable[[str], None]
    ) -> None:
        self._shell = shell
        self._config = config
        self._on_lost = on_lost
        self._waiting: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._last_number = 0
        self._has_closed = self._is_deaf = False
        self._listening = asyncio.ensure_future(self._listen())

    async def end_below(self, kept: ProcessTree) -> int:
        """End everything below a resident shell; returns how many processes survived."""
        return (await self._call("end", kept.root, kept.main, kept.born))[0]

    async def signal(self, kept: ProcessTree, number: int, *, depth: int) -> bool:
        """Signal the command `depth` levels below a resident shell; False if there is none."""
        words = (kept.root, kept.main, kept.born, number, depth)
        return bool((await self._call("signal", *words))[1])

    async def sweep(self) -> int:
        """End everything that has lost the shell above it; returns how many processes survived."""
        return (await self._call("sweep"))[0]

    async def ping(self) -> None:
        """Raise SandboxError if it is gone."""
        await self._call("ping")

    async def _call(self, *words: object) -> tuple[int, int]:
        if self._listening.done():
            raise SandboxError("the sandbox was lost: its watcher is gone")
        self._last_number += 1
        number = self._last_number
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._shell.write(" ".join(map(str, (number, *words))).encode() + b"\n")
                return await answer
        except TimeoutError:
            self._is_deaf = True
            self._on_lost("its watcher does not answer")
            raise SandboxError("the sandbox was lost: its watcher does not answer") from None
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        """End everything that was started for this channel, by another watcher if needed."""
        await self._shell.close_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._is_deaf else _CLOSE_S):
                await asyncio.shield(self._listening)
        await cancel_and_wait(self._listening)
        await self._shell.end(_GRACE_S)
        if not self._has_closed:
            await self._end_anew()

    async def _listen(self) -> None:
        rest, why = b"", "its watcher is gone"
        await self._shell.write(self._request(self._shell))
        while chunk := await self._shell.next_chunk():
            *lines, rest = (rest + chunk).split(b"\n")
            if not all(map(self._take, lines)) or len(rest) > _LONGEST_REPLY:
                why = "its watcher violates the protocol"
                break
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxError(f"the sandbox was lost: {why}"))
        if not self._has_closed:
            self._on_lost(why)

    def _take(self, line: bytes) -> bool:
        if line == b"closed":
            self._has_closed = True
            return True
        found = _REPLY.fullmatch(line)
        answer = None if found is None else self._waiting.get(int(found[1]))
        if found is not None and answer is not None and not answer.done():
            answer.set_result((int(found[2]), int(found[3])))
        return found is not None

    def _request(self, shell: ResidentShell) -> bytes:
        body = request("watch", self._config.base, self._config.init)
        return shell.full_request("watcher", body)

    async def _end_anew(self) -> None:
        """Start a watcher and close its input at once, so that it ends everything."""
        with contextlib.suppress(SandboxError, TimeoutError):
            shell = ResidentShell(self._config.shell_launch(kept=False))
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await shell.write(self._request(shell))
                    await shell.close_input()
                    while await shell.next_chunk():
                        pass
            finally:
                await shell.end(_GRACE_S)
