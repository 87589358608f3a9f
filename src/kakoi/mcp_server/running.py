"""The tools that run commands: every command is a job, and one that takes long is left running."""

import asyncio
import codecs
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import anyio
from mcp_types import CallToolResult

from kakoi.errors import ConfigurationError, KakoiError
from kakoi.gate import Call, carry
from kakoi.mcp_server.house import House, ToolCall, Turn
from kakoi.mcp_server.progress import telling_progress
from kakoi.mcp_server.replies import (
    Output,
    decision_reply,
    ending,
    not_kept,
    result_meta,
    result_reply,
    running_reply,
    said,
    with_trailer,
)
from kakoi.policy.decide import decide
from kakoi.printable import shown
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Channel, Command, JobInfo, Stream

DEFAULT_TIMEOUT_MS: Final = 120_000
# A sandbox that has not ended a command by then never will.
_ENDING_PATIENCE_S: Final = 30.0


async def execute_command(house: House, call: ToolCall) -> CallToolResult:
    """Run a command to its end, or leave it running after `yield_ms`."""
    given = call.arguments
    house.check_container(given["container_id"])
    if not given["command"]:  # What there is not cannot be run, but judged.
        raise decide(house.gate.policy, "").error()
    variables = {**call.session.env, **given["env"]}
    command = _command(house, call)
    handed = await call.person.call(house.gate, command, variables)
    yield_s = given["yield_ms"] / 1000
    turn = Turn(house, wait_s=yield_s, background=given["background"])
    clock = asyncio.get_running_loop().time
    try:
        await house.gate.start(command, replace(handed, ready=turn.take))
        began = clock()
        call.session.env = {**call.session.env, **given["env"]}
        house.sessions.has_started(command.id, call.session)
        result = await _watch(house, call, command.id, yield_s)
        if result is None:
            return await _still_running(house, call, command, round((clock() - began) * 1000))
        if result.reason is Reason.TIMED_OUT:
            result = replace(result, error=f"the limit was {command.timeout_s:g} s")
        return await _has_ended(house, call, command.id, result)
    except asyncio.CancelledError:
        # The client does not want it any more: all of it ends before another has its turn.
        with (
            anyio.move_on_after(_ENDING_PATIENCE_S, shield=True),
            contextlib.suppress(KakoiError, OSError),
        ):
            await house.gate.stop(command.id)
        raise
    finally:
        turn.give_back()


def _command(house: House, call: ToolCall) -> Command:
    given = call.arguments
    background: bool = given["background"]
    longest_ms = round(house.execution.timeout_seconds * 1000)
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
        env=house.env,
        stdin=given["stdin"].encode() if given["stdin"] else None,
        stdin_open=given["stdin_open"],
        timeout_s=timeout_ms / 1000,
        max_output_bytes=house.execution.max_output_size,
        report_shell=not background,
    )


async def _watch(house: House, call: ToolCall, job: str, yield_s: float) -> ExecutionResult | None:
    """The result, or None if it still runs after `yield_s`."""
    if call.arguments["background"]:
        return None
    return await telling_progress(
        call,
        lambda wait_s: house.gate.wait(job, wait_s=wait_s),
        yield_s=yield_s,
        doing="running",
    )


async def _has_ended(
    house: House, call: ToolCall, job: str, result: ExecutionResult
) -> CallToolResult:
    left = await _go_on_from(house, job, result)
    limit = house.execution.max_output_size
    outputs = {}
    for stream, total in _totals(result).items():
        data = b""
        if total:
            data = await _head(await house.gate_channel(), job, stream, limit)
        outputs[stream] = Output(data, len(data) >= total)
    return result_reply(
        job,
        result,
        outputs["stdout"],
        outputs["stderr"],
        left,
        _unkept(house),
        session=call.session.told_name,
    )


async def _go_on_from(house: House, job: str, result: ExecutionResult) -> Mapping[str, str]:
    """The next command of the session starts where this one ended, with what it exported.

    Returns the variables that it does not have then, and why.
    """
    session = house.sessions.first_to_see_the_end(job)
    if session is None:
        return {}
    session.went_to(result.cwd)
    if not result.exports:
        return {}
    async with session.changing:
        # In a thread: it is judged, and by a program if it is not plain.
        carried = await asyncio.to_thread(
            carry, house.gate.policy, session.env, result.exports, cwd=session.cwd
        )
        session.env = dict(carried.variables)
    return carried.left_behind


def _unkept(house: House) -> list[str]:
    """The limits that do not hold where commands run."""
    return [] if house.gate.sandbox is None else list(house.gate.sandbox.holding.not_kept)


def _totals(result: ExecutionResult) -> dict[Stream, int]:
    return {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}


async def _still_running(
    house: House, call: ToolCall, command: Command, elapsed_ms: int
) -> CallToolResult:
    channel = await house.gate_channel()
    limit = house.execution.max_output_size
    heads = [
        whole_characters(await _head(channel, command.id, stream, limit))
        for stream in ("stdout", "stderr")
    ]
    outputs = (Output(head, ended=False) for head in heads)
    return running_reply(command.id, elapsed_ms, *outputs, session=call.session.told_name)


async def _head(channel: Channel, job: str, stream: Stream, limit: int) -> bytes:
    data = b""
    while len(data) < limit:
        part = await channel.read_output(job, stream, offset=len(data), limit=limit - len(data))
        data += part.data
        if not part.data or part.ended:
            break
    return data


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character at the end: the rest of it is still to come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    pending = len(decoder.getstate()[0])
    return data[: len(data) - pending]


# --- Jobs ------------------------------------------------------------------------------------


async def read_output(house: House, call: ToolCall) -> CallToolResult:
    """A part of what a job has written, and whether it still runs."""
    given = call.arguments
    job, stream, offset = given["job_id"], given["stream"], given["offset"]
    channel = await _channel_to(house, call, job)
    part = await channel.read_output(
        job,
        stream,
        offset=offset,
        limit=min(given["limit"], house.execution.max_output_size),
        wait_s=given["wait_ms"] / 1000,
    )
    result = await house.gate.wait(job, wait_s=0)
    ended = part.ended and result is not None
    data = part.data if ended else whole_characters(part.data)
    next_offset = offset + len(data)
    state = ["still running"]
    meta: dict[str, Any] = {"job_id": job, "running": True}
    if result is not None:
        left = await _go_on_from(house, job, result)
        state = [*ending(result), not_kept(left)]
        meta = result_meta(job, result, left, _unkept(house))
    lost = f"{part.lost_bytes} bytes were not kept" if part.lost_bytes else ""
    place = f"{stream} {offset}-{next_offset}" + (", all of it" if ended else "")
    text = with_trailer(Output(data, ended).text, *state, place, lost, f"job {job}")
    return said(text, meta | {"stream": stream, "next_offset": next_offset, "output_ended": ended})


async def write_stdin(house: House, call: ToolCall) -> CallToolResult:
    """Give a job input."""
    job, text = call.arguments["job_id"], call.arguments["text"]
    channel = await _channel_to(house, call, job)
    data = text.encode()
    try:
        await channel.write_stdin(job, data, close=call.arguments["close"])
    except BlockingIOError:
        raise ConfigurationError(
            "the job does not read the input that it has already", hint="read its output first"
        ) from None
    except BrokenPipeError:
        raise ConfigurationError(
            "the job takes no input", hint="start it with `stdin_open`, and write while it runs"
        ) from None
    return said(f"[{len(data)} bytes written | job {job}]", {"job_id": job, "bytes": len(data)})


async def stop_command(house: House, call: ToolCall) -> CallToolResult:
    """End a job and everything it started."""
    job = call.arguments["job_id"]
    await _channel_to(house, call, job)
    result = await house.gate.stop(job)
    more = "read_output has what it wrote" if result.stdout_bytes or result.stderr_bytes else ""
    meta = result_meta(job, result, unkept=_unkept(house))
    return said(with_trailer("", *ending(result), more, f"job {job}"), meta)


async def list_jobs(house: House, call: ToolCall) -> CallToolResult:
    """The jobs of this connection, or of the session that was presented, running or not."""
    channel = await house.channel()
    jobs = [] if channel is None else await channel.list_jobs()
    ours = [
        (job, session)
        for job in jobs
        if (session := house.sessions.of_job(job.id)) and session.scope == call.session.scope
    ]
    lines = [_job_line(job, session.name) for job, session in ours]
    running = sum(job.running for job, _ in ours)
    meta = {
        "jobs": [
            {"job_id": job.id, "running": job.running, "session": session.name}
            for job, session in ours
        ]
    }
    return said(with_trailer("\n".join(lines), f"jobs: {len(ours)}", f"running: {running}"), meta)


def _job_line(job: JobInfo, session: str) -> str:
    state = "running" if job.result is None else ", ".join(ending(job.result)[:3])
    sizes = f"stdout {job.stdout_bytes} bytes, stderr {job.stderr_bytes} bytes"
    age = f"started {job.started_s_ago:.0f} s ago"
    return f"{job.id}  {state}  {age}  {sizes}  session {session}  {shown(job.command)[:200]}"


async def _channel_to(house: House, call: ToolCall, job: str) -> Channel:
    """The way to a job of this caller: another's is none, and its id cannot be guessed."""
    channel = await house.channel()
    session = house.sessions.of_job(job)
    if channel is None or session is None or session.caller != call.session.caller:
        raise ConfigurationError(
            f"there is no job {job!r}", hint="list_jobs shows them; old ones are forgotten"
        )
    return channel


# --- Judging ---------------------------------------------------------------------------------


async def check_command(house: House, call: ToolCall) -> CallToolResult:
    """What the policy says, without running anything."""
    text = call.arguments["command"]
    if not text:
        return decision_reply(decide(house.gate.policy, text))
    cwd = call.session.directory(call.arguments["workdir"])
    call_of_it = Call(variables=call.session.env)
    return decision_reply(await house.gate.judge(Command(command=text, cwd=cwd), call_of_it))
