"""Blocking streams, jobs and sessions of a `kakoi.sync.Sandbox`."""

import inspect
import math
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from kakoi._support.asyncio import background
from kakoi._support.keywords import naming_nearest
from kakoi.channel.api import OutputPart, Stream
from kakoi.errors import SandboxError
from kakoi.policy.decide import Decision
from kakoi.results import ExecutionResult
from kakoi.sandbox import job as asynchronous
from kakoi.sandbox import session
from kakoi.sandbox.job import Chunk

_T = TypeVar("_T")


def wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` in the loop of this process and return its result."""
    if sys.is_finalizing():
        work.close()
        raise SandboxError("the sandbox was closed when Python shut down")
    return background().run(work)


def iterate(items: AsyncIterator[_T]) -> Iterator[_T]:
    """Yield what something asynchronous yields. Leaving the loop closes it."""
    try:
        while (item := wait_for(_next(items))) is not None:
            yield item
    finally:
        if not sys.is_finalizing():  # Then everything was closed already.
            wait_for(_close(items))


async def _next(items: AsyncIterator[_T]) -> _T | None:
    return await anext(items, None)


async def _close(items: AsyncIterator[Any]) -> None:
    if inspect.isasyncgen(items):
        await items.aclose()


class CommandStream:
    """The output of a command, as it is written; see `kakoi.CommandStream`."""

    def __init__(self, stream: asynchronous.CommandStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Chunk]:
        return iterate(aiter(self._stream))

    @property
    def id(self) -> str:
        """The id of the command in the audit log."""
        return self._stream.id

    @property
    def result(self) -> ExecutionResult:
        """The result, once the output has ended."""
        return self._stream.result

    def __enter__(self) -> Self:
        wait_for(self._stream.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        wait_for(self._stream.__aexit__(*error))


class Job:
    """A command that runs in the background; see `kakoi.Job`."""

    def __init__(self, job: asynchronous.Job) -> None:
        self._job = job
        self.id = job.id
        self.command = job.command

    def __repr__(self) -> str:
        return repr(self._job)

    @property
    def result(self) -> ExecutionResult | None:
        """The result, if `wait` or `stop` has returned it."""
        return self._job.result

    def read(
        self,
        offset: int = 0,
        wait: float = 0,
        *,
        stream: Stream = "stdout",
        limit: int = asynchronous.READ_BYTES,
    ) -> OutputPart:
        """Return output from `offset` on; waits up to `wait` seconds for the first byte."""
        return wait_for(self._job.read(offset, wait, stream=stream, limit=limit))

    def write(self, data: str | bytes) -> None:
        """Write to its input."""
        wait_for(self._job.write(data))

    def close_stdin(self) -> None:
        """End its input."""
        wait_for(self._job.close_stdin())

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        wait_for(self._job.resize(rows, columns))

    def signal(self, number: int | str) -> None:
        """Send a signal to its process group."""
        wait_for(self._job.signal(number))

    @overload
    def wait(self) -> ExecutionResult: ...
    @overload
    def wait(self, timeout: float) -> ExecutionResult | None: ...

    def wait(self, timeout: float = math.inf) -> ExecutionResult | None:
        """Wait for its end and return its result; None if it still runs after `timeout` seconds."""
        return wait_for(self._job.wait(timeout))

    def stop(self) -> ExecutionResult:
        """End it and everything it started; returns its result."""
        return wait_for(self._job.stop())


class Session:
    """Runs commands one after another, as in a terminal; see `kakoi.Session`."""

    def __init__(self, session: session.Session) -> None:
        self._session = session

    @property
    def cwd(self) -> str:
        """Where the next command starts."""
        return self._session.cwd

    @property
    def env(self) -> Mapping[str, str]:
        """The exported variables that the next command gets."""
        return self._session.env

    @property
    def left_behind(self) -> Mapping[str, str]:
        """The variables of the last command that are not carried over, and why."""
        return self._session.left_behind

    def __enter__(self) -> Self:
        wait_for(self._session.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        wait_for(self._session.__aexit__(*error))

    @naming_nearest
    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
        check: bool = False,
    ) -> ExecutionResult:
        """Run `command` where the last one ended; see `Sandbox.run`."""
        return wait_for(
            self._session.run(
                command,
                stdin=stdin,
                timeout=timeout,
                idle_timeout=idle_timeout,
                max_output=max_output,
                check=check,
            )
        )

    def check(self, command: str | Sequence[str]) -> Decision:
        """Judge `command` as this session would run it. Nothing runs."""
        return wait_for(self._session.check(command))
