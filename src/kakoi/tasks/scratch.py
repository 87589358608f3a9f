"""Folders for one step of a task, beside those of others in the temporary one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from kakoi.removing import remove_tree
from kakoi.sandbox.own_folders import OwnFolder, sweep
from kakoi.waiting import finish


@contextlib.asynccontextmanager
async def scratch_folder(prefix: str) -> AsyncIterator[Path]:
    """A new folder, removed at the end; what others have left who were killed goes as well."""
    await finish(asyncio.to_thread(sweep, prefix, remove_tree))
    folder = OwnFolder(prefix)
    try:
        yield Path(folder.path)
    finally:
        try:
            await finish(asyncio.to_thread(remove_tree, folder.path))
        finally:
            folder.let_go()
