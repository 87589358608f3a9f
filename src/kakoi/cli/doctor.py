"""`kakoi doctor`: what can this machine really confine? And what would help?"""

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from kakoi import __version__
from kakoi.config.recording import default_audit_file
from kakoi.errors import KakoiError
from kakoi.overlay.store import overlays_folder
from kakoi.printable import shown
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.examine import Examination, examine
from kakoi.sandbox.exposure import Exposure, look_around
from kakoi.sandbox.machine import Check, Status
from kakoi.sandbox.select import SandboxFactory, cluster_environment, engine_environment
from kakoi.sandbox.settings import SandboxConfig

_COLORS: Final = {Status.OK: "green", Status.NOT_OK: "red", Status.NOT_ENFORCED: "yellow"}
_WIDTH: Final = max(len(status) for status in Status)


@click.command(epilog="Exit status: 0 something that isolates works here, 1 nothing does.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option(
    "--explain", is_flag=True, help="Say, too, what is in reach of a command in each sandbox."
)
@click.option(
    "--image",
    metavar="IMAGE",
    envvar="KAKOI_IMAGE",
    show_envvar=True,
    help="The image to try containers with; it is not pulled.",
)
def command(*, as_json: bool, explain: bool, image: str | None) -> None:
    """Try each sandbox and each limit, and say what holds.

    `not enforced` means: a command that goes beyond it is not stopped.
    """
    log = os.environ.get("KAKOI_AUDIT_FILE") or default_audit_file(os.environ)
    overlays = overlays_folder(os.environ)
    found = asyncio.run(
        examine(
            image=image,
            engine_env=engine_environment(os.environ),
            cluster_env=cluster_environment(os.environ),
            state_folder=Path(log).absolute().parent,
            overlays=Path(overlays).absolute(),
        )
    )
    in_reach = asyncio.run(_look_around(found, image)) if explain else {}
    if as_json:
        click.echo(json.dumps(_as_dict(found, in_reach), indent=2))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        click.echo(_as_text(found, color=color), color=color)
        for name, each in in_reach.items():
            click.echo("\n" + _in_reach_as_text(name, each))
    sys.exit(0 if found.ok else 1)


async def _look_around(found: Examination, image: str | None) -> dict[str, Exposure | str]:
    """What each sandbox that works lets a command reach, or why that could not be found out."""
    docker = DockerSettings(image=image) if image else DockerSettings()
    config = SandboxConfig(docker=docker)
    in_reach: dict[str, Exposure | str] = {}
    for name in filter(found.works, ("bubblewrap", "docker", "podman")):
        with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
            factory = SandboxFactory(folder, environ=os.environ, clock=time.time)
            sandbox = factory.make(name, config)
            try:
                in_reach[name] = await look_around(await sandbox.channel())
            except KakoiError as error:
                in_reach[name] = str(error)
            finally:
                await sandbox.cleanup()
    return in_reach


def _as_dict(found: Examination, in_reach: Mapping[str, Exposure | str]) -> dict[str, Any]:
    explained = {
        name: {"error": each} if isinstance(each, str) else dataclasses.asdict(each)
        for name, each in in_reach.items()
    }
    return {
        "version": __version__,
        "ok": found.ok,
        "auto": {"choice": found.choice, "because": list(found.because)},
        "checks": [dataclasses.asdict(check) for check in found.checks],
        **({"in_reach": explained} if in_reach else {}),
    }


def _in_reach_as_text(name: str, found: Exposure | str) -> str:
    title = f"in reach of a command in {name}"
    if isinstance(found, str):
        return f"{title}\n  {shown(found)}"
    rows = {
        "reads": found.reads,
        "writes": ("the workspace", *found.writes),
        "devices": found.devices,
        "variables": found.variables,
        "processes": (f"{found.processes}, its own and the runner's",),
        "network": found.interfaces,
        "secrets": found.secrets or ("none that has the name of one",),
    }
    return "\n".join([title, *(f"  {key:<10} {shown(' '.join(row))}" for key, row in rows.items())])


def _as_text(found: Examination, *, color: bool) -> str:
    lines = []
    for area in dict.fromkeys(check.area for check in found.checks):
        lines.append(area)
        lines += [
            line
            for check in found.checks
            if check.area == area
            for line in _lines(check, color=color)
        ]
        lines.append("")
    lines.append(f"auto would take: {found.choice or 'nothing, so commands are refused'}")
    lines += [f"  {shown(why)}" for why in found.because]
    return "\n".join(lines)


def _lines(check: Check, *, color: bool) -> list[str]:
    status = f"{check.status:<{_WIDTH}}"
    painted = click.style(status, fg=_COLORS[check.status]) if color else status
    lines = [f"  {painted}  {check.name:<15}  {shown(check.detail)}".rstrip()]
    if check.fix:
        lines.append(f"  {' ' * _WIDTH}  {' ' * 15}  fix: {shown(check.fix)}")
    return lines
