"""`kakoi explain`: what an error or a rule means, why it exists, and what to do."""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from typing import Final

import click

from kakoi._support.text import shown
from kakoi.cli.explanations import Explanation, explanations
from kakoi.cli.group import help_end
from kakoi.cli.io.messages import print_message
from kakoi.cli.options import policy_options, target_from
from kakoi.errors import ConfigurationError
from kakoi.policy.rules import Policy

_WIDTH: Final = 96
_CHOICES: Final = 3


@click.command(
    epilog=help_end(
        "kakoi explain TIMED_OUT",
        "kakoi explain recursive-delete",
        exit_codes="0 success; 2 usage error, or unknown code.",
    )
)
@click.argument("code", required=False)
@policy_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, or a list without CODE."
)
@click.pass_context
def command(
    context: click.Context, /, *, code: str | None, as_json: bool, **_settings: object
) -> None:
    """Explain CODE and what to do about it; without CODE, list all codes.

    CODE is an error code (TIMED_OUT) or the name of a rule (recursive-delete), including your own
    rules and those of the project.
    """
    known = explanations(_policy(context))
    if code is not None:
        found = _find(code, known)
        text = "\n".join(_format(found))
        click.echo(json.dumps(dataclasses.asdict(found), indent=2) if as_json else text)
    elif as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in known.values()], indent=2))
    else:
        click.echo("\n".join(_list(known)))


def _policy(context: click.Context) -> Policy | None:
    """The effective policy; None if the settings are invalid, which is an error to explain too."""
    try:
        return target_from(context).policy()
    except ConfigurationError as error:
        print_message(f"your own rules are not included: {error}", hint=error.hint)
        return None


def _find(code: str, known: dict[str, Explanation]) -> Explanation:
    by_name = {_plain(name): each for name, each in known.items()}
    found = by_name.get(_plain(code))
    if found is not None:
        return found
    close = difflib.get_close_matches(_plain(code), list(by_name), n=_CHOICES)
    names = [f"`kakoi explain {by_name[name].code}`" for name in close]
    advice = f"; did you mean {' or '.join(names)}?" if names else ""
    raise ConfigurationError(
        f"no error or rule is called {code[:80]!r}{advice}", hint="`kakoi explain` lists all codes"
    )


def _plain(code: str) -> str:
    """A code in any spelling, also as `kakoi check` prints it: `deny[privilege]`."""
    inner = code.partition("[")[2].partition("]")[0]
    return (inner or code).lower().replace("_", "-")


def _format(found: Explanation) -> Iterator[str]:
    yield f"{found.kind} {shown(found.code)}: {shown(found.meaning)}"
    yield ""
    yield f"  why          {shown(found.why)}"
    yield f"  what to do   {shown(found.what_to_do)}"
    yield f"  where        {shown(found.where)}"
    for title, examples in (("for example", found.refused), ("but allowed", found.fine)):
        for number, example in enumerate(examples):
            yield f"  {title if not number else '':<11}  {shown(example) or '(nothing)'}"


def _list(known: dict[str, Explanation]) -> Iterator[str]:
    width = max(map(len, known))
    for kind in ("error", "rule"):
        yield f"{kind}s"
        for each in known.values():
            if each.kind == kind:
                first = shown(" ".join(each.meaning.split()))
                text = first if len(first) <= _WIDTH else first[: _WIDTH - 1] + "…"
                yield f"  {shown(each.code):<{width}}  {text}"
        yield ""
    yield "`kakoi explain CODE` prints the details."
