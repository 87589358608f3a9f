"""`kakoi version`: the installed versions, for bug reports."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import click

from kakoi import __version__
from kakoi.cli.group import help_end

_PACKAGES = ("shfmt-py", "click", "pyyaml", "mcp")


@click.command(epilog=help_end("kakoi version", "kakoi version --json", exit_codes="0 success."))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> None:
    """Print the versions of kakoi and its dependencies."""
    found = {
        "kakoi": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        **{name: _version(name) for name in _PACKAGES},
    }
    if as_json:
        click.echo(json.dumps(found | {"executable": sys.executable}, indent=2))
    else:
        for name, what in found.items():
            click.echo(f"{name:<9} {what}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
