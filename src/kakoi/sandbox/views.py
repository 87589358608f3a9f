"""Root's directory, seen as an unprivileged user's own while a container is being started."""

import contextlib
from collections.abc import AsyncIterator, Mapping

from kakoi.errors import SandboxError
from kakoi.sandbox.mounting import mounting
from kakoi.sandbox.workspace import Seen

_PLACE = "/run/kakoi/views"
_TIMEOUT_S = 30.0


def view_path(name: str) -> str:
    """Where the view for the container of that name is mounted."""
    return f"{_PLACE}/{name}"


@contextlib.asynccontextmanager
async def lent(
    seen: Seen, *, name: str, uid: int, gid: int, data_only: bool = False
) -> AsyncIterator[None]:
    """Have a view of `seen` at `view_path(name)`, in which `uid` and `gid` stand for root.

    `data_only`: nothing is executed from there.

    A container that mounts it keeps it. What is written there is root's on the disk, so the same
    holds as for any directory that root lets others write to: a setuid file made there is root's.
    """
    known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
    access = "data" if data_only else "write"
    order = [str(uid), str(gid), view_path(name), seen.path, known, access]

    def failure(said: Mapping[str, str], stderr: str) -> SandboxError:
        return SandboxError(
            said.get("staging") or f"cannot lend {seen.path} to a container",
            details={"workspace": seen.path, "stderr": stderr},
            hint=f"{said.get('fix') or 'give it to a normal user: chown -R'}; or run without a "
            "workspace",
        )

    async with mounting("lending.py", order, timeout_s=_TIMEOUT_S, failure=failure):
        yield
