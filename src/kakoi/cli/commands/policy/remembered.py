"""`kakoi policy remembered`: the approvals that the user wants remembered."""

import json
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from kakoi._support.parsing import nearest
from kakoi._support.text import shown
from kakoi.approvals import ApprovalStore, RememberedApproval, approvals_file
from kakoi.cli.group import help_end
from kakoi.cli.io.messages import print_message
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.settings.loader import load_settings


class _Ids(click.types.StringParamType):
    name = "ID"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete ids, with what they allow."""
        try:
            stored = _store().read()
        except (KakoiError, OSError):
            return []
        ids = (each for each in stored if each.id.startswith(incomplete))
        return [CompletionItem(each.id, help=shown(each.text)) for each in ids]


@click.command(
    epilog=help_end(
        "kakoi policy remembered",
        "kakoi policy remembered --remove-all",
        exit_codes="0 success; 2 usage error, or a store that cannot be trusted.",
    )
)
@click.option(
    "--remove", type=_Ids(), multiple=True, metavar="ID", help="Ask about this again (repeatable)."
)
@click.option("--remove-all", is_flag=True, help="Ask about everything again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, remove: tuple[str, ...], remove_all: bool, as_json: bool) -> None:
    """List your remembered approvals in every workspace, or remove some of them.

    Each entry holds in one directory, until it expires (`policy.remember_days`). What a rule
    denies stays denied.
    """
    if remove and remove_all:
        raise click.UsageError("--remove and --remove-all exclude each other")
    store = _store()
    removed: Sequence[RememberedApproval] = ()
    if remove_all:
        removed = _all_of(store)
        store.clear()
    elif remove:
        removed = _remove(store, remove)
    days = load_settings().settings.policy.remember_days
    now = time.time()
    left = [each for each in store.read() if each.holds(now, days)]
    if as_json:
        listed = {"remembered": [_as_dict(each) for each in left]}
        if remove or remove_all:
            listed["removed"] = [_as_dict(each) for each in removed]
        click.echo(json.dumps(listed, indent=2))
    elif remove or remove_all:
        for each in removed:
            click.echo(f"removed {_line(each)}")
        if not removed:
            click.echo("nothing was remembered")
    else:
        _print(left, days)


def _store() -> ApprovalStore:
    return ApprovalStore(approvals_file(os.environ))


def _all_of(store: ApprovalStore) -> Sequence[RememberedApproval]:
    try:
        return store.read()
    except ConfigurationError as error:
        print_message(f"{error}; removing it without reading it")
        return ()


def _remove(store: ApprovalStore, ids: Sequence[str]) -> Sequence[RememberedApproval]:
    removed: list[RememberedApproval] = []

    def without(stored: tuple[RememberedApproval, ...]) -> list[RememberedApproval]:
        known = [each.id for each in stored]
        for wanted in ids:
            if wanted not in known:
                raise ConfigurationError(
                    f"no remembered approval has the id {wanted[:40]!r}{nearest(wanted, known)}",
                    hint="`kakoi policy remembered` lists them",
                )
        removed.extend(each for each in stored if each.id in ids)
        return [each for each in stored if each.id not in ids]

    store.change(without)
    return removed


def _print(approvals: Sequence[RememberedApproval], days: int) -> None:
    for each in approvals:
        click.echo(_line(each))
    if not days:
        click.echo("Nothing is remembered: `policy.remember_days` is 0.")
    elif not approvals:
        click.echo("Nothing is remembered: answer `a` (always here) when you are asked.")
    else:
        click.echo("`kakoi policy remembered --remove ID` removes one; kakoi then asks again.")


def _line(approval: RememberedApproval) -> str:
    where, until = shown(approval.directory), _date(approval.expires)
    return f"{approval.id}  {shown(approval.text)}  in {where}  until {until}"


def _as_dict(approval: RememberedApproval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "form": approval.text,
        "workspace": approval.workspace,
        "directory": approval.directory,
        "created": _date(approval.created),
        "expires": _date(approval.expires),
    }


def _date(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}Z"
