"""`kakoi policy`: what may run, and where each part of the policy comes from."""

import json

import click

from kakoi.cli.opening import place_from, policy_options
from kakoi.policy.describing import policy_as_dict, policy_as_text


@click.group()
def command() -> None:
    """Show what may run, and why."""


@command.command(epilog="Exit status: 0, or 2 if the settings are wrong.")
@policy_options
@click.option("--json", "as_json", is_flag=True, help="Print the policy as one JSON object.")
@click.pass_context
def show(context: click.Context, /, *, as_json: bool, **_settings: object) -> None:
    """Print the effective policy, each part with where it came from."""
    policy = place_from(context).policy(rooted=False)
    click.echo(json.dumps(policy_as_dict(policy), indent=2) if as_json else policy_as_text(policy))
