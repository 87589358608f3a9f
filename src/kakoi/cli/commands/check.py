"""`kakoi check`: judge a command without running it; says why not, and what to do instead."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import click

from kakoi.cli.group import help_end
from kakoi.cli.io.format import EXIT_STATUS, format_decision
from kakoi.cli.io.streams import stdout_has_color
from kakoi.cli.options import policy_options, target_from
from kakoi.cli.target import existing_directory
from kakoi.errors import ConfigurationError
from kakoi.policy.decide import Decision, decide
from kakoi.policy.file_access import FileAccess, decide_access
from kakoi.policy.rules import Policy, Verdict

# A longer line is refused unread: no command is that long.
_LONGEST_LINE: Final = 8 * 1024 * 1024


@click.command(
    epilog=help_end(
        "kakoi check 'git push --force'",
        """echo '{"command": "ls"}' | kakoi check --jsonl""",
        exit_codes="0 allow; 3 ask; 126 deny; 2 usage or input error.",
    ),
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", metavar="COMMAND", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print the decision as one JSON object.")
@click.option(
    "--jsonl", is_flag=True, help="Read one JSON object with a `command` key per line; answer each."
)
@policy_options
@click.option(
    "--cwd", metavar="DIR", help="The directory the command would start in (default: this one)."
)
@click.option(
    "--confined/--unconfined",
    default=None,
    help="Judge as with or without a sandbox behind the command (default: as the settings say).",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; only set the exit code.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    words: tuple[str, ...],
    as_json: bool,
    jsonl: bool,
    cwd: str | None,
    confined: bool | None,
    quiet: bool,
    **_settings: object,
) -> None:
    """Judge COMMAND without running it; `-` reads it from stdin.

    One argument is shell text. Several are a program and its arguments, as for `kakoi run`.
    """
    target = target_from(context)
    policy = target.policy(rooted=False)
    where = target.confined if confined is None else confined
    # Not the workspace: that selects the settings, while the command starts in this directory.
    directory = os.path.normpath(os.path.join(existing_directory("."), cwd or ""))
    if jsonl:
        if words:
            raise click.UsageError("--jsonl reads stdin and takes no command")
        sys.exit(_judge_lines(policy, directory, sys.stdin.buffer, confined=where))
    decision = decide(policy, _text(words), cwd=directory, confined=where)
    if as_json:
        click.echo(json.dumps(as_dict(decision, policy.name), indent=2))
    elif not quiet:
        color = stdout_has_color()
        click.echo(format_decision(decision, color=color), color=color)
    sys.exit(EXIT_STATUS[decision.verdict])


def as_dict(decision: Decision, profile: str) -> dict[str, Any]:
    """The decision for programs."""
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
        raise click.UsageError("missing command; `-` reads it from stdin")
    if words == ("-",):
        return sys.stdin.buffer.read(_LONGEST_LINE).decode("utf-8", "surrogateescape")
    if len(words) > 1 and " " in words[0] and words[1].startswith("-"):
        raise click.UsageError(f"`{words[1]}` comes after the command; options go before it")
    return words[0] if len(words) == 1 else shlex.join(words)


def _judge_lines(policy: Policy, cwd: str, stream: BinaryIO, *, confined: bool) -> int:
    status = 0
    for number, line in _lines(stream):
        answer: dict[str, Any] = {"line": number}
        judged = _read_command(line)
        if not isinstance(judged, tuple):
            decision = _decide(policy, judged, cwd, confined=confined)
            answer["verdict"] = decision.verdict.value
            answer["reasons"] = [f"{f.rule}: {f.reason}" for f in decision.findings]
        else:
            status = 2
            answer |= {"verdict": Verdict.DENY.value, "reasons": [judged[0]], "error": judged[0]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return status


def _decide(policy: Policy, judged: str | FileAccess, cwd: str, *, confined: bool) -> Decision:
    if isinstance(judged, FileAccess):
        return decide_access(policy, judged, cwd=cwd)
    return decide(policy, judged, cwd=cwd, confined=confined)


def _read_command(line: bytes) -> str | FileAccess | tuple[str]:
    """The command in a line of input, a file access of the audit log, or an error in a tuple."""
    try:
        data = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return ("the line is not valid JSON",)
    if not isinstance(data, dict) or not isinstance(data.get("command"), str):
        return ("the line must be a JSON object whose `command` is a string",)
    if data.get("kind") != "file access":
        return str(data["command"])
    try:
        return FileAccess.parse(data["command"])
    except ConfigurationError as error:
        return (error.message,)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, each with its number in the input."""
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        whole = line.endswith(b"\n") or len(line) < _LONGEST_LINE
        while not whole:
            rest = stream.readline(_LONGEST_LINE)
            whole = rest.endswith(b"\n") or len(rest) < _LONGEST_LINE
            line = b""
        if line.strip() or not line:
            yield number, line
