"""How much a sandbox may ask of its proxy, and how soon."""

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What one sandbox may have. More connections than `connections` wait in the kernel.

    `burst`, `per_s`: how many may be made at once, and then each second. Each is recorded, so
    they are rationed: no sandbox can flood the record.
    `head_s`: for a request or a hello to come. `idle_s`: for a connection to be silent.
    """

    connections: int = 128
    burst: int = 500
    per_s: float = 20.0
    head_s: float = 20.0
    connect_s: float = 20.0
    idle_s: float = 600.0


class Rations:
    """So many at once, and then so many each second."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._left = float(limits.burst)
        self._counted_at = 0.0

    async def take(self) -> None:
        """Have one, now or when there is one to be had."""
        now = asyncio.get_running_loop().time()
        grown = (now - self._counted_at) * self._limits.per_s
        self._left = min(self._left + grown, float(self._limits.burst)) - 1
        self._counted_at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._limits.per_s)
