"""Late dataclasses and patterns behave like those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import re
from typing import ClassVar

import pytest

from kakoi._support.late import dataclass, pattern


@dataclass(frozen=True, slots=True)
class Point:
    """A value."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 2
    notes: list[str] = dataclasses.field(default_factory=list, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Point):
    """The same with a name."""

    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", "unnamed")


@dataclass
class Open:
    """Can be changed."""

    x: int = 1
    y: list[int] = dataclasses.field(default_factory=list)


def test_values_compare_hash_and_show_by_their_fields() -> None:
    assert Point(1) == Point(1, 2, ["other"])
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != Point(2)
    assert repr(Point(1)) == "Point(x=1, y=2)"
    assert Point(1).notes is not Point(1).notes
    assert Point.kind == "point"


def test_a_frozen_value_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Point(1).x
    changed = Open()
    changed.x = 5
    assert changed == Open(5)
    assert getattr(Open, "__hash__") is None  # noqa: B009 - mypy knows it cannot be
    assert Open.x == 1


def test_fields_are_inherited_and_can_need_names() -> None:
    assert Named(1, name="n").y == 2
    assert Named(1).name == "unnamed"
    with pytest.raises(TypeError):
        Named(1, 2, [], "n")  # type: ignore[call-arg]
    assert not hasattr(Named(1), "__dict__")


def test_the_library_works_with_it() -> None:
    assert dataclasses.replace(Point(1), x=3) == Point(3)
    assert dataclasses.asdict(Named(1, name="n")) == {"x": 1, "y": 2, "notes": [], "name": "n"}
    assert [each.name for each in dataclasses.fields(Named)] == ["x", "y", "notes", "name"]
    assert str(inspect.signature(Open)) == "(x: int = 1, y: list[int] = <factory>) -> None"
    again = pickle.loads(pickle.dumps(Point(1)))  # noqa: S301 - written one line above
    assert copy.deepcopy(Point(1)) == again == Point(1)
    match Point(7):
        case Point(x, _, _):
            assert x == 7


def test_a_dataclass_of_the_library_can_inherit() -> None:
    @dataclasses.dataclass(frozen=True)
    class Below(Point):
        z: int = 0

    assert Below(1, z=3).z == 3


def test_a_pattern_is_compiled_on_first_use() -> None:
    broken = pattern("(")
    with pytest.raises(re.error):
        broken.match("x")
    found = pattern(r"A(?P<n>\d)", re.IGNORECASE)
    assert found.fullmatch("a1")
    assert found.sub("-", "xa1") == "x-"
    assert found.pattern == r"A(?P<n>\d)"
