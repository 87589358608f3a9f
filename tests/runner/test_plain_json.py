"""JSON as the runner reads and writes it: as the package `json` does, and without it."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.channel.delivery import DELIVERED
from kakoi.runner import plain_json

SOURCES = Path(plain_json.__file__).parents[2]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(categories=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_a_value_goes_there_and_back_as_with_the_package(value: Any) -> None:
    assert plain_json.dumps(value) == json.dumps(value).encode()
    assert plain_json.loads(plain_json.dumps(value)) == value


@given(st.binary() | st.text().map(str.encode))
def test_what_is_not_json_is_refused_as_by_the_package(data: bytes) -> None:
    try:
        expected = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - of any kind
            plain_json.loads(data)
    else:
        assert plain_json.loads(data) == expected


@pytest.mark.parametrize("text", [b"", b" ", b"{", b"[1,]", b"{} {}", b"nul", b'"\x01"', b"\xff"])
def test_a_broken_text_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any kind
        plain_json.loads(text)


def test_space_around_a_value_and_numbers_without_end_are_read() -> None:
    assert plain_json.loads(b" \n[1, Infinity, -Infinity]\t ") == [1, math.inf, -math.inf]
    with pytest.raises(TypeError):
        plain_json.dumps({"x": object()})


def test_a_python_without_these_functions_uses_the_package() -> None:
    code = (
        "import sys; sys.modules['_json'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from kakoi.runner import plain_json\n"
        "print(plain_json.loads(plain_json.dumps({'a': [1, None]})), 'json' in sys.modules)"
    )
    argv = [sys.executable, "-I", "-c", code, str(SOURCES)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{'a': [1, None]} True\n"


def test_a_runner_starts_without_what_takes_long_to_load() -> None:
    """Each of these would be a millisecond or more of every sandbox."""
    heavy = {"json", "re", "enum", "socket", "selectors", "signal", "typing", "glob", "subprocess"}
    heavy |= {"collections", "contextlib", "ctypes", "functools", "types"}
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import kakoi.runner.runner\n"
        "print(sorted(sys.modules))"
    )
    argv = [sys.executable, "-I", "-S", "-c", code, str(SOURCES)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ast.literal_eval(done.stdout))
    assert set(DELIVERED) <= loaded
    assert loaded & heavy == set()
