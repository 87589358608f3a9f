"""The hash of the interpreter is the library's."""

import hashlib

import pytest

from kakoi._support.sha256 import sha256


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100_000])
def test_it_gives_what_the_library_gives(size: int) -> None:
    data = bytes(each % 251 for each in range(size))
    assert sha256(data).hexdigest() == hashlib.sha256(data).hexdigest()
