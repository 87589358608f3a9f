"""`kakoi env stats`: resource usage and failures of all environments."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from kakoi.audit import read
from kakoi.cli.group import help_end
from kakoi.cli.io.format import format_size
from kakoi.cli.options import config_option, json_option, settings_from
from kakoi.settings.audit_log import audit_file
from kakoi.settings.model import Settings
from kakoi.tasks.from_settings import environment_manager
from kakoi.tasks.stats import EnvironmentStats, as_prometheus, count_records


@click.command(
    epilog=help_end(
        "kakoi env stats",
        "kakoi env stats --prometheus",
        exit_codes="0 success; 2 usage error, or no engine.",
    )
)
@json_option
@click.option("--prometheus", is_flag=True, help="Print the Prometheus text format.")
@config_option
def command(*, as_json: bool, prometheus: bool, config_file: Path | None) -> None:
    """Summarize all your environments on this machine.

    Usage is what the engine reports now. Failures and timeouts are counted in the audit log: as far
    back as it goes, and without those of processes that use another log.
    """
    if as_json and prometheus:
        raise click.UsageError("use --json or --prometheus, not both")
    stats = asyncio.run(_measure(settings_from(config_file)))
    if as_json:
        click.echo(json.dumps(asdict(stats), indent=2))
    elif prometheus:
        click.echo(as_prometheus(stats), nl=False)
    else:
        click.echo(_as_text(stats))


async def _measure(settings: Settings) -> EnvironmentStats:
    counters = await asyncio.to_thread(lambda: count_records(read(audit_file(settings))))
    return await environment_manager(settings).stats(counters)


def _as_text(stats: EnvironmentStats) -> str:
    return "\n".join(
        [
            f"environments     {stats.environments}",
            f"cpu              {stats.cpu_percent:.1f} %",
            f"memory           {format_size(stats.memory_bytes)}",
            f"disk             {format_size(stats.disk_bytes)}",
            f"leftovers        {stats.leftovers}",
            f"create failures  {stats.create_failures}",
            f"clone failures   {stats.clone_failures}",
            f"timeouts         {stats.timeouts}",
        ]
    )
