"""`kakoi install`: packages that are on the list, into the project or a container."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from kakoi.cli.asking import Approval
from kakoi.cli.opening import (
    Place,
    package_place_options,
    place_from,
    setting_option,
    variables,
)
from kakoi.cli.telling import say, show_warnings
from kakoi.config.opening import open_gate
from kakoi.config.packages import installer_from, installer_policy, list_folder
from kakoi.config.recording import default_audit_file, record_verdict
from kakoi.errors import ConfigurationError
from kakoi.packages.allowlist import ECOSYSTEMS, AllowlistConfig, InstallRequest
from kakoi.packages.install import (
    UNKNOWN_TYPE,
    Installed,
    PackagePlace,
    read_lists,
    requests_from,
)
from kakoi.packages.logs import as_line, plain
from kakoi.packages.places import AsRoot, InSandbox
from kakoi.policy.decide import Decision
from kakoi.process import ProcessExecutor
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.select import engine_environment

_STATUS = (
    "Exit status: 0 installed, 1 not on the list, 2 failed, 3 there is no list, 4 there is no such "
    "type; of several packages, the largest."
)


# What follows TYPE is a name, whatever it looks like: the list is to refuse it.
@click.command(epilog=_STATUS, context_settings={"allow_interspersed_args": False})
@click.argument("kind", metavar="TYPE", default="")
@click.argument("packages", metavar="PACKAGE...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--container",
    metavar="NAME",
    help="A container that runs, for apt: it installs there as root, from outside.",
)
@setting_option("packages.allowlist", "--allowlist", metavar="DIR")
@setting_option("packages.log_dir", "--log-dir", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print each line of the log.")
@package_place_options
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    kind: str,
    packages: tuple[str, ...],
    container: str | None,
    env: tuple[str, ...],
    as_json: bool,
    **_settings: object,
) -> None:
    """Install each PACKAGE whose name is on the list of its TYPE: apt, pip or npm.

    pip installs into .venv of the workspace and npm into its node_modules, both in the sandbox,
    which may need --network. The project's own settings, scripts and dependencies are left out, and
    no script of a package is run. The answer names what the package brought along. A package may
    have a version: requests==2.32, @types/node@20.
    """
    show_warnings()
    try:
        requests = requests_from(kind, packages)
        if not requests:
            raise ConfigurationError(
                "which package?", hint=f"kakoi install {kind} PACKAGE installs one"
            )
    except ConfigurationError as error:
        say(str(error), hint=error.hint)
        sys.exit(UNKNOWN_TYPE)
    if container is not None and env:
        raise click.UsageError("--env is for the sandbox; a container has variables of its own")
    place = place_from(context)
    where = _where(place, container, variables(env, os.environ))
    sys.exit(asyncio.run(_install_all(place, requests, where, as_json=as_json)))


async def _install_all(
    place: Place,
    requests: Sequence[InstallRequest],
    opened: contextlib.AbstractAsyncContextManager[PackagePlace],
    *,
    as_json: bool,
) -> int:
    settings = place.settings.packages
    folder = list_folder(settings)
    lists = read_lists(folder)
    _tell_unread(lists, folder)
    worst = 0
    async with opened as where:
        audit = place.audit_file or default_audit_file(os.environ)
        installer = installer_from(
            settings, lists, where, audit_file=audit, tell_rejected=partial(_record, place)
        )
        for request in requests:
            done = await installer.install(request)
            _tell(done, folder, as_json=as_json)
            worst = max(worst, done.exit_code)
    return worst


async def _record(place: Place, refusal: Decision) -> None:
    await asyncio.to_thread(
        record_verdict, refusal, place.audit_file, cwd=place.directory, session=""
    )


@contextlib.asynccontextmanager
async def _where(
    place: Place, container: str | None, env: Mapping[str, str]
) -> AsyncIterator[PackagePlace]:
    if container is not None:
        engine = Engine(ProcessExecutor(), program="docker", env=engine_environment(os.environ))
        yield AsRoot(engine, container)
        return
    async with open_gate(
        installer_policy(place.settings.policy, roots=[place.directory]),
        place.config,
        workspace=place.directory,
        unfit=place.unfit,
        approver=Approval(yes=False),
        audit_file=place.audit_file,
    ) as gate:
        yield InSandbox(gate, place.directory, env=env)


def _tell(done: Installed, folder: Path, *, as_json: bool) -> None:
    result = done.result
    if as_json:
        click.echo(as_line(result, also=done.also))
        return
    if result.status == "success":
        came = f"; with it came {', '.join(done.also)}" if done.also else ""
        click.echo(f"installed {result.package}{came}")
    elif result.status == "rejected":
        say(
            f"{result.type}: `{result.package}` is refused: {result.error}",
            hint=f"the list is {folder / result.type}.txt",
        )
    else:
        say(f"{result.type}: `{result.package}` was not installed: {result.error}")


def _tell_unread(lists: AllowlistConfig, folder: Path) -> None:
    for each in ECOSYSTEMS:
        found = lists.of(each)
        for line in found.unread if found else ():
            say(f"{folder / each}.txt: this is no package: {plain(line)}")
