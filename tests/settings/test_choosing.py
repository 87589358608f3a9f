"""Which sandbox `auto` takes, where the first one works but would not hold what was asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi.backends.adapter import Availability, SandboxAdapter
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.select import SandboxFactory, select_backend
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Channel
from kakoi.errors import LimitError

pytestmark = pytest.mark.anyio


class Lax(HostAdapter):
    """Opens for nobody who wants a limit kept."""

    async def channel(self) -> Channel:
        raise LimitError("it cannot keep cpus", hint="use another")


class Missing(HostAdapter):
    async def availability(self) -> Availability:
        return Availability(False, "it is not here")


def factory(folder: Path, second: Callable[[Path], SandboxAdapter]) -> SandboxFactory:
    makers = {"bubblewrap": lambda _: Lax(folder), "docker": lambda _: second(folder)}
    return SandboxFactory(folder, makers=makers)


async def test_the_next_one_is_taken_if_it_can_be_used(tmp_path: Path) -> None:
    chosen = await select_backend(factory(tmp_path, HostAdapter), SandboxConfig(), ())
    assert type(chosen) is HostAdapter


async def test_without_another_one_the_limit_is_what_is_told(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="it cannot keep cpus"):
        await select_backend(factory(tmp_path, Missing), SandboxConfig(), ())
