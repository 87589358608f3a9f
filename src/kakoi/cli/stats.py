"""`kakoi stats`: what environments use, and what has failed."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from kakoi.audit import read
from kakoi.cli.managing import json_option, settings_from, size_in_words
from kakoi.cli.opening import config_option
from kakoi.config.environments import environment_manager
from kakoi.config.recording import audit_file
from kakoi.config.settings import Settings
from kakoi.tasks.stats import Stats, as_prometheus, count


@click.command(epilog="Exit status: 0; 2 wrong usage, or no engine.")
@json_option
@click.option("--prometheus", is_flag=True, help="Print it in Prometheus's text format.")
@config_option
def command(*, as_json: bool, prometheus: bool, config_file: Path | None) -> None:
    """Sum up all environments of yours on this machine.

    What they use is what the engine says now. Failures and timeouts are counted in the audit log:
    as far back as it goes, and not those of a process that recorded elsewhere.
    """
    if as_json and prometheus:
        raise click.UsageError("--json or --prometheus, not both")
    stats = asyncio.run(_measure(settings_from(config_file)))
    if as_json:
        click.echo(json.dumps(asdict(stats), indent=2))
    elif prometheus:
        click.echo(as_prometheus(stats), nl=False)
    else:
        click.echo(_as_text(stats))


async def _measure(settings: Settings) -> Stats:
    counters = await asyncio.to_thread(lambda: count(read(audit_file(settings))))
    return await environment_manager(settings).stats(counters)


def _as_text(stats: Stats) -> str:
    return "\n".join(
        [
            f"environments     {stats.environments}",
            f"cpu              {stats.cpu_percent:.1f} %",
            f"memory           {size_in_words(stats.memory_bytes)}",
            f"disk             {size_in_words(stats.disk_bytes)}",
            f"leftovers        {stats.leftovers}",
            f"create failures  {stats.create_failures}",
            f"clone failures   {stats.clone_failures}",
            f"timeouts         {stats.timeouts}",
        ]
    )
