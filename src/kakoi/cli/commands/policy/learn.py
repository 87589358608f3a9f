"""`kakoi policy learn`: proposes what to allow, based on refusals and approvals."""

import json
import os
import sys
from typing import Any, Final

import click

from kakoi._support.text import shown
from kakoi.approvals.proposals import Proposal, proposals
from kakoi.audit import recent
from kakoi.cli.group import help_end
from kakoi.cli.options import policy_options, target_from
from kakoi.cli.target import RunTarget
from kakoi.errors import AuditError, ConfigurationError
from kakoi.policy.rules import Verdict
from kakoi.settings.additions import add_program
from kakoi.settings.audit_log import audit_file

_MOST_BYTES: Final = 32 * 1024 * 1024
_MOST_SHOWN: Final = 20
_WIDTH: Final = 100


@click.command(
    epilog=help_end(
        "kakoi policy learn",
        "kakoi policy learn --accept 1",
        exit_codes="0 success; 1 not accepted; 2 usage error, or no audit log.",
    )
)
@policy_options
@click.option(
    "--accept",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show proposal N again and add it if you confirm that; needs a terminal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the proposals as one JSON object.")
@click.pass_context
def command(
    context: click.Context, /, *, accept: int | None, as_json: bool, **_settings: object
) -> None:
    """Propose what to allow in this workspace, from the audit log, most frequent first.

    A proposal adds a program to your own settings, or remembers a form of a command. What a rule
    denies is never proposed. Nothing changes until you accept a proposal.
    """
    if accept is not None and as_json:
        raise click.UsageError("--accept and --json exclude each other")
    target = target_from(context)
    found = _proposals(target)
    if as_json:
        listed = [_as_dict(number, each) for number, each in enumerate(found, 1)]
        click.echo(json.dumps({"proposals": listed}, indent=2))
    elif accept is not None:
        _accept(target, found, accept)
    else:
        _print(found)


def _proposals(target: RunTarget) -> list[Proposal]:
    path = audit_file(target.settings)
    if not path.exists():
        raise AuditError(f"no audit log at {path}", hint="commands that ran in kakoi are in it")
    approvals = target.approvals
    return proposals(
        recent(path, _MOST_BYTES),
        target.policy(),
        target.directory,
        confined=target.confined,
        with_program=lambda name: target.policy(allow=[name]),
        is_remembered=lambda decision: (
            approvals.offer(decision) is None or bool(approvals.answer(decision))
        ),
    )


def _print(found: list[Proposal]) -> None:
    for number, each in enumerate(found[:_MOST_SHOWN], 1):
        click.echo("\n".join(_lines(number, each)) + "\n")
    if not found:
        click.echo(
            "Nothing to propose: no command that could be allowed was refused or needed approval."
        )
        return
    if len(found) > _MOST_SHOWN:
        click.echo(f"({len(found) - _MOST_SHOWN} more: --json prints all of them)")
    click.echo("`kakoi policy learn --accept N` adds one of them, if you confirm it.")


def _lines(number: int, proposal: Proposal) -> list[str]:
    times = "once" if proposal.count == 1 else f"{proposal.count} times"
    if proposal.command is None:
        then = "asked about" if proposal.then is Verdict.ASK else "allowed"
        lines = [
            f"{number}. program `{shown(proposal.text)}`: refused {times} as it is not listed",
            f"   adds it to `policy.additional` for all workspaces; it is then {then}",
            "   with any arguments that no rule refuses: kakoi has no description of this program",
        ]
    else:
        lines = [
            f"{number}. always `{shown(proposal.text)}`: asked {times}, approved "
            f"{proposal.approved} of them",
            f"   remembers it in {shown(proposal.command.directory)}",
        ]
    return [*lines, *(f"   for example: {_short(each)}" for each in proposal.examples)]


def _short(command: str) -> str:
    text = shown(" ".join(command.split()))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _accept(target: RunTarget, found: list[Proposal], number: int) -> None:
    if number > len(found):
        raise click.UsageError(f"there is no proposal {number}; there are {len(found)}")
    if not (os.isatty(0) and os.isatty(2)):
        raise ConfigurationError(
            "accepting a proposal needs a person at a terminal",
            hint="run it yourself, or add the program to your settings by hand",
        )
    proposal = found[number - 1]
    click.echo("\n".join(_lines(number, proposal)), err=True)
    if not click.confirm("kakoi: add it?", err=True):
        click.echo("kakoi: nothing was added", err=True)
        sys.exit(1)
    if proposal.command is None:
        path = add_program(proposal.program, target.directory, os.environ)
        click.echo(f"added `{proposal.program}` to policy.additional in {shown(str(path))}")
    else:
        (added,) = target.approvals.add((proposal.command,))
        click.echo(f"remembered as {added.id}: {shown(added.text)} in {shown(added.directory)}")


def _as_dict(number: int, proposal: Proposal) -> dict[str, Any]:
    command = proposal.command
    return {
        "number": number,
        "kind": proposal.kind,
        "text": proposal.text,
        "directory": None if command is None else command.directory,
        "count": proposal.count,
        "approved": proposal.approved,
        "then": proposal.then.value,
        "examples": list(proposal.examples),
    }
