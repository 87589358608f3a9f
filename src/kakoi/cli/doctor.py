"""`kakoi doctor`: what can this machine really confine? And what would help?"""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from kakoi import __version__
from kakoi.config.recording import default_audit_file
from kakoi.printable import shown
from kakoi.sandbox.examine import Examination, examine
from kakoi.sandbox.machine import Check, Status
from kakoi.sandbox.select import engine_environment

_COLORS: Final = {Status.OK: "green", Status.NOT_OK: "red", Status.NOT_ENFORCED: "yellow"}
_WIDTH: Final = max(len(status) for status in Status)


@click.command(epilog="Exit status: 0 something that isolates works here, 1 nothing does.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option(
    "--image",
    metavar="IMAGE",
    envvar="KAKOI_IMAGE",
    show_envvar=True,
    help="The image to try containers with; it is not pulled.",
)
def command(*, as_json: bool, image: str | None) -> None:
    """Try each sandbox and each limit, and say what holds.

    `not enforced` means: a command that goes beyond it is not stopped.
    """
    log = os.environ.get("KAKOI_AUDIT_FILE") or default_audit_file(os.environ)
    found = asyncio.run(
        examine(
            image=image,
            engine_env=engine_environment(os.environ),
            state_folder=Path(log).absolute().parent,
        )
    )
    if as_json:
        click.echo(json.dumps(_as_dict(found), indent=2))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        click.echo(_as_text(found, color=color), color=color)
    sys.exit(0 if found.ok else 1)


def _as_dict(found: Examination) -> dict[str, Any]:
    return {
        "version": __version__,
        "ok": found.ok,
        "auto": {"choice": found.choice, "because": list(found.because)},
        "checks": [dataclasses.asdict(check) for check in found.checks],
    }


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
