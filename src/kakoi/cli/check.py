"""`kakoi check`: may this command run? Says why not, and what to do instead."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import click

from kakoi.cli.opening import existing_directory, place_from, policy_options
from kakoi.cli.render import render
from kakoi.policy.decide import Decision, decide
from kakoi.policy.rules import Policy, Verdict

EXIT_STATUS: Final = {Verdict.ALLOW: 0, Verdict.ASK: 3, Verdict.DENY: 126}
# A line longer than this is refused unread: no command is that long.
_LONGEST_LINE: Final = 8 * 1024 * 1024


@click.command(
    epilog="Exit status: 0 allow, 3 ask, 126 deny, 2 wrong usage or input.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", metavar="COMMAND", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print the decision as one JSON object.")
@click.option(
    "--jsonl", is_flag=True, help="Read JSON objects with a `command` key, one a line; answer each."
)
@policy_options
@click.option(
    "--cwd", metavar="DIR", help="The directory the command would start in (default: this one)."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; only the exit status answers.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    words: tuple[str, ...],
    as_json: bool,
    jsonl: bool,
    cwd: str | None,
    quiet: bool,
    **_settings: object,
) -> None:
    """Judge COMMAND without running it; `-` reads it from standard input.

    One argument is shell text. Several are a program and its arguments, as for `kakoi run`.
    """
    policy = place_from(context).policy(rooted=False)
    # Not the workspace: that says which settings hold, and the command starts where we are.
    directory = os.path.normpath(os.path.join(existing_directory("."), cwd or ""))
    if jsonl:
        if words:
            raise click.UsageError("--jsonl reads standard input and takes no command")
        sys.exit(_judge_lines(policy, directory, sys.stdin.buffer))
    decision = decide(policy, _text(words), cwd=directory)
    if as_json:
        click.echo(json.dumps(as_dict(decision, policy.name), indent=2))
    elif not quiet:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        click.echo(render(decision, color=color), color=color)
    sys.exit(EXIT_STATUS[decision.verdict])


def as_dict(decision: Decision, profile: str) -> dict[str, Any]:
    """The decision for machines."""
    return {
        "command": decision.command,
        "profile": profile,
        "verdict": decision.verdict.value,
        "findings": [
            {**finding.as_dict(), "text": decision.command[finding.start : finding.end]}
            for finding in decision.findings
        ],
    }


def _text(words: tuple[str, ...]) -> str:
    if not words:
        raise click.UsageError("give a command, or `-` to read it from standard input")
    if words == ("-",):
        return sys.stdin.buffer.read(_LONGEST_LINE).decode("utf-8", "surrogateescape")
    if len(words) > 1 and " " in words[0] and words[1].startswith("-"):
        raise click.UsageError(f"`{words[1]}` stands behind the command; options go before it")
    return words[0] if len(words) == 1 else shlex.join(words)


def _judge_lines(policy: Policy, cwd: str, stream: BinaryIO) -> int:
    status = 0
    for number, line in enumerate(_lines(stream), 1):
        answer: dict[str, Any] = {"line": number}
        given = _command_of(line)
        if isinstance(given, str):
            decision = decide(policy, given, cwd=cwd)
            answer["verdict"] = decision.verdict.value
            answer["reasons"] = [f"{f.rule}: {f.reason}" for f in decision.findings]
        else:
            status = 2
            answer |= {"verdict": Verdict.DENY.value, "reasons": [given[0]], "error": given[0]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return status


def _command_of(line: bytes) -> str | tuple[str]:
    """The command in a line of input, or what is wrong with the line."""
    try:
        data = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return ("the line is not valid JSON",)
    if not isinstance(data, dict) or not isinstance(data.get("command"), str):
        return ("the line must be a JSON object whose `command` is a string",)
    return str(data["command"])


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(_LONGEST_LINE):
        whole = line.endswith(b"\n") or len(line) < _LONGEST_LINE
        while not whole:
            rest = stream.readline(_LONGEST_LINE)
            whole = rest.endswith(b"\n") or len(rest) < _LONGEST_LINE
            line = b""
        if line.strip() or not line:
            yield line
