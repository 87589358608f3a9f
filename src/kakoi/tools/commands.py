"""The tools that run commands. Every command is a job; a long one keeps running."""

import asyncio
import codecs
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import anyio

from kakoi._support.text import shown
from kakoi.channel.api import Channel, Command, JobInfo, Stream
from kakoi.errors import ConfigurationError, ExecutionError, KakoiError
from kakoi.gate import Call, Gate, carry_variables
from kakoi.policy.decide import decide
from kakoi.results import ExecutionResult, Reason
from kakoi.tools.replies import (
    ReplyOutput,
    ToolResult,
    decision_reply,
    format_ending,
    format_not_kept,
    result_meta,
    result_reply,
    running_reply,
    with_trailer,
)
from kakoi.tools.state import ToolCall, ToolState, with_progress

DEFAULT_TIMEOUT_MS: Final = 120_000
# A sandbox that has not ended a command by then never will.
_STOP_TIMEOUT_S: Final = 30.0
_MOST_JOBS: Final = 64


async def execute_command(state: ToolState, call: ToolCall) -> ToolResult:
    """Run a command to its end, or leave it running as a job after `yield_ms`."""
    given = call.arguments
    state.check_container(given["container_id"])
    if not given["command"]:  # An empty command cannot run, but it is judged.
        raise decide(state.gate.policy, "").error()
    variables = {**call.session.env, **given["env"]}
    command = _command(state, call)
    yield_s = given["yield_ms"] / 1000
    turn = _Turn(state.gate, wait_s=yield_s, background=given["background"])
    gate_call = call.approval.gate_call(command.cwd or "", variables)
    clock = asyncio.get_running_loop().time
    try:
        await state.gate.start(command, replace(gate_call, ready=turn.take))
        began = clock()
        call.session.env = {**call.session.env, **given["env"]}
        state.sessions.has_started(command.id, call.session)
        result = await _watch(state, call, command.id, yield_s)
        if result is None:
            return await _still_running(state, call, command, round((clock() - began) * 1000))
        if result.reason is Reason.TIMED_OUT:
            result = replace(result, error=f"the limit was {command.timeout_s:g} s")
        return await _has_ended(state, call, command.id, result)
    except asyncio.CancelledError:
        # The caller has cancelled: end everything before the next command can run.
        with (
            anyio.move_on_after(_STOP_TIMEOUT_S, shield=True),
            contextlib.suppress(KakoiError, OSError),
        ):
            await state.gate.stop(command.id)
        raise
    finally:
        turn.give_back()


class _Turn:
    """A turn of the gate, held until the command ends or the call is answered.

    Background jobs take none: they are only counted.
    """

    def __init__(self, gate: Gate, *, wait_s: float, background: bool) -> None:
        self._gate = gate
        self._wait_s = max(wait_s, 1.0)
        self._background = background
        self._is_taken = False

    async def take(self) -> None:
        """Wait for a turn. Raises ExecutionError if there is none in time."""
        if len(self._gate.running_jobs) >= _MOST_JOBS:
            raise ExecutionError(
                f"{_MOST_JOBS} jobs are running, which is the limit",
                hint="stop one: list_jobs and stop_command",
            )
        if self._background:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._gate.turns.acquire()
        except TimeoutError:
            raise ExecutionError(
                f"{self._gate.concurrency} commands are running, and none has ended",
                hint="try again, or stop one: list_jobs and stop_command",
            ) from None
        self._is_taken = True

    def give_back(self) -> None:
        """Let the next command have the turn."""
        if self._is_taken:
            self._is_taken = False
            self._gate.turns.release()


def _command(state: ToolState, call: ToolCall) -> Command:
    given = call.arguments
    background: bool = given["background"]
    longest_ms = round(state.execution.timeout_seconds * 1000)
    timeout_ms = given["timeout_ms"]
    if "timeout_ms" not in call.given:
        timeout_ms = longest_ms if background else min(DEFAULT_TIMEOUT_MS, longest_ms)
    if timeout_ms > longest_ms:
        raise ConfigurationError(
            f"`timeout_ms` is {timeout_ms}; the settings allow {longest_ms} at most"
        )
    return Command(
        command=given["command"],
        cwd=call.session.directory(given["workdir"]),
        env=state.env,
        stdin=given["stdin"].encode() if given["stdin"] else None,
        stdin_open=given["stdin_open"],
        timeout_s=timeout_ms / 1000,
        max_output_bytes=state.execution.max_output_size,
        report_shell=not background,
    )


async def _watch(
    state: ToolState, call: ToolCall, job: str, yield_s: float
) -> ExecutionResult | None:
    """Return the result, or None if the command still runs after `yield_s`."""
    if call.arguments["background"]:
        return None
    return await with_progress(
        call,
        lambda wait_s: state.gate.wait(job, wait_s=wait_s),
        yield_s=yield_s,
        doing="running",
    )


async def _has_ended(
    state: ToolState, call: ToolCall, job: str, result: ExecutionResult
) -> ToolResult:
    left = await _go_on_from(state, job, result)
    limit = state.execution.max_output_size
    outputs = {}
    for stream, total in _totals(result).items():
        data = b""
        if total:
            data = await _head(await state.gate.job_channel(job), job, stream, limit)
        outputs[stream] = ReplyOutput(data, len(data) >= total)
    return result_reply(
        job,
        result,
        outputs["stdout"],
        outputs["stderr"],
        left,
        _unenforced_limits(state),
        session=call.session.secret_name,
    )


async def _go_on_from(state: ToolState, job: str, result: ExecutionResult) -> Mapping[str, str]:
    """Let the next command of the session start where this one ended, with what it exported.

    Returns the variables that are not carried over, and why.
    """
    session = state.sessions.take_ended(job)
    if session is None:
        return {}
    session.went_to(result.cwd)
    if not result.exports:
        return {}
    async with session.changing:
        # In a thread: judging may run an external parser.
        carried = await asyncio.to_thread(
            carry_variables, state.gate.policy, session.env, result.exports, cwd=session.cwd
        )
        session.env = dict(carried.variables)
    return carried.left_behind


def _unenforced_limits(state: ToolState) -> list[str]:
    """Return the limits that are not enforced in the sandbox."""
    return [] if state.gate.sandbox is None else list(state.gate.sandbox.limit_report.unenforced)


def _totals(result: ExecutionResult) -> dict[Stream, int]:
    return {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}


async def _still_running(
    state: ToolState, call: ToolCall, command: Command, elapsed_ms: int
) -> ToolResult:
    channel = await state.gate.job_channel(command.id)
    limit = state.execution.max_output_size
    heads = [
        whole_characters(await _head(channel, command.id, stream, limit))
        for stream in ("stdout", "stderr")
    ]
    outputs = (ReplyOutput(head, ended=False) for head in heads)
    return running_reply(command.id, elapsed_ms, *outputs, session=call.session.secret_name)


async def _head(channel: Channel, job: str, stream: Stream, limit: int) -> bytes:
    data = b""
    while len(data) < limit:
        part = await channel.read_output(job, stream, offset=len(data), limit=limit - len(data))
        data += part.data
        if not part.data or part.ended:
            break
    return data


def whole_characters(data: bytes) -> bytes:
    """Strip an incomplete character at the end: the rest of it is still to come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    pending = len(decoder.getstate()[0])
    return data[: len(data) - pending]


# --- Jobs ------------------------------------------------------------------------------------


async def read_output(state: ToolState, call: ToolCall) -> ToolResult:
    """Return part of a job's output, and whether the job still runs."""
    given = call.arguments
    job, stream, offset = given["job_id"], given["stream"], given["offset"]
    channel = await _channel_to(state, call, job)
    limit = min(given["limit"], state.execution.max_output_size)
    part = await channel.read_output(
        job, stream, offset=offset, limit=limit, wait_s=given["wait_ms"] / 1000
    )
    result = await state.gate.wait(job, wait_s=0)
    if result is not None and not part.ended:
        # It ended after it was read. An answer that says so has all of its output.
        part = await channel.read_output(job, stream, offset=offset, limit=limit)
    ended = part.ended and result is not None
    data = part.data if ended else whole_characters(part.data)
    next_offset = offset + len(data)
    status = ["still running"]
    meta: dict[str, Any] = {"job_id": job, "running": True}
    if result is not None:
        left = await _go_on_from(state, job, result)
        status = [*format_ending(result), format_not_kept(left)]
        meta = result_meta(job, result, left, _unenforced_limits(state))
    lost = f"{part.lost_bytes} bytes were discarded" if part.lost_bytes else ""
    place = f"{stream} {offset}-{next_offset}" + (", all of it" if ended else "")
    text = with_trailer(ReplyOutput(data, ended).text, *status, place, lost, f"job {job}")
    meta |= {"stream": stream, "next_offset": next_offset, "output_ended": ended}
    return ToolResult(text=text, meta=meta)


async def write_stdin(state: ToolState, call: ToolCall) -> ToolResult:
    """Write to the stdin of a job."""
    job, text = call.arguments["job_id"], call.arguments["text"]
    channel = await _channel_to(state, call, job)
    data = text.encode()
    try:
        await channel.write_stdin(job, data, close=call.arguments["close"])
    except BlockingIOError:
        raise ConfigurationError(
            "the job has not read its earlier input yet", hint="read its output first"
        ) from None
    except BrokenPipeError:
        raise ConfigurationError(
            "the stdin of the job is closed",
            hint="start it with `stdin_open`, and write while it runs",
        ) from None
    meta = {"job_id": job, "bytes": len(data)}
    return ToolResult(text=f"[{len(data)} bytes written | job {job}]", meta=meta)


async def stop_command(state: ToolState, call: ToolCall) -> ToolResult:
    """Stop a job and every process it started."""
    job = call.arguments["job_id"]
    await _channel_to(state, call, job)
    result = await state.gate.stop(job)
    more = "read_output returns its output" if result.stdout_bytes or result.stderr_bytes else ""
    meta = result_meta(job, result, unenforced=_unenforced_limits(state))
    text = with_trailer("", *format_ending(result), more, f"job {job}")
    return ToolResult(text=text, meta=meta)


async def list_jobs(state: ToolState, call: ToolCall) -> ToolResult:
    """List the jobs of this connection, or of the given session, running or ended."""
    jobs = await state.gate.list_jobs()
    own = [
        (job, session)
        for job in jobs
        if (session := state.sessions.of_job(job.id)) and session.scope == call.session.scope
    ]
    lines = [_job_line(job, session.name) for job, session in own]
    running = sum(job.running for job, _ in own)
    meta = {
        "jobs": [
            {"job_id": job.id, "running": job.running, "session": session.name}
            for job, session in own
        ]
    }
    text = with_trailer("\n".join(lines), f"jobs: {len(own)}", f"running: {running}")
    return ToolResult(text=text, meta=meta)


def _job_line(job: JobInfo, session: str) -> str:
    status = "running" if job.result is None else ", ".join(format_ending(job.result)[:3])
    sizes = f"stdout {job.stdout_bytes} bytes, stderr {job.stderr_bytes} bytes"
    age = f"started {job.started_s_ago:.0f} s ago"
    return f"{job.id}  {status}  {age}  {sizes}  session {session}  {shown(job.command)[:200]}"


async def _channel_to(state: ToolState, call: ToolCall, job: str) -> Channel:
    """Return the channel to a job of this caller. Jobs of other callers do not exist for it."""
    session = state.sessions.of_job(job)
    if session is None or session.caller != call.session.caller:
        raise ConfigurationError(
            f"there is no job {job!r}", hint="list_jobs lists the jobs; old ones are forgotten"
        )
    return await state.gate.job_channel(job)


# --- Judging ---------------------------------------------------------------------------------


async def check_command(state: ToolState, call: ToolCall) -> ToolResult:
    """Return the policy's decision without running anything."""
    text = call.arguments["command"]
    if not text:
        return decision_reply(decide(state.gate.policy, text))
    cwd = call.session.directory(call.arguments["workdir"])
    gate_call = Call(variables=call.session.env)
    return decision_reply(await state.gate.judge(Command(command=text, cwd=cwd), gate_call))
