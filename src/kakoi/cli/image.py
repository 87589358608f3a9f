"""`kakoi image`: build the images of environments, list them, check them."""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Final

import click

from kakoi.cli.telling import say
from kakoi.config.loading import load_settings
from kakoi.errors import ConfigurationError
from kakoi.images.building import Builder, Order, find_sources
from kakoi.images.checking import Check, Outcome, check_image, list_images
from kakoi.images.description import VARIANTS, Variant
from kakoi.packages.allowlist import AllowlistConfig, InstallRequest, check, parse
from kakoi.printable import shown
from kakoi.process import ProcessExecutor
from kakoi.process.options import base_environment
from kakoi.sandbox.docker_cli import IMAGE
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.select import engine_environment

# For pip, on machines whose connections are looked into.
_CA: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_WIDTH: Final = max(len(outcome) for outcome in Outcome)


@click.group()
def command() -> None:
    """Make the images that environments start from.

    `base` is a workspace with Python and Node.js; `full` has Go, Java, Ruby and a C toolchain, too.
    A project names another image in its settings: tasks.base_image, sandbox.docker.image.
    """


@command.command(
    epilog="Nothing is done if the very same image is there already. Exit status: 0 it is there, "
    "2 it could not be made."
)
@click.argument("variant", type=click.Choice(VARIANTS), default="full")
@click.option("--without-registry", is_flag=True, help="From Debian's packages (mmdebstrap).")
@click.option("--tag", metavar="NAME", help="[default: tasks.base_image; of base, with :base]")
@click.option("--apt", multiple=True, metavar="NAME", help="One more package of Debian's.")
@click.option("--uid", type=click.IntRange(1000, 60000), default=1000, help="The agent's number.")
@click.option("--base", metavar="IMAGE", default="", help="To start from, if not node:20-slim.")
@click.option(
    "--mamba",
    metavar="IMAGE",
    default="",
    help="For full: to take mamba from, if not mambaorg/micromamba:2.",
)
@click.option(
    "--apt-sources",
    metavar="FILE",
    default="",
    envvar="APT_SOURCES",
    show_envvar=True,
    help="Where Debian's packages come from; else this machine's.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the files of the image here, for another time without a registry.",
)
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="A label for the image.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it is there.")
def build(
    *,
    variant: Variant,
    without_registry: bool,
    tag: str | None,
    apt: tuple[str, ...],
    uid: int,
    base: str,
    mamba: str,
    apt_sources: str,
    cache: Path | None,
    label: tuple[str, ...],
    as_json: bool,
) -> None:
    """Build an image, from one of a container registry or from Debian's packages."""
    order = Order(
        variant=variant,
        name=_image_name(tag or _default_name(variant)),
        apt=[_package_name(name) for name in apt],
        uid=uid,
        base=_image_name(base) if base else "",
        mamba=_image_name(mamba) if mamba else "",
        ca=_CA if _CA.is_file() else None,
        sources=find_sources(apt_sources),
        labels=dict(_label(each) for each in label),
    )
    was_built = asyncio.run(_build(order, without_registry=without_registry, cache=cache))
    if as_json:
        click.echo(json.dumps({"image": order.name, "built": was_built}))
    else:
        click.echo(f"built {order.name}" if was_built else f"{order.name} is up to date")


async def _build(order: Order, *, without_registry: bool, cache: Path | None) -> bool:
    builder = Builder(_engine(), ProcessExecutor(), base_environment(os.environ))
    if await builder.is_built(order):
        return False
    say(f"building {order.name}; this takes minutes")
    if without_registry:
        await builder.build_without_registry(order, cache=cache)
    else:
        await builder.build(order)
    return True


@command.command("list", epilog="Exit status: 0, or 2 if the engine does not answer.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def list_(*, as_json: bool) -> None:
    """List the images that were built here."""
    found = asyncio.run(list_images(_engine()))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
        return
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        click.echo(f"{each.name:<{width}}  {each.variant:<4}  {each.size:>8}  {each.created}")


@command.command("check", epilog="Exit status: 0 all is well, 1 something is not.")
@click.argument("image", required=False)
@click.option("--as", "variant", type=click.Choice(VARIANTS), help="[default: its label, or full]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def check_(*, image: str | None, variant: Variant | None, as_json: bool) -> None:
    """Try what an image is to hold: programs, its user, what may be written and what may not."""
    name = _image_name(image or _default_name("full"))
    found = asyncio.run(check_image(_engine(), name, variant))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    else:
        for each in found:
            click.echo(_line(each))
    sys.exit(1 if any(each.outcome is Outcome.FAILED for each in found) else 0)


def _line(each: Check) -> str:
    detail = f"  {shown(each.detail)}" if each.detail else ""
    return f"{each.outcome:<{_WIDTH}}  {each.name}{detail}"


def _engine() -> Engine:
    env = engine_environment(os.environ)
    return Engine(ProcessExecutor(), program="docker", env=env)


def _default_name(variant: Variant) -> str:
    name = load_settings(".").settings.tasks.base_image
    if variant == "full":
        return name
    path, colon, tag = name.rpartition(":")
    return f"{path if colon and '/' not in tag else name}:base"


def _image_name(name: str) -> str:
    if not IMAGE.fullmatch(name):
        raise ConfigurationError(f"{name[:80]!r} is no name of an image")
    return name


def _package_name(name: str) -> str:
    """Only a name, as in a list: no option, no version."""
    listed = parse("apt", name)
    if [each.version for each in listed.entries] != [""] or not check(
        InstallRequest("apt", name), AllowlistConfig(apt=listed)
    ):
        raise ConfigurationError(f"{name[:80]!r} is no name of a package of Debian's")
    return name


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    plain = name.replace(".", "").replace("-", "").replace("_", "")
    if not equals or not plain.isalnum() or any(each in value for each in " \t\n\"'\\$"):
        raise ConfigurationError(f"{text[:80]!r} is no label; write NAME=VALUE")
    return name, value
