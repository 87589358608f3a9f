"""`kakoi doctor`: test what this machine can confine, and say what would help.

The trials and their sentences are in `backends/probes`, the checks in `backends/diagnosis`.
"""

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from kakoi import __version__
from kakoi._support.text import shown
from kakoi.backends.diagnosis import Diagnosis, diagnose
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.machine_checks import Check, CheckStatus, failed, passed
from kakoi.backends.probes import Exposure, find_exposure
from kakoi.backends.select import SandboxFactory, cluster_environment, engine_environment
from kakoi.backends.settings import SandboxConfig
from kakoi.cli.group import help_end
from kakoi.cli.io.streams import stdout_has_color
from kakoi.errors import KakoiError
from kakoi.overlay.store import overlays_folder
from kakoi.settings.audit_log import default_audit_file
from kakoi.settings.files import unread_files
from kakoi.settings.shell_security import find_feature_off, find_security, read_security

_COLORS: Final = {
    CheckStatus.OK: "green",
    CheckStatus.NOT_OK: "red",
    CheckStatus.NOT_ENFORCED: "yellow",
}
_WIDTH: Final = max(len(status) for status in CheckStatus)


@click.command(
    epilog=help_end(
        "kakoi doctor",
        "kakoi doctor --explain --image python:3.12-slim",
        exit_codes="0 at least one isolating sandbox works; 1 none does.",
    )
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--explain", is_flag=True, help="Also show what a command can reach in each sandbox.")
@click.option(
    "--image",
    metavar="IMAGE",
    envvar="KAKOI_IMAGE",
    show_envvar=True,
    help="The image to test containers with; it is not pulled.",
)
def command(*, as_json: bool, explain: bool, image: str | None) -> None:
    """Test each sandbox and each limit, and report what is enforced.

    `not enforced` means that a command which exceeds the limit is not stopped.
    """
    log = os.environ.get("KAKOI_AUDIT_FILE") or default_audit_file(os.environ)
    overlays = overlays_folder(os.environ)
    found = asyncio.run(
        diagnose(
            image=image,
            engine_env=engine_environment(os.environ),
            cluster_env=cluster_environment(os.environ),
            state_folder=Path(log).absolute().parent,
            overlays=Path(overlays).absolute(),
        )
    )
    found = dataclasses.replace(
        found, checks=(*found.checks, *_check_security_files(), *_check_unread_files())
    )
    in_reach = asyncio.run(_exposures(found, image)) if explain else {}
    if as_json:
        click.echo(json.dumps(_as_dict(found, in_reach), indent=2))
    else:
        color = stdout_has_color()
        click.echo(_as_text(found, color=color), color=color)
        for name, each in in_reach.items():
            click.echo("\n" + _in_reach_as_text(name, each))
    sys.exit(0 if found.ok else 1)


def _check_unread_files() -> Iterator[Check]:
    """Which settings files are in places where they are not read."""
    for path, fix in unread_files(".", os.environ).items():
        yield failed("settings", "settings file", f"{path} is not read", fix=f"{fix}, or remove it")


def _check_security_files() -> Iterator[Check]:
    """Whether the user's security.toml is where it is read."""
    area, name = "settings", "security.toml"
    try:
        files = find_security(os.environ)
        if files.used is not None:
            read_security(files.used)
        off_by = find_feature_off(os.environ)
    except KakoiError as error:
        yield failed(area, name, str(error), fix=error.hint)
        return
    unread = [failed(area, name, f"{path} is not read", fix=files.fix) for path in files.unread]
    if files.used is not None or not unread:
        used = f"{files.used} is read" if files.used else f"none; it would be {files.place}"
        yield passed(area, name, used)
    if off_by is not None:
        yield passed(area, off_by.name, f"{off_by} turns the shell off: `[features] shell = false`")
    yield from unread


async def _exposures(found: Diagnosis, image: str | None) -> dict[str, Exposure | str]:
    """What a command can reach in each working sandbox, or the error that prevented the test."""
    docker = DockerSettings(image=image) if image else DockerSettings()
    config = SandboxConfig(docker=docker)
    in_reach: dict[str, Exposure | str] = {}
    for name in filter(found.works, ("bubblewrap", "docker", "podman")):
        with tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as folder:
            factory = SandboxFactory(folder, environ=os.environ, clock=time.time)
            sandbox = factory.make(name, config)
            try:
                in_reach[name] = await find_exposure(await sandbox.channel())
            except KakoiError as error:
                in_reach[name] = str(error)
            finally:
                await sandbox.cleanup()
    return in_reach


def _as_dict(found: Diagnosis, in_reach: Mapping[str, Exposure | str]) -> dict[str, Any]:
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
    title = f"what a command can reach in {name}"
    if isinstance(found, str):
        return f"{title}\n  {shown(found)}"
    rows = {
        "reads": found.reads,
        "writes": ("the workspace", *found.writes),
        "devices": found.devices,
        "variables": found.variables,
        "processes": (f"{found.processes}, its own and the runner's",),
        "network": found.interfaces,
        "secrets": found.secrets or ("none, judging by their names",),
    }
    return "\n".join([title, *(f"  {key:<10} {shown(' '.join(row))}" for key, row in rows.items())])


def _as_text(found: Diagnosis, *, color: bool) -> str:
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
    lines.append(f"auto would choose: {found.choice or 'nothing, so commands are refused'}")
    lines += [f"  {shown(why)}" for why in found.because]
    return "\n".join(lines)


def _lines(check: Check, *, color: bool) -> list[str]:
    status = f"{check.status:<{_WIDTH}}"
    painted = click.style(status, fg=_COLORS[check.status]) if color else status
    lines = [f"  {painted}  {check.name:<15}  {shown(check.detail)}".rstrip()]
    if check.fix:
        lines.append(f"  {' ' * _WIDTH}  {' ' * 15}  fix: {shown(check.fix)}")
    return lines
