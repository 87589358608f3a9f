"""What the environment of a task may reach: a proxy for each, with the task's own list.

The list is written down beside the container, so whoever attaches to it serves it by the same.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kakoi.audit import AuditLog
from kakoi.egress.domains import EVERYTHING_PUBLIC, Domains, parse_domains
from kakoi.egress.proxy import Decision, Proxy, Recorder
from kakoi.egress.variables import proxy_variables
from kakoi.errors import SandboxError
from kakoi.gate import Labels
from kakoi.gate.reaching import connection_recorder
from kakoi.results import BlockedConnection
from kakoi.sandbox.adapter import PROXIED
from kakoi.sandbox.outlet import Outlet
from kakoi.tasks.checkout import CloneError

SETTING = "tasks.network.allowed_domains"


@dataclass(frozen=True, slots=True)
class Reachable:
    """`open`: every public host; `allowlist`: `domains`; any other network: nothing."""

    network: str
    domains: tuple[str, ...] = ()

    @property
    def allowed(self) -> Domains:
        """As the proxy wants it; ConfigurationError says which line is wrong."""
        if self.network == "open":
            return EVERYTHING_PUBLIC
        listed = self.domains if self.network == "allowlist" else ()
        return parse_domains(listed, origin=SETTING)

    @property
    def note(self) -> str:
        """For whoever attaches."""
        return json.dumps({"network": self.network, "domains": self.domains})

    @classmethod
    def from_note(cls, note: str) -> "Reachable":
        """What was noted; SandboxError if that cannot be read: nobody guesses a list."""
        try:
            found = json.loads(note)
            return cls(str(found["network"]), tuple(map(str, found["domains"])))
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                "what this environment may reach is not to be found out", hint="prepare it anew"
            ) from error


class MakeProxy(Protocol):
    """How a proxy is made."""

    def __call__(self, domains: Domains, /, *, record: Recorder) -> Proxy: ...


class Reach:
    """The proxy of one environment; its container may wait for a task (pool.py)."""

    def __init__(
        self, reachable: Reachable, *, audit: AuditLog | None, make: MakeProxy = Proxy
    ) -> None:
        self._audit = audit
        self._record: Recorder | None = None
        self.reachable = reachable
        self.proxy = make(reachable.allowed, record=self._recorded)
        self.outlet = Outlet(self.proxy.serve, proxy_variables())

    def belong_to(self, task_uuid: str) -> None:
        """From now on what is reached is recorded as this task's."""
        if self._audit is not None:
            self._record = connection_recorder(self._audit, Labels(task=task_uuid))

    def change(self, reachable: Reachable) -> None:
        """From now on this may be reached, and what is open beyond it is ended."""
        self.reachable = reachable
        self.proxy.change(reachable.allowed)

    async def close(self) -> None:
        """Serve nothing any more."""
        await self.proxy.close()

    async def _recorded(self, decision: Decision) -> None:
        if self._record is not None:
            await self._record(decision)


def is_proxied(network: str | None) -> bool:
    """Does this network lead through a proxy of ours?"""
    return network in PROXIED


@contextlib.contextmanager
def telling_refusals(reach: Reach | None) -> Iterator[None]:
    """A clone that fails because something was refused says so, and what would help."""
    watch = None if reach is None else reach.proxy.watch()
    try:
        yield
    except CloneError as error:
        if watch is None or not watch.blocked:
            raise
        told = refusals(watch.blocked)
        raise CloneError(
            f"cloning {error.details.get('repository', 'the project')} failed: {told[0]}",
            details={**error.details, "cause": "may not be reached"},
            hint=way_out(watch.blocked[0]),
        ) from error


def refusals(blocked: Sequence[BlockedConnection]) -> list[str]:
    """What was refused, in words."""
    return [str(each) for each in blocked]


def way_out(blocked: BlockedConnection) -> str:
    """How it could be reached."""
    if blocked.line:
        return f"add `{blocked.line}` to {SETTING}"
    return (
        "private networks are out of reach unless they are listed: tasks.network.whitelist_mode,"
        f" with the name and the network (10.1.0.0/16) in {SETTING}"
    )
