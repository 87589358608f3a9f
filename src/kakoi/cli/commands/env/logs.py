"""`kakoi env logs`: the jobs of a task, and the output of a job."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any, Final

import click

from kakoi._support.text import shown
from kakoi.channel.api import Channel, JobInfo, Stream
from kakoi.cli.group import help_end
from kakoi.cli.io.format import format_age
from kakoi.cli.io.terminal import Screen
from kakoi.cli.options import config_option, json_option, settings_from
from kakoi.errors import SandboxError
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.from_settings import environment_manager

_WAIT_S: Final = 5.0


@click.command(
    epilog=help_end(
        "kakoi env logs 3f2a",
        "kakoi env logs --follow job-1",
        exit_codes="0 success; 2 usage error, or no such task or job.",
    )
)
@click.argument("name", metavar="TASK|JOB")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Start at this byte.")
@click.option("--stderr", "is_stderr", is_flag=True, help="Print stderr instead of stdout.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job has ended.")
@json_option
@config_option
def command(
    *,
    name: str,
    offset: int,
    is_stderr: bool,
    follow: bool,
    as_json: bool,
    config_file: Path | None,
) -> None:
    """List the jobs of TASK, or print the output of JOB.

    Jobs are commands that run in the background. The output of a job that has ended is kept for a
    while.
    """
    stream: Stream = "stderr" if is_stderr else "stdout"
    manager = environment_manager(settings_from(config_file))
    asyncio.run(_show(manager, name, stream, offset, follow=follow, as_json=as_json))


async def _show(
    manager: ExecutionEnvironmentManager,
    name: str,
    stream: Stream,
    offset: int,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    running = [each.task for each in await manager.existing() if each.status == "running"]
    if name in running:
        async with manager.attached(name) as environment:
            jobs = await (await environment.adapter.channel()).list_jobs()
        _list(jobs, as_json=as_json)
        return
    for task in running:
        async with manager.attached(task) as environment:
            channel = await environment.adapter.channel()
            if name in [job.id for job in await channel.list_jobs()]:
                if as_json:
                    raise click.UsageError("--json lists the jobs of a TASK; a JOB has no JSON")
                await _print(channel, name, stream, offset, follow=follow)
                return
    raise SandboxError(
        f"no running task or job is called `{name}`", hint="`kakoi env ls` lists the tasks"
    )


def _list(jobs: list[JobInfo], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_as_dict(job) for job in jobs], indent=2))
        return
    for job in jobs:
        state = "running" if job.result is None else f"{job.result.reason} {job.result.exit_code}"
        written = job.stdout_bytes + job.stderr_bytes
        age = format_age(job.started_s_ago)
        text = shown(job.command)[:60]
        click.echo(f"{shown(job.id):<16}  {state:<12} {age:>5}  {written:>10} B  {text}")


def _as_dict(job: JobInfo) -> dict[str, Any]:
    return {
        "id": job.id,
        "command": job.command,
        "started_s_ago": round(job.started_s_ago, 1),
        "running": job.running,
        "exit_code": None if job.result is None else job.result.exit_code,
        "reason": None if job.result is None else job.result.reason,
        "stdout_bytes": job.stdout_bytes,
        "stderr_bytes": job.stderr_bytes,
    }


async def _print(channel: Channel, job: str, stream: Stream, offset: int, *, follow: bool) -> None:
    screen = Screen(1)
    while True:
        wait_s = _WAIT_S if follow else 0
        part = await channel.read_output(job, stream, offset=offset, wait_s=wait_s)
        with contextlib.suppress(BlockingIOError):
            await asyncio.to_thread(screen.write, part.data)
        offset = part.next_offset
        if part.ended or (not part.data and not follow):
            screen.end()
            return
