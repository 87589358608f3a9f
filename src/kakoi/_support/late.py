"""Dataclasses and regular expressions that are built when they are first used, not when imported.

A command loads some ninety dataclasses and as many expressions, and uses a few of them. Building
them all takes longer than judging a command.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, AnyStr, ClassVar, Final, get_origin

__all__ = ["dataclass", "pattern"]

# --- Regular expressions ---------------------------------------------------------------------


class _Pattern:
    """A `re.Pattern`, compiled when one of its attributes is first read."""

    def __init__(self, text: Any, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)  # From now on it is found without this method.
        return value


if TYPE_CHECKING:
    from dataclasses import dataclass

    def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]: ...
else:

    def pattern(text, flags=0):
        """Return `re.compile(text, flags)`, which is done on first use."""
        return _Pattern(text, flags)

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, eq=True):
        """Return the same class as `dataclasses.dataclass`, whose methods are built on first use.

        `dataclasses.fields`, `replace`, `asdict` and their like work as usual.
        """
        options = _Options(frozen, slots, kw_only, eq)
        return (lambda each: _made(each, options)) if cls is None else _made(cls, options)


# --- Dataclasses -----------------------------------------------------------------------------


class _Options:
    __slots__ = ("eq", "frozen", "kw_only", "slots")

    def __init__(self, frozen: bool, slots: bool, kw_only: bool, eq: bool) -> None:
        self.frozen, self.slots, self.kw_only, self.eq = frozen, slots, kw_only, eq


class _Field:
    """What the methods need to know about a field."""

    __slots__ = ("default", "factory", "init", "kind", "kw_only", "name", "own")

    default: Any
    factory: Any
    own: Any

    def __init__(self, name: str, kind: Any, given: Any, kw_only: bool) -> None:
        self.name, self.kind, self.kw_only = name, kind, kw_only
        self.default, self.factory, self.init, self.own = given, _MISSING, True, None
        if isinstance(given, dataclasses.Field):
            self.default, self.factory, self.init = given.default, given.default_factory, given.init
            self.own = given
            if given.kw_only is not _MISSING:
                self.kw_only = bool(given.kw_only)


_MISSING: Final[Any] = dataclasses.MISSING
_FIELDS: Final = "__late_fields__"


class _Factory:
    """The default of a parameter whose field has a factory; shown as the library shows it."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE: Final = _Factory()


def _made(cls: Any, options: _Options) -> Any:
    kinds = _annotations(cls)
    given = {name: cls.__dict__[name] for name in kinds if name in cls.__dict__}
    own = {each.name: each for each in _fields(kinds, given, options.kw_only)}
    fields = {**_inherited(cls), **own}
    if options.slots:
        cls = _with_slots(cls, own)
    else:
        _set_defaults(cls, own)
    setattr(cls, _FIELDS, fields)
    positional = tuple(n for n, each in fields.items() if each.init and not each.kw_only)
    setattr(cls, "__match_args__", positional)  # noqa: B010 - mypy takes it for a pattern's
    cls.__init__ = _OnFirstUse("__init__", cls, lambda: _init(cls, fields, options))
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        build = _of_the_library(name, cls, kinds, given, options)
        setattr(cls, name, _OnFirstUse(name, cls, build))
    _add_methods(cls, fields, options)
    return cls


def _annotations(cls: Any) -> Mapping[str, Any]:
    found = cls.__dict__.get("__annotations__")  # noqa: RUF063 - `inspect` takes long to import
    if found is None and hasattr(cls, "__annotate__"):  # Python 3.14
        from annotationlib import Format, get_annotations  # type: ignore[import-not-found]

        found = get_annotations(cls, format=Format.FORWARDREF)
    return found or {}


def _fields(kinds: Mapping[str, Any], given: Mapping[str, Any], kw_only: bool) -> Iterator[_Field]:
    for name, kind in kinds.items():
        if kind is dataclasses.KW_ONLY:
            kw_only = True
        elif kind is not ClassVar and get_origin(kind) is not ClassVar:
            yield _Field(name, kind, given.get(name, _MISSING), kw_only)


def _inherited(cls: Any) -> dict[str, _Field]:
    found: dict[str, _Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        found.update(base.__dict__.get(_FIELDS, {}))
    return found


def _with_slots(cls: Any, own: Mapping[str, _Field]) -> Any:
    """Return the class anew: slots can only be given when it is made."""
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    hidden = {"__dict__", "__weakref__", *own}
    inside = {name: value for name, value in cls.__dict__.items() if name not in hidden}
    inside["__slots__"] = tuple(name for name in own if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, inside)
    made.__qualname__ = cls.__qualname__
    return made


def _set_defaults(cls: Any, own: Mapping[str, _Field]) -> None:
    for name, each in own.items():
        if each.own is not None:
            if each.default is _MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, each.default)


class _OnFirstUse:
    """An attribute of a class that is built when it is first read."""

    __slots__ = ("_build", "_cls", "_name")

    def __init__(self, name: str, cls: Any, build: Callable[[], Any]) -> None:
        self._name, self._cls, self._build = name, cls, build

    def __get__(self, instance: Any, owner: Any) -> Any:
        built = self._build()
        setattr(self._cls, self._name, built)
        return built.__get__(instance, owner) if callable(built) else built


def _init(cls: Any, fields: Mapping[str, _Field], options: _Options) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__, "_MADE": _MADE}
    positional: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for name, each in fields.items():
        value = name
        if each.factory is not _MISSING:
            known[f"_make_{name}"] = each.factory
            value = f"_make_{name}() if {name} is _MADE else {name}"
        if not each.init:
            if each.factory is _MISSING:
                continue
            value = f"_make_{name}()"
        else:
            (named if each.kw_only else positional).append(_parameter(each, known))
        body.append(
            f"_set(self, {name!r}, {value})" if options.frozen else f"self.{name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(text, known)  # noqa: S102 - names of fields only, as the library does it
    made = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {n: each.kind for n, each in fields.items() if each.init}
    made.__annotations__["return"] = None
    return made


def _parameter(each: _Field, known: dict[str, Any]) -> str:
    if each.factory is not _MISSING:
        return f"{each.name}=_MADE"
    if each.default is _MISSING:
        return each.name
    known[f"_default_{each.name}"] = each.default
    return f"{each.name}=_default_{each.name}"


def _of_the_library(
    name: str, cls: Any, kinds: Mapping[str, Any], given: Mapping[str, Any], options: _Options
) -> Callable[[], Any]:
    """Return a function that has the library describe the class, on a class with these fields."""

    def build() -> Any:
        # With a text of its own, or the library would work out the signature for one.
        own = {"__module__": cls.__module__, "__doc__": cls.__doc__ or cls.__name__}
        inside = {"__annotations__": dict(kinds), **own, **given}
        plain = type(cls.__name__, (), inside)
        is_params = name == "__dataclass_params__"
        frozen, eq = is_params and options.frozen, is_params and options.eq
        made: Any = dataclasses.dataclass(
            plain, init=False, repr=False, eq=eq, frozen=frozen, kw_only=options.kw_only
        )
        if is_params:
            return made.__dataclass_params__
        found: dict[str, Any] = {}
        for base in cls.__mro__[-1:0:-1]:
            found.update(getattr(base, name, {}))
        return {**found, **made.__dataclass_fields__}

    return build


def _add_methods(cls: Any, fields: Mapping[str, _Field], options: _Options) -> None:
    own = {name: value for name, value in cls.__dict__.items() if value is not None}
    shown = [n for n, each in fields.items() if each.own is None or each.own.repr]
    if "__repr__" not in own:
        cls.__repr__ = _repr(shown)
    if options.eq:
        compared = [n for n, each in fields.items() if each.own is None or each.own.compare]
        key = attrgetter(*compared) if compared else _nothing
        if "__eq__" not in own:
            cls.__eq__ = _equal(key)
        if "__hash__" not in own:
            cls.__hash__ = _hash(key) if options.frozen else None
    if options.frozen:
        cls.__setattr__, cls.__delattr__ = _locked(cls, frozenset(fields))
        if options.slots and "__getstate__" not in own:
            cls.__getstate__, cls.__setstate__ = _state(tuple(fields))


def _nothing(_instance: object) -> tuple[()]:
    return ()


def _repr(names: list[str]) -> Any:
    @recursive_repr("...")
    def shown_as(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return shown_as


def _equal(key: Callable[[Any], Any]) -> Any:
    def equals(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return equals


def _hash(key: Callable[[Any], Any]) -> Any:
    def hashed(self: Any) -> int:
        return hash(key(self))

    return hashed


def _locked(cls: Any, names: frozenset[str]) -> tuple[Any, Any]:
    def set_attribute(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return set_attribute, delete_attribute


def _state(names: tuple[str, ...]) -> tuple[Any, Any]:
    def get_state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def set_state(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return get_state, set_state
