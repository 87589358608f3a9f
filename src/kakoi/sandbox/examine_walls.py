"""What Landlock keeps in a sandbox that is being examined, found by trying it."""

import socket
from typing import Final

from kakoi.runner.channel import RunnerChannel
from kakoi.runner.commands import Channel, Command
from kakoi.sandbox.landlock import FILES_ABI, SCOPES_ABI
from kakoi.sandbox.machine import Check, Status, good

_COMMAND_S: Final = 15.0


def landlock_checks(area: str, channel: Channel) -> list[Check]:
    """Can commands signal the runner? Could the kernel keep a list of programs there?"""
    abi = channel.hello.landlock if isinstance(channel, RunnerChannel) else 0
    signals = _check(
        area, "runner", abi >= SCOPES_ABI, "commands cannot signal it", "commands can signal it"
    )
    no_list = "the kernel keeps no list of programs there (kernel_allowlist)"
    a_list = "the kernel can keep the list of programs (kernel_allowlist)"
    return [signals, _check(area, "programs", abi >= FILES_ABI, a_list, no_list)]


def _check(area: str, name: str, holds: bool, kept: str, not_kept: str) -> Check:
    return good(area, name, kept) if holds else Check(area, name, Status.NOT_ENFORCED, not_kept)


async def try_sockets(channel: Channel) -> tuple[bool, str]:
    """Connect from inside to somebody who listens on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        text = f"command -v bash >/dev/null && exec bash -c 'echo x >/dev/tcp/127.0.0.1/{port}'"
        result = await channel.run(Command(command=text, timeout_s=_COMMAND_S))
        try:
            server.accept()[0].close()
        except BlockingIOError:
            reached = False
        else:
            reached = True
    if reached or result.ok:
        return False, "a service of this machine was reached"
    return True, "nothing can be reached, not even by itself"
