"""`kakoi image`: build, list and check the images of environments."""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Final

import click

from kakoi._support.text import shown
from kakoi.backends.docker.arguments import IMAGE
from kakoi.backends.docker.engine import Engine
from kakoi.backends.select import engine_environment
from kakoi.cli.group import CommandGroup, help_end
from kakoi.cli.io.messages import print_message
from kakoi.errors import ConfigurationError
from kakoi.images.build import Builder, BuildSpec, find_sources
from kakoi.images.check import CheckOutcome, ImageCheck, check_image, list_images
from kakoi.images.description import VARIANTS, Variant
from kakoi.packages.allowlist import AllowlistConfig, InstallRequest, check, parse
from kakoi.process import ProcessExecutor
from kakoi.process.options import base_environment
from kakoi.settings.loader import load_settings

# For pip, on machines behind a proxy that inspects TLS connections.
_CA: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_WIDTH: Final = max(len(outcome) for outcome in CheckOutcome)


@click.group(cls=CommandGroup, epilog=help_end("kakoi image build full", "kakoi image check"))
def command() -> None:
    """Build the images that environments start from.

    `base` has Python and Node.js; `full` also has Go, Java, Ruby and a C toolchain. A project can
    name another image in its settings: tasks.base_image, sandbox.docker.image.
    """


@command.command(
    epilog=help_end(
        "kakoi image build base",
        "kakoi image build full --apt ffmpeg --tag my-agent:latest",
        exit_codes="0 the image exists now; 2 it could not be built.",
    )
)
@click.argument("variant", type=click.Choice(VARIANTS), default="full")
@click.option("--without-registry", is_flag=True, help="Build from Debian packages (mmdebstrap).")
@click.option(
    "--tag",
    metavar="NAME",
    help="The name of the image [default: tasks.base_image; for base, with the tag :base].",
)
@click.option("--apt", multiple=True, metavar="NAME", help="Add a Debian package (repeatable).")
@click.option("--uid", type=click.IntRange(1000, 60000), default=1000, help="The uid of the agent.")
@click.option(
    "--base", metavar="IMAGE", default="", help="The image to start from, instead of node:20-slim."
)
@click.option(
    "--mamba",
    metavar="IMAGE",
    default="",
    help="For full: the image to take mamba from, instead of mambaorg/micromamba:2.",
)
@click.option(
    "--apt-sources",
    metavar="FILE",
    default="",
    envvar="APT_SOURCES",
    show_envvar=True,
    help="The apt sources to use, instead of this machine's.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the files of the image here, for the next build without a registry.",
)
@click.option(
    "--label", multiple=True, metavar="NAME=VALUE", help="Add a label to the image (repeatable)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
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
    """Build an image, from a registry's image or from Debian packages.

    Does nothing if the same image exists already.
    """
    spec = BuildSpec(
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
    was_built = asyncio.run(_build(spec, without_registry=without_registry, cache=cache))
    if as_json:
        click.echo(json.dumps({"image": spec.name, "built": was_built}))
    else:
        click.echo(f"built {spec.name}" if was_built else f"{spec.name} is up to date")


async def _build(spec: BuildSpec, *, without_registry: bool, cache: Path | None) -> bool:
    builder = Builder(_engine(), ProcessExecutor(), base_environment(os.environ))
    if await builder.is_built(spec):
        return False
    print_message(f"building {spec.name}; this takes minutes")
    if without_registry:
        await builder.build_without_registry(spec, cache=cache)
    else:
        await builder.build(spec)
    return True


@command.command(
    "list",
    epilog=help_end(
        "kakoi image list",
        "kakoi image list --json",
        exit_codes="0 success; 2 usage error, or the engine does not answer.",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(*, as_json: bool) -> None:
    """List the images that were built on this machine."""
    found = asyncio.run(list_images(_engine()))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
        return
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        click.echo(f"{each.name:<{width}}  {each.variant:<4}  {each.size:>8}  {each.created}")


@command.command(
    "check",
    short_help="Check that an image has everything it needs.",
    epilog=help_end(
        "kakoi image check",
        "kakoi image check my-agent:latest --as base",
        exit_codes="0 all checks passed; 1 a check failed.",
    ),
)
@click.argument("image", required=False)
@click.option(
    "--as",
    "variant",
    type=click.Choice(VARIANTS),
    help="Check it as this variant [default: its label, or full].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check_(*, image: str | None, variant: Variant | None, as_json: bool) -> None:
    """Check that an image has what it needs: programs, its user, writable and read-only paths."""
    name = _image_name(image or _default_name("full"))
    found = asyncio.run(check_image(_engine(), name, variant))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    else:
        for each in found:
            click.echo(_line(each))
    sys.exit(1 if any(each.outcome is CheckOutcome.FAILED for each in found) else 0)


def _line(each: ImageCheck) -> str:
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
        raise ConfigurationError(f"{name[:80]!r} is not a valid image name")
    return name


def _package_name(name: str) -> str:
    """A bare name, as in an allowlist: no option, no version."""
    listed = parse("apt", name)
    if [each.version for each in listed.entries] != [""] or not check(
        InstallRequest("apt", name), AllowlistConfig(apt=listed)
    ):
        raise ConfigurationError(f"{name[:80]!r} is not a valid Debian package name")
    return name


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    plain = name.replace(".", "").replace("-", "").replace("_", "")
    if not equals or not plain.isalnum() or any(each in value for each in " \t\n\"'\\$"):
        raise ConfigurationError(f"{text[:80]!r} is not a label; write NAME=VALUE")
    return name, value
