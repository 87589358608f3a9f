"""`kakoi completion`: completion scripts for shells.

`cli/options` completes the values of options.
"""

import click
from click.shell_completion import get_completion_class

from kakoi.cli.group import help_end

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=help_end(
        "kakoi completion bash",
        "kakoi completion fish | source",
        exit_codes="0 success; 2 usage error.",
    )
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, /, *, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    eval "$(kakoi completion bash)"      in ~/.bashrc
    eval "$(kakoi completion zsh)"       in ~/.zshrc
    kakoi completion fish | source       in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"unsupported shell: {shell}")
    root = context.find_root()
    script = found(root.command, {}, root.info_name or "kakoi", "_KAKOI_COMPLETE")
    click.echo(script.source())
