"""`kakoi install`: install packages of the allowlist into the project or a container."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from kakoi.backends.docker.engine import Engine
from kakoi.backends.select import engine_environment
from kakoi.backends.settings import SandboxConfig
from kakoi.cli.group import help_end
from kakoi.cli.io.approval import Approval
from kakoi.cli.io.messages import print_message
from kakoi.cli.io.report import enable_log_messages
from kakoi.cli.options import (
    package_options,
    read_variables,
    setting_option,
    target_from,
)
from kakoi.cli.target import RunTarget
from kakoi.errors import ConfigurationError
from kakoi.packages.allowlist import ECOSYSTEMS, AllowlistConfig, InstallRequest
from kakoi.packages.from_settings import installer_from, installer_policy, list_folder
from kakoi.packages.installer import (
    NO_LIST,
    UNKNOWN_TYPE,
    InstallReport,
    InstallTarget,
    as_line,
    plain,
    read_lists,
    requests_from,
)
from kakoi.packages.targets import ContainerTarget, SandboxTarget
from kakoi.policy.decide import Decision
from kakoi.process import ProcessExecutor
from kakoi.sandbox.doors import sandbox_for
from kakoi.settings.audit_log import default_audit_file, record_verdict

_HELP_END = help_end(
    "kakoi install pip requests",
    "kakoi install --container my-agent apt ffmpeg",
    exit_codes="0 installed; 1 not on the list; 2 failed; 3 no list; 4 unknown type. With several "
    "packages, the largest of these.",
)


_NETWORK_HINT: Final = (
    "the sandbox has no network: --network open, or --allow-domain for each server, gives it one"
)


# What follows TYPE is a name, whatever it looks like: the list must refuse it.
@click.command(epilog=_HELP_END, context_settings={"allow_interspersed_args": False})
@click.argument("kind", metavar="TYPE", default="")
@click.argument("packages", metavar="PACKAGE...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--container",
    metavar="NAME",
    help="For apt: a running container, into which it installs as root, from outside.",
)
@setting_option("packages.allowlist", "--allowlist", metavar="DIR")
@setting_option("packages.log_dir", "--log-dir", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print each log entry as JSON.")
@package_options
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
    """Install each PACKAGE that is on the allowlist of its TYPE: apt, pip or npm.

    pip installs into .venv of the workspace and npm into its node_modules, both in the sandbox,
    which may need --network. The project's own settings, scripts and dependencies are ignored, and
    no script of a package is run. The output names the dependencies that came with a package. A
    version is accepted only as the list gives it: `requests==2.32` there allows that one,
    `requests==*` any, and `requests` none.
    """
    enable_log_messages()
    try:
        requests = requests_from(kind, packages)
        if not requests:
            raise ConfigurationError(
                "missing package", hint=f"kakoi install {kind} PACKAGE installs one"
            )
    except ConfigurationError as error:
        print_message(str(error), hint=error.hint)
        sys.exit(UNKNOWN_TYPE)
    if container is not None and env:
        raise click.UsageError(
            "--env sets variables of the sandbox; it does not apply to --container"
        )
    target = target_from(context)
    where = _open_target(target, container, read_variables(env, os.environ))
    sys.exit(asyncio.run(_install_all(target, requests, where, as_json=as_json)))


async def _install_all(
    target: RunTarget,
    requests: Sequence[InstallRequest],
    opened: contextlib.AbstractAsyncContextManager[InstallTarget],
    *,
    as_json: bool,
) -> int:
    settings = target.settings.packages
    folder = list_folder(settings)
    lists = read_lists(folder)
    _report_invalid_lines(lists, folder)
    worst = 0
    async with opened as where:
        is_offline = isinstance(where, SandboxTarget) and _is_offline(target.config)
        audit = target.audit_file or default_audit_file(os.environ)
        installer = installer_from(
            settings, lists, where, audit_file=audit, report_rejected=partial(_record, target)
        )
        for request in requests:
            done = await installer.install(request)
            _report(done, folder, is_offline=is_offline, as_json=as_json)
            worst = max(worst, done.exit_code)
    return worst


def _is_offline(config: SandboxConfig) -> bool:
    network = config.network or config.docker.network or "none"
    return network == "none" and config.type != "host"


async def _record(target: RunTarget, refusal: Decision) -> None:
    await asyncio.to_thread(
        record_verdict, refusal, target.settings.audit.file, cwd=target.directory, session=""
    )


@contextlib.asynccontextmanager
async def _open_target(
    target: RunTarget, container: str | None, env: Mapping[str, str]
) -> AsyncIterator[InstallTarget]:
    if container is not None:
        engine = Engine(ProcessExecutor(), program="docker", env=engine_environment(os.environ))
        yield ContainerTarget(engine, container)
        return
    policy = installer_policy(target.settings.policy, roots=[target.directory])
    approval = Approval(yes=False, approvals=target.approvals)
    async with sandbox_for(target.sandbox_options(policy, approve=approval)) as box:
        yield SandboxTarget(box.gate, target.directory, env=env)


def _report(done: InstallReport, folder: Path, *, is_offline: bool, as_json: bool) -> None:
    result = done.result
    if as_json:
        click.echo(as_line(result, also=done.also))
        return
    if result.status == "success":
        came = f", with {', '.join(done.also)}" if done.also else ""
        click.echo(f"installed {result.package}{came}")
    elif result.status == "rejected":
        print_message(
            f"{result.type}: `{result.package}` is refused: {result.error}",
            hint=f"the list is {folder / result.type}.txt",
        )
    else:
        print_message(
            f"{result.type}: `{result.package}` was not installed: {result.error}",
            hint=_way_out(done, folder, is_offline=is_offline),
        )


def _way_out(done: InstallReport, folder: Path, *, is_offline: bool) -> str:
    """What could help after an installation that failed."""
    if done.exit_code == NO_LIST:
        return f"write it to {folder / done.result.type}.txt, or name another folder: --allowlist"
    return _NETWORK_HINT if is_offline and done.result.type != "apt" else ""


def _report_invalid_lines(lists: AllowlistConfig, folder: Path) -> None:
    for each in ECOSYSTEMS:
        found = lists.of(each)
        for line in found.invalid if found else ():
            print_message(f"{folder / each}.txt: not a package: {plain(line)}")
