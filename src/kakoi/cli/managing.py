"""What the commands about tasks' environments have in common."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from kakoi.config.environments import environment_manager
from kakoi.config.loading import load_settings
from kakoi.config.settings import Settings
from kakoi.errors import SandboxError
from kakoi.sandbox.docker_listing import Listed
from kakoi.tasks.environments import ExecutionEnvironmentManager

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print everything as JSON."
)


def settings_from(config_file: Path | None) -> Settings:
    """The settings that hold here."""
    return load_settings(".", config_file=config_file).settings


def manager_from(config_file: Path | None) -> ExecutionEnvironmentManager:
    """The manager that they describe."""
    return environment_manager(settings_from(config_file))


async def find(manager: ExecutionEnvironmentManager, task: str) -> Listed:
    """The environment of a task; the beginning of its name is enough, if no other begins so."""
    found = await manager.existing()
    exact = [each for each in found if each.task == task]
    close = exact or [each for each in found if task and each.task.startswith(task)]
    if len(close) == 1:
        return close[0]
    if close:
        names = ", ".join(each.task for each in close[:5])
        raise SandboxError(f"several tasks begin with `{task}`: {names}")
    raise SandboxError(f"there is no environment of a task `{task}`", hint="`kakoi ps` lists them")


def duration(text: str) -> timedelta:
    """`90s`, `30m`, `24h`, `7d` or `0`, as an option gives it."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if match is None or (not match[2] and int(match[1])):
        raise click.BadParameter(f"{text!r} is no time; write 90s, 30m, 24h or 7d")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2] or "s"])


def in_words(seconds: float) -> str:
    """A time for people: its biggest unit."""
    for unit, length in reversed(_UNITS.items()):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "0s"


def size_in_words(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
