"""Which keyword argument was meant. Nothing is imported at the top, as in `sandbox/sandbox.py`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _F = TypeVar("_F", bound=Callable[..., Any])


def naming_nearest(method: "_F") -> "_F":
    """Let the TypeError for an unknown keyword name the nearest known one."""
    code = method.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    def call(self: object, *args: object, **named: object) -> object:
        for name in named:
            if name not in known:
                from kakoi._support.parsing import nearest

                what = type(self).__name__
                raise TypeError(f"{what}() has no argument {name!r}{nearest(name, known)}")
        return method(self, *args, **named)

    for each in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(call, each, getattr(method, each))
    call.__wrapped__ = method  # type: ignore[attr-defined]  # For `inspect.signature`.
    return call  # type: ignore[return-value]
