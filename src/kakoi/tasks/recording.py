"""What is recorded of environments themselves: that one is made, and what came of it."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Final

from kakoi.audit import AuditEntry, AuditLog, Event
from kakoi.errors import KakoiError
from kakoi.results import Reason
from kakoi.runner.commands import new_id
from kakoi.tasks.remotes import parse_remote
from kakoi.tasks.task import Task
from kakoi.waiting import finish

# What such a record has for its session: no command of an agent has that.
SESSION: Final = "kakoi environments"


@contextlib.asynccontextmanager
async def recorded(audit: AuditLog | None, task: Task, *, sandbox: str) -> AsyncIterator[None]:
    """A record before the block, and one after it: its `reason` is the code of what failed."""
    if audit is None:
        yield
        return
    entry = AuditEntry(
        event=Event.STARTED,
        id=new_id(),
        command=f"prepare {parse_remote(task.repository).url}",
        sandbox=sandbox,
        session=SESSION,
        task=task.uuid,
    )
    await asyncio.to_thread(audit.append, entry)
    code, why = str(Reason.CANCELLED), ""
    try:
        yield
        code = str(Reason.EXITED)
    except KakoiError as error:
        code, why = error.code, str(error)
        raise
    finally:
        status = int(code != Reason.EXITED)
        last = dataclasses.replace(entry, event=Event.ENDED, command="")
        last = dataclasses.replace(last, reason=code, error=why, exit_code=status)
        with contextlib.suppress(KakoiError):
            await finish(asyncio.to_thread(audit.append, last))
