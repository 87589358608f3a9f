"""`kakoi audit`: show the audit log, and verify that it is intact."""

import dataclasses
import difflib
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from kakoi._support.late import pattern
from kakoi._support.text import shown
from kakoi.audit import (
    AuditRecord,
    Event,
    Follower,
    LogFinding,
    Verification,
    encode,
    find,
    tail,
    verify,
)
from kakoi.cli.group import CommandGroup, help_end
from kakoi.errors import AuditError
from kakoi.settings.audit_log import default_audit_file

_POLL_S: Final = 0.25
_WIDTH: Final = 160
# How many records are searched for ids close to a mistyped one, and how many candidates are named.
_RECENT: Final = 2000
_MOST_NAMED: Final = 8
_HASH: Final = pattern(r"[0-9a-f]{64}")


_file = click.option(
    "--file",
    type=click.Path(path_type=Path),
    envvar="KAKOI_AUDIT_FILE",
    show_envvar=True,
    help="The log (default: kakoi/audit.jsonl in $XDG_STATE_HOME or ~/.local/state).",
)


@click.group(cls=CommandGroup, epilog=help_end("kakoi audit tail", "kakoi audit verify"))
def command() -> None:
    """Show the audit log, and verify that it is intact."""


# --- tail ------------------------------------------------------------------------------------


@command.command(
    "tail",
    epilog=help_end(
        "kakoi audit tail --lines 50",
        "kakoi audit tail --follow --json",
        exit_codes="0 success; 2 usage error, or no log; 130 Ctrl-C.",
    ),
)
@_file
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Number of records.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new records until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as one JSON object.")
def tail_command(*, file: Path | None, lines: int, follow: bool, as_json: bool) -> None:
    """Print the newest records."""
    follower = Follower(_log(file, must_exist=not follow), lines)
    printer = _Printer(as_json=as_json)
    printer.show(follower.poll())
    while follow:
        sys.stdout.flush()
        time.sleep(_POLL_S)
        printer.show(follower.poll())


class _Printer:
    """Prints records, and warns where one does not follow the one before."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: AuditRecord | None = None

    def show(self, records: Iterable[AuditRecord]) -> None:
        for record in records:
            if self._last and record.prev != self._last.hash:
                where = f"between the records {self._last.seq} and {record.seq}"
                _warn(f"the log was changed {where}; run `kakoi audit verify`")
            self._last = record
            click.echo(encode(record).decode().rstrip("\n") if self._as_json else _line(record))


def _line(record: AuditRecord) -> str:
    """A record in one line, for people."""
    time_of_day = record.time.replace("T", " ").removesuffix("Z")
    start = f"{time_of_day}  {record.id or '-':<12}  {record.event:<9}"
    # Escape the whole line: anyone who can write to the log can put anything anywhere in it.
    text = shown(f"{start}  {_summary(record)}").rstrip()
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _summary(record: AuditRecord) -> str:
    if record.event is Event.ENDED:
        status = "" if record.exit_code is None else f", exit code {record.exit_code}"
        took = "" if record.duration_ms is None else f" after {record.duration_ms} ms"
        why = f": {record.error}" if record.error else ""
        return f"{record.reason}{status}{took}{why}"
    if record.event is Event.ROTATED:
        return f"kept from record {record.oldest_seq} onward"
    if record.event is Event.RECOVERED:
        return f"an incomplete line of {record.torn_bytes} bytes precedes this one"
    if record.event is Event.CUT:
        return f"record {record.lost_seq} was written, and has disappeared"
    why = ", ".join(record.rules) or record.reason
    return f"[{why}] {record.command}" if why else record.command


# --- show ------------------------------------------------------------------------------------


@command.command(
    short_help="Print every record of one command.",
    epilog=help_end(
        "kakoi audit show 7c1f",
        "kakoi audit show --json 7c1f",
        exit_codes="0 found; 1 not found; 2 usage error, or no log.",
    ),
)
@click.argument("id_prefix", metavar="ID")
@_file
@click.option("--json", "as_json", is_flag=True, help="Print each record as one JSON object.")
def show(id_prefix: str, *, file: Path | None, as_json: bool) -> None:
    """Print every record of the command ID; the beginning of an id is enough."""
    path = _log(file, must_exist=True)
    wanted = _complete(path, id_prefix)
    records = (record for record in find(path, wanted) if record.id == wanted)
    for number, record in enumerate(records):
        if as_json:
            click.echo(encode(record).decode(), nl=False)
        else:
            click.echo(("\n" if number else "") + _paragraph(record))


def _complete(path: Path, id_prefix: str) -> str:
    """The one id that starts with the prefix. A complete id wins over longer ones."""
    ids: dict[str, None] = {}
    for record in find(path, id_prefix):
        if record.id == id_prefix:
            return id_prefix
        ids[record.id] = None
        if len(ids) > _MOST_NAMED:
            break
    if len(ids) == 1:
        return next(iter(ids))
    if ids:
        named = shown(", ".join(list(ids)[:_MOST_NAMED]))
        raise click.ClickException(f"several commands begin with {id_prefix!r}: {named}")
    recent = {record.id for record in tail(path, _RECENT) if record.id}
    close = difflib.get_close_matches(id_prefix, sorted(recent), n=3)
    advice = shown(f" Did you mean {' or '.join(close)}?") if close else ""
    raise click.ClickException(f"No command has the id {id_prefix!r}.{advice}")


def _paragraph(record: AuditRecord) -> str:
    """A complete record, one field per line."""
    fields = json.loads(encode(record))
    rules = fields.get("rules")
    fields |= {"rules": ", ".join(rules)} if rules else {}
    return "\n".join(f"{name:<14} {shown(str(value))}" for name, value in fields.items())


# --- verify ----------------------------------------------------------------------------------


@command.command(
    "verify",
    epilog=help_end(
        "kakoi audit verify",
        f"kakoi audit verify --last-hash {'0' * 64}",
        exit_codes="0 intact; 1 changed; 2 usage error, or no log.",
    ),
)
@_file
@click.option("--last-hash", metavar="HASH", help="A hash from this log that you stored elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def verify_command(*, file: Path | None, last_hash: str | None, as_json: bool) -> None:
    """Verify that no record was changed, removed, added or moved."""
    if last_hash is not None and not _HASH.fullmatch(last_hash):
        raise click.UsageError("--last-hash takes the 64 hexadecimal digits of a record's hash")
    # A missing log of which a hash exists has been removed: that is a finding, not a usage error.
    path = _log(file, must_exist=last_hash is None)
    answer = verify(path, last_hash=last_hash)
    if as_json:
        click.echo(json.dumps(_as_dict(answer), indent=2))
    else:
        click.echo(_as_text(answer))
    sys.exit(0 if answer.ok else 1)


def _as_dict(answer: Verification) -> dict[str, Any]:
    found = {"problems": answer.problems, "torn": answer.torn}
    listed = {
        name: [{"file": str(each.file), "line": each.line, "why": each.why} for each in findings]
        for name, findings in found.items()
    }
    return {"ok": answer.ok} | dataclasses.asdict(answer) | listed


def _as_text(answer: Verification) -> str:
    files = "1 file" if answer.files == 1 else f"{answer.files} files"
    lines = [f"changed[{_at(each)}]: {each.why}" for each in answer.problems]
    more = answer.problem_count - len(answer.problems)
    lines += [f"(and {more} more)"] if more else []
    lines += [f"torn[{_at(each)}]: {each.why}" for each in answer.torn]
    lines.append(
        f"{'ok' if answer.ok else 'NOT ok'}: {answer.records} records in {files}, "
        f"numbers {answer.first_seq} to {answer.last_seq}"
    )
    if answer.first_seq > 1 and answer.ok:
        lines.append(f"rotation has deleted the {answer.first_seq - 1} records before them")
    if answer.anchor_seq is not None and answer.ok:
        lines.append(f"the records up to {answer.anchor_seq} match the hash you gave")
    lines.append(f"last hash: {answer.last_hash}")
    if answer.ok:
        lines += [
            "A hash chain cannot show that its end was cut off, or that all of it was rewritten.",
            "Store the last hash elsewhere: `kakoi audit verify --last-hash HASH` detects both.",
        ]
    return "\n".join(lines)


def _at(finding: LogFinding) -> str:
    name = shown(str(finding.file))
    return f"{name}:{finding.line}" if finding.line else name


# --- Common ----------------------------------------------------------------------------------


def _log(file: Path | None, *, must_exist: bool) -> Path:
    path = file or default_audit_file(os.environ)
    if must_exist and not os.path.lexists(path) and not tail(path, 1):
        raise AuditError(
            f"no audit log at {shown(str(path))}",
            hint="name another file with --file or KAKOI_AUDIT_FILE",
        )
    return path


def _warn(text: str) -> None:
    sys.stdout.flush()
    click.echo(f"kakoi: {text}", err=True)
