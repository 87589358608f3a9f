"""Sessions: where a client's commands start, with which variables, and what a person agreed to.

A session keeps the directory in which its last command ended, and the variables that were given by
argument or exported by a command. A client with a connection of its own names its sessions as it
likes. One without gets a name that nobody can guess, in the answer to the command that began the
session, and goes on by presenting it.
"""

import asyncio
import hashlib
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from kakoi.errors import ConfigurationError
from kakoi.mcp_server.callers import Caller

DEFAULT_SESSION: Final = "default"
_MOST_SESSIONS: Final = 1024
_MOST_JOBS: Final = 1024
_MOST_AGREED: Final = 256
_LONGEST_CWD: Final = 4096
_Key = tuple[Caller, str]


@dataclass(slots=True)
class Session:
    """What is kept between two calls. Without a connection its `name` is a secret."""

    caller: Caller
    name: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _agreed: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def scope(self) -> tuple[Caller, str]:
        """The same for all sessions whose jobs and installations one client may know of."""
        return self.caller, self.told_name

    @property
    def told_name(self) -> str:
        """The name to present for going on; empty where the client has chosen it."""
        return "" if self.caller.is_connected else self.name

    @property
    def label(self) -> str:
        """As it is recorded: by a digest of what is all it takes to use it."""
        return self.label_prefix + (self.name if self.caller.is_connected else "")

    @property
    def label_prefix(self) -> str:
        """What the labels of all sessions with the same scope begin with, and no others."""
        if self.caller == Caller():
            return "mcp:"
        secret = f"{self.caller.connection}:{self.told_name}"
        digest = hashlib.sha256(secret.encode()).hexdigest()[:16]
        # No colon after a name: `token:` would make what follows look like a secret.
        return f"mcp:{digest}/{self.caller.identity}/"

    def directory(self, workdir: str) -> str:
        """The directory that `workdir` names here; empty is where the last command ended."""
        return os.path.normpath(os.path.join(self.cwd, workdir))

    def went_to(self, cwd: str | None) -> None:
        """A command has ended there, says the sandbox."""
        if cwd and cwd.startswith("/") and len(cwd) <= _LONGEST_CWD and "\0" not in cwd:
            self.cwd = os.path.normpath(cwd)

    def agree(self, command: str, cwd: str, given: str = "") -> None:
        """A person does not want to be asked again about this very command with this input."""
        if len(self._agreed) < _MOST_AGREED:
            self._agreed.add((command, cwd, given))

    def has_agreed(self, command: str, cwd: str, given: str = "") -> bool:
        """Does it run without a question, because of the answer to an earlier one?"""
        return (command, cwd, given) in self._agreed


class Sessions:
    """All of them, and whose jobs are whose. What was not used for longest is forgotten."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._sessions: OrderedDict[_Key, Session] = OrderedDict()
        # Handed out, and not presented yet: of those many are made and few come back, so they do
        # not displace the others.
        self._new: OrderedDict[_Key, Session] = OrderedDict()
        self._jobs: OrderedDict[str, Session] = OrderedDict()
        self._open: set[str] = set()

    def get(self, caller: Caller, name: str = DEFAULT_SESSION) -> Session:
        """The session of that name. ConfigurationError: it was not handed out to this caller.

        Without a connection the default is a session of this one call, unless it is kept.
        """
        if not caller.is_connected and name == DEFAULT_SESSION:
            return Session(caller, f"s-{secrets.token_hex(16)}", self._cwd)
        key = (caller, name)
        session = self._new.pop(key, None) or self._sessions.get(key)
        if session is None:
            if not caller.is_connected:
                raise ConfigurationError(
                    f"there is no session {name!r}",
                    hint="leave `session` out: the answer names a new one; old ones are forgotten",
                )
            session = Session(caller, name, self._cwd)
        _put(self._sessions, key, session)
        return session

    def keep(self, session: Session) -> None:
        """Let later calls find a session that `get` has made for one."""
        key = (session.caller, session.name)
        if key not in self._sessions:
            _put(self._new, key, session)

    def has_started(self, job: str, session: Session) -> None:
        """The job was started in that session."""
        self.keep(session)
        self._jobs[job] = session
        self._open.add(job)
        if len(self._jobs) > _MOST_JOBS:
            self._open.discard(self._jobs.popitem(last=False)[0])

    def of_job(self, job: str) -> Session | None:
        """The session in which a job was started."""
        return self._jobs.get(job)

    def first_to_see_the_end(self, job: str) -> Session | None:
        """The session of a job that has ended, once: later commands have gone on from there."""
        if job not in self._open:
            return None
        self._open.discard(job)
        return self._jobs.get(job)


def _put(sessions: OrderedDict[_Key, Session], key: _Key, session: Session) -> None:
    sessions[key] = session
    sessions.move_to_end(key)
    if len(sessions) > _MOST_SESSIONS:
        sessions.popitem(last=False)
