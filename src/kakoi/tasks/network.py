"""What the environment of a task can reach: each has a proxy with its own list.

The list is stored beside the container, so a process that attaches later applies the same one.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Protocol

from kakoi._support.late import dataclass
from kakoi.audit import AuditLog
from kakoi.backends.adapter import PROXIED
from kakoi.backends.outlet import Outlet, proxy_variables
from kakoi.errors import SandboxError
from kakoi.gate import RecordLabels
from kakoi.gate.connections import connection_recorder
from kakoi.network.domains import EVERYTHING_PUBLIC, Domains, parse_domains
from kakoi.network.proxy import ConnectionDecision, Proxy, Recorder
from kakoi.results import BlockedConnection
from kakoi.tasks.checkout import CloneError

SETTING = "tasks.network.allowed_domains"


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """`open`: every public host; `allowlist`: `domains`; any other network: nothing."""

    network: str
    domains: tuple[str, ...] = ()

    @property
    def allowed(self) -> Domains:
        """The domains for the proxy; ConfigurationError says which line is wrong."""
        if self.network == "open":
            return EVERYTHING_PUBLIC
        listed = self.domains if self.network == "allowlist" else ()
        return parse_domains(listed, origin=SETTING)

    def to_json(self) -> str:
        """What a process that attaches needs to know."""
        return json.dumps({"network": self.network, "domains": self.domains})

    @classmethod
    def from_json(cls, note: str) -> "NetworkAccess":
        """The stored access; SandboxError if it cannot be read: a list is never guessed."""
        try:
            found = json.loads(note)
            return cls(str(found["network"]), tuple(map(str, found["domains"])))
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                "the network access of this environment is unknown", hint="prepare it again"
            ) from error


class ProxyFactory(Protocol):
    """Creates a proxy."""

    def __call__(self, domains: Domains, /, *, record: Recorder) -> Proxy: ...


class TaskProxy:
    """The proxy of one environment, whose container may still wait for a task (`Pool`)."""

    def __init__(
        self, access: NetworkAccess, *, audit: AuditLog | None, make: ProxyFactory = Proxy
    ) -> None:
        self._audit = audit
        self._record: Recorder | None = None
        self.access = access
        self.proxy = make(access.allowed, record=self._recorded)
        self.outlet = Outlet(self.proxy.serve, proxy_variables(), self.proxy.serve_names)

    def record_for(self, task_uuid: str) -> None:
        """Record connections under this task from now on."""
        if self._audit is not None:
            self._record = connection_recorder(self._audit, RecordLabels(task=task_uuid))

    def set_access(self, access: NetworkAccess) -> None:
        """Allow this from now on, and close open connections to anything else."""
        self.access = access
        self.proxy.change(access.allowed)

    async def close(self) -> None:
        """Stop serving."""
        await self.proxy.close()

    async def _recorded(self, decision: ConnectionDecision) -> None:
        if self._record is not None:
            await self._record(decision)


def is_proxied(network: str | None) -> bool:
    """Does this network go through a proxy of kakoi?"""
    return network in PROXIED


@contextlib.contextmanager
def explain_refusals(task_proxy: TaskProxy | None) -> Iterator[None]:
    """If a clone fails because the proxy refused a connection, say so, with a hint."""
    watch = None if task_proxy is None else task_proxy.proxy.watch_refusals()
    try:
        yield
    except CloneError as error:
        if watch is None or not watch.blocked:
            raise
        raise CloneError(
            f"cloning {error.details.get('repository', 'the project')} failed: {watch.blocked[0]}",
            details={**error.details, "cause": "may not be reached"},
            hint=refusal_hint(watch.blocked[0]),
        ) from error


def refusal_hint(blocked: BlockedConnection) -> str:
    """How to allow the connection."""
    if blocked.line:
        return f"add `{blocked.line}` to {SETTING}"
    return (
        "private networks are blocked unless they are listed: set tasks.network.whitelist_mode, and"
        f" add the name and the network (10.1.0.0/16) to {SETTING}"
    )
