"""SandboxFactory: the sandbox that was asked for, else the named fallback, else an error."""

import difflib
import logging
from collections.abc import Callable, Mapping

from kakoi.errors import ConfigurationError, EnvironmentUnavailableError
from kakoi.sandbox.adapter import Availability, SandboxAdapter

_log = logging.getLogger(__name__)
AUTO = "auto"
# What `auto` tries, the best first: bubblewrap starts faster and needs no engine. Never the host.
AUTO_ORDER = ("bubblewrap", "docker")


class SandboxFactory:
    """Makes sandboxes by name. `makers` knows how; nothing is made before it is asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], SandboxAdapter]]) -> None:
        self._makers = makers

    async def create(self, type: str = AUTO, fallback: str | None = None) -> SandboxAdapter:
        """The first sandbox that works, of `type` and then `fallback` (with a warning).

        EnvironmentUnavailableError: none does; it says why, for each, and what would help.
        """
        refused: dict[str, Availability] = {}
        for name in self._candidates(type):
            if adapter := await self._usable(name, refused):
                return adapter
        if fallback is not None:
            for name in self._candidates(fallback):
                if adapter := await self._usable(name, refused):
                    reasons = "; ".join(f"{each}: {why.reason}" for each, why in refused.items())
                    _log.warning("falling back to `%s` (%s)", name, reasons)
                    return adapter
        raise _none_usable(type, refused)

    def _candidates(self, name: str) -> tuple[str, ...]:
        if name == AUTO:
            return tuple(each for each in AUTO_ORDER if each in self._makers)
        if name not in self._makers:
            close = difflib.get_close_matches(name, [AUTO, *self._makers], n=1)
            advice = f"; did you mean `{close[0]}`?" if close else ""
            raise ConfigurationError(
                f"there is no sandbox `{name}`{advice}",
                hint=f"one of: {', '.join([AUTO, *self._makers])}",
            )
        return (name,)

    async def _usable(self, name: str, refused: dict[str, Availability]) -> SandboxAdapter | None:
        adapter = self._makers[name]()
        found = await adapter.availability()
        if found:
            return adapter
        refused[name] = found
        await adapter.cleanup()
        return None


def _none_usable(type: str, refused: Mapping[str, Availability]) -> EnvironmentUnavailableError:
    reasons = "; ".join(f"{name}: {found.reason}" for name, found in refused.items())
    fix = next((found.fix for found in refused.values() if found.fix), "")
    return EnvironmentUnavailableError(
        f"no sandbox can be used here ({reasons})",
        details={"environmentType": type, **{name: why.reason for name, why in refused.items()}},
        hint=f"{fix}; `kakoi doctor` tells more" if fix else "`kakoi doctor` tells more",
    )
