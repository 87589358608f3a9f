"""Modules of the standard library that others import and few commands use: loaded on first use.

`inspect` alone takes as long to import as judging a command.
Only the program `kakoi` does this: importing the library does not.
"""

import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, cast

# Others import these and, while they are imported themselves, read nothing else of them.
_NAMES: Final = frozenset(
    (
        "asyncio.sslproto base64 csv glob inspect ipaddress linecache ntpath platform "
        "secrets shutil socket ssl tempfile traceback urllib.parse uuid"
    ).split()
)
_lock: Final = RLock()


def load_late() -> None:
    """Have these modules loaded when one of their attributes is first read."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds these modules for the import system, and leaves all others to it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in _NAMES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Loader(spec.loader))
        return spec


class _Loader:
    """Runs a module's code when it is first used."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # `get_source` and the like, for tracebacks.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LateModule(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__dict__["_waiting"] = self._loader


class _LateModule(ModuleType):
    """A module without content until an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        full_name = f"{self.__name__}.{name}"
        known = _KNOWN.get(full_name)
        if known is not None:
            return known
        if full_name == "ssl.SSLSocket" and _is_for_asyncio(sys._getframe(1)):
            return _NoSocket
        with _lock:  # Another thread waits until it is whole.
            loader = self.__dict__.pop("_waiting", None)
            if loader is not None:
                loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        return ModuleType.__getattribute__(self, name)


class _NoSocket:
    """What asyncio gets for `ssl.SSLSocket`, to ask if a socket is one: none is without `ssl`."""


def _is_for_asyncio(caller: FrameType) -> bool:
    return str(caller.f_globals.get("__name__")).startswith("asyncio.")


def _system() -> str:
    """Return what `platform.system` returns."""
    return os.uname().sysname


def _machine() -> str:
    """Return what `platform.machine` returns."""
    return os.uname().machine


def _isfunction(value: object) -> bool:
    """Return what `inspect.isfunction` returns."""
    return isinstance(value, FunctionType)


def _unwrap(function: Any) -> Any:
    """Return what `inspect.unwrap` returns."""
    if not hasattr(function, "__wrapped__"):
        return function
    from inspect import signature  # noqa: F401 - loads the module

    return sys.modules["inspect"].unwrap(function)


def _cleandoc(text: str) -> str:
    """Return what `inspect.cleandoc` returns."""
    first, *rest = text.expandtabs().split("\n")
    margin = min((len(each) - len(each.lstrip()) for each in rest if each.strip()), default=0)
    lines = [first.lstrip(), *(each[margin:] for each in rest)]
    return "\n".join(lines).strip("\n")


def _quote_from_bytes(data: bytes, safe: str | bytes = "/") -> str:
    """Return what `urllib.parse.quote_from_bytes` returns."""
    from urllib.parse import quote

    return quote(data, safe)


def _extract_stack(frame: FrameType | None = None, limit: int | None = None) -> Any:
    """Return what `traceback.extract_stack` returns."""
    from traceback import StackSummary  # noqa: F401 - loads the module

    frame = sys._getframe(1) if frame is None else frame
    return sys.modules["traceback"].extract_stack(frame, limit)


# What click, `uuid`, `pathlib` and asyncio use of these modules in every process.
_KNOWN: Final[Mapping[str, Any]] = {
    "inspect.cleandoc": _cleandoc,
    "inspect.isfunction": _isfunction,
    "inspect.unwrap": _unwrap,
    "platform.machine": _machine,
    "platform.system": _system,
    "traceback.extract_stack": _extract_stack,
    "urllib.parse.quote_from_bytes": _quote_from_bytes,
}
