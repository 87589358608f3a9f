"""`kakoi explain`: what an error or a rule means, why it is there, and what to do."""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from typing import Final

import click

from kakoi.cli.explanations import Explanation, explanations
from kakoi.cli.opening import place_from, policy_options
from kakoi.cli.telling import say
from kakoi.errors import ConfigurationError
from kakoi.policy.rules import Policy
from kakoi.printable import shown

_WIDTH: Final = 96
_CHOICES: Final = 3


@click.command(epilog="Exit status: 0, or 2 if there is no such code.")
@click.argument("code", required=False)
@policy_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, or a list of all.")
@click.pass_context
def command(
    context: click.Context, /, *, code: str | None, as_json: bool, **_settings: object
) -> None:
    """Say what CODE means and what to do; without CODE, list everything there is.

    CODE is that of an error (TIMED_OUT) or the name of a rule (recursive-delete), your own rules
    and those of the project included.
    """
    known = explanations(_policy(context))
    if code is not None:
        found = _find(code, known)
        text = "\n".join(_in_words(found))
        click.echo(json.dumps(dataclasses.asdict(found), indent=2) if as_json else text)
    elif as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in known.values()], indent=2))
    else:
        click.echo("\n".join(_all_in_words(known)))


def _policy(context: click.Context) -> Policy | None:
    """The policy that holds here. Settings that are wrong are a thing to be explained, too."""
    try:
        return place_from(context).policy()
    except ConfigurationError as error:
        say(f"your own rules are left out: {error}", hint=error.hint)
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
        f"there is nothing called {code[:80]!r}{advice}", hint="`kakoi explain` lists everything"
    )


def _plain(code: str) -> str:
    """However it is written, and as `kakoi check` shows it: `deny[privilege]`."""
    inner = code.partition("[")[2].partition("]")[0]
    return (inner or code).lower().replace("_", "-")


def _in_words(found: Explanation) -> Iterator[str]:
    yield f"{found.kind} {shown(found.code)}: {shown(found.meaning)}"
    yield ""
    yield f"  why          {shown(found.why)}"
    yield f"  what to do   {shown(found.what_to_do)}"
    yield f"  where        {shown(found.where)}"
    for title, examples in (("for example", found.refused), ("but fine", found.fine)):
        for number, example in enumerate(examples):
            yield f"  {title if not number else '':<11}  {shown(example) or '(nothing)'}"


def _all_in_words(known: dict[str, Explanation]) -> Iterator[str]:
    width = max(map(len, known))
    for kind in ("error", "rule"):
        yield f"{kind}s"
        for each in known.values():
            if each.kind == kind:
                first = shown(" ".join(each.meaning.split()))
                told = first if len(first) <= _WIDTH else first[: _WIDTH - 1] + "…"
                yield f"  {shown(each.code):<{width}}  {told}"
        yield ""
    yield "`kakoi explain CODE` says more."
