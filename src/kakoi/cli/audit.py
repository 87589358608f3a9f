"""`kakoi audit`: what happened, and whether the log of it is whole."""

import dataclasses
import difflib
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from kakoi.audit import (
    AuditRecord,
    Event,
    Finding,
    Follower,
    Verification,
    encode,
    find,
    tail,
    verify,
)
from kakoi.config.recording import default_audit_file
from kakoi.errors import AuditError
from kakoi.printable import shown

_POLL_S: Final = 0.25
_WIDTH: Final = 160
# Where a mistyped id is looked for, and how many candidates are named.
_RECENT: Final = 2000
_MOST_NAMED: Final = 8
_HASH: Final = re.compile(r"[0-9a-f]{64}")


_file = click.option(
    "--file",
    type=click.Path(path_type=Path),
    envvar="KAKOI_AUDIT_FILE",
    show_envvar=True,
    help="The log (default: kakoi/audit.jsonl in $XDG_STATE_HOME or ~/.local/state).",
)


@click.group()
def command() -> None:
    """Show what happened, and check that the log is whole."""


# --- tail ------------------------------------------------------------------------------------


@command.command("tail", epilog="Exit status: 0, 2 if there is no log; 130 if Ctrl-C has ended it.")
@_file
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="How many."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until interrupted.")
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
    """Prints records, and says so where two of them do not follow each other."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: AuditRecord | None = None

    def show(self, records: Iterable[AuditRecord]) -> None:
        for record in records:
            if self._last and record.prev != self._last.hash:
                where = f"between the records {self._last.seq} and {record.seq}"
                _warn(f"the log was changed {where}; `kakoi audit verify` says more")
            self._last = record
            click.echo(encode(record).decode().rstrip("\n") if self._as_json else _line(record))


def _line(record: AuditRecord) -> str:
    """A record in one line, for people."""
    time_of_day = record.time.replace("T", " ").removesuffix("Z")
    start = f"{time_of_day}  {record.id or '-':<12}  {record.event:<9}"
    # All of it: whoever can write to the log can put anything anywhere.
    text = shown(f"{start}  {_story(record)}").rstrip()
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _story(record: AuditRecord) -> str:
    if record.event is Event.ENDED:
        status = "" if record.exit_code is None else f", status {record.exit_code}"
        took = "" if record.duration_ms is None else f" after {record.duration_ms} ms"
        why = f": {record.error}" if record.error else ""
        return f"{record.reason}{status}{took}{why}"
    if record.event is Event.ROTATED:
        return f"kept from record {record.oldest_seq} on"
    if record.event is Event.RECOVERED:
        return f"an unfinished line of {record.torn_bytes} bytes stands before this one"
    if record.event is Event.CUT:
        return f"record {record.lost_seq} was written, and was gone"
    why = ", ".join(record.rules) or record.reason
    return f"[{why}] {record.command}" if why else record.command


# --- show ------------------------------------------------------------------------------------


@command.command(epilog="Exit status: 0 found, 1 not found, 2 wrong usage or no log.")
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
    """The one id that begins so. An id that is whole wins over longer ones."""
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
    """A record in full, one field a line."""
    fields = json.loads(encode(record))
    rules = fields.get("rules")
    fields |= {"rules": ", ".join(rules)} if rules else {}
    return "\n".join(f"{name:<14} {shown(str(value))}" for name, value in fields.items())


# --- verify ----------------------------------------------------------------------------------


@command.command("verify", epilog="Exit status: 0 whole, 1 changed, 2 wrong usage or no log.")
@_file
@click.option("--last-hash", metavar="HASH", help="A hash of the log that was kept elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
def verify_command(*, file: Path | None, last_hash: str | None, as_json: bool) -> None:
    """Check that no record was changed, removed, added or moved."""
    if last_hash is not None and not _HASH.fullmatch(last_hash):
        raise click.UsageError("--last-hash takes the 64 hexadecimal digits of a record's hash")
    # A log that is gone although a hash of it was kept is not missing: it was removed.
    path = _log(file, must_exist=last_hash is None)
    answer = verify(path, last_hash=last_hash)
    if as_json:
        click.echo(json.dumps(_as_dict(answer), indent=2))
    else:
        click.echo(_as_text(answer))
    sys.exit(0 if answer.ok else 1)


def _as_dict(answer: Verification) -> dict[str, Any]:
    found = {"problems": answer.problems, "torn": answer.torn}
    told = {
        name: [{"file": str(each.file), "line": each.line, "why": each.why} for each in findings]
        for name, findings in found.items()
    }
    return {"ok": answer.ok} | dataclasses.asdict(answer) | told


def _as_text(answer: Verification) -> str:
    files = "1 file" if answer.files == 1 else f"{answer.files} files"
    lines = [f"changed[{_at(each)}]: {each.why}" for each in answer.problems]
    untold = answer.problem_count - len(answer.problems)
    lines += [f"(and {untold} more)"] if untold else []
    lines += [f"torn[{_at(each)}]: {each.why}" for each in answer.torn]
    lines.append(
        f"{'ok' if answer.ok else 'NOT ok'}: {answer.records} records in {files}, "
        f"numbers {answer.first_seq} to {answer.last_seq}"
    )
    if answer.first_seq > 1 and answer.ok:
        lines.append(f"rotation has dropped the {answer.first_seq - 1} records before them")
    if answer.anchor_seq is not None and answer.ok:
        lines.append(f"the records up to {answer.anchor_seq} are those whose hash you kept")
    lines.append(f"last hash: {answer.last_hash}")
    if answer.ok:
        lines += [
            "A chain cannot show that records were cut off its end, or that it was all rewritten.",
            "Keep the last hash elsewhere: `kakoi audit verify --last-hash HASH` shows both.",
        ]
    return "\n".join(lines)


def _at(finding: Finding) -> str:
    name = shown(str(finding.file))
    return f"{name}:{finding.line}" if finding.line else name


# --- Common ----------------------------------------------------------------------------------


def _log(file: Path | None, *, must_exist: bool) -> Path:
    path = file or default_audit_file(os.environ)
    if must_exist and not os.path.lexists(path) and not tail(path, 1):
        raise AuditError(
            f"there is no audit log at {shown(str(path))}",
            hint="name another with --file or KAKOI_AUDIT_FILE",
        )
    return path


def _warn(text: str) -> None:
    sys.stdout.flush()
    click.echo(f"kakoi: {text}", err=True)
