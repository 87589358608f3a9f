"""Install what is on the lists: check → run → log, for one package at a time.

exit status    what it means                      in the log
0              installed                          success
1              not on the list                    rejected
2              the installation failed            failed
3              there is no list                   failed
4              there is no such type              nothing: there is no request to speak of
"""

import asyncio
import os
import shlex
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from kakoi.errors import ConfigurationError, KakoiError
from kakoi.packages.allowlist import (
    ECOSYSTEMS,
    Allowlist,
    AllowlistConfig,
    Ecosystem,
    InstallRequest,
    InstallResult,
    Status,
    check,
    is_ecosystem,
    name_of,
    parse,
)
from kakoi.packages.logs import InstallLog, plain
from kakoi.packages.rules import HINT, INSTALLER
from kakoi.policy.judging.decision import Decision, Finding, decision_from
from kakoi.policy.rules import Verdict
from kakoi.redact import redact

OK: Final = 0
REJECTED: Final = 1
FAILED: Final = 2
NO_LIST: Final = 3
UNKNOWN_TYPE: Final = 4
# The only copy of the lists, of the installer in images, and of what images are made of.
SHIPPED: Final = Path(__file__).resolve().parent.parent / "images" / "allowlist"
_LAST_WORDS: Final = 400
_MAX_LIST_BYTES: Final = 4 * 1024 * 1024


class PackagePlace(Protocol):
    """Where packages are installed. KakoiError: it could not be tried, and why."""

    async def install(self, ecosystem: Ecosystem, wanted: str) -> "Ran":
        """Ask the package manager for `wanted`, which is on the list."""
        ...


@dataclass(frozen=True, slots=True)
class Ran:
    """What a package manager answered. `came`: all that was installed, as `NAME VERSION`."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    came: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Installed:
    """What came of a request, and what a shell is told.

    `also`: what else was installed because the package depends on it, as `NAME VERSION`.
    """

    result: InstallResult
    exit_code: int
    stdout: str = ""
    also: tuple[str, ...] = ()


class Installer:
    """Installs listed packages in one place, and logs every request.

    `log`: None writes nothing down. `clock`: the time of day, in UTC.
    `tell_rejected`: is handed each refusal of a list, as what the policy would have said.
    """

    def __init__(
        self,
        lists: AllowlistConfig,
        place: PackagePlace,
        *,
        log: InstallLog | None,
        clock: Callable[[], datetime],
        tell_rejected: Callable[[Decision], Awaitable[None]] | None = None,
    ) -> None:
        self._lists = lists
        self._place = place
        self._log = log
        self._clock = clock
        self._tell_rejected = tell_rejected

    async def install(self, request: InstallRequest) -> Installed:
        """Install one package. Every outcome is a value, and in the log when this returns."""
        try:
            done = await self._install(request)
        except asyncio.CancelledError:
            self._write(self._done(request, "failed", FAILED, error="interrupted"))
            raise
        self._write(done)
        if done.exit_code == REJECTED and self._tell_rejected is not None:
            await self._tell_rejected(_rejection(request, done.result.error or ""))
        return done

    def _write(self, done: Installed) -> None:
        if self._log is not None:
            self._log.append(done.result, also=done.also)

    async def _install(self, request: InstallRequest) -> Installed:
        if self._lists.of(request.type) is None:
            return self._done(request, "failed", NO_LIST, error="there is no list")
        answer = check(request, self._lists)
        if not answer:
            return self._done(request, "rejected", REJECTED, error=answer.reason)
        began = time.monotonic()
        try:
            ran = await self._place.install(request.type, answer.wanted)
            error = last_words(ran.stderr)
        except KakoiError as failure:
            ran, error = Ran(FAILED), str(failure) + (f"; {failure.hint}" if failure.hint else "")
        took_ms = round((time.monotonic() - began) * 1000)
        if ran.exit_code != 0:
            error = error or f"exit status {ran.exit_code}"
            return self._done(request, "failed", FAILED, error=error, duration_ms=took_ms)
        done = self._done(request, "success", OK, duration_ms=took_ms)
        return Installed(done.result, OK, ran.stdout, _also(request, ran.came))

    def _done(
        self,
        request: InstallRequest,
        status: Status,
        exit_code: int,
        *,
        error: str | None = None,
        duration_ms: int | None = None,
    ) -> Installed:
        result = InstallResult(
            timestamp=self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            type=request.type,
            package=plain(request.package),
            status=status,
            duration_ms=duration_ms,
            error=error,
        )
        return Installed(result, exit_code)


def requests_from(kind: str, packages: Sequence[str]) -> list[InstallRequest]:
    """Requests as they come from outside; a type that does not exist is an error."""
    if not is_ecosystem(kind):
        raise ConfigurationError(
            f"there is no type `{plain(kind)}` of packages", hint=f"use {', '.join(ECOSYSTEMS)}"
        )
    return [InstallRequest(kind, package) for package in packages]


def read_lists(folder: Path = SHIPPED) -> AllowlistConfig:
    """The lists `apt.txt`, `pip.txt` and `npm.txt` of a folder, those that are there."""
    return AllowlistConfig(**{each: _read_list(each, folder) for each in ECOSYSTEMS})


def _read_list(ecosystem: Ecosystem, folder: Path) -> Allowlist | None:
    path = folder / f"{ecosystem}.txt"
    try:
        # Not blocking: nobody may be at the other end of a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(_MAX_LIST_BYTES + 1)
    except OSError:  # A list that cannot be read is none: nothing of it is allowed.
        return None
    if len(data) > _MAX_LIST_BYTES:
        raise ConfigurationError(f"{path} has more than {_MAX_LIST_BYTES} bytes; that is no list")
    return parse(ecosystem, data.decode("utf-8", "surrogateescape"))


def last_words(text: str) -> str:
    """The end of what a package manager said, in one line and without secrets."""
    return " ".join(redact(text[-10 * _LAST_WORDS :]).split())[-_LAST_WORDS:]


def _also(request: InstallRequest, came: Sequence[str]) -> tuple[str, ...]:
    asked = name_of(request)
    names = [each.rpartition(" ")[0] for each in came]
    return tuple(
        each
        for each, name in zip(came, names, strict=True)
        if name_of(InstallRequest(request.type, name)) != asked
    )


def _rejection(request: InstallRequest, why: str) -> Decision:
    """That a list does not have a package, as what the policy would say of the installer."""
    text = shlex.join([INSTALLER, request.type, request.package])
    finding = Finding("unlisted-packages", Verdict.DENY, 0, len(text), text, why, HINT)
    return decision_from(text, [finding])
