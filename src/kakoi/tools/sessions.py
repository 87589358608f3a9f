"""Sessions: where a caller's commands start, with which variables, and what the user approved.

A session keeps the directory in which its last command ended, and the variables that were passed as
arguments or exported by a command. A caller with its own connection chooses the names of its
sessions. Other callers get an unguessable name in the answer to the command that started the
session, and present it to continue. Callers never share state.
"""

import asyncio
import hashlib
import os
import secrets
from collections import OrderedDict
from dataclasses import field
from typing import Final

from kakoi._support.late import dataclass
from kakoi.errors import ConfigurationError

DEFAULT_SESSION: Final = "default"
_MOST_SESSIONS: Final = 1024
_MOST_JOBS: Final = 1024
_MOST_AGREED: Final = 256
_LONGEST_CWD: Final = 4096


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `identity`: the name of its token. `connection`: its id. Both can be empty.

    `is_connected`: everything from this caller comes from one client.
    """

    identity: str = ""
    connection: str = ""
    is_connected: bool = True


@dataclass(slots=True)
class ToolSession:
    """What is kept between calls. Without a connection, `name` is a secret.

    `door`: how calls get here, for the labels in the audit log.
    """

    caller: Caller
    name: str
    cwd: str
    door: str
    env: dict[str, str] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _agreed: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def scope(self) -> tuple[Caller, str]:
        """Identifies the sessions whose jobs and installations one caller can see."""
        return self.caller, self.secret_name

    @property
    def secret_name(self) -> str:
        """The name to present to continue; empty if the caller chose it."""
        return "" if self.caller.is_connected else self.name

    @property
    def label(self) -> str:
        """The label in the audit log: a digest, because the name is enough to use a session."""
        return self.label_prefix + (self.name if self.caller.is_connected else "")

    @property
    def label_prefix(self) -> str:
        """The prefix of the labels of all sessions with the same scope, and of no others."""
        if self.caller == Caller():
            return f"{self.door}:"
        secret = f"{self.caller.connection}:{self.secret_name}"
        digest = hashlib.sha256(secret.encode()).hexdigest()[:16]
        # No colon after a name: `token:` would make what follows look like a secret.
        return f"{self.door}:{digest}/{self.caller.identity}/"

    def directory(self, workdir: str) -> str:
        """Return the absolute path of `workdir`; empty means where the last command ended."""
        return os.path.normpath(os.path.join(self.cwd, workdir))

    def went_to(self, cwd: str | None) -> None:
        """Remember the directory in which a command ended, as the sandbox reports it."""
        if cwd and cwd.startswith("/") and len(cwd) <= _LONGEST_CWD and "\0" not in cwd:
            self.cwd = os.path.normpath(cwd)

    def agree(self, command: str, cwd: str, given: str = "") -> None:
        """Remember that the user approved this exact command with this input for the session."""
        if len(self._agreed) < _MOST_AGREED:
            self._agreed.add((command, cwd, given))

    def has_agreed(self, command: str, cwd: str, given: str = "") -> bool:
        """Whether the user has approved this exact command for the session."""
        return (command, cwd, given) in self._agreed


_Key = tuple[Caller, str]


class Sessions:
    """All sessions and their jobs. The least recently used are forgotten.

    `cwd`: where a new session starts. `door`: see ToolSession.
    """

    def __init__(self, cwd: str, *, door: str) -> None:
        self._cwd = cwd
        self._door = door
        self._sessions: OrderedDict[_Key, ToolSession] = OrderedDict()
        # Handed out, but not presented yet. Many are created and few come back, so they must not
        # displace the others.
        self._new: OrderedDict[_Key, ToolSession] = OrderedDict()
        self._jobs: OrderedDict[str, ToolSession] = OrderedDict()
        self._open: set[str] = set()

    def get(self, caller: Caller, name: str = DEFAULT_SESSION) -> ToolSession:
        """Return the session of that name. ConfigurationError: this caller never got that name.

        Without a connection the default is a session for this one call, unless it is kept.
        """
        if not caller.is_connected and name == DEFAULT_SESSION:
            return self._new_session(caller, f"s-{secrets.token_hex(16)}")
        key = (caller, name)
        session = self._new.pop(key, None) or self._sessions.get(key)
        if session is None:
            if not caller.is_connected:
                raise ConfigurationError(
                    f"there is no session {name!r}",
                    hint="omit `session`: the answer names a new one; old sessions are forgotten",
                )
            session = self._new_session(caller, name)
        _put(self._sessions, key, session)
        return session

    def _new_session(self, caller: Caller, name: str) -> ToolSession:
        return ToolSession(caller, name, self._cwd, self._door)

    def keep(self, session: ToolSession) -> None:
        """Let later calls find a session that `get` created for one call."""
        key = (session.caller, session.name)
        if key not in self._sessions:
            _put(self._new, key, session)

    def has_started(self, job: str, session: ToolSession) -> None:
        """Remember that the job was started in that session."""
        self.keep(session)
        self._jobs[job] = session
        self._open.add(job)
        if len(self._jobs) > _MOST_JOBS:
            self._open.discard(self._jobs.popitem(last=False)[0])

    def of_job(self, job: str) -> ToolSession | None:
        """Return the session in which a job was started."""
        return self._jobs.get(job)

    def take_ended(self, job: str) -> ToolSession | None:
        """Return the session of an ended job, only once: later commands continue from it."""
        if job not in self._open:
            return None
        self._open.discard(job)
        return self._jobs.get(job)


def _put(sessions: OrderedDict[_Key, ToolSession], key: _Key, session: ToolSession) -> None:
    sessions[key] = session
    sessions.move_to_end(key)
    if len(sessions) > _MOST_SESSIONS:
        sessions.popitem(last=False)
