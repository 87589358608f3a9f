"""`kakoi mcp`: serve commands over the Model Context Protocol."""

import os
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from kakoi._support.extras import load_extra
from kakoi.cli.group import help_end
from kakoi.cli.options import read_variables, sandbox_options, setting_option, target_from
from kakoi.settings.audit_log import default_audit_file

_FOR_TASKS: Final = frozenset(
    "address token_files host_names task container all_tasks env audit_file config_file".split()
)


@click.command(
    epilog=help_end(
        "kakoi mcp --workspace ~/project",
        "kakoi mcp --http 127.0.0.1:8765 --token-file token",
        exit_codes="0 the client disconnected, or a signal came; 2 the server could not start.",
    )
)
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value="127.0.0.1:8765",
    metavar="[HOST:PORT]",
    help="Serve streamable HTTP at this address [default: 127.0.0.1:8765] instead of stdio.",
)
@click.option(
    "--token-file",
    "token_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file with a bearer token for HTTP clients (repeatable: one for each client). Without "
    "it, KAKOI_MCP_TOKEN is used, or a token is generated and printed.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="A host name that HTTP clients can use for this machine (repeatable).",
)
@click.option("--task", metavar="TASK", help="Serve the environment of this task.")
@click.option("--container", metavar="ID", help="Serve the task environment with this container.")
@click.option(
    "--tasks",
    "all_tasks",
    is_flag=True,
    help="Serve all task environments of this owner: each call names one with `container_id`.",
)
@setting_option("policy.profile", "--profile", metavar="NAME")
@sandbox_options
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    address: str | None,
    token_files: tuple[Path, ...],
    host_names: tuple[str, ...],
    task: str | None,
    container: str | None,
    all_tasks: bool,
    cwd: str | None,
    env: tuple[str, ...],
    **_settings: object,
) -> None:
    """Serve commands, files and jobs over the Model Context Protocol.

    Stdout carries only the protocol. The server ends with its client or by a signal, and ends
    everything that it started. The environment of a task stays.
    """
    if address is None and (token_files or host_names):
        raise click.UsageError("--token-file and --host-name need --http")
    chosen = [each for each in (task, container, all_tasks) if each not in (None, False)]
    if chosen:
        _check_task_options(context, len(chosen))
    target = target_from(context)
    server = load_extra("kakoi.mcp.from_settings", extra="mcp", feature="the MCP server")
    server.serve(
        server.ServerOptions(
            settings=target.settings,
            policy=target.policy(),
            sandbox=target.config,
            unfit=target.unfit,
            workspace=target.directory,
            cwd=target.within(cwd or "."),
            audit_file=target.audit_file or default_audit_file(os.environ),
            env=read_variables(env, os.environ),
            address=address,
            token_files=token_files,
            token=os.environ.get("KAKOI_MCP_TOKEN", ""),
            host_names=host_names,
            task=task or "",
            container=container or "",
            all_tasks=all_tasks,
        )
    )


def _check_task_options(context: click.Context, chosen: int) -> None:
    """Refuse options that have no effect: an environment has its own sandbox and policy."""
    if "" in (context.params["task"], context.params["container"]):
        raise click.UsageError("--task and --container need a value")
    if chosen > 1:
        raise click.UsageError("--task, --container and --tasks exclude each other")
    for option in context.command.params:
        name = str(option.name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _FOR_TASKS:
            raise click.UsageError(
                f"{option.opts[-1]} has no effect on the environment of a task, which has its own "
                "sandbox and policy"
            )
