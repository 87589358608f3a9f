"""Install what is on the lists: check → run → log, one package at a time.

exit code    meaning                    status in the log
0            installed                  success
1            not on the list            rejected
2            the installation failed    failed
3            there is no list           failed
4            unknown type               not logged
"""

import asyncio
import dataclasses
import json
import logging
import os
import shlex
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi._support.text import shown
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.packages.allowlist import (
    ECOSYSTEMS,
    LONGEST,
    Allowlist,
    AllowlistConfig,
    Ecosystem,
    InstallRequest,
    InstallResult,
    InstallStatus,
    check,
    is_ecosystem,
    name_of,
    parse,
)
from kakoi.policy.judging.decision import Decision, Finding, decision_from
from kakoi.policy.package_rules import HINT, INSTALLER
from kakoi.policy.rules import Verdict

_log = logging.getLogger(__name__)
_PLAIN: Final = range(0x20, 0x7F)


def plain(text: str) -> str:
    """Return a text that is safe to show and log: printable ASCII, and `?` for anything else.

    This exposes characters that only look like others, and leaves no control codes for a terminal.
    """
    data = text.encode("utf-8", "surrogateescape" if _is_encodable(text) else "replace")
    return "".join(chr(byte) if byte in _PLAIN else "?" for byte in data)[:LONGEST]


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def as_line(result: InstallResult, *, also: Sequence[str] = ()) -> str:
    """Return a result as a line of the log, without empty fields. `also`: see `InstallReport`."""
    found = {**dataclasses.asdict(result), "also": list(also) or None}
    return json.dumps({name: value for name, value in found.items() if value is not None})


class InstallLog:
    """The install log: `install-YYYYMMDD.jsonl` in a folder, by the day (UTC) of each request.

    One line of JSON per request.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, result: InstallResult, *, also: Sequence[str] = ()) -> None:
        """Write a line. A failure is only logged as a warning."""
        name = f"install-{result.timestamp[:10].replace('-', '')}.jsonl"
        data = (as_line(result, also=also) + "\n").encode("ascii")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Do not follow a link or block on a pipe: someone who can write to the folder must not
            # be able to redirect or block us.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(self._folder / name, flags | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, data)
            finally:
                os.close(file)
        except OSError as error:
            _log.warning(
                "the request was not logged: cannot write to %s: %s", self._folder, error.strerror
            )


OK: Final = 0
REJECTED: Final = 1
FAILED: Final = 2
NO_LIST: Final = 3
UNKNOWN_TYPE: Final = 4
# The only copy of the lists; install.sh and the image build use the same files.
SHIPPED: Final = Path(__file__).resolve().parent.parent / "images" / "allowlist"
_LAST_WORDS: Final = 400
_MAX_LIST_BYTES: Final = 4 * 1024 * 1024


class InstallTarget(Protocol):
    """Where packages are installed. Raises KakoiError if the installation could not start."""

    async def install(self, ecosystem: Ecosystem, wanted: str) -> "ManagerResult":
        """Request `wanted`, which is on the list, from the package manager."""
        ...


@dataclass(frozen=True, slots=True)
class ManagerResult:
    """The result of a package manager. `installed`: all new packages, as `NAME VERSION`."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    installed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstallReport:
    """The result of a request, with its exit code and output.

    `also`: the dependencies that were installed with the package, as `NAME VERSION`.
    """

    result: InstallResult
    exit_code: int
    stdout: str = ""
    also: tuple[str, ...] = ()


class Installer:
    """Installs listed packages in one target, and logs every request.

    `log`: None logs nothing. `clock`: returns the current time in UTC.
    `report_rejected`: called with each rejection, as the decision that the policy would have made.
    """

    def __init__(
        self,
        lists: AllowlistConfig,
        target: InstallTarget,
        *,
        log: InstallLog | None,
        clock: Callable[[], datetime],
        report_rejected: Callable[[Decision], Awaitable[None]] | None = None,
    ) -> None:
        self._lists = lists
        self._target = target
        self._log = log
        self._clock = clock
        self._tell_rejected = report_rejected

    async def install(self, request: InstallRequest) -> InstallReport:
        """Install one package. Every outcome is returned, and logged before this returns."""
        try:
            done = await self._install(request)
        except asyncio.CancelledError:
            self._write(self._done(request, "failed", FAILED, error="interrupted"))
            raise
        self._write(done)
        if done.exit_code == REJECTED and self._tell_rejected is not None:
            await self._tell_rejected(_rejection(request, done.result.error or ""))
        return done

    def _write(self, done: InstallReport) -> None:
        if self._log is not None:
            self._log.append(done.result, also=done.also)

    async def _install(self, request: InstallRequest) -> InstallReport:
        if self._lists.of(request.type) is None:
            return self._done(request, "failed", NO_LIST, error="there is no list")
        verdict = check(request, self._lists)
        if not verdict:
            return self._done(request, "rejected", REJECTED, error=verdict.reason)
        began = time.monotonic()
        try:
            ran = await self._target.install(request.type, verdict.wanted)
            error = last_output(ran.stderr)
        except KakoiError as failure:
            ran, error = (
                ManagerResult(FAILED),
                str(failure) + (f"; {failure.hint}" if failure.hint else ""),
            )
        took_ms = round((time.monotonic() - began) * 1000)
        if ran.exit_code != 0:
            error = error or f"exit status {ran.exit_code}"
            return self._done(request, "failed", FAILED, error=error, duration_ms=took_ms)
        done = self._done(request, "success", OK, duration_ms=took_ms)
        return InstallReport(done.result, OK, ran.stdout, _also(request, ran.installed))

    def _done(
        self,
        request: InstallRequest,
        status: InstallStatus,
        exit_code: int,
        *,
        error: str | None = None,
        duration_ms: int | None = None,
    ) -> InstallReport:
        result = InstallResult(
            timestamp=self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            type=request.type,
            package=plain(request.package),
            status=status,
            duration_ms=duration_ms,
            error=error,
        )
        return InstallReport(result, exit_code)


def requests_from(kind: str, packages: Sequence[str]) -> list[InstallRequest]:
    """Return requests from user input; an unknown type is an error."""
    if not is_ecosystem(kind):
        raise ConfigurationError(
            f"unknown package type `{plain(kind)}`", hint=f"use one of {', '.join(ECOSYSTEMS)}"
        )
    return [InstallRequest(kind, package) for package in packages]


def read_lists(folder: Path = SHIPPED) -> AllowlistConfig:
    """Read the lists `apt.txt`, `pip.txt` and `npm.txt` of a folder; each can be missing."""
    return AllowlistConfig(**{each: _read_list(each, folder) for each in ECOSYSTEMS})


def _read_list(ecosystem: Ecosystem, folder: Path) -> Allowlist | None:
    path = folder / f"{ecosystem}.txt"
    try:
        # Non-blocking, in case it is a pipe without a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(_MAX_LIST_BYTES + 1)
    except OSError:  # A list that cannot be read counts as missing and allows nothing.
        return None
    if len(data) > _MAX_LIST_BYTES:
        raise ConfigurationError(f"{path} is too large: more than {_MAX_LIST_BYTES} bytes")
    return parse(ecosystem, data.decode("utf-8", "surrogateescape"))


def last_output(text: str) -> str:
    """Return the end of a package manager's output on one printable line, without secrets."""
    return shown(" ".join(redact(text[-10 * _LAST_WORDS :]).split()))[-_LAST_WORDS:]


def _also(request: InstallRequest, installed: Sequence[str]) -> tuple[str, ...]:
    """Return all but the package itself; a second one with its name counts as another package."""
    requested = name_of(request)
    names = [name_of(InstallRequest(request.type, each.rpartition(" ")[0])) for each in installed]
    own = names.index(requested) if requested in names else len(names)
    return (*installed[:own], *installed[own + 1 :])


def _rejection(request: InstallRequest, why: str) -> Decision:
    """Return a rejection as the decision that the policy would make about the install command."""
    text = shlex.join([INSTALLER, request.type, request.package])
    finding = Finding("unlisted-packages", Verdict.DENY, 0, len(text), text, why, HINT)
    return decision_from(text, [finding])
