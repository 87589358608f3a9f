"""Sessions: where a client's commands start, with which variables, and what a person agreed to.

A session is named by its client and belongs to one connection. It keeps the directory in which the
last command ended, and the variables that were given by argument or exported by a command.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

_MOST_SESSIONS: Final = 1024
_MOST_JOBS: Final = 1024
_MOST_AGREED: Final = 256
_LONGEST_CWD: Final = 4096


@dataclass(slots=True)
class Session:
    """What is kept between two calls."""

    owner: str
    name: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _agreed: set[tuple[str, str]] = field(default_factory=set)

    @property
    def label(self) -> str:
        """As it is recorded: by a digest, because a connection's id is all it takes to use it."""
        if not self.owner:
            return f"mcp:{self.name}"
        return f"mcp:{hashlib.sha256(self.owner.encode()).hexdigest()[:8]}:{self.name}"

    def directory(self, workdir: str) -> str:
        """The directory that `workdir` names here; empty is where the last command ended."""
        return os.path.normpath(os.path.join(self.cwd, workdir))

    def went_to(self, cwd: str | None) -> None:
        """A command has ended there, says the sandbox."""
        if cwd and cwd.startswith("/") and len(cwd) <= _LONGEST_CWD and "\0" not in cwd:
            self.cwd = os.path.normpath(cwd)

    def agree(self, command: str, cwd: str) -> None:
        """A person does not want to be asked again about this very command."""
        if len(self._agreed) < _MOST_AGREED:
            self._agreed.add((command, cwd))

    def has_agreed(self, command: str, cwd: str) -> bool:
        """Does it run without a question, because of the answer to an earlier one?"""
        return (command, cwd) in self._agreed


class Sessions:
    """All of them, and whose jobs are whose. What was not used for longest is forgotten."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._jobs: OrderedDict[str, Session] = OrderedDict()
        self._open: set[str] = set()

    def get(self, owner: str, name: str) -> Session:
        """The session of that name, new if there is none."""
        key = (owner, name)
        session = self._sessions.setdefault(key, Session(owner, name, self._cwd))
        self._sessions.move_to_end(key)
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def has_started(self, job: str, session: Session) -> None:
        """The job was started in that session."""
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
