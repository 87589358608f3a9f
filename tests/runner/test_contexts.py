"""What the runner has instead of modules of the library that take long to load."""

import array
import contextlib
import os
import socket

import pytest

from kakoi.runner import rights
from kakoi.runner.contexts import closing, suppress


@pytest.mark.parametrize(
    ("errors", "raised", "ends_silently"),
    [
        ((OSError,), FileNotFoundError(), True),
        ((OSError, ValueError), UnicodeDecodeError("utf-8", b"", 0, 1, ""), True),
        ((OSError,), KeyError(), False),
        ((), OSError(), False),
    ],
)
def test_errors_are_suppressed_as_the_library_does_it(
    errors: tuple[type[BaseException], ...], raised: BaseException, ends_silently: bool
) -> None:
    for suppressing in (suppress(*errors), contextlib.suppress(*errors)):
        with contextlib.ExitStack() as outside:
            if not ends_silently:
                outside.enter_context(pytest.raises(type(raised)))
            with suppressing:
                raise raised


def test_what_is_closed_at_the_end_is_closed_after_an_error_too() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours):
        pass
    with pytest.raises(KeyError), closing(theirs):
        raise KeyError
    assert (ours.fileno(), theirs.fileno()) == (-1, -1)


def test_descriptors_are_packed_as_an_array_of_the_library_would_be() -> None:
    for numbers in ([], [0], [3, 2**31 - 1, -1]):
        data = rights.pack(numbers)
        assert data == array.array("i", numbers).tobytes()
        assert rights.unpack(data) == numbers
    assert rights.unpack(rights.pack([7]) + b"xx") == [7]
    assert len(rights.pack([1])) == rights.SIZE


def test_a_packed_descriptor_arrives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights.pack([ours.fileno()]))]
        ours.sendmsg([b"x"], sent)
        _, ((_, _, data),), _, _ = theirs.recvmsg(1, socket.CMSG_LEN(rights.SIZE))
        (arrived,) = rights.unpack(data)
        assert os.path.sameopenfile(arrived, ours.fileno())
        os.close(arrived)
