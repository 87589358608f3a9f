"""`suppress` and `closing`: the library's module takes a tenth of the runner's start-up time.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    class Closable(Protocol):
        def close(self) -> object: ...

    Closed = TypeVar("Closed", bound=Closable)


class suppress:  # noqa: N801 - the name that everybody knows
    """Ends the block silently if it raises one of these errors."""

    __slots__ = ("_errors",)

    def __init__(self, *errors: type[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


class closing:  # noqa: N801 - the name that everybody knows
    """Closes something at the end of the block."""

    __slots__ = ("_thing",)

    def __init__(self, thing: Closable) -> None:
        self._thing = thing

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._thing.close()
