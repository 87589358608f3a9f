"""`kakoi policy show`: what is allowed, and where each part of the policy comes from."""

import json

import click

from kakoi.cli.group import help_end
from kakoi.cli.options import policy_options, target_from
from kakoi.policy.description import policy_as_dict, policy_as_text


@click.command(
    epilog=help_end(
        "kakoi policy show",
        "kakoi policy show --profile shell --json",
        exit_codes="0 success; 2 usage or settings error.",
    )
)
@policy_options
@click.option("--json", "as_json", is_flag=True, help="Print the policy as one JSON object.")
@click.pass_context
def command(context: click.Context, /, *, as_json: bool, **_settings: object) -> None:
    """Print the effective policy, and where each part comes from."""
    policy = target_from(context).policy(rooted=False)
    click.echo(json.dumps(policy_as_dict(policy), indent=2) if as_json else policy_as_text(policy))
