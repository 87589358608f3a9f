"""`kakoi mcp`: commands for agents that speak the Model Context Protocol."""

import os
from pathlib import Path

import click

from kakoi.cli.extras import load
from kakoi.cli.opening import place_from, place_options, setting_option, variables
from kakoi.config.recording import default_audit_file


@click.command(epilog="Exit status: 0 its client is gone or a signal came, 2 it could not serve.")
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value="127.0.0.1:8765",
    metavar="[HOST:PORT]",
    help="Serve streamable HTTP there [default: 127.0.0.1:8765], not standard input and output.",
)
@click.option(
    "--token-file",
    "token_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Holds a bearer token that clients of HTTP may send (repeatable: one for each client). "
    "Without it KAKOI_MCP_TOKEN is taken, or one is made up and shown.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="A name by which clients of HTTP may call this machine; may be given again.",
)
@setting_option("policy.profile", "--profile", metavar="NAME")
@place_options
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    address: str | None,
    token_files: tuple[Path, ...],
    host_names: tuple[str, ...],
    cwd: str | None,
    env: tuple[str, ...],
    **_place: object,
) -> None:
    """Serve commands, files and jobs over the Model Context Protocol.

    Standard output carries the protocol only. It ends with its client, or by a signal, and ends
    everything that was started.
    """
    if address is None and (token_files or host_names):
        raise click.UsageError("--token-file and --host-name are for --http")
    place = place_from(context)
    serving = load("kakoi.mcp_server.serving", extra="mcp", what="the MCP server")
    serving.serve(
        serving.Wanted(
            settings=place.settings,
            policy=place.policy(),
            sandbox=place.config,
            unfit=place.unfit,
            workspace=place.directory,
            cwd=place.within(cwd or "."),
            audit_file=place.audit_file or default_audit_file(os.environ),
            env=variables(env, os.environ),
            address=address,
            token_files=token_files,
            token=os.environ.get("KAKOI_MCP_TOKEN", ""),
            host_names=host_names,
        )
    )
