"""Commands that forward another command's output and exit code, and their options.

What runs the command is in `session`, which the completion of a word does not load.
"""

import sys
import traceback
from typing import Any, Final

import click

from kakoi.cli.io.messages import FAILED, print_error, print_json
from kakoi.errors import KakoiError

quiet_option: Final = click.option(
    "-q", "--quiet", is_flag=True, help="Print only kakoi's warnings and errors."
)
verbose_option: Final = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print the decision, the sandbox and why it was chosen, the limits, and timings.",
)


class _UsageError(click.UsageError):
    exit_code = FAILED


class ForwardingCommand(click.Command):
    """A click command that forwards exit codes: its own failures are 125, others the command's."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _UsageError(error.format_message(), error.ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _UsageError(error.format_message(), error.ctx) from error
        except (click.exceptions.Exit, click.Abort):
            raise
        except KakoiError as error:
            if ctx.params.get("as_json"):
                from kakoi.cli.io.report import failure_as_dict

                print_json(failure_as_dict(error, FAILED, "failed", None))
            else:
                print_error(error)
        except Exception:  # A bug in kakoi must not look like the command's exit code.
            traceback.print_exc()
        sys.exit(FAILED)
