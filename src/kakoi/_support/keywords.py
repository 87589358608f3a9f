"""Which keyword argument was meant. Nothing is imported at the top, as in `sandbox/sandbox.py`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _F = TypeVar("_F", bound=Callable[..., Any])

_COROUTINE = 0x80  # The flag of code of an `async def`; `inspect` is not imported for it.


def naming_nearest(method: "_F") -> "_F":
    """Let the TypeError for an unknown keyword name the nearest known one."""
    code = method.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(known)

    def unknown(self: object, named: "dict[str, object]") -> TypeError:
        from kakoi._support.parsing import nearest

        name = next(each for each in named if each not in known)
        kind, called = type(self).__name__, method.__name__
        what = kind if called == "__init__" else f"{kind}.{called}"
        return TypeError(f"{what}() has no argument {name!r}{nearest(name, known)}")

    def call(self: object, *args: object, **named: object) -> object:
        if not named.keys() <= names:
            raise unknown(self, named)
        return method(self, *args, **named)

    async def acall(self: object, *args: object, **named: object) -> object:
        if not named.keys() <= names:
            raise unknown(self, named)
        return await method(self, *args, **named)

    wrapper = acall if code.co_flags & _COROUTINE else call
    for each in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, each, getattr(method, each))
    wrapper.__wrapped__ = method  # type: ignore[attr-defined]  # For `inspect.signature`.
    return wrapper  # type: ignore[return-value]
