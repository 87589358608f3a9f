"""Approvals: answers a gate's questions in one workspace, from what its user wants remembered."""

import logging
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.approvals.forms import AskedCommand, asked_commands
from kakoi.approvals.store import DAY_S, ApprovalStore, RememberedApproval
from kakoi.errors import ConfigurationError
from kakoi.policy.decide import Decision

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApprovalOffer:
    """What a person can have remembered instead of being asked again."""

    commands: tuple[AskedCommand, ...]
    days: int

    @property
    def text(self) -> str:
        """The offer for people: `git push origin <branch>` in /home/me/project, for 30 days."""
        forms = " and ".join(f"`{shown(each.text)}`" for each in self.commands)
        places = dict.fromkeys(shown(each.directory) for each in self.commands)
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return f"{forms} in {' and '.join(places)}, for {days}"


class Approvals:
    """The approvals of one user for one workspace.

    `days`: how long an approval holds; 0 switches all of this off. `clock`: seconds since 1970.
    A store that cannot be trusted answers nothing, with one warning.
    """

    def __init__(
        self, store: ApprovalStore, workspace: str, *, days: int, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._workspace = os.path.realpath(workspace) if workspace else ""
        self._days = days
        self._clock = clock
        self._has_warned = False

    def offer(self, decision: Decision) -> ApprovalOffer | None:
        """Return what could be remembered so that this is not asked again; None if nothing can."""
        commands = self._asked(decision)
        if not commands:
            return None
        try:
            self._stored()
        except ConfigurationError as error:
            self._warn(error)
            return None
        return ApprovalOffer(commands, self._days)

    def answer(self, decision: Decision) -> tuple[RememberedApproval, ...]:
        """Return the approvals that answer every question of the decision; empty if some do not."""
        commands = self._asked(decision)
        if not commands:
            return ()
        try:
            stored = self._stored()
        except ConfigurationError as error:
            self._warn(error)
            return ()
        found = [self._covering(each, stored) for each in commands]
        return tuple(each for each in found if each is not None) if None not in found else ()

    def remember(self, decision: Decision) -> tuple[RememberedApproval, ...]:
        """Remember the answer yes, and return what answers from now on.

        Raises ConfigurationError if it cannot be remembered.
        """
        commands = self._asked(decision)
        if not commands:
            raise ConfigurationError(f"{shown(decision.command)!r} cannot be remembered")
        return self.add(commands)

    def add(self, commands: tuple[AskedCommand, ...]) -> tuple[RememberedApproval, ...]:
        """Remember these commands; what is remembered already holds from today on."""
        self._store.check_outside(self._workspace)
        now = int(self._clock())
        new = tuple(
            RememberedApproval(
                id=secrets.token_hex(4),
                workspace=self._workspace,
                directory=each.directory,
                form=each.form,
                created=now,
                expires=now + self._days * DAY_S,
            )
            for each in commands
        )
        replaced = {(self._workspace, each.directory, each.form) for each in new}

        def changed(stored: tuple[RememberedApproval, ...]) -> list[RememberedApproval]:
            kept = [
                each
                for each in stored
                if (each.workspace, each.directory, each.form) not in replaced
                and now < each.expires
            ]
            return [*kept, *new]

        self._store.change(changed)
        return new

    def _asked(self, decision: Decision) -> tuple[AskedCommand, ...]:
        if self._days < 1 or not self._workspace:
            return ()
        commands = asked_commands(decision)
        return commands if all(self._is_here(each.directory) for each in commands) else ()

    def _is_here(self, directory: str) -> bool:
        """Whether it is in the workspace, and not by a link, which a command could change."""
        inside = self._workspace.rstrip("/") + "/"
        return f"{directory}/".startswith(inside) and os.path.realpath(directory) == directory

    def _stored(self) -> tuple[RememberedApproval, ...]:
        self._store.check_outside(self._workspace)
        return self._store.read()

    def _covering(
        self, asked: AskedCommand, stored: tuple[RememberedApproval, ...]
    ) -> RememberedApproval | None:
        now = self._clock()
        return next(
            (
                each
                for each in stored
                if each.form == asked.form
                and each.directory == asked.directory
                and each.workspace == self._workspace
                and each.holds(now, self._days)
            ),
            None,
        )

    def _warn(self, error: ConfigurationError) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s; %s", error, error.hint)


def describe(approvals: tuple[RememberedApproval, ...]) -> str:
    """Return approvals for the audit log: their ids, forms, and when they expire."""
    return ", ".join(
        f"{each.id} (`{shown(each.text)}` until "
        f"{datetime.fromtimestamp(each.expires, UTC):%Y-%m-%d})"
        for each in approvals
    )
